"""Label texts: a transformer encoder or naive Bayes that gives a whole text one of several labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tokenloom.data.labeled import LabelColumns, Labeled, LabeledData, looks_labeled, read_column, read_labeled
from tokenloom.data.report import data_report
from tokenloom.data.samples import Keys, ListSamples
from tokenloom.data.split import Split, split
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.linear import linear_accuracy
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.naive_bayes import NaiveBayes
from tokenloom.models.text_classifier import ClassifierConfig, TextClassifier
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._classification import Classification, measured_terms
from tokenloom.tasks._text_classification_settings import PredictOptions, TextClassificationSettings, check_settings
from tokenloom.tasks._text_encoder import TextEncoderTask
from tokenloom.tasks.base import Example, PreparedData, Show
from tokenloom.tokenizers.base import UNKNOWN
from tokenloom.tokenizers.text import choose_tokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms
from tokenloom.utils.names import counted, some

BUCKETS = 1 << 16
MOST_WORDS = 50_000
SMOOTHING, HIDE, GRAMS, DROPOUT = 0.05, 0.1, 2, 0.2
# With fewer texts, smaller batches.
FEW = 20_000
# A few passes are enough, but very few texts need more to get anywhere.
EPOCHS, LEAST_STEPS, MOST_EPOCHS = 5, 300, 30
RECIPE: dict[str, Any] = {"muon_lr": 0.01, "weight_decay_on": "all", "weight_decay": 0.1, "beta2": 0.98}


@dataclass(frozen=True)
class LabeledSamples(ListSamples):
    """(ids, class) of each text; the class is `IGNORE` for a label that was not learned."""

    items: Sequence[tuple[NDArray[np.int64], int]]

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Tokens in each text."""
        return np.array([len(self.items[key][0]) for key in keys.tolist()])


class TextClassification(Classification, TextEncoderTask):
    """One label a text."""

    name = "text-classification"
    summary = "train a model to give texts one of several labels: spam or not, topics, genres"
    Settings = TextClassificationSettings
    models: ClassVar[Mapping[str, str]] = {
        "encoder": "bidirectional transformer with a class token, and a bag of n-grams beside it",
        "naive-bayes": "multinomial naive Bayes on words, counted in one pass",
    }
    uses: ClassVar[Mapping[str, type]] = {"predict": PredictOptions}

    def __init__(self, settings: TextClassificationSettings | None = None) -> None:
        super().__init__(settings)
        self.classes: list[str] = []
        self._parts: Split[LabeledData] | None = None
        self._weights: Tensor | None = None
        check_settings(self.settings)

    @property
    def counted(self) -> bool:
        return bool(self.settings.model == "naive-bayes")

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return looks_labeled(data)

    def _read(self, source: str) -> LabeledData:
        s: TextClassificationSettings = self.settings
        return read_labeled(source, columns=LabelColumns(s.column, s.label, s.header), encoding=s.encoding)

    def prepare(self, data: str | None) -> PreparedData:
        s: TextClassificationSettings = self.settings
        assert data is not None
        validation = None if s.validation is None else self._read(s.validation)
        parts = self._parts = split(self._read(data), s.val_fraction, s.split, validation=validation)
        self.classes = self.classes or parts.train.classes
        texts, held = ([item.text for item in part.items] for part in (parts.train, parts.validation))
        self._learn(texts, held)
        notes: list[str] = []
        training, measured = (self._samples(part.items, notes) for part in (parts.train, parts.validation))
        counts = np.bincount([label for _, label in training.items], minlength=len(self.classes))
        self._weights = torch.from_numpy(len(training) / (len(self.classes) * counts)).float()
        extra = {
            "tokens": f"{sum(len(ids) for ids, _ in training.items):,} to train;"
            f" {self.tokenizer.vocab_size:,} different ids",
            "tokenizer": ": ".join(filter(None, (self.tokenizer.kind, self.tokenizer.reason or "of the run"))),
        }
        if notes:
            extra["cut"] = " ".join(notes)
        report = data_report(parts, extra)
        return PreparedData(training, measured, report.lines(), report.as_dict())

    def _learn(self, texts: list[str], held: list[str]) -> None:
        """The tokenizer, and every size."""
        s: TextClassificationSettings = self.settings
        if not self.counted:
            self.train_tokenizer(texts, held)
            self.settle(len(self.classes), "cls")
            return
        if self._tokenizer is None:
            kind = "word" if s.tokenizer == "auto" else s.tokenizer
            self._tokenizer = choose_tokenizer(texts, kind, s.vocab_size or (MOST_WORDS if kind == "word" else None))
        self.model_config = {"vocab_size": self.tokenizer.vocab_size, "outputs": len(self.classes)}

    def settle(self, outputs: int, read: str) -> None:
        s: TextClassificationSettings = self.settings
        if self.model_config:
            return
        usual: dict[str, Any] = {"smoothing": SMOOTHING, "hide": HIDE, "grams": GRAMS, "dropout": DROPOUT}
        self.settings = replace(s, **{name: value for name, value in usual.items() if getattr(s, name) is None})
        super().settle(outputs, read)
        self.model_config |= {"ngram_features": self.settings.grams, "buckets": BUCKETS}

    def _samples(self, items: Sequence[Labeled], notes: list[str]) -> LabeledSamples:
        number = {label: n for n, label in enumerate(self.classes)}
        rows = self.tokenizer.encode_batch([item.text for item in items])
        if not self.counted:
            long = [item.id for item, row in zip(items, rows, strict=True) if len(row) >= self.context]
            if long:
                what = counted(len(long), "text")
                notes.append(f"{what} longer than --context {self.context} tokens, read to there: {some(long, 5)}.")
            rows = [row[: self.context - 1] for row in rows]
        return LabeledSamples(
            [(row.astype(np.int64), number.get(item.label, IGNORE)) for item, row in zip(items, rows, strict=True)]
        )

    def load_samples(self, data: str) -> LabeledSamples:
        found = self._read(data)
        self.check_known(data, found.classes)
        return self._samples(found.items, [])

    def output_meaning(self) -> object:
        return self.name, self.classes

    # The model and its loss.

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        recipe = {**super().recipe(material), **RECIPE}
        batch = 32 if len(material.training) < FEW else 64
        epoch = -(-len(material.training) // batch)
        return {**recipe, "batch_size": batch, "steps": min(max(EPOCHS * epoch, LEAST_STEPS), MOST_EPOCHS * epoch)}

    def derived(self) -> dict[str, Any]:
        s: TextClassificationSettings = self.settings
        if self.counted:
            return {
                "vocab_size": self.model_config["vocab_size"],
                "classes": len(self.classes),
                "alpha": s.alpha or 1.0,
            }
        return {**super().derived(), "smoothing": s.smoothing, "hide": s.hide, "grams": s.grams}

    def build(self, seed: int) -> nn.Module:  # type: ignore[override]
        if self.counted:
            return NaiveBayes(**self.model_config)
        return TextClassifier(ClassifierConfig(**self.model_config), seed)

    def count(self, material: PreparedData) -> NaiveBayes:
        items = [material.training.take(np.array([key]))[0] for key in material.training.all()]
        rows, labels = [row for row, _ in items], [label for _, label in items]
        alpha = 1.0 if self.settings.alpha is None else self.settings.alpha
        return NaiveBayes.count(rows, labels, **self.model_config, alpha=alpha, without=self._idle_ids())

    def _idle_ids(self) -> list[int]:
        """Ids that say nothing of a text: white space, and what is unknown."""
        tokenizer = self.tokenizer
        return [
            id
            for id in range(tokenizer.vocab_size)
            if not tokenizer.decode([id]).strip() or id == tokenizer.specials.get(UNKNOWN)
        ]

    def collate(self, samples: list[tuple[NDArray[np.int64], int]], moment: BatchContext) -> Batch:
        rows = [row for row, _ in samples]
        if moment.training and self.settings.hide:
            rows = [self._hidden(row, moment.random(place)) for place, row in enumerate(rows)]
        targets = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return Batch({"text": self.rows(rows)}, {"loss": targets})

    def _hidden(self, row: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        return np.where(random.random(len(row)) < self.settings.hide, self.mask_id, row)

    def rows(self, rows: Sequence[NDArray[Any]]) -> Stream:
        if not self.counted:
            return super().rows(rows)
        ids, real = pad([torch.from_numpy(np.append(row, 0).astype(np.int64)) for row in rows])
        real[torch.arange(len(rows)), [len(row) for row in rows]] = False
        return Stream(ids=ids, real=real)

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        terms = {"loss": self._cross_entropy(logits, targets)}
        return terms if logits.requires_grad else {**terms, **measured_terms(logits, targets)}

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> LossTerm:
        """Smoothed and weighted where it is trained on, and plain where it is measured."""
        s: TextClassificationSettings = self.settings
        wide = logits if logits.dtype == torch.float64 else logits.float()
        smoothing = (s.smoothing or 0.0) if logits.requires_grad else 0.0
        losses = cross_entropy(wide, targets, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
        if s.class_weights == "balanced" and logits.requires_grad:
            assert self._weights is not None
            losses = losses * self._weights.to(losses)[targets.clamp(min=0)]
        return LossTerm(losses, (targets != IGNORE).long())

    def baseline(self, material: PreparedData) -> Baseline | None:
        """Logistic regression on TF-IDF weights of words, on the same split."""
        assert self._parts is not None
        number = {label: n for n, label in enumerate(self.classes)}
        training, held = self._parts.train.items, self._parts.validation.items
        accuracy = linear_accuracy(
            [item.text for item in training],
            [number[item.label] for item in training],
            [item.text for item in held],
            [number.get(item.label, IGNORE) for item in held],
            len(self.classes),
        )
        majority = data_report(self._parts).facts["majority_share"]
        note = f"on words; always the commonest label has {majority:.4f}, of {counted(len(held), 'text')}"
        return Baseline("TF-IDF with logistic regression", accuracy, "accuracy", note, "accuracy")

    # Use.

    def predict(self, texts: str | Sequence[str]) -> list[dict[str, Any]]:
        """For each text its likeliest label, and the probability of each label, the likeliest first.

        Raises UserError for a text with nothing in it. Of one longer than the context the beginning is read.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if (empty := next((place for place, text in enumerate(texts, start=1) if not text.strip()), None)) is not None:
            raise UserError(f"text {empty}: is empty: there is nothing to label")
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        answers: list[dict[str, Any]] = [{} for _ in texts]
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            rows = self.tokenizer.encode_batch([texts[place] for place in places])
            if not self.counted:
                rows = [row[: self.context - 1] for row in rows]
            with self.ready() as model, torch.no_grad():
                logits = model(Batch({"text": self.rows(rows)}).to(self.device))
            for place, found in zip(places, logits.double().softmax(-1).tolist(), strict=True):
                ranked = sorted(zip(self.classes, found, strict=True), key=lambda pair: -pair[1])
                answers[place] = {"label": ranked[0][0], "probabilities": dict(ranked)}
        return answers

    def use(self, verb: str, options: PredictOptions, show: Show) -> dict[str, Any]:
        texts = list(options.texts)
        if options.column is not None and options.file is None:
            raise UserError(f"--column {options.column} has no effect without --file: leave it out")
        if options.file is not None:
            texts += read_column(options.file, column=options.column, encoding=self.settings.encoding)
        if not texts:
            raise UserError("nothing to label: give a text, or --file with a text a line")
        found = self.predict(texts)
        if len(texts) == 1:
            show(plain_table([[k, f"{p:.1%}"] for k, p in found[0]["probabilities"].items()], ["label", "probability"]))
            show("\n")
        else:
            rows = [
                [answer["label"], f"{answer['probabilities'][answer['label']]:.1%}", _shortened(text)]
                for text, answer in zip(texts, found, strict=True)
            ]
            show(plain_table(rows, ["label", "probability", "text"]) + "\n")
        predictions = [{"text": text, **answer} for text, answer in zip(texts, found, strict=True)]
        return {"predictions": predictions, "notes": self._noticed(texts)}

    def _noticed(self, texts: Sequence[str]) -> list[str]:
        """What a user should know of texts that were labeled: which were cut, and what the model does not know."""
        notes = []
        if not self.counted:
            lengths = [len(row) for row in self.tokenizer.encode_batch(texts)]
            cut = [place for place, length in enumerate(lengths, start=1) if length > self.context - 1]
            if cut:
                what = counted(len(cut), "text")
                notes.append(f"the model reads the first {self.context - 1} tokens; {what} cut: {some(cut)}")
        unknown = sorted({what for text in texts for what in self.tokenizer.unseen(text)})
        if unknown:
            notes.append(f"the model does not know {some(unknown)}")
        return notes

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        return {**super().save_parts(folder), "classes": self.classes}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        super().load_parts(folder, kept)
        classes = kept.get("classes")
        if not isinstance(classes, list) or len(classes) < 2 or not all(isinstance(one, str) for one in classes):
            raise UserError(f"{folder / 'config.json'}: parts has no list of classes")
        self.classes = classes

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = {
        **TextEncoderTask.paths,
        "packed = alone": "a row has one label, so that it cannot hold several texts",
    }

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        words = {"fruit": "apple pear plum fig", "beast": "cow goat hen mule", "tool": "saw axe nail file"}
        rows = ["text,label"]
        for label, names in words.items():
            names_of = names.split()
            rows += [
                f"the {names_of[n % 4]} and {names_of[(n * 3 + 1) % 4]} {'now ' * (n % 5)}{n},{label}"
                for n in range(14)
            ]
        table = folder / "things.csv"
        table.write_text("\n".join(rows), "utf-8")
        tiny = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch_size": 4, "tokenizer": "char"}
        no_steps = "naive Bayes is counted in one pass"
        without = {
            "fused = explicit": "naive Bayes has no attention",
            **dict.fromkeys(("accumulated = whole", "2 processes = 1", "resumed = straight"), no_steps),
        }
        return {
            "encoder": Example(str(table), tiny),
            "naive-bayes": Example(str(table), {"model": "naive-bayes"}, without),
        }


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
