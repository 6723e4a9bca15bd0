"""Translation: an encoder–decoder trained on pairs of texts, from any kind of text to any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.data import registry as recipes
from tokenloom.data.pairs import (
    Pair,
    PairColumns,
    PairData,
    looks_like_pairs,
    read_pairs,
)
from tokenloom.data.report import data_report
from tokenloom.data.samples import Keys, ListSamples, Samples
from tokenloom.data.split import Split, split
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.pairs import pair_baseline
from tokenloom.evaluation.translation import MISSING, corpus_scores
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.models.protocols import StepModel
from tokenloom.models.recurrent_translation import RecurrentTranslator, RecurrentTranslatorConfig
from tokenloom.tasks._paths import every_path
from tokenloom.tasks._seq2seq import Seq2SeqTask
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks._translation_settings import (
    CHAPTER_RECIPE,
    MOST_EPOCHS,
    MOST_TOKENS,
    SHORT,
    SIZES,
    TranslationSettings,
)
from tokenloom.tasks.base import Example, PreparedData
from tokenloom.tokenizers.base import END, UNKNOWN, Ids, TextTokenizer
from tokenloom.tokenizers.text import choose_tokenizer, load_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
from tokenloom.utils.names import counted, some

EXAMPLES = 3


@dataclass(frozen=True)
class Coded:
    """A pair and its ids, without the end."""

    pair: Pair
    source: Ids
    target: Ids


@dataclass(frozen=True)
class PairSamples(ListSamples):
    """Coded pairs, which share batches with others of about their length."""

    items: Sequence[Coded]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Tokens of both sides together."""
        return np.array([len(self.items[int(k)].source) + len(self.items[int(k)].target) for k in keys], dtype=np.int64)


class Translation(Seq2SeqTask):
    """Predict the target of a source."""

    name = "translation"
    summary = "train an encoder–decoder on pairs of texts; translate and measure with it"
    Settings = TranslationSettings
    models: ClassVar[Mapping[str, str]] = {
        "transformer": "encoder–decoder with cross-attention; --preset modern (rotary, RMSNorm, ReLU²) or classic",
        "rnn": "recurrent encoder–decoder (GRU): the source goes through one vector",
        "rnn-attention": "the same, with attention over the source at every step",
    }
    decoded = "target"

    def __init__(self, settings: TranslationSettings | None = None) -> None:
        super().__init__(settings)
        self._tokenizers: tuple[TextTokenizer, TextTokenizer] | None = None

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        if data in recipes.names():
            return "pairs" if issubclass(recipes.find(data).holds, PairData) else None
        return "pairs: its columns are a source and a target" if looks_like_pairs(data) else None

    @property
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        if self._tokenizers is None:
            raise UserError("there is no tokenizer yet: train on pairs, or load a run")
        return self._tokenizers

    def _read(self, source: str, target: str | None = None) -> PairData:
        s: TranslationSettings = self.settings
        columns = PairColumns(s.source_column, s.target_column, s.header)
        if source != self.source and (source in recipes.names() or target is not None):
            columns = PairColumns()  # Those of the run's table are not theirs.
        return read_pairs(source, target=target, columns=columns, encoding=s.encoding)

    def prepare(self, data: str | None) -> PreparedData:
        s: TranslationSettings = self.settings
        assert data is not None
        validation = None if s.validation is None else self._read(s.validation)
        parts = split(self._read(data, s.target), s.val_fraction, validation=validation)
        if self._tokenizers is None:
            self._tokenizers = self._make_tokenizers(parts)
        training, held = ([self._coded(pair) for pair in part.pairs] for part in (parts.train, parts.validation))
        limit = self._limit([*training, *held])
        notes = list(parts.notes)
        kept = [self._short(side, limit, notes) for side in (training, held)]
        for which, side in zip(("to train on", "to validate with"), kept, strict=True):
            if not side:
                raise UserError(f"{data}: no pair {which} is at most {limit:,} tokens long (--longest)")
        self._settle(
            max(len(one.source) for side in kept for one in side), max(len(one.target) for side in kept for one in side)
        )
        report = data_report(replace(parts, notes=notes), self._extra(kept))
        return PreparedData(PairSamples(kept[0]), PairSamples(kept[1]), report.lines(), report.as_dict())

    def _make_tokenizers(self, parts: Split[PairData]) -> tuple[TextTokenizer, TextTokenizer]:
        """What is learned is learned from the training part; only which characters there are is taken from both."""
        s: TranslationSettings = self.settings
        texts, held = (
            [[getattr(p, side) for p in part.pairs] for side in ("source", "target")]
            for part in (parts.train, parts.validation)
        )
        if s.vocabularies == "shared":
            one = choose_tokenizer([*texts[0], *texts[1]], s.tokenizer, s.vocab_size, (END,), [*held[0], *held[1]])
            return one, one
        first, second = (
            choose_tokenizer(t, s.tokenizer, s.vocab_size, (END,), h) for t, h in zip(texts, held, strict=True)
        )
        return first, second

    def _coded(self, pair: Pair) -> Coded:
        ids = []
        for side, tokenizer, text in zip(
            ("source", "target"), self.tokenizers, (pair.source, pair.target), strict=True
        ):
            try:
                ids.append(tokenizer.encode(text))
            except UserError as error:
                raise UserError(f"{pair.id}: {side}: {error}; --tokenizer byte-bpe takes any text") from None
        return Coded(pair, *ids)

    def _limit(self, coded: Sequence[Coded]) -> int:
        """Tokens that a side may have: of the model, where there is one; as asked; or what there are, within bounds."""
        if self.model_config:
            return int(min(self.model_config["source_context"], self.model_config["target_context"])) - 1
        longest = max(max(len(one.source), len(one.target)) for one in coded)
        return self.settings.longest or min(longest, MOST_TOKENS)

    def _short(self, coded: Sequence[Coded], limit: int, notes: list[str]) -> list[Coded]:
        """The pairs that are no longer than the limit. Raises UserError for others, unless they may be left out."""
        long = [one for one in coded if max(len(one.source), len(one.target)) > limit]
        if not long:
            return list(coded)
        rows = some((f"{one.pair.id} ({max(len(one.source), len(one.target)):,})" for one in long), 10)
        what = f"{counted(len(long), 'pair')} with more than {limit:,} tokens on a side: {rows}"
        if self.settings.too_long == "refuse":
            more = "" if self.model_config else "; --longest N takes longer ones"
            raise UserError(f"{what}; --too-long leave-out leaves them out{more}")
        notes.append(f"left out {what}")
        return [one for one in coded if max(len(one.source), len(one.target)) <= limit]

    def _extra(self, kept: Sequence[Sequence[Coded]]) -> dict[str, str]:
        """What the report says beside the counts of the pairs."""
        counts = [sum(len(one.source) + len(one.target) for one in side) for side in kept]
        source, target = self.tokenizers
        extra = {"tokens": f"{counts[0]:,} to train, {counts[1]:,} to validate, both sides together"}
        if source is target:
            extra["tokenizer"] = f"{source.kind} for both sides: {source.reason}" if source.reason else source.kind
        else:
            extra["tokenizers"] = (
                f"{source.kind} for sources, {source.vocab_size:,} ids; {target.kind} for targets, {target.vocab_size:,} ids"
            )
        notes = [note for tokenizer in dict.fromkeys((source, target)) for note in tokenizer.notes]
        return extra | ({"vocabulary": " ".join(notes)} if notes else {})

    def load_samples(self, data: str, target: str | None = None) -> Samples:
        coded = [self._coded(pair) for pair in self._read(data, target).pairs]
        return PairSamples(self._short(coded, self._limit(coded), []))

    # Sizes.

    def _settle(self, source: int, target: int) -> None:
        """Decide every size that was not given. source, target: the most tokens of a side."""
        s: TranslationSettings = self.settings
        if self.model_config:
            return
        position = size_preset(s.size, SIZES)
        limit = max(source, target, s.longest or 0) + 1
        chosen: dict[str, Any] = {name: getattr(s, name) or value for name, value in position.sizes.items()}
        if s.model != "transformer":
            del chosen["heads"]
        dropout = position.dropout if s.dropout is None else s.dropout
        if s.preset == "classic" and s.dropout is None:
            dropout = 0.0
        parts: dict[str, Any] = (
            EncoderDecoderConfig.parts(s.preset)
            if s.model == "transformer"
            else {"attention": s.model == "rnn-attention"}
        )
        self.model_config = {
            "model": s.model,
            "source_context": limit,
            "target_context": limit,
            "source_vocab_size": self.tokenizers[0].vocab_size,
            "target_vocab_size": self.tokenizers[1].vocab_size,
            "shared_vocab": s.vocabularies == "shared",
            **chosen,
            "dropout": dropout,
            **parts,
        }
        try:
            self.build(0)
        except ValueError as error:
            raise UserError(f"{error} (--width and --heads decide)") from error
        self.settings = replace(s, **chosen, dropout=dropout)

    def derived(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {
            name: self.model_config[name]
            for name in ("width", "depth", "heads", "dropout")
            if name in self.model_config
        }
        return {"model": self.model_config["model"], **sizes, "longest": self.model_config["target_context"] - 1}

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        s: TranslationSettings = self.settings
        recipe = dict(size_preset(s.size, SIZES).recipe)
        if s.model != "transformer":
            # Muon is for the matrices of a transformer.
            recipe = {k: v for k, v in recipe.items() if k != "muon_lr"} | {"optimizer": "adamw"}
        elif s.preset == "classic":
            recipe = {**CHAPTER_RECIPE, "batch_size": recipe["batch_size"], "minutes": recipe["minutes"]}
        steps = MOST_EPOCHS * -(-len(material.training) // recipe["batch_size"])
        return {**recipe, "steps": steps} if steps < SHORT else recipe

    # Model, loss and metrics.

    @property
    def sequence(self) -> int:
        """Tokens of the longer side, at most."""
        return int(max(self.model_config["source_context"], self.model_config["target_context"]))

    def build(self, seed: int) -> nn.Module:
        sizes = {name: value for name, value in self.model_config.items() if name != "model"}
        if self.model_config["model"] == "transformer":
            return EncoderDecoder(EncoderDecoderConfig(**sizes), seed)
        sizes = {name: value for name, value in sizes.items() if not name.endswith("_context")}
        return RecurrentTranslator(RecurrentTranslatorConfig(**sizes), seed)

    def collate(self, samples: Sequence[Coded], moment: BatchContext) -> Batch:
        target = self.tokenizers[1]
        start, end = torch.tensor([target.vocab_size]), torch.tensor([target.specials[END]])
        rows = [torch.from_numpy(one.target.astype(np.int64)) for one in samples]
        # Padding stands at the end only, where causality hides it from all that counts.
        ids, _ = pad([torch.cat((start, row)) for row in rows])
        targets, _ = pad([torch.cat((row, end)) for row in rows], IGNORE)
        source = self.source_stream([one.source for one in samples])
        return Batch({"source": source, "target": Stream(ids=ids)}, {"loss": targets})

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """`exact`: the pairs of which every token is the likeliest after the true ones before it, which is what taking
        the likeliest token each time gives too."""
        targets, logits = batch.targets["loss"], model(batch)
        counted = targets != IGNORE
        right = (logits.argmax(-1) == targets) & counted
        unknown = self.tokenizers[1].specials.get(UNKNOWN)
        if unknown is not None:
            right &= targets != unknown  # What an unknown word was is never told.
        counts = counted.sum(1)
        whole = ((right.sum(1) == counts) & (counts > 0)).float()
        smoothing = self.settings.smoothing if model.training else 0.0
        return {
            "loss": cross_entropy_term(logits, targets, smoothing),
            "accuracy": LossTerm(right.sum(1), counts, weight=0.0),
            "exact": LossTerm(whole, (counts > 0).long(), weight=0.0),
        }

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        loss = totals["loss"]
        return {
            "loss": loss.value,
            "interval": loss.interval(),
            "perplexity": math.exp(min(loss.value, 700.0)),
            "accuracy": totals["accuracy"].value,
            "exact": totals["exact"].value,
            "targets": loss.count,
            "pairs": totals["exact"].count,
        }

    def evaluate(
        self,
        data: str | None = None,
        *,
        batch_size: int = 64,
        samples: Samples | None = None,
        target: str | None = None,
    ) -> dict[str, float]:
        """As every task's, and what the translations themselves are like, each token being the likeliest: `exact`, the
        share that is the target, and by sacrebleu, where it is installed, `bleu` and `chrf`.

        target: the file whose line n is the target of line n of the file `data`.
        """
        if target is not None and data is None:
            raise UserError(f"--target {target}: is for --data FILE, whose lines are the sources")
        if samples is None:
            samples = self.prepare(self.source).validation if data is None else self.load_samples(data, target)
        metrics = super().evaluate(batch_size=batch_size, samples=samples)
        coded: Sequence[Coded] = samples.take(samples.all())
        texts = [one.text for one in self.translations([one.source for one in coded])]
        references = [one.pair.target for one in coded]
        right = sum(text == reference for text, reference in zip(texts, references, strict=True))
        return {**metrics, "translated": len(coded), "exact": right / len(coded), **corpus_scores(texts, references)}

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
        lines = [
            f"loss:          {m['loss']:.4f}{either_way} nats a token{' (95 % interval)' if either_way else ''}",
            f"tokens right:  {m['accuracy']:.1%}, after the true ones before them",
            f"exact:         {m['exact']:.1%} of {int(m['pairs']):,} translations",
        ]
        if "translated" in m:
            scores = f"{m['bleu']:.2f}, {m['chrf']:.2f}" if "bleu" in m else MISSING
            lines.append(f"BLEU, chrF:    {scores}")
        return lines

    def baseline(self, material: PreparedData) -> Baseline | None:
        pairs = [[one.pair for one in part.take(part.all())] for part in (material.training, material.validation)]
        return pair_baseline(*pairs)

    def example(self) -> str:
        """The first validation pairs and what the model makes of them."""
        assert self.source is not None
        samples = self.prepare(self.source).validation
        coded: Sequence[Coded] = samples.take(samples.all()[:EXAMPLES])
        found = self.translations([one.source for one in coded])
        lines = [
            f"{one.pair.source} → {made.text}" + ("" if made.text == one.pair.target else f"  (not {one.pair.target})")
            for one, made in zip(coded, found, strict=True)
        ]
        return "\n".join(lines)

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        source, target = self.tokenizers
        parts = {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}
        for name, tokenizer in parts.items():
            tokenizer.save(folder / f"{name}.json")
        return {name: tokenizer.fingerprint() for name, tokenizer in parts.items()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        found = [load_tokenizer(folder / f"{name}.json", str(fingerprint)) for name, fingerprint in kept.items()]
        if not found:
            raise UserError(f"{folder}: its config names no tokenizer")
        self._tokenizers = (found[0], found[-1])

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        {
            "packed = alone": "each target has a source of its own beside it",
            "streamed = whole": "a translation is given as a whole",
        }
    )

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        table = folder / "reversed.csv"
        words = [f"{'abcdefgh'[i % 8]}{'xyz'[i % 3]}{'mno'[i % 5 % 3]}"[: 2 + i % 2] + "k" * (i % 4) for i in range(48)]
        table.write_text("source,target\n" + "".join(f"{w},{w[::-1]}\n" for w in words), "utf-8")
        tiny = {"width": 16, "depth": 2, "batch_size": 8}
        return {
            "transformer": Example(str(table), {**tiny, "heads": 2}),
            "rnn": Example(str(table), {**tiny, "model": "rnn", "vocabularies": "separate"}),
            "rnn-attention": Example(str(table), {**tiny, "model": "rnn-attention"}),
        }

    def decoder(self, batch: Batch) -> StepModel:
        model = self.model
        assert isinstance(model, EncoderDecoder | RecurrentTranslator)
        return model.decoder_of(batch)
