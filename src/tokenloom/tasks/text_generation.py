"""Text generation: a GPT, a recurrent network or an n-gram made of any text, sampled, measured and continued."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.data.documents import TextData
from tokenloom.data.pretokenized.shards import PretokenizedCorpus, open_pretokenized
from tokenloom.data.report import DataReport, data_report
from tokenloom.data.samples import Run, Samples, TextWindows, fingerprint_of
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.ngram import ngram_baseline
from tokenloom.evaluation.perplexity import (
    BITS_PER_BYTE,
    RUNNING,
    MeasuringOptions,
    blocks,
    checked_window,
    documents_of,
    lines_of,
    metrics_of,
    totals_of,
)
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.protocols import StepModel
from tokenloom.tasks._lm_families.table import MODELS, family_of, refuse_idle
from tokenloom.tasks._paths import every_path
from tokenloom.tasks._pretokenized import kept_baseline, refuse_inert, report_of, tokenizer_of
from tokenloom.tasks._text_decoder import TextDecoderTask
from tokenloom.tasks._text_generation_settings import TextGenerationSettings
from tokenloom.tasks.base import Example, PerSampleLoss, PreparedData
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer
from tokenloom.tokenizers.text import choose_tokenizer, load_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum

# What the equality kit cannot ask of all kinds of models.
NO_STEPS = "it is counted in one pass, not trained in steps"
COUNTED = {
    "fused = explicit": "it has no attention",
    "compiled = eager": "there is nothing to compile in tables",
    **dict.fromkeys(("accumulated = whole", "2 processes = 1", "resumed = straight"), NO_STEPS),
}
RECURRENT = {"fused = explicit": "it has no attention"}
AS_LSTM = dict.fromkeys(("compiled = eager", "2 processes = 1"), "shared with lstm, but for the cell: held there")
# A sketch without data assumes about as many different characters as an English text has.
SKETCH_VOCAB = 96
# A text that is passed over so often in fewer than so many steps is a short one.
MOST_EPOCHS, SHORT = 15, 500


class TextGeneration(TextDecoderTask):
    """Predict the next token of a text."""

    name = "text-generation"
    fallback = True
    summary = "train a GPT, a recurrent network or an n-gram on any text; generate, evaluate and score with it"
    Settings = TextGenerationSettings
    measuring = MeasuringOptions
    models: ClassVar[Mapping[str, str]] = MODELS

    def __init__(self, settings: TextGenerationSettings | None = None) -> None:
        super().__init__(settings)
        self._tokenizer: TextTokenizer | None = None
        self.kind = family_of(self.settings.model)
        self._texts: tuple[TextData, TextData] | None = None
        self._tokenized: PretokenizedCorpus | None = None
        self._lengths: torch.Tensor | None = None
        self._note_context = ""
        self._window: float | None = None
        self.settings.check()
        refuse_idle(self.settings, self.settings.model)
        self.kind.check(self.settings)

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return "text"

    @property
    def tokenizer(self) -> TextTokenizer:
        """Between text and ids. Raises UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("there is no tokenizer yet: train on a text, or load a run")
        return self._tokenizer

    def as_read(self, text: str) -> str:
        return super().as_read(text) if self.settings.newlines == "fold" else text

    def _read(self, source: str) -> TextData:
        s: TextGenerationSettings = self.settings
        return read_text(source, encoding=s.encoding, newlines=s.newlines, column=s.column)

    def prepare(self, data: str | None) -> PreparedData:
        s: TextGenerationSettings = self.settings
        assert data is not None
        if data == "-" and self._tokenizer is not None and sys.stdin.isatty():
            raise UserError("the run was trained on standard input: pipe the same text in again")
        self._tokenized = None if data == "-" else open_pretokenized(data)
        if self._tokenized is not None:
            return self._prepare_tokenized(data, self._tokenized)
        text = self._read(data)
        parts = split(text, s.val_fraction, validation=None if s.validation is None else self._read(s.validation))
        self._texts = (parts.train, parts.validation)
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer(parts.train, parts.validation)
        ids, held = self.encode_documents(parts.train), self.encode_documents(parts.validation)
        extra = self._settled(data, len(ids), len(held))
        report = data_report(parts, extra)
        return self._material(ids, held, report)

    def _prepare_tokenized(self, data: str, tokenized: PretokenizedCorpus) -> PreparedData:
        """The parts of a folder of shards, whose tokenizer, borders and split hold; only --validation replaces one."""
        s: TextGenerationSettings = self.settings
        refuse_inert(s, tokenized)
        self.settings = replace(s, newlines=tokenized.content["newlines"])
        self._tokenizer = tokenizer_of(tokenized, self._tokenizer)
        ids: Run = tokenized.ids("training")
        held = tokenized.ids("validation") if s.validation is None else self._ids_of(s.validation)
        extra = self._settled(data, len(ids), len(held))
        if isinstance(reason := kept_baseline(tokenized), str):
            extra["baseline"] = f"no n-gram, since {reason}"
        if s.validation is not None:
            extra["validated"] = f"on {s.validation} instead of the validation part"
        return self._material(ids, held, report_of(tokenized, extra))

    def _ids_of(self, data: str) -> NDArray[Any] | Run:
        """All the ids of some data."""
        tokenized = None if data == "-" else open_pretokenized(data)
        if tokenized is None:
            return self.encode_documents(self._read(data))
        self._tokenizer = tokenizer_of(tokenized, self._tokenizer)
        return tokenized.all_ids()

    def _material(self, ids: NDArray[Any] | Run, held: NDArray[Any] | Run, report: DataReport) -> PreparedData:
        context = self.model_config["context"]
        training = TextWindows(ids, context, self.kind.lead(self.model_config))
        return PreparedData(training, TextWindows(held, context), report.lines(), report.as_dict())

    def _settled(self, data: str, tokens: int, held: int) -> dict[str, str]:
        """Settle the sizes; returns what the report should say beside the counts of the text."""
        self._settle(tokens, self.tokenizer.vocab_size)
        if min(tokens, held) < 2:
            raise UserError(f"{data}: {tokens} tokens to train and {held} to validate are too few")
        extra = {
            "tokens": f"{tokens:,} to train, {held:,} to validate; {self.tokenizer.vocab_size:,} different ids",
            "tokenizer": ": ".join(filter(None, (self.tokenizer.kind, self.tokenizer.reason))),
        }
        if self._note_context:
            extra["context"] = self._note_context
        if self.tokenizer.notes:
            extra["note"] = " ".join(self.tokenizer.notes)
        return extra

    def _make_tokenizer(self, training: TextData, validation: TextData) -> TextTokenizer:
        """What is learned is learned from the training part; only which characters there are is taken from both."""
        s: TextGenerationSettings = self.settings
        borders = s.borders
        if borders is None:
            borders = training.documented and len(training.documents) > 1
        return choose_tokenizer(
            [document.text for document in training.documents],
            s.tokenizer,
            s.vocab_size,
            specials=(END,) if borders else (),
            alphabet=[document.text for document in validation.documents],
        )

    def load_samples(self, data: str) -> TextWindows:
        ids = self._ids_of(data)
        if len(ids) < 2:
            raise UserError(f"{data}: {len(ids)} tokens are too few to measure on")
        return TextWindows(ids, self.model_config["context"])

    # Sizes.

    def _settle(self, tokens: int, vocab_size: int) -> None:
        """Decide every size that was not given, from the dial and the amount of text."""
        s: TextGenerationSettings = self.settings
        if self.model_config:
            return
        settled = self.kind.settle(s, tokens, vocab_size)
        self.model_config = {"kind": s.model, **settled.config}
        self.settings, self._note_context = replace(s, **settled.settings), settled.note

    def sketch(self) -> None:
        self._settle(1 << 40, self.settings.vocab_size or SKETCH_VOCAB)

    def derived(self) -> dict[str, Any]:
        return {name: self.model_config[name] for name in self.kind.shown if name in self.model_config}

    def recipe(self, material: PreparedData | None = None) -> dict[str, Any]:
        recipe = self.kind.recipe(self.settings)
        if material is None or "steps" in recipe:
            return recipe
        steps = MOST_EPOCHS * -(-len(material.training) // recipe["batch_size"])
        # A short text is soon known by heart: then the passes over it are the measure, and not the minutes.
        return {**recipe, "steps": steps} if steps < SHORT else recipe

    # Model, loss and metrics.

    @property
    def counted(self) -> bool:
        return self.kind.counted

    def count(self, material: PreparedData) -> nn.Module:
        ids = cast(TextWindows, material.training).ids
        whole = ids if isinstance(ids, np.ndarray) else ids[np.arange(len(ids))]
        return self.kind.count(self.model_config, whole, self.tokenizer.specials.get(END))

    def build(self, seed: int) -> nn.Module:
        # Runs of the first version do not name the kind.
        return self.kind.build({name: value for name, value in self.model_config.items() if name != "kind"}, seed)

    def collate(self, samples: NDArray[np.int64], moment: BatchContext) -> Batch:
        rows = torch.from_numpy(samples)
        ids, targets = rows[:, :-1], rows[:, 1:]
        if bool((targets < 0).any()):
            # Past the end of the text. Padding stands at the end only, where causality hides it from all that counts.
            ids, targets = ids.clamp(min=0), targets.masked_fill(targets < 0, IGNORE)
        stream = self._stream_of(ids)
        lead = self.kind.lead(self.model_config) if moment.training else 0
        if not lead:
            return Batch({"text": stream}, {"loss": targets})
        before, text = (
            Stream(ids=ids[:, part], segments=None if stream.segments is None else stream.segments[:, part])
            for part in (slice(0, lead), slice(lead, None))
        )
        return Batch({"text": text, "before": before}, {"loss": targets[:, lead:]})

    def _stream_of(self, ids: torch.Tensor) -> Stream:
        stream = Stream(ids=ids)
        end = self.tokenizer.specials.get(END)
        if end is not None and bool((ids[:, 1:] == end).any()):
            stream.segments = (ids == end).cumsum(1)
            stream.positions = stream.depths()
        return stream

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        terms = {"loss": self.kind.term(model, batch)}
        counted = targets != IGNORE
        size = self._byte_lengths(targets.device)[targets.clamp(min=0)] * counted
        terms["bytes"] = LossTerm(size.sum(1), counted.sum(1), weight=0.0)
        unknown = self.tokenizer.specials.get(UNKNOWN)
        if unknown is not None:
            terms["unknown"] = LossTerm((targets == unknown).sum(1), counted.sum(1), weight=0.0)
        return terms

    def _byte_lengths(self, device: torch.device) -> torch.Tensor:
        if self._lengths is None or self._lengths.device != device:
            self._lengths = torch.from_numpy(self.tokenizer.byte_lengths()).to(device)
        return self._lengths

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        return metrics_of(totals, self.model_config["context"] if self._window is None else self._window)

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        return lines_of(metrics)

    def evaluate(
        self,
        data: str | None = None,
        *,
        batch_size: int = 64,
        samples: Samples | None = None,
        context: str | int | None = None,
    ) -> dict[str, float]:
        """See `Task.evaluate`. context: how much of the text before it each token is predicted from; see
        `MeasuringOptions`."""
        if context is None:
            return super().evaluate(data, batch_size=batch_size, samples=samples)
        if samples is not None:
            raise UserError("samples say by themselves what is before a token: leave out the context")
        window = checked_window(context, self.kind.largest(self.model_config))
        held = self.prepare(self.source).validation if data is None else self.load_samples(data)
        ids = cast(TextWindows, held).ids
        self._window = math.inf if window is None else window
        try:
            if window is not None:
                return super().evaluate(batch_size=batch_size, samples=TextWindows(ids, window))
            return self.metrics(self._running_totals(ids))
        finally:
            self._window = None

    def running(self, ids: NDArray[Any] | Run) -> torch.Tensor:
        """(N − 1,) nats of every token of a run but the first, with all the context of its document that the model can
        use: see "Measured with running context" in ARCHITECTURE.md."""
        with self.ready() as model, torch.no_grad():
            parts = documents_of(ids, self.tokenizer.specials.get(END))
            return torch.cat([self.kind.running(model, part) for part in parts])

    def measured(self, context: str | None = None) -> PerSampleLoss:
        """Bits per byte: with running context, in blocks of text that are the same for every tokenizer, or in separate
        windows of so many tokens."""
        ids = cast(TextWindows, self.prepare(self.source).validation).ids
        window = checked_window(RUNNING if context is None else context, self.kind.largest(self.model_config))
        unknown = self.tokenizer.specials.get(UNKNOWN)
        whole = ids[np.arange(len(ids))].astype(np.int64)
        if unknown is not None and bool((whole == unknown).any()):
            raise UserError("the tokenizer does not know some words of the validation text: they have no price in bits")
        if window is None:
            sizes = self.tokenizer.byte_lengths()[whole]
            text = fingerprint_of(self.tokenizer.decode(whole))
            return blocks(self.running(ids), torch.from_numpy(sizes), text)
        samples = TextWindows(ids, window)
        totals = evaluate(self, self.model, samples)
        content = fingerprint_of((samples.fingerprint(), self.tokenizer.fingerprint()))
        bits = totals["loss"].samples[0] / math.log(2)
        return PerSampleLoss(bits, totals["bytes"].samples[0], BITS_PER_BYTE, content)

    def _running_totals(self, ids: NDArray[Any] | Run) -> dict[str, MetricSum]:
        targets = torch.from_numpy(ids[np.arange(1, len(ids))].astype(np.int64))
        values = {"loss": self.running(ids), "bytes": self._byte_lengths(targets.device)[targets]}
        if UNKNOWN in self.tokenizer.specials:
            values["unknown"] = targets == self.tokenizer.specials[UNKNOWN]
        return {name: totals_of(value, self.model_config["context"]) for name, value in values.items()}

    def baseline(self, material: PreparedData) -> Baseline | None:
        """An n-gram over characters, asked for the same text. None where the model is not asked for unknown words, and
        where it is itself of the simple kind."""
        if self.counted:
            return None
        if self._tokenized is not None:
            kept = kept_baseline(self._tokenized) if self.settings.validation is None else ""
            return None if isinstance(kept, str) else kept
        held = cast(NDArray[Any], cast(TextWindows, material.validation).ids)
        specials = self.tokenizer.specials
        if self._texts is None or (UNKNOWN in specials and bool((held == specials[UNKNOWN]).any())):
            return None
        # The first token is given to the model: it is an end token, or the first characters of the text.
        skip = len(self.tokenizer.decode(held[:1]))
        return ngram_baseline(*self._texts, targets=len(held) - 1, skip=skip)

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(folder / "tokenizer.json")
        return {"tokenizer": self.tokenizer.fingerprint()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(folder / "tokenizer.json", str(kept.get("tokenizer")))

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path()

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        text = folder / "rhyme.txt"
        text.write_text("One, two, buckle my shoe.\nThree, four, knock at the door.\n" * 12, "utf-8")
        recurrent = {"context": 16, "width": 16, "batch_size": 4}
        tiny = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch_size": 4}
        return {
            "modern": Example(str(text), tiny),
            "classic": Example(str(text), {**tiny, "preset": "classic"}),
            "window": Example(str(text), {**tiny, "window": 8, "kv_heads": 1}),
            "ngram": Example(str(text), {"model": "ngram", "order": 3, "context": 16}, COUNTED),
            "bigram": Example(str(text), {"model": "bigram", "context": 16}, COUNTED),
            "rnn": Example(str(text), {**recurrent, "model": "rnn"}, {**RECURRENT, **AS_LSTM}),
            "lstm": Example(str(text), {**recurrent, "model": "lstm", "depth": 2}, RECURRENT),
            "gru": Example(str(text), {**recurrent, "model": "gru", "burn_in": 0}, {**RECURRENT, **AS_LSTM}),
        }

    def decoder(self, batch: Batch) -> StepModel:
        return self._steps(self.model)
