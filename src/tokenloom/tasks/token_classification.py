"""Label words: an encoder that gives each word of a sentence a label, from scratch or from a run of fill-mask."""

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
from tokenloom.data.conll import (
    Columns,
    Sentence,
    TaggedData,
    bare_words,
    looks_tagged,
    punctuated,
    read_tagged,
    restored,
)
from tokenloom.data.report import data_report
from tokenloom.data.samples import Keys, ListSamples
from tokenloom.data.split import Split, split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.evaluation.classification import ByClass
from tokenloom.evaluation.tagging import (
    Encoded,
    count_labels,
    encoded_window,
    label_parts,
    looks_like_spans,
    span_counts,
    windows,
)
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.count_tagger import CountTagger
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.tasks.base import Example, PreparedData, Show
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
from tokenloom.utils.names import counted, some

SPANS = "spans"
COUNTS = ("right", "predicted", "there")


@dataclass(frozen=True)
class TokenClassificationSettings(EncoderSettings):
    """Where words and labels come from, how words become tokens, and the model's sizes; None = derived."""

    labels: Literal["columns", "punctuation"] = option(
        "columns", "columns: the data have a word and its label a line; punctuation: made from any text"
    )
    word_column: int | None = option(None, "column that holds the word, from 1; the first when not given")
    label_column: int | None = option(None, "column that holds the label, from 1; the last when not given")
    validation: str | None = option(None, "validate on these data instead of a part of the data")
    val_fraction: float = option(0.1, "share of the data kept for validation")
    encoding: str = option("utf-8", "encoding of the text")


@dataclass(frozen=True)
class TagOptions(Options):
    """What is to be labeled."""

    sentences: list[str] = option(
        [], "sentences whose words are to be labeled, spaces between the words", positional=True
    )
    file: str | None = option(None, "a file with a sentence a line")


@dataclass(frozen=True)
class WindowSamples(ListSamples):
    """Windows over sentences, as `encoded_window` gives them."""

    items: Sequence[Encoded]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Pieces in each window."""
        return np.array([len(self.items[key][0]) for key in keys.tolist()])


class TokenClassification(TextEncoderTask):
    """A label a word, read from the features of its first piece."""

    name = "token-classification"
    summary = "train an encoder to give each word a label: parts of speech, names, punctuation"
    Settings = TokenClassificationSettings
    models: ClassVar[Mapping[str, str]] = {"encoder": "bidirectional transformer, read at the first piece of each word"}
    uses: ClassVar[Mapping[str, type]] = {"predict": TagOptions}
    unit: str = "nats a word"

    def __init__(self, settings: TokenClassificationSettings | None = None) -> None:
        super().__init__(settings)
        s: TokenClassificationSettings = self.settings
        self.label_names: list[str] = []
        self._parts: Split[TaggedData] | None = None
        self._pieces: dict[str, NDArray[np.int64]] = {}
        self._too_long: list[str] = []
        if not 0 < s.val_fraction < 1:
            raise UserError(f"--val-fraction {s.val_fraction}: must be above 0 and below 1")
        if s.validation is not None and s.val_fraction != TokenClassificationSettings.val_fraction:
            raise UserError("--val-fraction has no effect with --validation: leave one of them out")
        for name in ("word_column", "label_column"):
            if getattr(s, name) is not None and s.labels == "punctuation":
                raise UserError(f"--{name.replace('_', '-')} has no effect with --labels punctuation: leave it out")

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return looks_tagged(data)

    def _read(self, source: str) -> TaggedData:
        s: TokenClassificationSettings = self.settings
        if s.labels == "punctuation" and looks_tagged(source) is None:
            return punctuated(read_text(source, encoding=s.encoding))
        return read_tagged(source, columns=Columns(s.word_column, s.label_column), encoding=s.encoding)

    def prepare(self, data: str | None) -> PreparedData:
        s: TokenClassificationSettings = self.settings
        assert data is not None
        validation = None if s.validation is None else self._read(s.validation)
        parts = self._parts = split(self._read(data), s.val_fraction, validation=validation)
        if parts.train.restorable:
            self.settings = s = replace(s, labels="punctuation")
        if not self.label_names:
            self.label_names = sorted(parts.train.labels() + parts.validation.labels())
        texts, held = ([f" {d.text}" for d in part.as_text().documents] for part in (parts.train, parts.validation))
        self.train_tokenizer(texts, held)
        self.settle(len(self.label_names), "none")
        notes: list[str] = []
        training = self._samples(parts.train, notes, "training: ")
        measured = self._samples(parts.validation, notes, "validation: ")
        tokens = sum(len(ids) for ids, _ in training.items)
        extra = {
            "tokens": f"{tokens:,} to train; {self.tokenizer.vocab_size:,} different ids",
            "tokenizer": ": ".join(filter(None, (self.tokenizer.kind, self.tokenizer.reason or "of the run"))),
        }
        report = data_report(replace(parts, notes=[*parts.notes, *notes, *self._long_words()]), extra)
        return PreparedData(training, measured, report.lines(), report.as_dict())

    def load_samples(self, data: str) -> WindowSamples:
        return self._samples(self._read(data), [])

    def _samples(self, data: TaggedData, notes: list[str], part: str = "") -> WindowSamples:
        """Every sentence in one window, or in several that overlap."""
        number = {label: n for n, label in enumerate(self.label_names)}
        items: list[Encoded] = []
        cut: list[str] = []
        for sentence in data.sentences:
            words = self._encode(sentence.words)
            labels = [number[label] if label in number else self._unknown(sentence, label) for label in sentence.labels]
            found = windows(list(map(len, words)), self.context - 1)
            items += [encoded_window(words, labels, window) for window in found]
            cut += [sentence.id] * (len(found) > 1)
        if cut:
            notes.append(
                f"{part}{counted(len(cut), 'sentence')} longer than the {self.context - 1:,} tokens that the model"
                f" reads at once {'is' if len(cut) == 1 else 'are'} cut into windows that overlap: {some(cut, 5)}"
            )
        return WindowSamples(items)

    def _long_words(self) -> list[str]:
        """A note on the words that were cut, where there are any."""
        if not self._too_long:
            return []
        shown = some((f"{word[:20]!r}…" for word in self._too_long), 5)
        many = counted(len(self._too_long), "word")
        return [f"{many} longer than the model: only the first {self.context - 1:,} tokens are read: {shown}"]

    def _unknown(self, sentence: Sentence, label: str) -> int:
        known = some(self.label_names, 12)
        raise UserError(f"{sentence.id}: the label {label!r} is none of those that the run has learned: {known}")

    def _encode(self, words: Sequence[str]) -> list[NDArray[np.int64]]:
        """The pieces of each word, at most as many as there is room for."""
        for word in words:
            if word not in self._pieces:
                pieces = self.tokenizer.encode(f" {word}").astype(np.int64)
                self._too_long += [word] * (len(pieces) > self.context - 1)
                self._pieces[word] = pieces[: self.context - 1]
        return [self._pieces[word] for word in words]

    def output_meaning(self) -> object:
        return self.name, self.label_names

    # Loss and metrics.

    def collate(self, samples: list[Encoded], moment: BatchContext) -> Batch:
        return Batch(
            {"text": self.rows([ids for ids, _ in samples])},
            {"loss": self.targets([targets for _, targets in samples])},
        )

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        terms = {"loss": cross_entropy_term(logits, targets)}
        if not model.training:
            terms |= self._counts(targets, logits.argmax(-1))
        return terms

    def _counts(self, truth: torch.Tensor, predicted: torch.Tensor) -> LossTerms:
        """What precision and recall need, a sample and label."""
        found: LossTerms = {}
        counted_words = (truth != IGNORE).sum(1)

        def add(name: str, counts: Sequence[torch.Tensor]) -> None:
            for what, sums in zip(COUNTS, counts, strict=True):
                found[f"{what}/{name}"] = LossTerm(sums, counted_words, weight=0.0)

        for names, which in self._groups():
            table = torch.tensor(which, device=truth.device)
            asked = torch.where(truth == IGNORE, truth, table[truth.clamp(min=0)])
            counts = count_labels(asked, table[predicted], len(names))
            for n, name in enumerate(names):
                add(name, [count[:, n] for count in counts])
        if looks_like_spans(self.label_names):
            add(SPANS, span_counts(truth, predicted, self.label_names))
        return found

    def _groups(self) -> list[tuple[list[str], list[int]]]:
        """The labels, and the values of each part of them: names, and which of them each label has."""
        return [(self.label_names, list(range(len(self.label_names)))), *label_parts(self.label_names)]

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        """Loss in nats a word, accuracy, macro F1 over the labels that occur or are predicted; then precision, recall
        and F1 by label, by the parts of labels, and of whole spans."""
        loss = totals["loss"]
        names = [name for group, _ in self._groups() for name in group]
        names += [SPANS] * (f"right/{SPANS}" in totals)
        counts = [np.array([round(totals[f"{what}/{name}"].total) for name in names]) for what in COUNTS]
        scores, labels = ByClass(*counts), ByClass(*(count[: len(self.label_names)] for count in counts))
        metrics = {
            "loss": loss.value,
            "interval": loss.interval(),
            "accuracy": float(labels.right.sum()) / loss.count if loss.count else math.nan,
            "macro_f1": labels.macro_f1,
            "words": loss.count,
        }
        for what in ("precision", "recall", "f1", "there"):
            metrics |= {f"{what}/{name}": float(v) for name, v in zip(names, getattr(scores, what), strict=True)}
        return metrics

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
        lines = [
            f"loss:        {m['loss']:.4f}{either_way} nats a word{' (95 % interval)' if either_way else ''}",
            f"accuracy:    {m['accuracy']:.2%} of the words, which is the micro F1 over all labels",
            f"macro F1:    {m['macro_f1']:.4f}",
        ]
        if f"f1/{SPANS}" in m:
            lines.append(
                f"whole spans: F1 {m[f'f1/{SPANS}']:.4f}, precision {m[f'precision/{SPANS}']:.4f},"
                f" recall {m[f'recall/{SPANS}']:.4f}"
            )
        lines.append(f"measured on: {int(m['words']):,} words")
        groups = [names for names, _ in self._groups()]
        for names in groups[1:] or groups:
            rows: list[list[object]] = [
                [
                    name,
                    *(f"{m[f'{what}/{name}']:.3f}" for what in ("precision", "recall", "f1")),
                    int(m[f"there/{name}"]),
                ]
                for name in names
            ]
            lines += ["", plain_table(rows, ["label", "precision", "recall", "F1", "words"])]
        return lines

    def baseline(self, material: PreparedData) -> Baseline:
        """An n-gram tagger on the same split; the most frequent label a word beside it."""
        n_gram, word = (self.counting(contexts) for contexts in (3, 1))
        note = (
            f"with macro F1 {n_gram['macro_f1']:.4f}; the most frequent label a word has {word['loss']:.4f}"
            f" and macro F1 {word['macro_f1']:.4f}"
        )
        return Baseline("an n-gram tagger", n_gram["loss"], "nats a word", note)

    def counting(self, contexts: int) -> dict[str, float]:
        """The metrics of a `CountTagger` of so many contexts, on the split of the training."""
        if self._parts is None:
            self.prepare(self.source)
        assert self._parts is not None
        number = {label: n for n, label in enumerate(self.label_names)}
        tagger = CountTagger(len(number), contexts).fit(
            (s.words, [number[label] for label in s.labels]) for s in self._parts.train.sentences
        )
        totals: dict[str, MetricSum] = {}
        for sentence in self._parts.validation.sentences:
            found = tagger.probabilities(sentence.words)
            truth = np.array([number[label] for label in sentence.labels])
            nats = torch.tensor([-np.log(found[np.arange(len(truth)), truth]).sum()])
            terms = {"loss": LossTerm(nats, torch.tensor([len(truth)]))}
            terms |= self._counts(torch.from_numpy(truth)[None], torch.from_numpy(found.argmax(1))[None])
            for name, term in terms.items():
                totals.setdefault(name, MetricSum(term.weight)).update(term)
        return self.metrics(totals)

    # Use.

    def tag(self, words: Sequence[str]) -> list[tuple[str, float]]:
        """The likeliest label of each word, and its probability. Raises UserError for unseen characters."""
        if not words:
            return []
        pieces = self._encode(words)
        answers: list[tuple[str, float]] = []
        for window in windows(list(map(len, pieces)), self.context - 1):
            ids, _ = encoded_window(pieces, None, window)
            firsts = np.cumsum([0, *map(len, pieces[window.start : window.stop])])[:-1]
            found = self.read([ids])[0, firsts[window.first - window.start : window.last - window.start]]
            best = found.max(-1)
            answers += [
                (self.label_names[n], p) for n, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        return answers

    def use(self, verb: str, options: TagOptions, show: Show) -> dict[str, Any]:
        sentences = list(options.sentences)
        if options.file is not None:
            text = read_text(options.file, encoding=self.settings.encoding)
            sentences += [line for document in text.documents for line in document.text.split("\n") if line.strip()]
        if not sentences:
            raise UserError("nothing to label: give a sentence, or --file with a sentence a line")
        restorable = self.settings.labels == "punctuation"
        results: list[dict[str, Any]] = []
        for number, sentence in enumerate(sentences):
            words = [word for word, _ in bare_words(sentence)] if restorable else sentence.split()
            if not words:
                raise UserError(f"sentence {number + 1}, {sentence!r}, has no word in it")
            tagged = self.tag(words)
            labels = [label for label, _ in tagged]
            show("\n" if number else "")
            rows: list[list[object]] = [[w, label, f"{p:.1%}"] for w, (label, p) in zip(words, tagged, strict=True)]
            result: dict[str, Any] = {"words": words, "labels": labels, "probabilities": [p for _, p in tagged]}
            if restorable:
                result["text"] = restored(words, labels)
                show(f"{result['text']}\n\n")
            show(plain_table(rows, ["word", "label", "probability"]) + "\n")
            results.append(result)
        return {"sentences": results, "notes": self._long_words()}

    def example(self) -> str:
        if self._parts is None:
            return ""
        words = min(self._parts.validation.sentences, key=lambda s: abs(len(s.words) - 12)).words[:20]
        labels = [label for label, _ in self.tag(words)]
        if self.settings.labels == "punctuation":
            return f"{' '.join(words)}\n{restored(list(words), labels)}"
        return plain_table([list(pair) for pair in zip(words, labels, strict=True)], ["word", "label"])

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        return {**super().save_parts(folder), "labels": self.label_names}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        super().load_parts(folder, kept)
        labels = kept.get("labels")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise UserError(f"{folder / 'config.json'}: parts has no list of labels")
        self.label_names = labels

    # For the equality kit.

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        rows = ["Anna B-PER", "Maria I-PER", "met O", "Bob B-PER", "in O", "Rome B-LOC", "again O"]
        text = "\n\n".join("\n".join(rows[n % 3 : 4 + n % 4] + rows[: n % 5]) for n in range(24))
        names = folder / "names.conll"
        names.write_text(text, "utf-8")
        tiny = {"context": 24, "width": 16, "depth": 2, "heads": 2, "batch_size": 4, "tokenizer": "char"}
        return {"names": Example(str(names), tiny)}
