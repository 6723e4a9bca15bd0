"""Token classification: an encoder gives each word of a sentence a label, from scratch or from a fill-mask run."""

# Longer than other tasks: sentences are split into windows, and labels are scored whole, in parts and as spans.

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
from tokenloom.evaluation.baselines.count_tagger import CountTagger
from tokenloom.evaluation.classification import ClassScores
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
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._settings import ValidationSplit
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.tasks.base import NO_SAMPLES, Match, PreparedData, Show, action, need_data
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
from tokenloom.training.metrics import Metric, compute_metrics
from tokenloom.utils.names import counted, some

SPANS = "spans"
COUNTS = ("correct", "predicted", "support")
_COLUMNS = {"labels": "columns"}


@dataclass(frozen=True)
class TokenClassificationSettings(EncoderSettings, ValidationSplit):
    """Where words and labels come from, how words are tokenized, and the model's sizes; None is derived."""

    group: ClassVar[str] = "Data"

    labels: Literal["columns", "punctuation"] = option(
        "columns", "columns: one word and its label per line; punctuation: labels made from any text"
    )
    token_column: int | None = option(None, "column with the word, from 1 [default: the first]", only=_COLUMNS)
    label_column: int | None = option(None, "column with the label, from 1 [default: the last]", only=_COLUMNS)
    encoding: str = option("utf-8", "character encoding of the files")


@dataclass(frozen=True)
class TagOptions(Options):
    """Which sentences are labeled."""

    sentences: list[str] = option([], "sentences, with spaces between the words", positional=True)
    file: str | None = option(None, "file with one sentence per line")


@dataclass(frozen=True)
class WindowSamples(ListSamples):
    """Windows over sentences, as `encoded_window` returns them."""

    items: Sequence[Encoded]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Return the number of tokens of each window."""
        return np.array([len(self.items[key][0]) for key in keys.tolist()])


def recognize(source: str) -> Match | None:
    """Match files of words and labels in columns."""
    reason = looks_tagged(source)
    return None if reason is None else Match(reason)


Sums = Mapping[str, MetricSum]


def _scores(sums: Sums, names: Sequence[str]) -> ClassScores:
    """Return the counts of labels, or of parts of labels, over a split."""
    counts = ([round(sums[f"{what}/{name}"].total) for name in names] for what in COUNTS)
    return ClassScores(*(np.array(count, dtype=np.int64) for count in counts))


def _accuracy(task: Any, sums: Sums) -> float:
    count = sums["loss"].count
    return float(_scores(sums, task.classes).correct.sum()) / count if count else math.nan


def _macro_f1(task: Any, sums: Sums) -> float:
    """Return the mean F1 of the labels that occur or are predicted."""
    return _scores(sums, task.classes).macro_f1


def _span_metric(name: str) -> Metric:
    def compute(task: Any, sums: Sums) -> float | None:
        return float(getattr(_scores(sums, [SPANS]), name)[0]) if f"correct/{SPANS}" in sums else None

    return Metric(f"span_{name}", "", "higher", label=f"span {name.replace('f1', 'F1')}", compute=compute)


def _table(sums: Sums, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support, one row per label or part of a label."""
    s = _scores(sums, names)
    columns = zip(names, s.precision, s.recall, s.f1, s.actual, strict=True)
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for name, p, r, f, n in columns
    ]


def _part_table(task: Any, sums: Sums) -> list[dict[str, Any]] | None:
    parts = [name for names, _ in label_parts(task.classes) for name in names]
    return _table(sums, parts) if parts else None


class TokenClassification(TextEncoderTask):
    """Train an encoder to give each word a label: parts of speech, names, punctuation.

    The label is predicted from the features of the word's first token.
    """

    name = "token-classification"
    Settings = TokenClassificationSettings
    metrics = (
        Metric("loss", "nats/word", "lower"),
        Metric("loss_ci95", kind="ci95", of="loss", compute=lambda task, sums: sums["loss"].interval()),
        Metric("accuracy", "", "higher", "percent", compute=_accuracy),
        # Over the labels that occur or are predicted.
        Metric(
            "macro_f1", "", "higher", label="macro F1", compute=lambda task, sums: _scores(sums, task.classes).macro_f1
        ),
        _span_metric("f1"),
        _span_metric("precision"),
        _span_metric("recall"),
        Metric("num_words", kind="count", label="words", compute=lambda task, sums: sums["loss"].count),
        Metric("labels", kind="table", compute=lambda task, sums: _table(sums, task.classes)),
        Metric("label_parts", kind="table", compute=_part_table),
    )

    def __init__(self, settings: TokenClassificationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.classes: list[str] = []
        self._parts: Split[TaggedData] | None = None
        self._token_ids: dict[str, NDArray[np.int64]] = {}
        self._truncated_words: list[str] = []

    # Data.

    def _read(self, source: str) -> TaggedData:
        s: TokenClassificationSettings = self.settings
        if s.labels == "punctuation" and looks_tagged(source) is None:
            return punctuated(read_text(source, encoding=s.encoding))
        return read_tagged(source, columns=Columns(s.token_column, s.label_column), encoding=s.encoding)

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: TokenClassificationSettings = self.settings
        source = need_data(self, source)
        data = self._read(source)
        if for_evaluation:
            return PreparedData(NO_SAMPLES, self._samples(data, []))
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = self._parts = split(data, s.val_fraction, s.split_seed, validation=val_data)
        if parts.train.restorable:
            self.settings = s = replace(s, labels="punctuation")
        if not self.classes:
            self.classes = sorted(parts.train.labels() + parts.validation.labels())
        train_texts, val_texts = (
            [f" {document.text}" for document in part.as_text().documents] for part in (parts.train, parts.validation)
        )
        self.train_tokenizer(train_texts, val_texts)
        self.set_sizes(len(self.classes), "none")
        notes: list[str] = []
        train = self._samples(parts.train, notes, "training: ")
        val = self._samples(parts.validation, notes, "validation: ")
        num_tokens = sum(len(ids) for ids, _ in train.items)
        extra = {
            "tokens": f"{num_tokens:,} to train; vocabulary of {self.tokenizer.vocab_size:,}",
            "tokenizer": self.tokenizer_summary,
        }
        report = data_report(replace(parts, notes=[*parts.notes, *notes, *self._truncated()]), extra)
        return replace(self.prepared(train, val, report), baseline=self._baseline)

    def _samples(self, data: TaggedData, notes: list[str], part: str = "") -> WindowSamples:
        """Return every sentence in one window, or in several that overlap."""
        number = {label: n for n, label in enumerate(self.classes)}
        items: list[Encoded] = []
        long: list[str] = []
        for sentence in data.sentences:
            words = self._encode(sentence.words)
            labels = [number[label] if label in number else self._unknown(sentence, label) for label in sentence.labels]
            found = windows(list(map(len, words)), self.context - 1)
            items += [encoded_window(words, labels, window) for window in found]
            long += [sentence.id] * (len(found) > 1)
        if long:
            notes.append(
                f"{part}{counted(len(long), 'sentence')} longer than the {self.context - 1:,} tokens that the model"
                f" reads at once, split into windows that overlap: {some(long, 5)}"
            )
        return WindowSamples(items)

    def _truncated(self) -> list[str]:
        """Return a note on truncated words, where there are any."""
        if not self._truncated_words:
            return []
        shown = some((f"{word[:20]!r}…" for word in self._truncated_words), 5)
        what = counted(len(self._truncated_words), "word")
        return [f"{what} longer than the context: only the first {self.context - 1:,} tokens are read: {shown}"]

    def _unknown(self, sentence: Sentence, label: str) -> int:
        known = some(self.classes, 12)
        raise UserError(f"{sentence.id}: the label {label!r} is none of those of the run: {known}")

    def _encode(self, words: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the ids of each word, truncated to the context."""
        for word in words:
            if word not in self._token_ids:
                ids = self.tokenizer.encode(f" {word}").astype(np.int64)
                self._truncated_words += [word] * (len(ids) > self.context - 1)
                self._token_ids[word] = ids[: self.context - 1]
        return [self._token_ids[word] for word in words]

    def outputs(self) -> object:
        return self.name, self.classes

    # Loss and metrics.

    def collate(self, samples: list[Encoded], context: BatchContext) -> Batch:
        return Batch(
            {"text": self.stream([ids for ids, _ in samples])},
            {"loss": self.targets([targets for _, targets in samples])},
        )

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        terms = {"loss": cross_entropy_term(logits, targets)}
        return terms if model.training else {**terms, **self._count_terms(targets, logits.argmax(-1))}

    def _count_terms(self, targets: torch.Tensor, predicted: torch.Tensor) -> LossTerms:
        """Return the counts behind precision and recall, per sample and label. targets, predicted: (B, N)."""
        terms: LossTerms = {}
        num_words = (targets != IGNORE).sum(1)

        def add(name: str, counts: Sequence[torch.Tensor]) -> None:
            for what, sums in zip(COUNTS, counts, strict=True):
                terms[f"{what}/{name}"] = LossTerm(sums, num_words, weight=0.0)

        for names, value_of_label in self._groups():
            table = torch.tensor(value_of_label, device=targets.device)
            values = torch.where(targets == IGNORE, targets, table[targets.clamp(min=0)])
            counts = count_labels(values, table[predicted], len(names))
            for n, name in enumerate(names):
                add(name, [count[:, n] for count in counts])
        if looks_like_spans(self.classes):
            add(SPANS, span_counts(targets, predicted, self.classes))
        return terms

    def _groups(self) -> list[tuple[list[str], list[int]]]:
        """Return the labels, then the parts of labels such as "comma|lower": the names, and the index of each label."""
        return [(self.classes, list(range(len(self.classes)))), *label_parts(self.classes)]

    def _baseline(self) -> Baseline:
        """Evaluate an n-gram tagger on the same split, and beside it the most frequent label per word."""
        ngram, word = (self.count_baseline(contexts) for contexts in (3, 1))
        note = (
            f"with macro F1 {ngram['macro_f1']:.4f}; the most frequent label per word has {word['loss']:.4f}"
            f" and macro F1 {word['macro_f1']:.4f}"
        )
        return Baseline("an n-gram tagger", ngram["loss"], "nats/word", note)

    def count_baseline(self, contexts: int) -> dict[str, Any]:
        """Return the metrics of a `CountTagger` of so many contexts on the split of the training."""
        if self._parts is None:
            self.load(self._source)
        assert self._parts is not None
        number = {label: n for n, label in enumerate(self.classes)}
        tagger = CountTagger(len(number), contexts).fit(
            (s.words, [number[label] for label in s.labels]) for s in self._parts.train.sentences
        )
        sums: dict[str, MetricSum] = {}
        for sentence in self._parts.validation.sentences:
            p = tagger.probabilities(sentence.words)
            targets = np.array([number[label] for label in sentence.labels])
            nats = torch.tensor([-np.log(p[np.arange(len(targets)), targets]).sum()])
            terms = {"loss": LossTerm(nats, torch.tensor([len(targets)]))}
            terms |= self._count_terms(torch.from_numpy(targets)[None], torch.from_numpy(p.argmax(1))[None])
            for name, term in terms.items():
                sums.setdefault(name, MetricSum(term.weight)).update(term)
        return compute_metrics(self, sums, tables=True)

    # Use.

    def tag(self, words: Sequence[str]) -> list[tuple[str, float]]:
        """Return the likeliest label of each word and its probability. Raise UserError for unseen characters."""
        if not words:
            return []
        ids = self._encode(words)
        answers: list[tuple[str, float]] = []
        for window in windows(list(map(len, ids)), self.context - 1):
            window_ids, _ = encoded_window(ids, None, window)
            firsts = np.cumsum([0, *map(len, ids[window.start : window.stop])])[:-1]
            labeled = firsts[window.first - window.start : window.last - window.start]
            best = self.probabilities([window_ids])[0, labeled].max(-1)
            answers += [(self.classes[n], p) for n, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        return answers

    def _example(self) -> dict[str, Any]:
        """Return a validation sentence of about 12 words."""
        if self._parts is None:
            self.load(self._source)
        assert self._parts is not None
        words = min(self._parts.validation.sentences, key=lambda s: abs(len(s.words) - 12)).words[:20]
        return {"sentences": [" ".join(words)]}

    @action(TagOptions, example=_example)
    def _predict(self, options: TagOptions, show: Show) -> dict[str, Any]:
        """Give the words of sentences their labels."""
        sentences = list(options.sentences)
        if options.file is not None:
            text = read_text(options.file, encoding=self.settings.encoding)
            sentences += [line for document in text.documents for line in document.text.split("\n") if line.strip()]
        if not sentences:
            raise UserError("nothing to label: give a sentence, or --file with one sentence per line")
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
        return {"sentences": results, "notes": self._truncated()}

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        return {**super().save_assets(folder), "labels": self.classes}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        super().load_assets(folder, saved)
        labels = saved.get("labels")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise UserError(f"{folder / 'config.json'}: parts has no list of labels")
        self.classes = labels
