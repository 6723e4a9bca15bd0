"""What tasks share that give a whole text or image one label: terms and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, ones_like

from tokenloom.errors import UserError
from tokenloom.evaluation.classification import (
    ClassScores,
    class_rows,
    confusion_matrix,
    ece,
    reliability,
    wilson_interval,
)
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.training.metrics import Metric
from tokenloom.utils.names import some

Sums = Mapping[str, MetricSum]


def metric_terms(logits: Tensor, targets: Tensor) -> LossTerms:
    """Return for logits (B, classes) and targets (B,): the target, the prediction and its probability, per sample.

    `MetricSum` keeps the samples apart, so that any metric can be computed over a whole split.
    """
    confidence, prediction = logits.double().softmax(-1).max(-1)
    values = {"target": targets, "prediction": prediction, "confidence": confidence}
    return {name: LossTerm(value, ones_like(targets), weight=0.0) for name, value in values.items()}


def classification_metrics(thing: str) -> tuple[Metric, ...]:
    """Return the metrics of a task whose loss has `metric_terms` in evaluation, and which has `classes`.

    thing: what is labeled.
    """
    return (
        Metric("accuracy", "", "higher", "percent", compute=lambda task, sums: float(_correct(sums).mean())),
        Metric("accuracy_low", kind="low", of="accuracy", compute=lambda task, sums: _interval(sums)[0]),
        Metric("accuracy_high", kind="high", of="accuracy", compute=lambda task, sums: _interval(sums)[1]),
        Metric("macro_f1", "", "higher", label="macro F1", compute=lambda task, sums: _scores(task, sums).macro_f1),
        Metric("loss", f"nats/{thing}", "lower"),
        Metric(
            "ece", "", "lower", "percent", "expected calibration error", compute=lambda task, sums: ece(_bins(sums))
        ),
        Metric("majority_accuracy", kind="percent", label="majority class", compute=_majority_accuracy),
        Metric(f"num_{thing}s", kind="count", label=f"{thing}s", compute=lambda task, sums: float(len(_correct(sums)))),
        Metric("classes", kind="table", compute=lambda task, sums: class_rows(_matrix(task, sums), _names(task, sums))),
        Metric("confusion", kind="confusion", compute=_confusion),
        Metric("calibration", kind="calibration", compute=lambda task, sums: _bins(sums)),
    )


def check_labels(source: str, labels: Sequence[str], classes: Sequence[str]) -> None:
    """Raise UserError when none of the labels of other data is a class of the run."""
    if not set(labels) & set(classes):
        have = f"labels {some(labels, 10)}" if labels else "no labels"
        raise UserError(f"{source}: has {have}; the classes of this run are {some(classes, 10)}")


def _samples(sums: Sums) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the target and the prediction of every sample; a label that is no class is below 0."""
    targets, predictions = (sums[name].samples[0].numpy().astype(np.int64) for name in ("target", "prediction"))
    return targets, predictions


def _correct(sums: Sums) -> NDArray[np.bool_]:
    targets, predictions = _samples(sums)
    return np.asarray(targets == predictions)


def _interval(sums: Sums) -> tuple[float, float]:
    correct = _correct(sums)
    return wilson_interval(int(correct.sum()), len(correct))


def _bins(sums: Sums) -> list[dict[str, float]]:
    return reliability(sums["confidence"].samples[0].numpy(), _correct(sums))


def _matrix(task: Any, sums: Sums) -> NDArray[np.int64]:
    """Return the confusion matrix; labels that are no class share one more row, where there are any."""
    targets, predictions = _samples(sums)
    K = len(_names(task, sums))
    return confusion_matrix(np.where(targets < 0, K - 1, targets), predictions, K)


def _scores(task: Any, sums: Sums) -> ClassScores:
    return ClassScores.of(_matrix(task, sums))


def _names(task: Any, sums: Sums) -> list[str]:
    return [*task.classes, *["(not a class)"] * bool((_samples(sums)[0] < 0).any())]


def _confusion(task: Any, sums: Sums) -> dict[str, Any]:
    return {"classes": _names(task, sums), "counts": _matrix(task, sums).tolist()}


def _majority_accuracy(task: Any, sums: Sums) -> float:
    targets, _ = _samples(sums)
    return float(np.bincount(targets[targets >= 0], minlength=len(task.classes)).max() / len(targets))
