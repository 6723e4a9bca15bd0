"""Token classification: an encoder gives each word of a sentence a label, from scratch or from a fill-mask run."""

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
from tokenloom.tasks._legacy import PreparedData, Show
from tokenloom.tasks._settings import ValidationSplit
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
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


class TokenClassification(TextEncoderTask):
    """Give each word a label, predicted from the features of its first token."""

    name = "token-classification"
    summary = "train an encoder to give each word a label: parts of speech, names, punctuation"
    Settings = TokenClassificationSettings
    models: ClassVar[Mapping[str, str]] = {
        "encoder": "bidirectional transformer; labels from the first token of each word"
    }
    uses: ClassVar[Mapping[str, type]] = {"predict": TagOptions}
    unit: str = "nats/word"

    def __init__(self, settings: TokenClassificationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.classes: list[str] = []
        self._parts: Split[TaggedData] | None = None
        self._token_ids: dict[str, NDArray[np.int64]] = {}
        self._truncated_words: list[str] = []

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return looks_tagged(data)

    def _read(self, source: str) -> TaggedData:
        s: TokenClassificationSettings = self.settings
        if s.labels == "punctuation" and looks_tagged(source) is None:
            return punctuated(read_text(source, encoding=s.encoding))
        return read_tagged(source, columns=Columns(s.token_column, s.label_column), encoding=s.encoding)

    def prepare(self, data: str | None) -> PreparedData:
        s: TokenClassificationSettings = self.settings
        assert data is not None
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = self._parts = split(self._read(data), s.val_fraction, s.split_seed, validation=val_data)
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
        return PreparedData(train, val, report.lines(), report.as_dict())

    def load_samples(self, data: str) -> WindowSamples:
        return self._samples(self._read(data), [])

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

    def output_meaning(self) -> object:
        return self.name, self.classes

    # Loss and metrics.

    def collate(self, samples: list[Encoded], moment: BatchContext) -> Batch:
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

    def legacy_metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        """Return the loss in nats/word, the accuracy, and macro F1 over the labels that occur or are predicted; then
        precision, recall, F1 and support per label, per part of a label, and of whole spans."""
        loss = totals["loss"]
        names = [name for group, _ in self._groups() for name in group]
        names += [SPANS] * (f"correct/{SPANS}" in totals)
        counts = [np.array([round(totals[f"{what}/{name}"].total) for name in names]) for what in COUNTS]
        scores, labels = ClassScores(*counts), ClassScores(*(count[: len(self.classes)] for count in counts))
        metrics = {
            "loss": loss.value,
            "loss_ci95": loss.interval(),
            "accuracy": float(counts[0][: len(self.classes)].sum()) / loss.count if loss.count else math.nan,
            "macro_f1": labels.macro_f1,
            "num_words": loss.count,
        }
        columns = {"precision": scores.precision, "recall": scores.recall, "f1": scores.f1, "support": counts[2]}
        for what, values in columns.items():
            metrics |= {f"{what}/{name}": float(value) for name, value in zip(names, values, strict=True)}
        return metrics

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        interval = "" if math.isnan(m["loss_ci95"]) else f" ± {m['loss_ci95']:.4f}"
        lines = [
            f"loss:        {m['loss']:.4f}{interval} {self.unit}{' (95 % interval)' if interval else ''}",
            f"accuracy:    {m['accuracy']:.2%} of the words, the micro F1 over all labels",
            f"macro F1:    {m['macro_f1']:.4f}",
        ]
        if f"f1/{SPANS}" in m:
            precision, recall = m[f"precision/{SPANS}"], m[f"recall/{SPANS}"]
            lines.append(f"whole spans: F1 {m[f'f1/{SPANS}']:.4f}, precision {precision:.4f}, recall {recall:.4f}")
        lines.append(f"evaluated:   {int(m['num_words']):,} words")
        groups = [names for names, _ in self._groups()]
        for names in groups[1:] or groups:
            rows: list[list[object]] = [
                [
                    name,
                    *(f"{m[f'{what}/{name}']:.3f}" for what in ("precision", "recall", "f1")),
                    int(m[f"support/{name}"]),
                ]
                for name in names
            ]
            lines += ["", plain_table(rows, ["label", "precision", "recall", "F1", "words"])]
        return lines

    def baseline(self, material: PreparedData) -> Baseline:
        """Evaluate an n-gram tagger on the same split, and beside it the most frequent label per word."""
        ngram, word = (self.count_baseline(contexts) for contexts in (3, 1))
        note = (
            f"with macro F1 {ngram['macro_f1']:.4f}; the most frequent label per word has {word['loss']:.4f}"
            f" and macro F1 {word['macro_f1']:.4f}"
        )
        return Baseline("an n-gram tagger", ngram["loss"], self.unit, note)

    def count_baseline(self, contexts: int) -> dict[str, float]:
        """Return the metrics of a `CountTagger` of so many contexts on the split of the training."""
        if self._parts is None:
            self.prepare(self.source)
        assert self._parts is not None
        number = {label: n for n, label in enumerate(self.classes)}
        tagger = CountTagger(len(number), contexts).fit(
            (s.words, [number[label] for label in s.labels]) for s in self._parts.train.sentences
        )
        totals: dict[str, MetricSum] = {}
        for sentence in self._parts.validation.sentences:
            p = tagger.probabilities(sentence.words)
            targets = np.array([number[label] for label in sentence.labels])
            nats = torch.tensor([-np.log(p[np.arange(len(targets)), targets]).sum()])
            terms = {"loss": LossTerm(nats, torch.tensor([len(targets)]))}
            terms |= self._count_terms(torch.from_numpy(targets)[None], torch.from_numpy(p.argmax(1))[None])
            for name, term in terms.items():
                totals.setdefault(name, MetricSum(term.weight)).update(term)
        return self.legacy_metrics(totals)

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

    def use(self, verb: str, options: TagOptions, show: Show) -> dict[str, Any]:
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

    def example(self) -> str:
        if self._parts is None:
            return ""
        words = min(self._parts.validation.sentences, key=lambda s: abs(len(s.words) - 12)).words[:20]
        labels = [label for label, _ in self.tag(words)]
        if self.settings.labels == "punctuation":
            return f"{' '.join(words)}\n{restored(list(words), labels)}"
        return plain_table([list(pair) for pair in zip(words, labels, strict=True)], ["word", "label"])

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        return {**super().save_assets(folder), "labels": self.classes}

    def load_assets(self, folder: Path, kept: dict[str, Any]) -> None:
        super().load_assets(folder, kept)
        labels = kept.get("labels")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise UserError(f"{folder / 'config.json'}: parts has no list of labels")
        self.classes = labels
