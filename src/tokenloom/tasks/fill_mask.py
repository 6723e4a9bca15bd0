"""Masked language modeling: train a text encoder on any text, without labels, by predicting masked tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, flag, option
from tokenloom.data.documents import Document, TextData
from tokenloom.data.pretokenized.shards import open_pretokenized
from tokenloom.data.report import data_report
from tokenloom.data.samples import DocumentChunks
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.data.unicode import fold_newlines
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.neighbors import NeighborModel
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.tasks._masking import MaskingDraws, corrupt
from tokenloom.tasks._settings import TextSource, ValidationSplit
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.tasks.base import NO_SAMPLES, PreparedData, Show, action, need_data
from tokenloom.training.batches import BatchContext, evaluation_batches
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.utils.names import counted


@dataclass(frozen=True)
class FillMaskSettings(EncoderSettings, ValidationSplit, TextSource):
    """How text is read, split and tokenized, and the model's sizes; None is derived."""

    group: ClassVar[str] = "Data"

    line_by_line: bool = option(False, "treat each line as a text of its own, without context from other lines")


@dataclass(frozen=True)
class FillOptions(Options):
    """The text to fill in."""

    text: str | None = option(None, "text with masked places", positional=True)
    mask: str = option("___", "what marks a masked place; each is filled with one token")
    num_answers: int = option(5, "number of answers shown per masked place", low=1)


class FillMask(TextEncoderTask):
    """Train an encoder on any text by predicting masked tokens, and fine-tune it with --init-from.

    In each epoch 15 % of the tokens are masked, others in each; a bidirectional transformer predicts them.
    """

    name = "fill-mask"
    Settings = FillMaskSettings
    metrics = (
        Metric("loss", "nats/token", "lower"),
        Metric("loss_ci95", kind="ci95", of="loss", compute=lambda task, sums: sums["loss"].interval()),
        Metric("perplexity", compute=lambda task, sums: math.exp(min(sums["loss"].value, 700.0))),
        Metric("accuracy", "of the masked tokens", "higher", "percent"),
        Metric("num_targets", "tokens", kind="count", label="masked", compute=lambda task, sums: sums["loss"].count),
    )
    # An epoch predicts one token in seven, and each epoch others.
    max_epochs: ClassVar[int] = 100

    def __init__(self, settings: FillMaskSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._example_ids: NDArray[Any] = np.zeros(0, np.int64)

    # Data.

    def _read(self, source: str) -> TextData:
        s: FillMaskSettings = self.settings
        if source != "-" and open_pretokenized(source) is not None:
            raise UserError(f"{source}: is pre-tokenized, and {self.name} reads text: give the text itself")
        text = read_text(
            source, encoding=s.encoding, normalize_newlines=s.normalize_newlines, text_column=s.text_column
        )
        return by_lines(text) if s.line_by_line else text

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: FillMaskSettings = self.settings
        source = need_data(self, source)
        if for_evaluation:
            texts = [document.text for document in self._read(source).documents]
            return PreparedData(NO_SAMPLES, self._chunks(texts, source))
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = split(self._read(source), s.val_fraction, s.split_seed, validation=val_data)
        train_texts, val_texts = ([d.text for d in part.documents] for part in (parts.train, parts.validation))
        self.train_tokenizer(train_texts, val_texts)
        self.set_sizes(self.tokenizer.vocab_size, "none")
        train, val = self._chunks(train_texts, source), self._chunks(val_texts, source)
        self._example_ids = val.take(val.all()[:1])[0]
        extra = {
            "tokens": f"{len(train.ids):,} to train, {len(val.ids):,} to validate;"
            f" vocabulary of {self.tokenizer.vocab_size:,}",
            "texts": f"{counted(len(train.ends), 'text')} in {counted(len(train), 'piece')} of at most"
            f" {self.context - 1:,} tokens",
            "tokenizer": self.tokenizer_summary,
        }
        if self.tokenizer.notes:
            extra["note"] = " ".join(self.tokenizer.notes)
        prepared = self.prepared(train, val, data_report(parts, extra))
        return replace(prepared, baseline=lambda: self._baseline(train, val))

    def _chunks(self, texts: Sequence[str], source: str) -> DocumentChunks:
        ids = self.tokenizer.encode_batch(texts)
        if not any(len(row) for row in ids):
            raise UserError(f"{source}: has no tokens to mask")
        return DocumentChunks(ids, self.context - 1)  # one less for the class token

    def outputs(self) -> object:
        return self.name, self.tokenizer.fingerprint()

    # Loss and metrics.

    @property
    def _num_text_ids(self) -> int:
        """The number of ids that stand for text; special tokens come after them."""
        return self.tokenizer.vocab_size - len(self.tokenizer.specials)

    def collate(self, samples: list[NDArray[Any]], context: BatchContext) -> Batch:
        inputs, targets = [], []
        for row, sample in enumerate(samples):
            ids = torch.from_numpy(sample.astype(np.int64))
            draws = MaskingDraws.for_sample(len(ids), self._num_text_ids, context.random(row))
            corrupted, selected = corrupt(ids, draws, self.mask_id)
            inputs.append(corrupted.numpy())
            targets.append(ids.masked_fill(~selected, IGNORE).numpy())
        return Batch({"text": self.stream(inputs)}, {"loss": self.targets(targets)})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        term = cross_entropy_term(logits, targets)
        correct = (logits.detach().argmax(-1) == targets).sum(1)
        return {"loss": term, "accuracy": LossTerm(correct, term.counts, weight=0.0)}

    def _baseline(self, train: DocumentChunks, val: DocumentChunks) -> Baseline:
        """Predict from the two neighbors of a token, for the same tokens of the same corrupted text."""
        model = NeighborModel.fit(np.split(train.ids, train.ends[:-1]), self.tokenizer.vocab_size)
        nats, correct, targets = 0.0, 0, 0
        for batch in evaluation_batches(val, self.collate, 256):
            rows, places = (batch.targets["loss"] != IGNORE).nonzero(as_tuple=True)
            ids, real = batch["text"].tokens, batch["text"].real
            known = ids < self._num_text_ids if real is None else (ids < self._num_text_ids) & real
            log_probs = model.log_probs(*_neighbors(ids.masked_fill(~known, -1), rows, places))
            answers = batch.targets["loss"][rows, places].numpy()
            nats -= float(log_probs[np.arange(len(answers)), answers].sum())
            correct += int((log_probs.argmax(1) == answers).sum())
            targets += len(answers)
        return Baseline(model.name, nats / targets, "nats/token", f"accuracy {correct / targets:.1%}")

    # Use.

    def fill(self, text: str, mask: str = "___", num_answers: int = 5) -> list[list[tuple[str, float]]]:
        """Return, for each place where `mask` stands, the likeliest tokens and their probabilities, best first.

        Every place is predicted alone, with the others left masked. In a text longer than the context, as many tokens
        as fit around each place are read. Raise UserError for a text without a masked place and for unseen characters.
        """
        ids = self._encode(text, mask)
        places = np.flatnonzero(ids == self.mask_id)
        if not len(places):
            raise UserError(f"there is no {mask} in the text; --mask says what marks a masked place")
        window = self.context - 1
        starts = np.clip(places - window // 2, 0, max(0, len(ids) - window))
        answers = []
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            # Special tokens are no answers.
            p = self.probabilities([ids[start : start + window]])[0, place - start, : self._num_text_ids]
            best = (p / p.sum()).topk(num_answers)
            found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            answers.append([(self.tokenizer.decode([id]), probability) for id, probability in found])
        return answers

    def _encode(self, text: str, mask: str) -> NDArray[np.int64]:
        parts = [self.tokenizer.encode(part).astype(np.int64) for part in text.split(mask)]
        return np.concatenate([ids for part in parts for ids in (np.array([self.mask_id]), part)][1:])

    def _example(self) -> dict[str, Any]:
        """Return a text of the validation data with one token masked."""
        ids = self._example_ids[:24]
        if len(ids) < 3:
            raise UserError("the validation text is too short for an example")
        middle = len(ids) // 2
        left, right = self.tokenizer.decode(ids[:middle]), self.tokenizer.decode(ids[middle + 1 :])
        return {"text": f"{left}___{right}", "num_answers": 3}

    @action(FillOptions, example=_example)
    def _predict(self, options: FillOptions, show: Show) -> dict[str, Any]:
        """Fill in the masked places of a text."""
        if options.text is None:
            raise UserError(f'nothing to fill in: give a text with {options.mask} in it, as in "The {options.mask}"')
        if not options.mask or options.mask.isspace():
            raise UserError("--mask: give something that is visible in the text")
        if options.num_answers > self._num_text_ids:
            name, limit = flag("num_answers"), f"from 1 to {self._num_text_ids:,}, the number of text tokens"
            raise UserError(f"{name} {options.num_answers}: must be {limit}")
        text = fold_newlines(options.text) if self.settings.normalize_newlines else options.text
        places = self.fill(text, options.mask, options.num_answers)
        filled = text
        for number, place in enumerate(places, start=1):
            filled = filled.replace(options.mask, place[0][0], 1)
            show("" if len(places) == 1 else f"place {number}\n")
            show("".join(f"  {probability:6.1%}  {visible(answer)}\n" for answer, probability in place))
        show(f"{filled}\n")
        notes = []
        if self.tokenizer.kind == "char":
            notes.append(f"the tokens of this run are characters: each {options.mask} is one character")
        if len(self._encode(text, options.mask)) > self.context - 1:
            notes.append(
                f"the text is longer than the context: {self.context - 1:,} tokens around each masked place are read"
            )
        answers = [[{"text": answer, "probability": p} for answer, p in place] for place in places]
        return {"text": filled, "places": answers, "notes": notes}


def by_lines(text: TextData) -> TextData:
    """Return a text with every line that is not blank as a document of its own."""
    documents = [
        Document(f"{document.id}:{number}", line)
        for document in text.documents
        for number, line in enumerate(document.text.split("\n"), start=1)
        if line.strip()
    ]
    held_out = None
    if isinstance(text.held_out, tuple):
        held_out = tuple(line.id for line in documents if line.id.rpartition(":")[0] in text.held_out)
    return replace(text, documents=documents, documented=True, held_out=held_out)


def visible(token: str) -> str:
    """Return a token with visible white space."""
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _neighbors(
    ids: torch.Tensor, rows: torch.Tensor, places: torch.Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids to the left and to the right of each place; −1 where there is none, or none that is known."""
    right = torch.cat((ids, torch.full((len(ids), 1), -1)), dim=1)[rows, places + 1]
    return ids[rows, places - 1].numpy(), right.numpy()
