"""Translation: an encoder–decoder trained on pairs of texts, from any kind of text to any other."""

# Longer than other tasks: pairs of two sides with a tokenizer each, limits of length, and three models.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import flag, flatten, option
from tokenloom.data import registry
from tokenloom.data.pairs import Pair, PairColumns, PairData, looks_like_pairs, read_pairs
from tokenloom.data.report import data_report
from tokenloom.data.samples import Keys, ListSamples, Samples
from tokenloom.data.split import Split, split
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.pairs import pair_baseline
from tokenloom.evaluation.translation import MISSING, corpus_scores
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.models.recurrent_translation import RecurrentTranslator, RecurrentTranslatorConfig
from tokenloom.tasks._seq2seq import PairEvaluateOptions, Seq2SeqTask
from tokenloom.tasks._settings import PART_NAMES, TextTokenization, TransformerSizes, ValidationSplit, refuse_given
from tokenloom.tasks._sizes import SizePreset, rates, size_preset
from tokenloom.tasks.base import NO_SAMPLES, Match, PreparedData, Show, action, need_data
from tokenloom.tokenizers.base import END, UNKNOWN, Ids, TextTokenizer
from tokenloom.tokenizers.text import choose_tokenizer, load_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.losses import LossTerm, LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.utils.names import counted, some

# Without --max-length, longer pairs are an error: memory grows with the square of the length.
MAX_LENGTH = 512
# Small data sets are trained for a number of epochs; once that takes so many steps, for the minutes of the preset.
MAX_EPOCHS, MAX_EPOCH_STEPS = 40, 4_000
# The textbook's training of its encoder–decoder: Adam at a constant learning rate.
CLASSIC_RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 3e-3,
    "weight_decay": 0.0,
    "beta2": 0.999,
    "grad_clip": 0.0,
    "lr_schedule": "wsd",
    "warmup_steps": 0,
    "decay_fraction": 0.0,
}


def _size(depth: int, width: int, heads: int, dropout: float) -> SizePreset:
    recipe = {"batch_size": 64, **rates(width), "weight_decay": 0.05, "decay_fraction": 1.0, "minutes": 5.0}
    return SizePreset({"depth": depth, "width": width, "heads": heads}, dropout, recipe)


SIZES = {
    "nano": _size(1, 64, 4, 0.0),
    "small": _size(2, 128, 4, 0.1),
    "medium": _size(3, 256, 8, 0.1),
    "large": _size(6, 512, 8, 0.1),
}


@dataclass(frozen=True)
class TranslationSettings(TransformerSizes, TextTokenization, ValidationSplit):
    """How pairs are read and tokenized, and the model's sizes; None is derived."""

    group: ClassVar[str] = "Data"

    target_file: str | None = option(None, "file whose line n is the target of line n of the data")
    source_column: str | None = option(None, "table column or JSON field with the sources")
    target_column: str | None = option(None, "table column or JSON field with the targets")
    header: bool | None = option(None, "the first row of a table names its columns [default: guessed]")
    encoding: str = option("utf-8", "character encoding of the files")
    separate_vocab: bool = option(False, "a tokenizer for each side instead of one for both")
    max_length: int | None = option(
        None, f"maximum length of a side in tokens [default: the longest, up to {MAX_LENGTH}]", low=1
    )
    too_long: Literal["error", "drop"] = option("error", "what to do with longer pairs")
    model: Literal["transformer", "rnn", "rnn-attention"] = option(
        "transformer",
        "transformer: encoder–decoder with cross-attention; rnn: recurrent (GRU), with the source in one vector;"
        " rnn-attention: recurrent, with attention over the source",
        group="Model",
    )
    size: Literal["nano", "small", "medium", "large"] = option(
        "small", "size preset: the sizes that are not given", group="Model"
    )
    label_smoothing: float = option(
        0.0, "probability spread over all tokens in the training targets", low=0, below=1, group="Optimization"
    )

    def check(self) -> None:
        """Raise UserError for options of the transformer with another model."""
        super().check()
        if self.model != "transformer":
            refuse_given(self, ("preset", "heads", *PART_NAMES), f"with --model {self.model}")


@dataclass(frozen=True)
class EncodedPair:
    """A pair and its ids, without the end tokens."""

    pair: Pair
    source: Ids
    target: Ids

    @property
    def length(self) -> int:
        """Return the number of tokens of the longer side."""
        return max(len(self.source), len(self.target))


@dataclass(frozen=True)
class PairSamples(ListSamples):
    """Encoded pairs, which are batched with others of similar length."""

    items: Sequence[EncodedPair]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Return the number of tokens of both sides together."""
        return np.array([len(self.items[int(k)].source) + len(self.items[int(k)].target) for k in keys], dtype=np.int64)


def recognize(source: str) -> Match | None:
    """Match tables whose columns are named as a source and a target, and built-in pairs."""
    if source in registry.names():
        return Match("pairs") if issubclass(registry.find(source).data_class, PairData) else None
    return Match("pairs: its columns are a source and a target") if looks_like_pairs(source) else None


class Translation(Seq2SeqTask):
    """Train an encoder–decoder on pairs of texts; translate and evaluate with it."""

    name = "translation"
    Settings = TranslationSettings
    metrics = (
        Metric("loss", "nats/token", "lower"),
        Metric("loss_ci95", kind="ci95", of="loss", compute=lambda task, sums: sums["loss"].interval()),
        Metric("perplexity", compute=lambda task, sums: math.exp(min(sums["loss"].value, 700.0))),
        Metric("accuracy", "of the tokens, with teacher forcing", "higher", "percent"),
        Metric("exact_match", "of the translations", "higher", "percent"),
        Metric("num_targets", "tokens", kind="count", compute=lambda task, sums: sums["loss"].count),
        Metric("num_pairs", kind="count", label="pairs", compute=lambda task, sums: sums["exact_match"].count),
        # Of greedy translations: only `evaluate` decodes.
        Metric("bleu", "", "higher", label="BLEU", compute=lambda task, sums: None),
        Metric("chrf", "", "higher", label="chrF", compute=lambda task, sums: None),
    )

    def __init__(self, settings: TranslationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._tokenizers: tuple[TextTokenizer, TextTokenizer] | None = None

    # Data.

    @property
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        if self._tokenizers is None:
            raise UserError("there is no tokenizer yet: train on pairs, or load a run")
        return self._tokenizers

    def _read(self, source: str, target_file: str | None = None) -> PairData:
        s: TranslationSettings = self.settings
        columns = PairColumns(s.source_column, s.target_column, s.header)
        if source != self._source and (source in registry.names() or target_file is not None):
            columns = PairColumns()  # The options describe the table of the training.
        return read_pairs(source, target=target_file, columns=columns, encoding=s.encoding)

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: TranslationSettings = self.settings
        source = need_data(self, source)
        if for_evaluation:
            return PreparedData(NO_SAMPLES, self._samples(source))
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = split(self._read(source, s.target_file), s.val_fraction, s.split_seed, validation=val_data)
        if self._tokenizers is None:
            self._tokenizers = self._train_tokenizers(parts)
        train, val = ([self._encode(pair) for pair in part.pairs] for part in (parts.train, parts.validation))
        limit = self._limit([*train, *val])
        notes = list(parts.notes)
        train, val = (self._short(pairs, limit, notes) for pairs in (train, val))
        for purpose, pairs in (("to train on", train), ("to validate on", val)):
            if not pairs:
                raise UserError(f"{source}: no pair {purpose} is at most {limit:,} tokens long ({flag('max_length')})")
        self._set_sizes(max(pair.length for pair in [*train, *val]))
        shown = [name for name in ("model", "width", "depth", "heads", "dropout") if name in self.model_config]
        longest = self.model_config["target_context"]
        return PreparedData(
            PairSamples(train),
            PairSamples(val),
            data_report(replace(parts, notes=notes), self._token_report(train, val)),
            recipe=self._recipe(len(train)),
            auto_settings={**{name: self.model_config[name] for name in shown}, "max_length": longest - 1},
            sequence_length=longest,
            baseline=lambda: pair_baseline([one.pair for one in train], [one.pair for one in val]),
        )

    def _samples(self, source: str, target_file: str | None = None) -> PairSamples:
        """Return all pairs of other data."""
        pairs = [self._encode(pair) for pair in self._read(source, target_file).pairs]
        return PairSamples(self._short(pairs, self._limit(pairs), []))

    def _train_tokenizers(self, parts: Split[PairData]) -> tuple[TextTokenizer, TextTokenizer]:
        """Train on the training pairs; the validation pairs give only the characters that are known."""
        s: TranslationSettings = self.settings
        train, val = (
            [[getattr(pair, side) for pair in part.pairs] for side in ("source", "target")]
            for part in (parts.train, parts.validation)
        )
        if not s.separate_vocab:
            both = choose_tokenizer([*train[0], *train[1]], s.tokenizer, s.vocab_size, (END,), [*val[0], *val[1]])
            return both, both
        source, target = (
            choose_tokenizer(texts, s.tokenizer, s.vocab_size, (END,), alphabet)
            for texts, alphabet in zip(train, val, strict=True)
        )
        return source, target

    def _encode(self, pair: Pair) -> EncodedPair:
        ids = []
        for side, tokenizer in zip(("source", "target"), self.tokenizers, strict=True):
            try:
                ids.append(tokenizer.encode(getattr(pair, side)))
            except UserError as error:
                raise UserError(f"{pair.id}: {side}: {error}; --tokenizer byte-bpe reads any text") from None
        return EncodedPair(pair, *ids)

    def _limit(self, pairs: Sequence[EncodedPair]) -> int:
        """Return the maximum length of a side: the model's, the given one, or that of the longest pair, up to 512."""
        if self.model_config:
            return int(min(self.model_config["source_context"], self.model_config["target_context"])) - 1
        return self.settings.max_length or min(max(pair.length for pair in pairs), MAX_LENGTH)

    def _short(self, pairs: Sequence[EncodedPair], limit: int, notes: list[str]) -> list[EncodedPair]:
        """Return the pairs within the limit. Raise UserError for longer ones, unless they are to be dropped."""
        long = [pair for pair in pairs if pair.length > limit]
        if not long:
            return list(pairs)
        listed = some((f"{one.pair.id} ({one.length:,})" for one in long), 10)
        what = f"{counted(len(long), 'pair')} with more than {limit:,} tokens on a side: {listed}"
        if self.settings.too_long == "error":
            more = "" if self.model_config else f"; {flag('max_length')} N allows longer ones"
            raise UserError(f"{what}; {flag('too_long')} drop drops them{more}")
        notes.append(f"dropped {what}")
        return [pair for pair in pairs if pair.length <= limit]

    def _token_report(self, *parts: Sequence[EncodedPair]) -> dict[str, str]:
        """Return what the data report says of tokens."""
        train, val = (sum(len(one.source) + len(one.target) for one in part) for part in parts)
        source, target = self.tokenizers
        extra = {"tokens": f"{train:,} to train, {val:,} to validate, both sides together"}
        if source is target:
            extra["tokenizer"] = f"{source.kind} for both sides: {source.reason or 'of the run'}"
        else:
            extra["tokenizers"] = (
                f"{source.kind} for sources, vocabulary of {source.vocab_size:,};"
                f" {target.kind} for targets, vocabulary of {target.vocab_size:,}"
            )
        notes = [note for tokenizer in dict.fromkeys((source, target)) for note in tokenizer.notes]
        return extra | ({"vocabulary": " ".join(notes)} if notes else {})

    # Sizes.

    def _set_sizes(self, longest: int) -> None:
        """Set `model_config` and every size that was not given. longest: tokens of the longest side."""
        s: TranslationSettings = self.settings
        if self.model_config:
            return
        preset = size_preset(s.size, SIZES)
        limit = max(longest, s.max_length or 0) + 1
        sizes: dict[str, Any] = {name: getattr(s, name) or value for name, value in preset.sizes.items()}
        dropout = preset.dropout if s.dropout is None else s.dropout
        if s.preset == "classic" and s.dropout is None:
            dropout = 0.0
        if s.model == "transformer":
            parts = s.parts(EncoderDecoderConfig, s.preset)
        else:
            del sizes["heads"]
            parts = {"attention": s.model == "rnn-attention"}
        self.model_config = {
            "model": s.model,
            "source_context": limit,
            "target_context": limit,
            "source_vocab_size": self.tokenizers[0].vocab_size,
            "target_vocab_size": self.tokenizers[1].vocab_size,
            "shared_vocab": not s.separate_vocab,
            **sizes,
            "dropout": dropout,
            **parts,
        }
        try:
            self.build_model(0)
        except ValueError as error:
            raise UserError(f"{error} (--width and --heads decide)") from error
        self.settings = replace(s, **sizes, dropout=dropout)

    def _recipe(self, n: int) -> dict[str, Any]:
        """Return the training settings for n training pairs."""
        s: TranslationSettings = self.settings
        recipe = dict(size_preset(s.size, SIZES).recipe)
        if s.model != "transformer":
            # Muon is for the matrices of a transformer.
            del recipe["muon_lr"]
            recipe["optimizer"] = "adamw"
        elif s.preset == "classic":
            recipe = {**CLASSIC_RECIPE, "batch_size": recipe["batch_size"], "minutes": recipe["minutes"]}
        steps = MAX_EPOCHS * -(-n // recipe["batch_size"])
        return {**recipe, "steps": steps} if steps < MAX_EPOCH_STEPS else recipe

    # Model, loss and metrics.

    def build_model(self, seed: int) -> nn.Module:
        sizes = {name: value for name, value in self.model_config.items() if name != "model"}
        if self.model_config["model"] == "transformer":
            return EncoderDecoder(EncoderDecoderConfig(**sizes), seed)
        sizes = {name: value for name, value in sizes.items() if not name.endswith("_context")}
        return RecurrentTranslator(RecurrentTranslatorConfig(**sizes), seed)

    def collate(self, samples: Sequence[EncodedPair], context: BatchContext) -> Batch:
        target = self.tokenizers[1]
        start, end = torch.tensor([target.vocab_size]), torch.tensor([target.specials[END]])
        rows = [torch.from_numpy(one.target.astype(np.int64)) for one in samples]
        # Padding is at the end only, where the causal mask hides it from all targets.
        ids, _ = pad([torch.cat((start, row)) for row in rows])
        targets, _ = pad([torch.cat((row, end)) for row in rows], IGNORE)
        source = self.source_stream([one.source for one in samples])
        return Batch({"source": source, "target": Stream(ids=ids)}, {"loss": targets})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """Return the loss, the accuracy per token, and `exact_match`: the fraction of pairs whose every token is the
        likeliest with teacher forcing, which is when greedy decoding gives the target."""
        targets, logits = batch.targets["loss"], model(batch)
        asked = targets != IGNORE
        correct = (logits.argmax(-1) == targets) & asked
        unknown = self.tokenizers[1].specials.get(UNKNOWN)
        if unknown is not None:
            correct &= targets != unknown  # An unknown word cannot be right.
        counts = asked.sum(1)
        exact = ((correct.sum(1) == counts) & (counts > 0)).float()
        smoothing = self.settings.label_smoothing if model.training else 0.0
        return {
            "loss": cross_entropy_term(logits, targets, smoothing),
            "accuracy": LossTerm(correct.sum(1), counts, weight=0.0),
            "exact_match": LossTerm(exact, (counts > 0).long(), weight=0.0),
        }

    @action(PairEvaluateOptions)
    def _evaluate(self, options: PairEvaluateOptions, show: Show) -> dict[str, Any]:
        metrics = self.evaluate(**flatten(options))
        return metrics if "bleu" in metrics else {**metrics, "notes": [MISSING]}

    def evaluate(
        self,
        data: str | None = None,
        *,
        batch_size: int = 64,
        samples: Samples | None = None,
        target_file: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate as every task does, and the greedy translations: `exact_match`, and BLEU and chrF by sacrebleu,
        where it is installed.

        target_file: the file whose line n is the target of line n of the file `data`.
        """
        if target_file is not None and data is None:
            raise UserError(f"{flag('target_file')} {target_file}: needs --data FILE, whose lines are the sources")
        if samples is None:
            samples = self.load(self._source).validation if data is None else self._samples(data, target_file)
        metrics = super().evaluate(batch_size=batch_size, samples=samples)
        pairs: Sequence[EncodedPair] = samples.take(samples.all())
        texts = [one.text for one in self.translate_ids([one.source for one in pairs])]
        targets = [one.pair.target for one in pairs]
        exact = sum(text == target for text, target in zip(texts, targets, strict=True)) / len(pairs)
        return {**metrics, "exact_match": exact, **corpus_scores(texts, targets)}

    def example_sources(self) -> list[str]:
        samples = self.load(self._source).validation
        return [one.pair.source for one in samples.take(samples.all()[:3])]

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        source, target = self.tokenizers
        parts = {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}
        for name, tokenizer in parts.items():
            tokenizer.save(folder / f"{name}.json")
        return {name: tokenizer.fingerprint() for name, tokenizer in parts.items()}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        found = [load_tokenizer(folder / f"{name}.json", str(fingerprint)) for name, fingerprint in saved.items()]
        if not found:
            raise UserError(f"{folder}: its config names no tokenizer")
        self._tokenizers = (found[0], found[-1])
