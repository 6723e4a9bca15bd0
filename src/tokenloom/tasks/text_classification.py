"""Text classification: a transformer encoder or naive Bayes gives a whole text one of several labels."""

# Longer than other tasks: two kinds of model, one trained and one fitted, with options of their own.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tokenloom.config import Options, option
from tokenloom.data.labeled import LabelColumns, Labeled, LabeledData, looks_labeled, read_column, read_labeled
from tokenloom.data.report import data_report
from tokenloom.data.samples import Keys, ListSamples
from tokenloom.data.split import Split, split
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.linear import linear_accuracy
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.naive_bayes import NaiveBayes
from tokenloom.models.text_classifier import ClassifierConfig, TextClassifier
from tokenloom.nn.modules import device_of, eval_mode
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._classification import check_labels, classification_metrics, metric_terms
from tokenloom.tasks._settings import TRANSFORMER_NAMES, ValidationSplit, refuse_given
from tokenloom.tasks._text_encoder import EncoderSettings, TextEncoderTask
from tokenloom.tasks.base import NO_SAMPLES, Match, PreparedData, Show, action, need_data
from tokenloom.tokenizers.base import UNKNOWN
from tokenloom.tokenizers.text import choose_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms
from tokenloom.utils.names import counted, some

# Rows of the table of hashed n-grams; words of naive Bayes.
BUCKETS, MAX_WORDS = 1 << 16, 50_000
# The encoder's settings when they are not given.
DEFAULTS: dict[str, Any] = {"label_smoothing": 0.05, "token_dropout": 0.1, "ngram_features": 2, "dropout": 0.2}
RECIPE: dict[str, Any] = {"muon_lr": 0.01, "weight_decay_on": "all", "weight_decay": 0.1, "beta2": 0.98}
# Data sets of fewer texts get smaller batches.
SMALL_DATA = 20_000
# A few epochs are enough, but very few texts need more of them.
EPOCHS, MIN_STEPS, MAX_EPOCHS = 5, 300, 30
_ENCODER, _NAIVE_BAYES = {"model": "encoder"}, {"model": "naive-bayes"}


@dataclass(frozen=True)
class TextClassificationSettings(EncoderSettings, ValidationSplit):
    """Where texts and labels come from, the model, and its regularization."""

    group: ClassVar[str] = "Data"

    text_column: str | None = option(None, "table column or JSON field with the text")
    label_column: str | None = option(None, "table column or JSON field with the label")
    header: bool | None = option(None, "the first row of a table names its columns [default: guessed]")
    encoding: str = option("utf-8", "character encoding of the files")
    size: Literal["nano", "tiny", "small", "medium", "large"] = option(
        "tiny", "size preset: the sizes that are not given", group="Model"
    )
    model: Literal["encoder", "naive-bayes"] = option(
        "encoder",
        "encoder: bidirectional transformer, and a bag of n-grams; naive-bayes: multinomial naive Bayes on words",
        group="Model",
    )
    ngram_features: int | None = option(
        None,
        "longest n-grams of tokens in the bag of n-grams; 0 for no bag",
        low=0,
        high=8,
        only=_ENCODER,
        group="Model",
    )
    add_k: float | None = option(
        None, "naive-bayes: added to each count [default: 1]", above=0, only=_NAIVE_BAYES, group="Model"
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "balanced: weight rare classes as much as common ones", only=_ENCODER, group="Optimization"
    )
    label_smoothing: float | None = option(
        None,
        "probability spread over all classes in the training targets",
        low=0,
        below=1,
        only=_ENCODER,
        group="Optimization",
    )
    token_dropout: float | None = option(
        None, "fraction of tokens masked in training", low=0, below=1, only=_ENCODER, group="Optimization"
    )

    def check(self) -> None:
        """Raise UserError for options of the encoder with naive Bayes."""
        super().check()
        if self.model == "naive-bayes":
            refuse_given(self, ("size", "context", *TRANSFORMER_NAMES), "with --model naive-bayes")


@dataclass(frozen=True)
class PredictOptions(Options):
    """Which texts are classified."""

    texts: list[str] = option([], "texts to classify", positional=True)
    file: str | None = option(None, "file with one text per line, or a table")
    text_column: str | None = option(None, "column of the table with the text", needs="file")


@dataclass(frozen=True)
class LabeledSamples(ListSamples):
    """(ids, class) of each text; the class is `IGNORE` for a label that is not in the training data."""

    items: Sequence[tuple[NDArray[np.int64], int]]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Return the number of tokens of each text."""
        return np.array([len(self.items[key][0]) for key in keys.tolist()])


def _steps(n: int) -> dict[str, int]:
    """Return batch size and steps for n training texts."""
    batch_size = 32 if n < SMALL_DATA else 64
    steps_per_epoch = -(-n // batch_size)
    steps = min(max(EPOCHS * steps_per_epoch, MIN_STEPS), MAX_EPOCHS * steps_per_epoch)
    return {"batch_size": batch_size, "steps": steps}


def recognize(source: str) -> Match | None:
    """Match tables and folders of labeled texts."""
    reason = looks_labeled(source)
    return None if reason is None else Match(reason)


class TextClassification(TextEncoderTask):
    """Train a model to give texts one of several labels: spam or not, topics, genres."""

    name = "text-classification"
    Settings = TextClassificationSettings
    metrics = classification_metrics("text")

    def __init__(self, settings: TextClassificationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.classes: list[str] = []
        self._class_weights: Tensor | None = None

    @property
    def _fitted(self) -> bool:
        """Whether the model is fitted in one pass instead of trained."""
        return bool(self.settings.model == "naive-bayes")

    # Data.

    def _read(self, source: str) -> LabeledData:
        s: TextClassificationSettings = self.settings
        columns = LabelColumns(s.text_column, s.label_column, s.header)
        return read_labeled(source, columns=columns, encoding=s.encoding)

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: TextClassificationSettings = self.settings
        source = need_data(self, source)
        data = self._read(source)
        if for_evaluation:
            check_labels(source, data.classes, self.classes)
            return PreparedData(NO_SAMPLES, self._samples(data.items, []))
        parts = split(
            data, s.val_fraction, s.split_seed, validation=None if s.val_data is None else self._read(s.val_data)
        )
        self.classes = self.classes or parts.train.classes
        train_texts, val_texts = ([item.text for item in part.items] for part in (parts.train, parts.validation))
        if self._fitted:
            self._train_word_tokenizer(train_texts)
        else:
            self.train_tokenizer(train_texts, val_texts)
            self.set_sizes(len(self.classes), "cls")
        truncated: list[str] = []
        train, val = (self._samples(part.items, truncated) for part in (parts.train, parts.validation))
        counts = np.bincount([label for _, label in train.items], minlength=len(self.classes))
        self._class_weights = torch.from_numpy(len(train) / (len(self.classes) * counts)).float()
        extra = {
            "tokens": f"{sum(len(ids) for ids, _ in train.items):,} to train;"
            f" vocabulary of {self.tokenizer.vocab_size:,}",
            "tokenizer": self.tokenizer_summary,
        }
        if truncated:
            extra["truncated"] = " ".join(truncated)
        report = data_report(parts, extra)
        if self._fitted:
            shown = {"vocab_size": self.tokenizer.vocab_size, "classes": len(self.classes), "add_k": self._add_k}
            prepared = PreparedData(train, val, report, auto_settings=shown, fit=lambda: self._fit(train))
        else:
            prepared = self.prepared(train, val, report)
            names = ("label_smoothing", "token_dropout", "ngram_features")
            shown = {**prepared.auto_settings, **{name: getattr(self.settings, name) for name in names}}
            recipe = {**prepared.recipe, **RECIPE, **_steps(len(train))}
            prepared = replace(prepared, recipe=recipe, auto_settings=shown)
        return replace(prepared, baseline=lambda: self._baseline(parts))

    def _train_word_tokenizer(self, texts: list[str]) -> None:
        """Set the tokenizer and the sizes of naive Bayes."""
        s: TextClassificationSettings = self.settings
        if self._tokenizer is None:
            kind = "word" if s.tokenizer == "auto" else s.tokenizer
            self._tokenizer = choose_tokenizer(texts, kind, s.vocab_size or (MAX_WORDS if kind == "word" else None))
        self.model_config = {"vocab_size": self.tokenizer.vocab_size, "outputs": len(self.classes)}

    def set_sizes(self, outputs: int, pool: str) -> None:
        if self.model_config:
            return
        s: TextClassificationSettings = self.settings
        self.settings = replace(s, **{name: value for name, value in DEFAULTS.items() if getattr(s, name) is None})
        super().set_sizes(outputs, pool)
        self.model_config |= {"ngram_features": self.settings.ngram_features, "buckets": BUCKETS}

    def _samples(self, items: Sequence[Labeled], notes: list[str]) -> LabeledSamples:
        number = {label: n for n, label in enumerate(self.classes)}
        rows = self.tokenizer.encode_batch([item.text for item in items])
        if not self._fitted:
            long = [item.id for item, row in zip(items, rows, strict=True) if len(row) >= self.context]
            if long:
                what = counted(len(long), "text")
                notes.append(f"{what} longer than --context {self.context} tokens, truncated: {some(long, 5)}.")
            rows = [row[: self.context - 1] for row in rows]
        return LabeledSamples(
            [(row.astype(np.int64), number.get(item.label, IGNORE)) for item, row in zip(items, rows, strict=True)]
        )

    def outputs(self) -> object:
        return self.name, self.classes

    # The model and its loss.

    def build_model(self, seed: int) -> nn.Module:  # type: ignore[override]
        if self._fitted:
            return NaiveBayes(**self.model_config)
        return TextClassifier(ClassifierConfig(**self.model_config), seed)

    @property
    def _add_k(self) -> float:
        return 1.0 if self.settings.add_k is None else float(self.settings.add_k)

    def _fit(self, train: LabeledSamples) -> NaiveBayes:
        """Count the words of each class."""
        rows, labels = [row for row, _ in train.items], [label for _, label in train.items]
        return NaiveBayes.count(rows, labels, **self.model_config, alpha=self._add_k, without=self._ignored_ids())

    def _ignored_ids(self) -> list[int]:
        """Return the ids that naive Bayes ignores: white space and unknown words."""
        tokenizer = self.tokenizer
        return [
            id
            for id in range(tokenizer.vocab_size)
            if not tokenizer.decode([id]).strip() or id == tokenizer.specials.get(UNKNOWN)
        ]

    def collate(self, samples: list[tuple[NDArray[np.int64], int]], context: BatchContext) -> Batch:
        rows = [row for row, _ in samples]
        if context.training and self.settings.token_dropout:
            rows = [self._mask_tokens(row, context.random(place)) for place, row in enumerate(rows)]
        targets = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return Batch({"text": self.stream(rows)}, {"loss": targets})

    def _mask_tokens(self, row: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        return np.where(random.random(len(row)) < self.settings.token_dropout, self.mask_id, row)

    def stream(self, rows: Sequence[NDArray[Any]]) -> Stream:
        if not self._fitted:
            return super().stream(rows)
        # One padding token at the end of each row, so that an empty row is possible.
        ids, real = pad([torch.from_numpy(np.append(row, 0).astype(np.int64)) for row in rows])
        real[torch.arange(len(rows)), [len(row) for row in rows]] = False
        return Stream(ids=ids, real=real)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        terms = {"loss": self._cross_entropy(logits, targets)}
        return terms if logits.requires_grad else {**terms, **metric_terms(logits, targets)}

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> LossTerm:
        """Return the cross-entropy (B,), smoothed and weighted in training, and plain in evaluation."""
        s: TextClassificationSettings = self.settings
        wide = logits if logits.dtype == torch.float64 else logits.float()
        smoothing = (s.label_smoothing or 0.0) if logits.requires_grad else 0.0
        losses = cross_entropy(wide, targets, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
        if s.class_weights == "balanced" and logits.requires_grad:
            assert self._class_weights is not None
            losses = losses * self._class_weights.to(losses)[targets.clamp(min=0)]
        return LossTerm(losses, (targets != IGNORE).long())

    def _baseline(self, parts: Split[LabeledData]) -> Baseline:
        """Train logistic regression on TF-IDF weights of words, on the same split."""
        number = {label: n for n, label in enumerate(self.classes)}
        train, val = parts.train.items, parts.validation.items
        accuracy = linear_accuracy(
            [item.text for item in train],
            [number[item.label] for item in train],
            [item.text for item in val],
            [number.get(item.label, IGNORE) for item in val],
        )
        majority = data_report(parts).facts["majority_share"]
        note = f"on words; the most frequent label reaches {majority:.4f}, on {counted(len(val), 'text')}"
        return Baseline("TF-IDF with logistic regression", accuracy, "accuracy", note, "accuracy")

    # Use.

    def predict(self, texts: str | Sequence[str]) -> list[dict[str, Any]]:
        """Return for each text its likeliest label and the probability of each label, the likeliest first.

        Texts longer than the context are truncated. Raise UserError for an empty text.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if (empty := next((place for place, text in enumerate(texts, start=1) if not text.strip()), None)) is not None:
            raise UserError(f"text {empty}: is empty: there is nothing to label")
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        answers: list[dict[str, Any]] = [{} for _ in texts]
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            rows = self.tokenizer.encode_batch([texts[place] for place in places])
            if not self._fitted:
                rows = [row[: self.context - 1] for row in rows]
            with eval_mode(self.model) as model, torch.no_grad():
                logits = model(Batch({"text": self.stream(rows)}).to(device_of(self.model)))
            for place, p in zip(places, logits.double().softmax(-1).tolist(), strict=True):
                ranked = sorted(zip(self.classes, p, strict=True), key=lambda pair: -pair[1])
                answers[place] = {"label": ranked[0][0], "probabilities": dict(ranked)}
        return answers

    @action(PredictOptions)
    def _predict(self, options: PredictOptions, show: Show) -> dict[str, Any]:
        """Give texts a label."""
        texts = list(options.texts)
        if options.file is not None:
            texts += read_column(options.file, column=options.text_column, encoding=self.settings.encoding)
        if not texts:
            raise UserError("nothing to label: give a text, or --file with one text per line")
        answers = self.predict(texts)
        if len(texts) == 1:
            rows = [[label, f"{p:.1%}"] for label, p in answers[0]["probabilities"].items()]
            show(plain_table(rows, ["label", "probability"]) + "\n")
        else:
            rows = [
                [answer["label"], f"{answer['probabilities'][answer['label']]:.1%}", _shortened(text)]
                for text, answer in zip(texts, answers, strict=True)
            ]
            show(plain_table(rows, ["label", "probability", "text"]) + "\n")
        predictions = [{"text": text, **answer} for text, answer in zip(texts, answers, strict=True)]
        return {"predictions": predictions, "notes": self._notes(texts)}

    def _notes(self, texts: Sequence[str]) -> list[str]:
        """Return notes on classified texts: which were truncated, and what is not in the vocabulary."""
        notes = []
        if not self._fitted:
            lengths = [len(row) for row in self.tokenizer.encode_batch(texts)]
            cut = [place for place, length in enumerate(lengths, start=1) if length > self.context - 1]
            if cut:
                what = counted(len(cut), "text")
                notes.append(f"the model reads the first {self.context - 1} tokens; {what} truncated: {some(cut)}")
        unknown = sorted({unit for text in texts for unit in self.tokenizer.unseen(text)})
        if unknown:
            notes.append(f"not in the vocabulary: {some(unknown)}")
        return notes

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        return {**super().save_assets(folder), "classes": self.classes}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        super().load_assets(folder, saved)
        classes = saved.get("classes")
        if not isinstance(classes, list) or len(classes) < 2 or not all(isinstance(one, str) for one in classes):
            raise UserError(f"{folder / 'config.json'}: parts has no list of classes")
        self.classes = classes


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
