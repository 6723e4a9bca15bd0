"""Text generation: a GPT trained on any text, sampled, measured and continued."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.data.documents import TextData
from tokenloom.data.report import TextReport
from tokenloom.data.samples import TextWindows
from tokenloom.data.splits import split
from tokenloom.data.text import read_text
from tokenloom.decoding.beam import BeamOptions, beam_search
from tokenloom.decoding.generate import Request, generate
from tokenloom.decoding.samplers import Sampling
from tokenloom.decoding.score import Score, score
from tokenloom.decoding.streaming import TextStreamer
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.gpt import GPT, STYLES, GPTConfig
from tokenloom.models.ngram import KneserNey
from tokenloom.models.protocols import StepModel
from tokenloom.tasks.frame.base import Example, Material, Show, Task
from tokenloom.tasks.frame.flat import nearest
from tokenloom.tasks.frame.sizes import Dial, dial
from tokenloom.tokens.base import TextTokenizer
from tokenloom.tokens.text import Characters, choose_tokenizer, load_tokenizer
from tokenloom.training.batches import Moment
from tokenloom.training.events import Baseline
from tokenloom.training.losses import Term, Terms, Totals, cross_entropy_term
from tokenloom.training.settings import option

END = "end"
BASELINE_ORDER = 6
# A sketch without data assumes about as many different characters as an English text has.
SKETCH_VOCAB = 96
# Counting more text than this takes longer than it is worth for a line of comparison.
BASELINE_CHARACTERS = 6_000_000


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


@dataclass(frozen=True)
class GenerateOptions:
    """How text is continued."""

    prompt: str | None = option(None, "text to continue; - reads it from standard input")
    max_new_tokens: int = option(500, "stop after this many new tokens")
    temperature: float = option(
        0.8, "below 1 bolder for likely tokens, above 1 for unlikely ones; 0 takes the likeliest"
    )
    top_k: int | None = option(None, "choose among the k likeliest tokens only")
    top_p: float | None = option(None, "choose among the likeliest tokens that together reach this probability")
    min_p: float | None = option(None, "drop tokens less likely than this share of the likeliest")
    repetition_penalty: float = option(1.0, "above 1: tokens that occurred become less likely")
    beam: int = option(1, "beam search of this width instead of sampling")
    length_penalty: float = option(0.0, "beam search: divide log-probabilities by length to this power")
    samples: int = option(1, "continuations from one prompt")
    seed: int = option(0, "seed of the draws")
    stop: list[str] = option([], "stop before this text appears; may be given more than once")


@dataclass(frozen=True)
class ScoreOptions:
    """A given continuation to be scored."""

    prompt: str = option("", "text that comes before")
    continuation: str = option("", "text whose probability is asked for")


class TextGeneration(Task):
    """Predict the next token of a text."""

    name = "text-generation"
    summary = "train a GPT on any text; generate, evaluate and score with it"
    Settings = TextGenerationSettings
    models: ClassVar[Mapping[str, str]] = {
        "gpt": "decoder-only transformer; --style modern (rotary, RMSNorm, ReLU²) or chapter (learned, LayerNorm, GELU)"
    }
    uses: ClassVar[Mapping[str, type]] = {"generate": GenerateOptions, "score": ScoreOptions}

    paths: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "batch = single",
            "padded left = unpadded",
            "padded right = unpadded",
            "packed = alone",
            "cached = uncached",
            "fused = explicit",
            "accumulated = whole",
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
        return _steps(self.model)

    def __init__(self, settings: TextGenerationSettings | None = None) -> None:
        super().__init__(settings)
        self._tokenizer: TextTokenizer | None = None
        self._dial: Dial | None = None
        self._texts: tuple[TextData, TextData] | None = None
        self._lengths: torch.Tensor | None = None
        self._check_settings()

    def _check_settings(self) -> None:
        s: TextGenerationSettings = self.settings
        for name in ("context", "width", "depth", "heads", "kv_heads", "window", "vocab"):
            value = getattr(s, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if s.dropout is not None and not 0 <= s.dropout < 1:
            raise UserError(f"--dropout {s.dropout}: must be from 0 up to, but not including, 1")
        if s.style not in STYLES:
            raise UserError(f"--style {s.style}: no such style{nearest(s.style, STYLES)}")

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

    def _read(self, source: str) -> TextData:
        s: TextGenerationSettings = self.settings
        return read_text(source, encoding=s.encoding, newlines=s.newlines, column=s.column)

    def prepare(self, data: str | None) -> Material:
        s: TextGenerationSettings = self.settings
        assert data is not None
        text = self._read(data)
        parts = split(text, s.holdout, validation=None if s.validation is None else self._read(s.validation))
        training, validation = parts.training, parts.validation
        self._texts = (training, validation)
        borders = self._borders(training)
        if self._tokenizer is None:
            # What is learnt is learnt from the training part; only which characters there are is taken from both.
            self._tokenizer = choose_tokenizer(
                [document.text for document in training.documents],
                s.tokenizer,
                s.vocab,
                specials=(END,) if borders else (),
                alphabet=[document.text for document in validation.documents],
            )
        ids, held = self.encode_documents(training), self.encode_documents(validation)
        self._settle(len(ids))
        context = self.settings.context
        if min(len(ids), len(held)) < 2:
            raise UserError(f"{data}: {len(ids)} tokens to train and {len(held)} to validate are too few")
        extra = {
            "tokens": f"{len(ids):,} to train, {len(held):,} to validate; {self.tokenizer.vocab:,} different ids",
            "tokeniser": f"{self.tokenizer.kind}: {self.tokenizer.why}" if self.tokenizer.why else self.tokenizer.kind,
        }
        if self._note_context:
            extra["context"] = self._note_context
        if self.tokenizer.notes:
            extra["tokeniser note"] = "; ".join(self.tokenizer.notes)
        report = TextReport.of(parts, extra)
        return Material(TextWindows(ids, context), TextWindows(held, context), report.lines(), report.as_dict())

    def samples_of(self, data: str) -> TextWindows:
        ids = self.encode_documents(self._read(data))
        if len(ids) < 2:
            raise UserError(f"{data}: {len(ids)} tokens are too few to measure on")
        return TextWindows(ids, self.model_config["context"])

    def _borders(self, text: TextData) -> bool:
        if self.settings.borders is not None:
            return bool(self.settings.borders)
        return text.documented and len(text.documents) > 1

    def encode_documents(self, text: TextData) -> NDArray[Any]:
        """All documents of a text as one run of ids; with borders, an end token before, between and after them."""
        ids = self.tokenizer.encode_all([document.text for document in text.documents])
        end = self.tokenizer.specials.get(END)
        wide = np.uint16 if self.tokenizer.vocab <= 1 << 16 else np.int32
        if end is None:
            return np.concatenate(ids).astype(wide)
        border = np.array([end], dtype=np.int64)
        return np.concatenate([border, *(part for one in ids for part in (one, border))]).astype(wide)

    _note_context = ""

    def _settle(self, tokens: int) -> None:
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
            raise UserError(f"--width {chosen['width']} does not divide into --heads {chosen['heads']}")
        dropout = self._dial.dropout if s.dropout is None else s.dropout
        config = STYLES[s.style](self.tokenizer.vocab, *(chosen[k] for k in ("context", "width", "depth", "heads")))
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
        try:
            GPT(GPTConfig(**{**self.model_config, "depth": 1, "vocab": 1}))
        except ValueError as error:
            raise UserError(str(error)) from error

    def sketch(self) -> None:
        self._tokenizer = Characters([chr(32 + i) for i in range(self.settings.vocab or SKETCH_VOCAB)])
        self._settle(1 << 40)

    def derived(self) -> dict[str, Any]:
        return {name: self.model_config[name] for name in ("context", "width", "depth", "heads", "dropout")}

    def recipe(self, material: Material) -> dict[str, Any]:
        if self.settings.style == "chapter":
            # The textbook's own training.
            return {
                "optimizer": "adamw",
                "rate": 6e-3,
                "weight_decay": 0.01,
                "beta2": 0.999,
                "clip": 0.0,
                "schedule": "cosine",
                "warmup": 100,
                "steps": 900,
                "batch": 32,
            }
        return (self._dial or dial(self.settings.size)).recipe

    # Model.

    def build(self, seed: int) -> GPT:
        return GPT(GPTConfig(**self.model_config), seed)

    def collate(self, samples: NDArray[np.int64], moment: Moment) -> Batch:
        rows = torch.from_numpy(samples)
        ids, targets = rows[:, :-1], rows[:, 1:]
        end = self.tokenizer.specials.get(END)
        if bool((targets < 0).any()):
            # Past the end of the text. Padding stands at the end only, where causality hides it from all that counts.
            ids, targets = ids.clamp(min=0), targets.masked_fill(targets < 0, IGNORE)
        stream = Stream(ids=ids)
        if end is not None and bool((ids[:, 1:] == end).any()):
            stream.segments = (ids == end).cumsum(1)
            stream.positions = _restarting(stream.segments)
        return Batch({"text": stream}, {"loss": targets})

    def loss(self, model: nn.Module, batch: Batch) -> Terms:
        targets = batch.targets["loss"]
        term = cross_entropy_term(model(batch), targets)
        lengths = self._byte_lengths(targets.device)
        counted = targets != IGNORE
        size = lengths[targets.clamp(min=0)] * counted
        return {"loss": term, "bytes": Term(size.sum(1).double(), counted.sum(1), weight=0.0)}

    def _byte_lengths(self, device: torch.device) -> torch.Tensor:
        if self._lengths is None or self._lengths.device != device:
            self._lengths = torch.from_numpy(self.tokenizer.byte_lengths()).to(device)
        return self._lengths

    def summarise(self, totals: dict[str, Totals]) -> dict[str, float]:
        loss, size = totals["loss"], totals["bytes"].total
        nats = loss.value
        return {
            "loss": nats,
            "interval": loss.interval(),
            "bits": nats / math.log(2),
            "perplexity": math.exp(min(nats, 700.0)),
            "bits_per_byte": loss.total / math.log(2) / size if size else math.nan,
            "targets": loss.count,
            "window": float(self.model_config["context"]),
        }

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        return [
            f"loss:          {m['loss']:.4f} ± {m['interval']:.4f} nats a token (95 % interval)",
            f"bits a token:  {m['bits']:.4f}",
            f"perplexity:    {m['perplexity']:.2f}",
            f"bits per byte: {m['bits_per_byte']:.4f}",
            f"measured on:   {int(m['targets']):,} tokens, in separate windows of {int(m['window'])}",
        ]

    def baseline(self, material: Material) -> Baseline | None:
        """An order-6 interpolated Kneser–Ney n-gram over characters, with running context."""
        if self._texts is None:
            return None
        nats, note = _ngram_nats(*self._texts)
        targets = len(cast(TextWindows, material.validation).ids) - 1
        name = f"order-{BASELINE_ORDER} Kneser–Ney n-gram"
        return Baseline(name, nats / targets, "nats a token", note)

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(folder / "tokenizer.json")
        return {"tokenizer": self.tokenizer.fingerprint()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        path = folder / "tokenizer.json"
        self._tokenizer = load_tokenizer(path)
        if self._tokenizer.fingerprint() != kept.get("tokenizer"):
            raise UserError(f"{path}: not the tokeniser that this run was trained with")

    # Use.

    def prompt_ids(self, prompt: str | None) -> tuple[list[int], list[str]]:
        """The ids to start from, and what there is to say about them.

        No prompt, or an empty one, starts from the end token, as a document does; without one, from a line break for no
        prompt, and an empty prompt is refused. A prompt longer than the context keeps its last part.
        """
        notes: list[str] = []
        if not prompt:
            end = self.tokenizer.specials.get(END)
            if end is not None:
                return [end], notes
            if prompt is None and not self.tokenizer.unseen("\n"):
                return [int(i) for i in self.tokenizer.encode("\n")], notes
            raise UserError(
                "--prompt: an empty prompt gives this model nothing to start from, since it was trained on one text "
                "without document borders"
            )
        ids = [int(i) for i in self.tokenizer.encode(prompt)]
        context = self.model_config["context"]
        if self.model_config["window"] is None and len(ids) > context:
            notes.append(f"the prompt has {len(ids)} tokens; the model sees the last {context}")
            ids = ids[-context:]
        return ids, notes

    def stream(self, prompt: str | None = None, **options: Any) -> Iterator[str]:
        """The continuation of a prompt, in pieces as they come. options: as in `GenerateOptions`."""
        given = GenerateOptions(prompt=prompt, **options)
        if given.beam != 1 or given.samples != 1:
            raise UserError("a stream is one sample: --beam and --samples give whole texts only")
        ids, _ = self.prompt_ids(prompt)
        with self.ready() as model:
            for event in generate(_steps(model), [self._request(ids, given)], self.tokenizer.stream):
                if event.text:
                    yield event.text

    def generate(self, prompt: str | None = None, **options: Any) -> str:
        """The continuation of a prompt as one text. options: as in `GenerateOptions`, with samples = 1."""
        return self.generate_all([prompt], **options)[0][0]

    def generate_all(self, prompts: Sequence[str | None], **options: Any) -> list[list[str]]:
        """Continuations of several prompts in one batch, `samples` each."""
        given = GenerateOptions(**options)
        starts = [self.prompt_ids(prompt)[0] for prompt in prompts]
        texts: list[list[str]] = [[""] * given.samples for _ in prompts]
        with self.ready() as model:
            if given.beam > 1:
                return [[text] for text in self._beam(_steps(model), starts, given)]
            requests = [self._request(ids, given) for ids in starts]
            for event in generate(_steps(model), requests, self.tokenizer.stream):
                texts[event.request][event.sample] += event.text
        return texts

    def score(self, prompt: str, continuation: str) -> Score:
        """The log-probability of each token of a given continuation after a prompt."""
        ids, _ = self.prompt_ids(prompt)
        follow = [int(i) for i in self.tokenizer.encode(continuation)]
        if not follow:
            raise UserError("--continuation: an empty text has nothing to score")
        with self.ready() as model:
            return score(_steps(model), ids, follow)

    def _request(self, ids: list[int], o: GenerateOptions) -> Request:
        sampling = Sampling(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty)
        return Request(ids, o.max_new_tokens, sampling, o.seed, o.samples, self._ends(), tuple(o.stop))

    def _ends(self) -> tuple[int, ...]:
        end = self.tokenizer.specials.get(END)
        return () if end is None else (end,)

    def _beam(self, model: StepModel, starts: list[list[int]], o: GenerateOptions) -> list[str]:
        ends = self._ends()
        options = BeamOptions(o.beam, o.max_new_tokens, end=ends, alpha=o.length_penalty)
        texts = []
        for best, *_ in beam_search(model, starts, options):
            streamer = TextStreamer(self.tokenizer.stream(), tuple(o.stop))
            texts.append("".join(streamer.push(i) for i in best.ids if i not in ends) + streamer.finish())
        return texts

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        if verb == "score":
            scored = self.score(options.prompt, options.continuation)
            show(f"{scored.total:.4f} nats in all, {scored.average:.4f} a token\n")
            return {"total": scored.total, "average": scored.average, "log_probs": list(scored.log_probs)}
        o: GenerateOptions = options
        prompt = sys.stdin.read() if o.prompt == "-" else o.prompt
        _, notes = self.prompt_ids(prompt)
        given = {k: v for k, v in asdict(o).items() if k != "prompt"}
        show(prompt or "")
        if o.beam == 1 and o.samples == 1:
            pieces = []
            for piece in self.stream(prompt, **given):
                pieces.append(piece)
                show(piece)
            texts = ["".join(pieces)]
        else:
            texts = self.generate_all([prompt], **given)[0]
            show(f"\n{'-' * 40}\n{prompt or ''}".join(texts))
        show("\n")
        return {"text": texts[0], "texts": texts, "prompt": prompt, "notes": notes}


def _steps(model: nn.Module) -> StepModel:
    return cast(StepModel, model)


def _restarting(segments: torch.Tensor) -> torch.Tensor:
    """Positions that count from 0 in each segment: (B, N)."""
    N = segments.shape[1]
    index = torch.arange(N).expand_as(segments)
    first = torch.ones_like(segments, dtype=torch.bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(first, index, 0).cummax(1).values


def _ngram_nats(training: TextData, validation: TextData) -> tuple[float, str]:
    """The nats that the baseline needs for all validation documents, and a note on how it was trained."""
    note = "over characters, with running context"
    points = [np.frombuffer(d.text.encode("utf-32-le"), np.uint32) for d in training.documents]
    held = [np.frombuffer(d.text.encode("utf-32-le"), np.uint32) for d in validation.documents]
    total = 0
    kept = []
    for part in points:
        if total >= BASELINE_CHARACTERS:
            note += f", from the first {BASELINE_CHARACTERS:,} characters of the training text"
            break
        kept.append(part[: BASELINE_CHARACTERS - total])
        total += len(kept[-1])
    known, ids = np.unique(np.concatenate([*kept, *held]), return_inverse=True)
    cuts = np.cumsum([len(part) for part in [*kept, *held]])[:-1]
    pieces = [piece.astype(np.int64) for piece in np.split(ids, cuts)]
    model = KneserNey.fit(pieces[: len(kept)], len(known), BASELINE_ORDER)
    return float(-sum(model.log_probs(piece).sum() for piece in pieces[len(kept) :])), note
