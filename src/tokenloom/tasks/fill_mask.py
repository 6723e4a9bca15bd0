"""Fill in words: an encoder that learns from any text, without labels, by guessing tokens that were taken out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, option
from tokenloom.data.documents import Document, TextData
from tokenloom.data.pretokenized.shards import open_pretokenized
from tokenloom.data.report import data_report
from tokenloom.data.samples import DocumentChunks
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.data.unicode import fold_newlines
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.neighbors import Neighbors
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.tasks._masking import Draws, corrupt
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.tasks.base import Example, PreparedData, Show
from tokenloom.training.batches import BatchContext, evaluation_batches
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
from tokenloom.utils.names import counted


@dataclass(frozen=True)
class FillMaskSettings(EncoderSettings):
    """How the text is read, how it becomes tokens, and the model's sizes; None = derived."""

    lines: bool = option(False, "each line of the text is a text of its own, read without its neighbors")
    validation: str | None = option(None, "validate on this text instead of a part of the data")
    val_fraction: float = option(0.1, "share of the data kept for validation")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the text")
    encoding: str = option("utf-8", "encoding of the text")
    newlines: Literal["fold", "keep"] = option("fold", "fold: every kind of line end becomes a line feed; keep")


@dataclass(frozen=True)
class FillOptions(Options):
    """The text, and what in it is to be filled in."""

    text: str | None = option(None, "a text with places to be filled in", positional=True)
    mask: str = option("___", "what stands in a place to be filled in, each with one token")
    top: int = option(5, "how many answers to show")


class FillMask(TextEncoderTask):
    """Predict tokens that were taken out of a text, from both sides."""

    name = "fill-mask"
    summary = "train an encoder on any text by filling in tokens; the run can be gone on from, with --init-from"
    Settings = FillMaskSettings
    models: ClassVar[Mapping[str, str]] = {
        "encoder": "bidirectional transformer; 15 % of the tokens are asked for, drawn anew each epoch"
    }
    uses: ClassVar[Mapping[str, type]] = {"predict": FillOptions}
    # An epoch asks for one token in seven, and each asks for others.
    most_epochs: ClassVar[int] = 100

    def __init__(self, settings: FillMaskSettings | None = None) -> None:
        super().__init__(settings)
        self._shown: NDArray[Any] = np.zeros(0, np.int64)
        if not 0 < self.settings.val_fraction < 1:
            raise UserError(f"--val-fraction {self.settings.val_fraction}: must be above 0 and below 1")
        if self.settings.validation is not None and self.settings.val_fraction != FillMaskSettings.val_fraction:
            raise UserError("--val-fraction has no effect with --validation: leave one of them out")

    # Data.

    def _read(self, source: str) -> TextData:
        s: FillMaskSettings = self.settings
        if source != "-" and open_pretokenized(source) is not None:
            raise UserError(f"{source}: is tokenized already, and {self.name} reads text: give the text itself")
        text = read_text(source, encoding=s.encoding, newlines=s.newlines, column=s.column)
        return by_lines(text) if s.lines else text

    def prepare(self, data: str | None) -> PreparedData:
        s: FillMaskSettings = self.settings
        assert data is not None
        validation = None if s.validation is None else self._read(s.validation)
        parts = split(self._read(data), s.val_fraction, validation=validation)
        texts, held = ([d.text for d in part.documents] for part in (parts.train, parts.validation))
        self.train_tokenizer(texts, held)
        self.settle(self.tokenizer.vocab_size, "none")
        training, measured = self._pieces(texts, data), self._pieces(held, data)
        self._shown = measured.take(measured.all()[:1])[0]
        extra = {
            "tokens": f"{len(training.ids):,} to train, {len(measured.ids):,} to validate;"
            f" {self.tokenizer.vocab_size:,} different ids",
            "texts": f"{counted(len(training.ends), 'text')} in {counted(len(training), 'piece')} of at most"
            f" {self.context - 1:,} tokens",
            "tokenizer": ": ".join(filter(None, (self.tokenizer.kind, self.tokenizer.reason or "of the run"))),
        }
        if self.tokenizer.notes:
            extra["note"] = " ".join(self.tokenizer.notes)
        report = data_report(parts, extra)
        return PreparedData(training, measured, report.lines(), report.as_dict())

    def _pieces(self, texts: Sequence[str], source: str) -> DocumentChunks:
        ids = self.tokenizer.encode_batch(texts)
        if not any(len(row) for row in ids):
            raise UserError(f"{source}: has no tokens to fill in")
        # One place is the class token's.
        return DocumentChunks(ids, self.context - 1)

    def load_samples(self, data: str) -> DocumentChunks:
        return self._pieces([document.text for document in self._read(data).documents], data)

    def output_meaning(self) -> object:
        return self.name, self.tokenizer.fingerprint()

    # Loss and metrics.

    @property
    def _text_ids(self) -> int:
        """Ids from here on are special, and never put in the place of a token."""
        return self.tokenizer.vocab_size - len(self.tokenizer.specials)

    def collate(self, samples: list[NDArray[Any]], moment: BatchContext) -> Batch:
        seen, asked = [], []
        for row, ids in enumerate(samples):
            given = torch.from_numpy(ids.astype(np.int64))
            draws = Draws.of_sample(len(ids), self._text_ids, moment.random(row))
            shown, selected = corrupt(given, draws, self.mask_id)
            seen.append(shown.numpy())
            asked.append(given.masked_fill(~selected, IGNORE).numpy())
        return Batch({"text": self.rows(seen)}, {"loss": self.targets(asked)})

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        term = cross_entropy_term(logits, targets)
        right = (logits.detach().argmax(-1) == targets).sum(1)
        return {"loss": term, "accuracy": LossTerm(right, term.counts, weight=0.0)}

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        loss = totals["loss"]
        return {
            "loss": loss.value,
            "interval": loss.interval(),
            "perplexity": math.exp(min(loss.value, 700.0)),
            "accuracy": totals["accuracy"].value,
            "targets": loss.count,
        }

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
        return [
            f"loss:        {m['loss']:.4f}{either_way} nats a token{' (95 % interval)' if either_way else ''}",
            f"perplexity:  {m['perplexity']:,.2f}",
            f"accuracy:    {m['accuracy']:.1%} of the tokens filled in are the very ones",
            f"measured on: {int(m['targets']):,} tokens asked for, the same in every evaluation",
        ]

    def baseline(self, material: PreparedData) -> Baseline:
        """What the two neighbors of a token say of it, asked for the same tokens of the same corrupted text."""
        training, measured = material.training, material.validation
        assert isinstance(training, DocumentChunks)
        documents = np.split(training.ids, training.ends[:-1])
        guess = Neighbors.fit(documents, self.tokenizer.vocab_size)
        nats, right, targets = 0.0, 0, 0
        for batch in evaluation_batches(measured, self.collate, 256):
            rows, places = (batch.targets["loss"] != IGNORE).nonzero(as_tuple=True)
            ids, real = batch["text"].tokens, batch["text"].real
            known = ids < self._text_ids if real is None else (ids < self._text_ids) & real
            found = guess.log_probs(*_beside(ids.masked_fill(~known, -1), rows, places))
            answers = batch.targets["loss"][rows, places].numpy()
            nats -= float(found[np.arange(len(answers)), answers].sum())
            right += int((found.argmax(1) == answers).sum())
            targets += len(answers)
        note = f"which fills in {right / targets:.1%} of the tokens"
        return Baseline(guess.name, nats / targets, "nats a token", note)

    # Use.

    def use(self, verb: str, options: FillOptions, show: Show) -> dict[str, Any]:
        if options.text is None:
            raise UserError(f'nothing to fill in: give a text with {options.mask} in it, as in "The {options.mask}"')
        if not options.mask or options.mask.isspace():
            raise UserError("--mask: give something that can be seen in the text")
        if not 1 <= options.top <= self._text_ids:
            raise UserError(f"--top {options.top}: must be from 1 to {self._text_ids:,}, the number of text tokens")
        text = fold_newlines(options.text) if self.settings.newlines == "fold" else options.text
        places = self.fill(text, options.mask, options.top)
        filled = text
        for number, place in enumerate(places, start=1):
            filled = filled.replace(options.mask, place[0][0], 1)
            show("" if len(places) == 1 else f"place {number}\n")
            show("".join(f"  {probability:6.1%}  {shown(answer)}\n" for answer, probability in place))
        show(f"{filled}\n")
        notes = []
        if self.tokenizer.kind == "char":
            notes.append(f"this run knows characters, so that each {options.mask} is one character")
        if len(self._ids_of(text, options.mask)) > self.context - 1:
            notes.append(
                f"the text is longer than the {self.context - 1:,} tokens that the model reads at once: around each"
                " place, so many were read"
            )
        answers = [[{"text": answer, "probability": p} for answer, p in place] for place in places]
        return {"text": filled, "places": answers, "notes": notes}

    def fill(self, text: str, mask: str = "___", top: int = 5) -> list[list[tuple[str, float]]]:
        """For each place in a text where `mask` stands, the likeliest tokens and their probabilities, best first.

        Every place is guessed by itself, with the others left open. Of a text longer than the model, as much as it can
        read is read around each place. Raises UserError for a text without a place, and for unseen characters.
        """
        ids = self._ids_of(text, mask)
        places = np.flatnonzero(ids == self.mask_id)
        if not len(places):
            raise UserError(f"there is no {mask} in the text; --mask says what stands in a place to be filled in")
        room = self.context - 1
        starts = np.clip(places - room // 2, 0, max(0, len(ids) - room))
        answers = []
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            # Special tokens are no answers.
            found = self.read([ids[start : start + room]])[0, place - start, : self._text_ids]
            best = (found / found.sum()).topk(top)
            answers.append(
                [
                    (self.tokenizer.decode([i]), p)
                    for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                ]
            )
        return answers

    def _ids_of(self, text: str, mask: str) -> NDArray[np.int64]:
        parts = [self.tokenizer.encode(part).astype(np.int64) for part in text.split(mask)]
        joined = [part for piece in parts for part in (np.array([self.mask_id]), piece)]
        return np.concatenate(joined[1:])

    def example(self) -> str:
        ids = self._shown[:24]
        if len(ids) < 3:
            return ""
        cut = len(ids) // 2
        text = self.tokenizer.decode(ids[:cut]) + "___" + self.tokenizer.decode(ids[cut + 1 :])
        try:
            answers = self.fill(text, top=3)[0]
        except UserError:
            # A character that a cut went through has no token.
            return ""
        return f"{text}\n" + ", ".join(f"{shown(answer)} {probability:.0%}" for answer, probability in answers)

    # For the equality kit.

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        text = folder / "rhyme.txt"
        text.write_text("One, two, buckle my shoe.\nThree, four, knock at the door.\n" * 12, "utf-8")
        lines = folder / "lines.txt"
        lines.write_text("".join(f"{'One, two, three, four, five'[: 5 + n]}.\n" for n in range(20)), "utf-8")
        tiny = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch_size": 4, "tokenizer": "char"}
        return {
            "windows": Example(str(text), tiny),
            "lines": Example(str(lines), {**tiny, "context": 32, "preset": "classic", "lines": True}),
        }


def by_lines(text: TextData) -> TextData:
    """Every line that is not blank as a document of its own."""
    documents = [
        Document(f"{document.id}:{number}", line)
        for document in text.documents
        for number, line in enumerate(document.text.split("\n"), start=1)
        if line.strip()
    ]
    held_out = text.held_out
    if isinstance(held_out, tuple):
        held = set(held_out)
        held_out = tuple(line.id for line in documents if line.id.rpartition(":")[0] in held)
    return replace(text, documents=documents, documented=True, held_out=None if held_out == "tail" else held_out)


def shown(token: str) -> str:
    """A token so that its white space can be seen."""
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _beside(ids: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids to the left and to the right of some places; −1 where there is none, or none that is known."""
    after = torch.cat((ids, torch.full((len(ids), 1), -1)), dim=1)[rows, places + 1]
    return ids[rows, places - 1].numpy(), after.numpy()
