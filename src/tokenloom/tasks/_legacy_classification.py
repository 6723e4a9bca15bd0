"""What tasks share that give a whole text or image one label: metrics, tables by class, the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.evaluation import classification
from tokenloom.plotting.heatmaps import confusion_table, draw_confusion
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._legacy import PreparedData, Task
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.utils.names import some

# The confusion matrix of more classes is too wide for a terminal: the most frequent confusions are listed instead.
MAX_TABLE_CLASSES, TOP_CONFUSIONS = 12, 10


def metric_terms(logits: Tensor, targets: Tensor) -> LossTerms:
    """Return for logits (B, classes) and targets (B,): the target, the prediction and its probability, per sample.

    `MetricSum` keeps the samples apart, so that any metric can be computed over a whole split.
    """
    confidence, prediction = logits.double().softmax(-1).max(-1)
    ones = torch.ones_like(targets)
    return {
        "target": LossTerm(targets, ones, weight=0.0),
        "prediction": LossTerm(prediction, ones, weight=0.0),
        "confidence": LossTerm(confidence, ones, weight=0.0),
    }


class Classification(Task):
    """A task whose loss adds `metric_terms` in evaluation. classes: the labels by number. things: what is labeled, in
    the plural."""

    things: ClassVar[str] = "texts"
    unit: str = "nats/text"
    classes: list[str]

    def legacy_metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        targets, predictions, confidence = _samples_of(totals)
        correct = int((targets == predictions).sum())
        low, high = classification.wilson_interval(correct, len(targets))
        by_class = classification.ClassScores.of(self._matrix(targets, predictions))
        majority = np.bincount(targets[targets >= 0], minlength=len(self.classes)).max()
        bins = classification.reliability(confidence, targets == predictions)
        return {
            "loss": totals["loss"].value,
            "accuracy": correct / len(targets),
            "accuracy_low": low,
            "accuracy_high": high,
            "macro_f1": by_class.macro_f1,
            "ece": classification.ece(bins),
            "majority_accuracy": float(majority / len(targets)),
            f"num_{self.things}": float(len(targets)),
        }

    def check_known(self, source: str, labels: Sequence[str]) -> None:
        """Raise UserError when none of the labels of other data is a class of this run."""
        if not set(labels) & set(self.classes):
            have = f"labels {some(labels, 10)}" if labels else "no labels"
            raise UserError(f"{source}: has {have}; the classes of this run are {some(self.classes, 10)}")

    def _matrix(self, targets: NDArray[np.int64], predictions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the confusion matrix; labels that are no class share one more row, where there are any."""
        K = len(self.classes) + bool((targets < 0).any())
        return classification.confusion_matrix(np.where(targets < 0, K - 1, targets), predictions, K)

    def _tables(self, samples: Samples) -> dict[str, Any]:
        targets, predictions, confidence = _samples_of(evaluate(self, self.model, samples))
        matrix = self._matrix(targets, predictions)
        names = [*self.classes, *["(not a class)"] * (len(matrix) - len(self.classes))]
        return {
            "classes": classification.class_rows(matrix, names),
            "confusion": {"classes": names, "counts": matrix.tolist()},
            "calibration": classification.reliability(confidence, targets == predictions),
        }

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        tables = self._tables(material.validation)
        if folder is not None:
            _draw_confusion(tables["confusion"], folder)
        return tables

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, Any]:
        """Evaluate as every task does; add tables by class, the confusion matrix and the calibration."""
        if samples is None:
            source = self.source if data is None else data
            assert source is not None
            samples = self.prepare(source).validation if data is None else self.load_samples(source)
        return {**super().evaluate(batch_size=batch_size, samples=samples), **self._tables(samples)}

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        m, things = metrics, self.things
        lines = [
            f"accuracy:    {m['accuracy']:.2%} (95 % interval {m['accuracy_low']:.2%} to {m['accuracy_high']:.2%})",
            f"macro F1:    {m['macro_f1']:.4f}",
            f"loss:        {m['loss']:.4f} {self.unit}",
            f"calibration: expected calibration error {m['ece']:.2%}",
            f"majority:    the most frequent class has {m['majority_accuracy']:.2%} of the {things}",
            f"evaluated:   {int(m[f'num_{things}']):,} {things}",
        ]
        if "confusion" in m:
            lines += _class_table(m["classes"], things) + _confusion_table(m["confusion"], things)
            lines += _calibration_table(m["calibration"], things)
        return lines


def _samples_of(
    totals: dict[str, MetricSum],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the target, the prediction and its probability of every sample."""
    targets, predictions, p = (totals[name].samples[0].numpy() for name in ("target", "prediction", "confidence"))
    return targets.astype(np.int64), predictions.astype(np.int64), p


def _class_table(classes: Sequence[dict[str, Any]], things: str) -> list[str]:
    rows = [[r["class"], *(f"{r[k]:.3f}" for k in ("precision", "recall", "f1")), r["support"]] for r in classes]
    return ["", plain_table(rows, ["class", "precision", "recall", "F1", things])]


def _confusion_table(confusion: dict[str, Any], things: str) -> list[str]:
    names, counts = confusion["classes"], confusion["counts"]
    if len(names) <= MAX_TABLE_CLASSES:
        return ["", confusion_table(counts, names)]
    pairs = [(n, names[i], names[j]) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    rows = [[target, prediction, n] for n, target, prediction in pairs[:TOP_CONFUSIONS]]
    return ["", "most frequent confusions", plain_table(rows, ["class", "predicted", things])]


def _calibration_table(bins: Sequence[dict[str, Any]], things: str) -> list[str]:
    rows = [
        [f"{row['from']:.1f} – {row['to']:.1f}", f"{row['probability']:.3f}", f"{row['accuracy']:.3f}", row["n"]]
        for row in bins
    ]
    return ["", plain_table(rows, ["probability", "mean", "accuracy", things])]


def _draw_confusion(confusion: dict[str, Any], folder: Path) -> None:
    """Write confusion.png and confusion-dark.png, where matplotlib is installed."""
    try:
        for name, dark in (("confusion.png", False), ("confusion-dark.png", True)):
            draw_confusion(confusion["counts"], confusion["classes"], folder / name, title=folder.name, dark=dark)
    except UserError:
        return
