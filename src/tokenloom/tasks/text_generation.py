"""Text generation: a GPT trained on any text, sampled, measured and continued."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.data.documents import TextData
from tokenloom.data.report import TextReport
from tokenloom.data.samples import Run, TextWindows
from tokenloom.data.shards import Tokenised, open_tokenised
from tokenloom.data.splits import split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.gpt import GPT, STYLES, GPTConfig
from tokenloom.models.protocols import StepModel
from tokenloom.tasks.frame.base import Example, Material
from tokenloom.tasks.frame.flat import nearest
from tokenloom.tasks.frame.sizes import Dial, dial
from tokenloom.tasks.text.baseline import ngram_baseline
from tokenloom.tasks.text.continuing import ContinuesText
from tokenloom.tasks.text.tokenised import kept_baseline, refuse_inert, report_of, tokenizer_of
from tokenloom.tokens.base import END, UNKNOWN, TextTokenizer
from tokenloom.tokens.text import choose_tokenizer, load_tokenizer
from tokenloom.training.batches import Moment
from tokenloom.training.events import Baseline
from tokenloom.training.losses import Term, Terms, Totals, cross_entropy_term
from tokenloom.training.settings import option

# A sketch without data assumes about as many different characters as an English text has.
SKETCH_VOCAB = 96
# A text that is passed over so often in fewer than so many steps is a short one.
MOST_EPOCHS, SHORT = 15, 500
# The textbook's own training.
CHAPTER_RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "rate": 6e-3,
    "weight_decay": 0.01,
    "decay": "all",
    "beta2": 0.999,
    "clip": 0.0,
    "schedule": "cosine",
    "warmup": 100,
    "steps": 900,
    "batch": 32,
}


@dataclass(frozen=True)
class TextGenerationSettings:
    """How the text is read, how it becomes tokens, and the model's sizes; None = derived."""

    size: str = option("small", "how large a model: nano, tiny, small, medium or large; sets what is not given below")
    style: Literal["modern", "chapter"] = option("modern", "parts of the model: modern, or as in the textbook")
    context: int | None = option(None, "tokens that a prediction can see")
    width: int | None = option(None, "features of a token inside the model")
    depth: int | None = option(None, "layers")
    heads: int | None = option(None, "attention heads a layer")
    kv_heads: int | None = option(None, "key–value heads a layer; as many as heads when not given")
    window: int | None = option(None, "attend to this many tokens only, and go on for ever in fixed memory")
    dropout: float | None = option(None, "share of activations dropped in training")
    tokenizer: str = option("auto", "auto, characters, words, bpe or byte-bpe")
    vocab: int | None = option(None, "ids of a words, bpe or byte-bpe tokeniser")
    borders: bool | None = option(
        None, "keep documents apart with an end token; by default where there are several documents"
    )
    validation: str | None = option(None, "validate on this text instead of a part of the data")
    holdout: float = option(0.1, "share of the data kept for validation")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the text")
    encoding: str = option("utf-8", "encoding of the text")
    newlines: Literal["fold", "keep"] = option("fold", "fold: every kind of line end becomes a line feed; keep")


class TextGeneration(ContinuesText):
    """Predict the next token of a text."""

    name = "text-generation"
    fallback = True
    summary = "train a GPT on any text; generate, evaluate and score with it"
    Settings = TextGenerationSettings
    models: ClassVar[Mapping[str, str]] = {
        "gpt": "decoder-only transformer; --style modern (rotary, RMSNorm, ReLU²) or chapter (learned, LayerNorm, GELU)"
    }

    def __init__(self, settings: TextGenerationSettings | None = None) -> None:
        super().__init__(settings)
        self._tokenizer: TextTokenizer | None = None
        self._dial: Dial | None = None
        self._texts: tuple[TextData, TextData] | None = None
        self._tokenised: Tokenised | None = None
        self._lengths: torch.Tensor | None = None
        self._note_context = ""
        self._check_settings()

    def _check_settings(self) -> None:
        s: TextGenerationSettings = self.settings
        for name in ("context", "width", "depth", "heads", "kv_heads", "window", "vocab"):
            value = getattr(s, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if s.dropout is not None and not 0 <= s.dropout < 1:
            raise UserError(f"--dropout {s.dropout}: must be from 0 up to, but not including, 1")
        if not 0 < s.holdout < 1:
            raise UserError(f"--holdout {s.holdout}: must be above 0 and below 1")
        if s.validation is not None and s.holdout != TextGenerationSettings.holdout:
            raise UserError("--holdout has no effect with --validation: leave one of them out")
        if s.style not in STYLES:
            raise UserError(f"--style {s.style}: no such style{nearest(s.style, STYLES)}")
        if s.style == "chapter" and s.window is not None:
            raise UserError(f"--window {s.window}: needs relative positions, which --style chapter does not have")
        dial(s.size)

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return "text"

    @property
    def tokenizer(self) -> TextTokenizer:
        """Between text and ids. Raises UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("there is no tokeniser yet: train on a text, or load a run")
        return self._tokenizer

    def as_read(self, text: str) -> str:
        return super().as_read(text) if self.settings.newlines == "fold" else text

    def _read(self, source: str) -> TextData:
        s: TextGenerationSettings = self.settings
        return read_text(source, encoding=s.encoding, newlines=s.newlines, column=s.column)

    def prepare(self, data: str | None) -> Material:
        s: TextGenerationSettings = self.settings
        assert data is not None
        if data == "-" and self._tokenizer is not None and sys.stdin.isatty():
            raise UserError("the run was trained on standard input: pipe the same text in again")
        self._tokenised = None if data == "-" else open_tokenised(data)
        if self._tokenised is not None:
            return self._prepare_tokenised(data, self._tokenised)
        text = self._read(data)
        parts = split(text, s.holdout, validation=None if s.validation is None else self._read(s.validation))
        self._texts = (parts.training, parts.validation)
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer(parts.training, parts.validation)
        ids, held = self.encode_documents(parts.training), self.encode_documents(parts.validation)
        extra = self._settled(data, len(ids), len(held))
        report = TextReport.of(parts, extra)
        return self._material(ids, held, report)

    def _prepare_tokenised(self, data: str, tokenised: Tokenised) -> Material:
        """The parts of a folder of shards, whose tokeniser, borders and split hold; only --validation replaces one."""
        s: TextGenerationSettings = self.settings
        refuse_inert(s, tokenised)
        self.settings = replace(s, newlines=tokenised.content["newlines"])
        self._tokenizer = tokenizer_of(tokenised, self._tokenizer)
        ids: Run = tokenised.ids("training")
        held = tokenised.ids("validation") if s.validation is None else self._ids_of(s.validation)
        extra = self._settled(data, len(ids), len(held))
        if isinstance(reason := kept_baseline(tokenised), str):
            extra["to beat"] = f"no n-gram, since {reason}"
        if s.validation is not None:
            extra["validated"] = f"on {s.validation} instead of the validation part"
        return self._material(ids, held, report_of(tokenised, extra))

    def _ids_of(self, data: str) -> NDArray[Any] | Run:
        """All the ids of some data."""
        tokenised = None if data == "-" else open_tokenised(data)
        if tokenised is None:
            return self.encode_documents(self._read(data))
        self._tokenizer = tokenizer_of(tokenised, self._tokenizer)
        return tokenised.all_ids()

    def _material(self, ids: NDArray[Any] | Run, held: NDArray[Any] | Run, report: TextReport) -> Material:
        context = self.model_config["context"]
        return Material(TextWindows(ids, context), TextWindows(held, context), report.lines(), report.as_dict())

    def _settled(self, data: str, tokens: int, held: int) -> dict[str, str]:
        """Settle the sizes; returns what the report should say beside the counts of the text."""
        self._settle(tokens, self.tokenizer.vocab)
        if min(tokens, held) < 2:
            raise UserError(f"{data}: {tokens} tokens to train and {held} to validate are too few")
        extra = {
            "tokens": f"{tokens:,} to train, {held:,} to validate; {self.tokenizer.vocab:,} different ids",
            "tokeniser": f"{self.tokenizer.kind}: {self.tokenizer.why}" if self.tokenizer.why else self.tokenizer.kind,
        }
        if self._note_context:
            extra["context"] = self._note_context
        if self.tokenizer.notes:
            extra["note"] = " ".join(self.tokenizer.notes)
        return extra

    def _make_tokenizer(self, training: TextData, validation: TextData) -> TextTokenizer:
        """What is learnt is learnt from the training part; only which characters there are is taken from both."""
        s: TextGenerationSettings = self.settings
        borders = s.borders
        if borders is None:
            borders = training.documented and len(training.documents) > 1
        return choose_tokenizer(
            [document.text for document in training.documents],
            s.tokenizer,
            s.vocab,
            specials=(END,) if borders else (),
            alphabet=[document.text for document in validation.documents],
        )

    def samples_of(self, data: str) -> TextWindows:
        ids = self._ids_of(data)
        if len(ids) < 2:
            raise UserError(f"{data}: {len(ids)} tokens are too few to measure on")
        return TextWindows(ids, self.model_config["context"])

    # Sizes.

    def _settle(self, tokens: int, vocab: int) -> None:
        """Decide every size that was not given, from the dial and the amount of text."""
        s: TextGenerationSettings = self.settings
        if self.model_config:
            return
        self._dial = dial(s.size)
        chosen = {name: getattr(s, name) or value for name, value in self._dial.sizes.items()}
        longest = max(1, tokens // 4)
        if chosen["context"] > longest:
            if s.context is not None:
                raise UserError(
                    f"--context {s.context}: the training text has only {tokens:,} tokens; "
                    f"at most {longest:,} would leave windows to choose from"
                )
            self._note_context = f"{longest} tokens instead of {chosen['context']}, since the text is short"
            chosen["context"] = longest
        if chosen["width"] % chosen["heads"]:
            raise UserError(f"--width {chosen['width']}: cannot be shared evenly among --heads {chosen['heads']}")
        dropout = self._dial.dropout if s.dropout is None else s.dropout
        config = STYLES[s.style](vocab, *(chosen[k] for k in ("context", "width", "depth", "heads")))
        self.model_config = {
            **config.as_dict(),
            "dropout": 0.0 if s.style == "chapter" and s.dropout is None else dropout,
            "kv_heads": s.kv_heads,
            "window": s.window,
        }
        self._try_config()
        changes: dict[str, Any] = {**chosen, "dropout": self.model_config["dropout"]}
        self.settings = replace(s, **changes)

    def _try_config(self) -> None:
        """Sizes that do not go together are the user's mistake: say so before any work."""
        small = {"depth": 1, "vocab": 1, "context": 1}
        if self.model_config["width"] % (2 * self.model_config["heads"]) == 0:
            # However large the model is to be, so that one too large for this machine can be planned.
            small["width"] = 2 * self.model_config["heads"]
        try:
            GPT(GPTConfig(**{**self.model_config, **small}))
        except ValueError as error:
            raise UserError(f"{error} (--width, --heads and --kv-heads decide)") from error

    def sketch(self) -> None:
        self._settle(1 << 40, self.settings.vocab or SKETCH_VOCAB)

    def derived(self) -> dict[str, Any]:
        return {name: self.model_config[name] for name in ("context", "width", "depth", "heads", "dropout")}

    def recipe(self, material: Material | None = None) -> dict[str, Any]:
        if self.settings.style == "chapter":
            return CHAPTER_RECIPE
        recipe = (self._dial or dial(self.settings.size)).recipe
        if material is None:
            return recipe
        steps = MOST_EPOCHS * -(-len(material.training) // recipe["batch"])
        # A short text is soon known by heart: then the passes over it are the measure, and not the minutes.
        return {**recipe, "steps": steps} if steps < SHORT else recipe

    # Model, loss and metrics.

    def build(self, seed: int) -> GPT:
        return GPT(GPTConfig(**self.model_config), seed)

    def collate(self, samples: NDArray[np.int64], moment: Moment) -> Batch:
        rows = torch.from_numpy(samples)
        ids, targets = rows[:, :-1], rows[:, 1:]
        if bool((targets < 0).any()):
            # Past the end of the text. Padding stands at the end only, where causality hides it from all that counts.
            ids, targets = ids.clamp(min=0), targets.masked_fill(targets < 0, IGNORE)
        stream = Stream(ids=ids)
        end = self.tokenizer.specials.get(END)
        if end is not None and bool((ids[:, 1:] == end).any()):
            stream.segments = (ids == end).cumsum(1)
            stream.positions = _restarting(stream.segments)
        return Batch({"text": stream}, {"loss": targets})

    def loss(self, model: nn.Module, batch: Batch) -> Terms:
        targets = batch.targets["loss"]
        terms = {"loss": cross_entropy_term(model(batch), targets)}
        counted = targets != IGNORE
        size = self._byte_lengths(targets.device)[targets.clamp(min=0)] * counted
        terms["bytes"] = Term(size.sum(1), counted.sum(1), weight=0.0)
        unknown = self.tokenizer.specials.get(UNKNOWN)
        if unknown is not None:
            terms["unknown"] = Term((targets == unknown).sum(1), counted.sum(1), weight=0.0)
        return terms

    def _byte_lengths(self, device: torch.device) -> torch.Tensor:
        if self._lengths is None or self._lengths.device != device:
            self._lengths = torch.from_numpy(self.tokenizer.byte_lengths()).to(device)
        return self._lengths

    def summarise(self, totals: dict[str, Totals]) -> dict[str, float]:
        loss, size = totals["loss"], totals["bytes"].total
        nats = loss.value
        metrics = {
            "loss": nats,
            "interval": loss.interval(),
            "bits": nats / math.log(2),
            "perplexity": math.exp(min(nats, 700.0)),
            "bits_per_byte": loss.total / math.log(2) / size if size else math.nan,
            "targets": loss.count,
            "window": float(self.model_config["context"]),
        }
        if "unknown" in totals and totals["unknown"].total:
            # What an unknown word was is never predicted, so that there is no price of the text in bits.
            metrics |= {"unknown": totals["unknown"].value, "bits_per_byte": math.nan}
        return metrics

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        per_byte = f"{m['bits_per_byte']:.4f}"
        if m.get("unknown"):
            per_byte = f"none, since {m['unknown']:.1%} of the words are unknown to the tokeniser"
        either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
        return [
            f"loss:          {m['loss']:.4f}{either_way} nats a token{' (95 % interval)' if either_way else ''}",
            f"bits a token:  {m['bits']:.4f}",
            f"perplexity:    {m['perplexity']:,.2f}",
            f"bits per byte: {per_byte}",
            f"measured on:   {int(m['targets']):,} tokens, in separate windows of {int(m['window']):,}",
        ]

    def baseline(self, material: Material) -> Baseline | None:
        """An n-gram over characters, asked for the same text. None where the model is not asked for unknown words."""
        if self._tokenised is not None:
            kept = kept_baseline(self._tokenised) if self.settings.validation is None else ""
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
        path = folder / "tokenizer.json"
        self._tokenizer = load_tokenizer(path)
        if self._tokenizer.fingerprint() != kept.get("tokenizer"):
            raise UserError(f"{path}: not the tokeniser that this run was trained with")

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "batch = single",
            "padded left = unpadded",
            "padded right = unpadded",
            "packed = alone",
            "cached = uncached",
            "selected = alone",
            "fused = explicit",
            "accumulated = whole",
            "2 processes = 1",
            "resumed = straight",
            "compiled = eager",
            "saved = loaded",
            "streamed = whole",
        ),
        "",
    )

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        text = folder / "rhyme.txt"
        text.write_text("One, two, buckle my shoe.\nThree, four, knock at the door.\n" * 12, "utf-8")
        tiny = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch": 4}
        return {
            "modern": Example(str(text), tiny),
            "chapter": Example(str(text), {**tiny, "style": "chapter"}),
            "window": Example(str(text), {**tiny, "window": 8, "kv_heads": 1}),
        }

    def decoder(self, batch: Batch) -> StepModel:
        return self._steps(self.model)


def _restarting(segments: torch.Tensor) -> torch.Tensor:
    """Positions that count from 0 in each segment: (B, N)."""
    N = segments.shape[1]
    index = torch.arange(N).expand_as(segments)
    first = torch.ones_like(segments, dtype=torch.bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(first, index, 0).cummax(1).values
