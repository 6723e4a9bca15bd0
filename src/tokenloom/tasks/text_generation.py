"""Train a language model on any text, generate, evaluate and score with it."""
# Longer than other tasks: its settings serve seven models, and it is evaluated with two kinds of context.

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.config import flatten, option
from tokenloom.data.samples import Run, Samples, TextWindows, fingerprint_of
from tokenloom.errors import UserError
from tokenloom.evaluation.comparison import PerSampleLoss
from tokenloom.evaluation.perplexity import (
    BITS_PER_BYTE,
    SLIDING,
    bits_per_block,
    block_sums,
    check_context,
    documents_of,
)
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.nn.modules import eval_mode
from tokenloom.tasks._lm_families import FAMILIES, ModelFamily, smoothing_of
from tokenloom.tasks._settings import (
    PART_NAMES,
    TextSource,
    TextTokenization,
    TransformerSizes,
    ValidationSplit,
    refuse_given,
)
from tokenloom.tasks._text_corpus import open_corpus, read_ids
from tokenloom.tasks._text_decoder import TextDecoderTask
from tokenloom.tasks.base import NO_SAMPLES, EvaluateOptions, Match, PreparedData, Show, action
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer
from tokenloom.tokenizers.text import load_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.training.metrics import Metric, compute_metrics

# Vocabulary size and text length that are assumed for sizes without data: about the characters of an English text.
VOCAB_SIZE_WITHOUT_DATA, TOKENS_WITHOUT_DATA = 96, 1 << 40
# A text of which so many epochs take fewer steps than SHORT is short.
MAX_EPOCHS, SHORT = 15, 500

GPT_ONLY = {"model": "gpt"}
RNN_ONLY = {"model": ("rnn", "lstm", "gru")}
NGRAM_ONLY = {"model": ("unigram", "bigram", "ngram")}
SIZED = {"model": ("gpt", "rnn", "lstm", "gru")}


@dataclass(frozen=True)
class TextGenerationSettings(TextTokenization, TextSource, ValidationSplit, TransformerSizes):
    """How the text is read and tokenized, and the sizes of the model; None is derived."""

    group: ClassVar[str] = "Model"

    model: Literal["gpt", "unigram", "bigram", "ngram", "rnn", "lstm", "gru"] = option(
        "gpt",
        "gpt: decoder-only transformer; unigram: bag of words; bigram: each token from the one before it;"
        " ngram: each token from the ones before it; rnn: Elman network; lstm: long short-term memory;"
        " gru: gated recurrent units",
    )
    size: Literal["nano", "tiny", "small", "medium", "large"] = option(
        "small", "size of the model; sets the sizes that are not given", only=SIZED
    )
    preset: Literal["modern", "classic"] = option(
        "modern",
        "modern: rotary positions, RMSNorm, ReLU²; classic: learned positions, LayerNorm, GELU",
        only=GPT_ONLY,
    )
    context: int | None = option(None, "context length in tokens", low=1)
    width: int | None = option(None, "features per token", low=1, only=SIZED)
    depth: int | None = option(None, "number of layers", low=1, only=SIZED)
    heads: int | None = option(None, "attention heads per layer", low=1, only=GPT_ONLY)
    kv_heads: int | None = option(None, "key–value heads per layer [default: as many as heads]", low=1, only=GPT_ONLY)
    sliding_window: int | None = option(
        None,
        "attend to this many tokens only; generates texts of any length in constant memory",
        low=1,
        only={**GPT_ONLY, "preset": "modern"},
    )
    dropout: float | None = option(None, "fraction of activations set to zero in training", low=0, below=1, only=SIZED)
    burn_in: int | None = option(
        None, "burn-in tokens read without gradients before each training window", low=0, only=RNN_ONLY
    )
    ngram_order: int | None = option(
        None, "tokens of the longest n-gram [default: 6]", low=1, high=64, only={"model": "ngram"}
    )
    ngram_smoothing: Literal["kneser-ney", "modified-kneser-ney", "add-k", "jelinek-mercer"] | None = option(
        None, "smoothing of counts [default: kneser-ney; add-k for unigram and bigram]", only=NGRAM_ONLY
    )
    add_k: float | None = option(
        None,
        "number that add-k smoothing adds to each count [default: 1]",
        above=0,
        only={**NGRAM_ONLY, "ngram_smoothing": "add-k"},
    )
    separate_documents: bool | None = option(
        None, "separate documents by an end token [default: where there are several documents]", group="Data"
    )

    def check(self) -> None:
        """Refuse parts of a transformer with another model, and `add_k` where the default smoothing does not use it."""
        super().check()
        if self.model != "gpt":
            refuse_given(self, PART_NAMES, f"with --model {self.model}")
        if self.add_k is not None and smoothing_of(self) != "add-k":
            raise UserError(f"--add-k has no effect with --ngram-smoothing {smoothing_of(self)}: leave it out")


@dataclass(frozen=True)
class TextEvaluateOptions(EvaluateOptions):
    """On what, and with how much context, a text model is evaluated."""

    context: str | None = option(
        None,
        "sliding: each token from all the context that the model can use; N: in separate windows of N tokens"
        " [default: windows as in training]",
    )


def recognize(source: str) -> Match | None:
    """Match any data as text that no other task recognizes."""
    return Match("text", fallback=True)


def _bits_per_byte(task: Any, sums: Any) -> float:
    """Return NaN where words are unknown to the tokenizer: what they were is not predicted."""
    unknown, num_bytes = sums.get(UNKNOWN), sums["bytes"].total
    if (unknown is not None and unknown.total) or not num_bytes:
        return math.nan
    return float(sums["loss"].total / math.log(2) / num_bytes)


class TextGeneration(TextDecoderTask):
    """Train a GPT, a recurrent network or an n-gram on any text; generate, evaluate and score with it."""

    name = "text-generation"
    Settings = TextGenerationSettings
    metrics = (
        Metric("loss", "nats/token", "lower"),
        Metric("loss_ci95", kind="ci95", of="loss", compute=lambda task, sums: sums["loss"].interval()),
        Metric("bits_per_token", compute=lambda task, sums: sums["loss"].value / math.log(2)),
        Metric("perplexity", compute=lambda task, sums: math.exp(min(sums["loss"].value, 700.0))),
        Metric(
            "bits_per_byte",
            compute=_bits_per_byte,
            per_sample=lambda task, context: task.bits_per_sample(context),
        ),
        Metric("num_targets", "tokens", kind="count", compute=lambda task, sums: sums["loss"].count),
        Metric("context", "tokens", kind="count", compute=lambda task, sums: float(task.eval_context)),
        Metric(
            "unk_rate",
            kind="percent",
            label="unknown words",
            compute=lambda task, sums: sums[UNKNOWN].value if UNKNOWN in sums and sums[UNKNOWN].total else None,
        ),
    )

    def __init__(self, settings: TextGenerationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._tokenizer: TextTokenizer | None = None
        self._byte_lengths: Tensor | None = None
        self._note = ""
        # Context of the evaluation in progress where it is not that of training; infinite for sliding context.
        self._eval_context: float | None = None

    @property
    def tokenizer(self) -> TextTokenizer:
        if self._tokenizer is None:
            raise UserError("there is no tokenizer yet: train on a text, or load a run")
        return self._tokenizer

    @property
    def family(self) -> ModelFamily:
        """The family of the model."""
        return FAMILIES[self.settings.model]

    @property
    def eval_context(self) -> float:
        """The number of tokens that a prediction sees in evaluation; infinite with sliding context."""
        return self.model_config["context"] if self._eval_context is None else self._eval_context

    def normalize(self, text: str) -> str:
        return super().normalize(text) if self.settings.normalize_newlines else text

    # Data and sizes.

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        if source is None:
            self._resolve_sizes(TOKENS_WITHOUT_DATA, self.settings.vocab_size or VOCAB_SIZE_WITHOUT_DATA)
            return self._prepared(NO_SAMPLES, NO_SAMPLES)
        if for_evaluation:
            ids = read_ids(source, self.settings, self.tokenizer)
            if len(ids) < 2:
                raise UserError(f"{source}: {len(ids)} tokens are too few to evaluate on")
            return PreparedData(NO_SAMPLES, TextWindows(ids, self.model_config["context"]))
        corpus = open_corpus(source, self.settings, self._tokenizer)
        self._tokenizer = corpus.tokenizer
        self.settings = replace(self.settings, normalize_newlines=corpus.normalize_newlines)
        num_train, num_val, vocab_size = len(corpus.train), len(corpus.validation), corpus.tokenizer.vocab_size
        self._resolve_sizes(num_train, vocab_size)
        if min(num_train, num_val) < 2:
            raise UserError(f"{source}: {num_train} tokens to train and {num_val} to validate are too few")
        context = self.model_config["context"]
        train = TextWindows(corpus.train, context, self.family.burn_in(self.model_config))
        extra = {
            "tokens": f"{num_train:,} to train, {num_val:,} to validate; vocabulary size {vocab_size:,}",
            "tokenizer": ": ".join(filter(None, (corpus.tokenizer.kind, corpus.tokenizer.reason))),
            "context": self._note,
            "note": " ".join(corpus.tokenizer.notes),
        }
        report = corpus.report({label: text for label, text in extra.items() if text})
        prepared = self._prepared(train, TextWindows(corpus.validation, context))
        if self.family.fitted:
            return replace(prepared, report=report, fit=lambda: self._fit(corpus.train))
        return replace(prepared, report=report, baseline=corpus.baseline)

    def _resolve_sizes(self, num_tokens: int, vocab_size: int) -> None:
        if not self.model_config:
            sizes = self.family.resolve(self.settings, num_tokens, vocab_size)
            self.model_config = {"kind": self.settings.model, **sizes.config}
            self.settings, self._note = replace(self.settings, **sizes.settings), sizes.note

    def _prepared(self, train: Samples, validation: Samples) -> PreparedData:
        recipe = self.family.recipe(self.settings)
        if len(train) and "steps" not in recipe and not self.family.fitted:
            # On a short text the number of epochs is limited, and not the time.
            steps = MAX_EPOCHS * -(-len(train) // recipe["batch_size"])
            recipe = {**recipe, "steps": steps} if steps < SHORT else recipe
        shown = {name: self.model_config[name] for name in self.family.shown if name in self.model_config}
        context = int(self.model_config["context"])
        return PreparedData(train, validation, recipe=recipe, auto_settings=shown, sequence_length=context)

    def _fit(self, ids: NDArray[Any] | Run) -> nn.Module:
        whole = ids if isinstance(ids, np.ndarray) else ids[np.arange(len(ids))]
        return self.family.fit(self.model_config, whole, self.tokenizer.specials.get(END))

    def save_assets(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(folder / "tokenizer.json")
        return {"tokenizer": self.tokenizer.fingerprint()}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", saved.get("tokenizer"))

    # Model and loss.

    def build_model(self, seed: int) -> nn.Module:
        return self.family.build({name: size for name, size in self.model_config.items() if name != "kind"}, seed)

    def collate(self, samples: NDArray[np.int64], context: BatchContext) -> Batch:
        rows = torch.from_numpy(samples)  # (B, burn-in + N + 1)
        ids, targets = rows[:, :-1], rows[:, 1:]
        if bool((targets < 0).any()):
            # Past the end of the text. Padding is at the end only, where causal models do not see it.
            ids, targets = ids.clamp(min=0), targets.masked_fill(targets < 0, IGNORE)
        stream = self._documents_apart(ids)
        burn_in = self.family.burn_in(self.model_config) if context.training else 0
        if not burn_in:
            return Batch({"text": stream}, {"loss": targets})
        before, text = (
            Stream(ids=ids[:, part], segments=None if stream.segments is None else stream.segments[:, part])
            for part in (slice(0, burn_in), slice(burn_in, None))
        )
        return Batch({"text": text, "before": before}, {"loss": targets[:, burn_in:]})

    def _documents_apart(self, ids: Tensor) -> Stream:
        """Return a stream in which the documents of a row do not see each other."""
        stream = Stream(ids=ids)
        end = self.tokenizer.specials.get(END)
        if end is not None and bool((ids[:, 1:] == end).any()):
            stream.segments = (ids == end).cumsum(1)
            stream.positions = stream.depths()
        return stream

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        terms = {"loss": self.family.loss_term(model, batch)}
        counted = targets != IGNORE
        sizes = self._lengths(targets.device)[targets.clamp(min=0)] * counted
        terms["bytes"] = LossTerm(sizes.sum(1), counted.sum(1), weight=0.0)
        unknown = self.tokenizer.specials.get(UNKNOWN)
        if unknown is not None:
            terms[UNKNOWN] = LossTerm((targets == unknown).sum(1), counted.sum(1), weight=0.0)
        return terms

    def _lengths(self, device: torch.device) -> Tensor:
        """Return the bytes of each id, (vocab_size,)."""
        if self._byte_lengths is None or self._byte_lengths.device != device:
            self._byte_lengths = torch.from_numpy(self.tokenizer.byte_lengths()).to(device)
        return self._byte_lengths

    # Evaluation.

    @action(TextEvaluateOptions)
    def _evaluate(self, options: TextEvaluateOptions, show: Show) -> dict[str, Any]:
        return self.evaluate(**flatten(options))

    def evaluate(
        self,
        data: str | None = None,
        *,
        batch_size: int = 64,
        samples: Samples | None = None,
        context: str | int | None = None,
    ) -> dict[str, Any]:
        """See `Task.evaluate`. context: see `TextEvaluateOptions`; not with samples, which have one."""
        if context is None:
            return super().evaluate(data, batch_size=batch_size, samples=samples)
        if samples is not None:
            raise UserError("samples have a context already: leave out the context")
        window = check_context(context, self.family.max_context(self.model_config))
        ids = self._validation_ids(data)
        self._eval_context = math.inf if window is None else window
        try:
            if window is not None:
                return super().evaluate(batch_size=batch_size, samples=TextWindows(ids, window))
            return compute_metrics(self, self._sliding_sums(ids))
        finally:
            self._eval_context = None

    def _validation_ids(self, data: str | None = None) -> NDArray[Any] | Run:
        prepared = self.load(self._source) if data is None else self.load(data, for_evaluation=True)
        return cast(TextWindows, prepared.validation).ids

    def sliding_nats(self, ids: NDArray[Any] | Run) -> Tensor:
        """Return (N − 1,) nats of every token of a run but the first, each from all the context that the model can use.

        Documents are separate. See "Sliding context" in ARCHITECTURE.md.
        """
        with eval_mode(self.model) as model, torch.no_grad():
            documents = documents_of(ids, self.tokenizer.specials.get(END))
            return torch.cat([self.family.sliding_nats(model, document) for document in documents])

    def _sliding_sums(self, ids: NDArray[Any] | Run) -> dict[str, MetricSum]:
        targets = torch.from_numpy(ids[np.arange(1, len(ids))].astype(np.int64))
        values = {"loss": self.sliding_nats(ids), "bytes": self._lengths(targets.device)[targets]}
        if UNKNOWN in self.tokenizer.specials:
            values[UNKNOWN] = targets == self.tokenizer.specials[UNKNOWN]
        context = self.model_config["context"]
        return {name: block_sums(value, context, weight=float(name == "loss")) for name, value in values.items()}

    def bits_per_sample(self, context: str | None = None) -> PerSampleLoss:
        """Return bits per byte on which runs are compared.

        With sliding context (None), in blocks of text that are the same for every tokenizer; or in separate windows of
        so many tokens.
        """
        window = check_context(SLIDING if context is None else context, self.family.max_context(self.model_config))
        ids = self._validation_ids()
        unknown = self.tokenizer.specials.get(UNKNOWN)
        whole = ids[np.arange(len(ids))].astype(np.int64)
        if unknown is not None and bool((whole == unknown).any()):
            raise UserError("the tokenizer does not know some words of the validation text: they have no loss in bits")
        if window is None:
            sizes = torch.from_numpy(self.tokenizer.byte_lengths()[whole])
            return bits_per_block(self.sliding_nats(ids), sizes, fingerprint_of(self.tokenizer.decode(whole)))
        samples = TextWindows(ids, window)
        sums = evaluate(self, self.model, samples)
        content = fingerprint_of((samples.fingerprint(), self.tokenizer.fingerprint()))
        bits = sums["loss"].samples[0] / math.log(2)
        return PerSampleLoss(bits, sums["bytes"].samples[0], BITS_PER_BYTE, content)
