"""What tasks share that give a whole thing, a text or a picture, one label: metrics, tables and pictures of them."""

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
from tokenloom.evaluation import classification as measures
from tokenloom.tasks import _classification_report as showing
from tokenloom.tasks.base import PreparedData, Task
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.utils.names import some

_SHOWN = 10


def measured_terms(logits: Tensor, targets: Tensor) -> LossTerms:
    """Metrics of logits (B, classes) and targets (B,): the class, the guess, and its probability.

    A value a sample: kept apart by `MetricSum`, so that anything can be measured of a whole split.
    """
    sure, guess = logits.double().softmax(-1).max(-1)
    ones = torch.ones_like(targets)
    return {
        "truth": LossTerm(targets, ones, weight=0.0),
        "guess": LossTerm(guess, ones, weight=0.0),
        "sure": LossTerm(sure, ones, weight=0.0),
    }


class Classification(Task):
    """A task whose loss adds `measured_terms` where it is measured. classes: the labels by number. things: what is
    labeled, in the plural."""

    things: ClassVar[str] = "texts"
    unit: str = "nats a text"
    classes: list[str]

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        truth, guess, sure = self._seen(totals)
        right = int((truth == guess).sum())
        low, high = measures.wilson(right, len(truth))
        by_class = measures.ByClass.of(self._matrix(truth, guess))
        commonest = np.bincount(truth[truth >= 0], minlength=len(self.classes)).max()
        return {
            "loss": totals["loss"].value,
            "accuracy": right / len(truth),
            "accuracy_low": low,
            "accuracy_high": high,
            "macro_f1": by_class.macro_f1,
            "calibration_error": measures.calibration_error(measures.reliability(sure, truth == guess)),
            "majority": float(commonest / len(truth)),
            self.things: float(len(truth)),
        }

    def _seen(self, totals: dict[str, MetricSum]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        truth, guess, sure = (totals[name].samples[0].numpy() for name in ("truth", "guess", "sure"))
        return truth.astype(np.int64), guess.astype(np.int64), sure

    def check_known(self, source: str, labels: Sequence[str]) -> None:
        """Raise UserError where none of the labels of other data is one that was learned: nothing could be measured."""
        if not set(labels) & set(self.classes):
            have = f"labels {some(labels, _SHOWN)}" if labels else "no labels"
            raise UserError(f"{source}: has {have}, and this run has learned {some(self.classes, _SHOWN)}")

    def _matrix(self, truth: NDArray[np.int64], guess: NDArray[np.int64]) -> NDArray[np.int64]:
        """The confusion matrix; labels that were not learned are one more row, where there are any."""
        K = len(self.classes) + bool((truth < 0).any())
        return measures.confusion(np.where(truth < 0, K - 1, truth), guess, K)

    def _tables(self, samples: Samples) -> dict[str, Any]:
        truth, guess, sure = self._seen(evaluate(self, self.model, samples))
        matrix = self._matrix(truth, guess)
        names = [*self.classes, *["(not learned)"] * (len(matrix) - len(self.classes))]
        return {
            "classes": measures.class_rows(matrix, names),
            "confusion": {"classes": names, "counts": matrix.tolist()},
            "calibration": measures.reliability(sure, truth == guess),
        }

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        tables = self._tables(material.validation)
        if folder is not None:
            showing.draw(tables["confusion"], folder)
        return tables

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, Any]:
        """As every task does, with tables by class, the confusion matrix and the calibration."""
        if samples is None:
            source = self.source if data is None else data
            assert source is not None
            samples = self.prepare(source).validation if data is None else self.load_samples(source)
        return {**super().evaluate(batch_size=batch_size, samples=samples), **self._tables(samples)}

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        lines = showing.summary_lines(metrics, self.things)
        if "confusion" in metrics:
            lines += showing.table_lines(metrics["classes"], metrics["confusion"], metrics["calibration"], self.things)
        return lines
