"""How good predicted labels are: accuracy, precision and recall by class, the confusion matrix, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def wilson(right: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.96 (Wilson 1927)."""
    z, p = 1.96, right / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def confusion(truth: Ints, predicted: Ints, classes: int) -> Ints:
    """(classes, classes): how often the class of the row was taken for that of the column."""
    counts: Ints = np.bincount(truth * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


@dataclass(frozen=True)
class ByClass:
    """Precision = right / predicted, recall = right / there, F1 = 2 right / (predicted + there), each (classes,).

    What would be 0 / 0 is 0.
    """

    right: Ints
    predicted: Ints
    there: Ints

    @classmethod
    def of(cls, matrix: Ints) -> ByClass:
        """From a confusion matrix."""
        return cls(np.diag(matrix), matrix.sum(0), matrix.sum(1))

    @property
    def precision(self) -> Floats:
        """How many of the predicted are right."""
        return _share(self.right, self.predicted)

    @property
    def recall(self) -> Floats:
        """How many of those that are there are found."""
        return _share(self.right, self.there)

    @property
    def f1(self) -> Floats:
        """The harmonic mean of both."""
        return _share(2 * self.right, self.predicted + self.there)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that are there or are predicted; NaN when none is."""
        seen = (self.there > 0) | (self.predicted > 0)
        return float(self.f1[seen].mean()) if seen.any() else math.nan


def _share(part: Ints, whole: Ints) -> Floats:
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def reliability(confidence: Floats, right: NDArray[np.bool_], bins: int = 10) -> list[dict[str, float]]:
    """How often predictions of about one probability are right: a row for each of so many equal parts of 0 … 1 that is
    not empty, with its borders, the number of predictions, their mean probability and the share that is right."""
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    rows = []
    for b in range(bins):
        inside = place == b
        if inside.any():
            mean, share = float(confidence[inside].mean()), float(right[inside].mean())
            rows.append(
                {"from": b / bins, "to": (b + 1) / bins, "n": int(inside.sum()), "probability": mean, "right": share}
            )
    return rows


def calibration_error(rows: list[dict[str, float]]) -> float:
    """Σ_b n_b / n · |share right − mean probability|: the expected calibration error (Naeini et al. 2015)."""
    n = sum(row["n"] for row in rows)
    return sum(row["n"] / n * abs(row["right"] - row["probability"]) for row in rows)


def class_rows(matrix: Ints, classes: list[str]) -> list[dict[str, Any]]:
    """Precision, recall, F1 and support, a row a class."""
    m = ByClass.of(matrix)
    columns = zip(classes, m.precision, m.recall, m.f1, m.there, strict=True)
    return [
        {"class": name, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for name, p, r, f, n in columns
    ]
