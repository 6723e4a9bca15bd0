"""Classification metrics: precision, recall and F1 by class, confusion matrix, calibration, confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def wilson_interval(correct: float, n: float) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927).

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.96.
    """
    z, p = 1.96, correct / n
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n))


def confusion_matrix(truth: Ints, predicted: Ints, classes: int) -> Ints:
    """Return (classes, classes): how often the row's class was predicted as the column's."""
    counts: Ints = np.bincount(truth * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


@dataclass(frozen=True)
class ClassScores:
    """Precision = correct / predicted, recall = correct / actual, F1 = 2 correct / (predicted + actual).

    Each is (classes,); 0 / 0 is 0.
    """

    correct: Ints
    predicted: Ints
    actual: Ints

    @classmethod
    def of(cls, matrix: Ints) -> ClassScores:
        """Compute the counts from a confusion matrix."""
        return cls(np.diag(matrix), matrix.sum(0), matrix.sum(1))

    @property
    def precision(self) -> Floats:
        """Return the precision of each class."""
        return _ratio(self.correct, self.predicted)

    @property
    def recall(self) -> Floats:
        """Return the recall of each class."""
        return _ratio(self.correct, self.actual)

    @property
    def f1(self) -> Floats:
        """Return the harmonic mean of precision and recall."""
        return _ratio(2 * self.correct, self.predicted + self.actual)

    @property
    def macro_f1(self) -> float:
        """Return the mean F1 of the classes that occur or are predicted; NaN when there are none."""
        seen = (self.actual > 0) | (self.predicted > 0)
        return float(self.f1[seen].mean()) if seen.any() else math.nan


def _ratio(part: Ints, whole: Ints) -> Floats:
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def reliability(confidence: Floats, correct: NDArray[np.bool_], bins: int = 10) -> list[dict[str, float]]:
    """Return the reliability diagram: for each non-empty bin of 0 … 1 its bounds, the number of predictions, their mean
    probability and accuracy."""
    index = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    rows = []
    for b in range(bins):
        inside = index == b
        if inside.any():
            mean, accuracy = float(confidence[inside].mean()), float(correct[inside].mean())
            rows.append(
                {
                    "from": b / bins,
                    "to": (b + 1) / bins,
                    "n": int(inside.sum()),
                    "probability": mean,
                    "accuracy": accuracy,
                }
            )
    return rows


def ece(rows: list[dict[str, float]]) -> float:
    """Return the expected calibration error Σ_b n_b / n · |accuracy − mean probability| (Naeini et al. 2015)."""
    n = sum(row["n"] for row in rows)
    return sum(row["n"] / n * abs(row["accuracy"] - row["probability"]) for row in rows)


def class_rows(matrix: Ints, classes: list[str]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support, one row per class."""
    m = ClassScores.of(matrix)
    columns = zip(classes, m.precision, m.recall, m.f1, m.actual, strict=True)
    return [
        {"class": name, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for name, p, r, f, n in columns
    ]
