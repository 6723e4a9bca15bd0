"""Metrics, declared once: name, unit, direction, computation from sums over a split, and kind of presentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tokenloom.training.losses import MetricSum

# "number", "percent" and "count" are numbers. "ci95" is half the width of the 95% interval of the metric that `of`
# names; "low" and "high" are the bounds of its interval. The other kinds are values for JSON: "table": a list of rows,
# each a dict; "confusion": {"classes": […], "counts": [[…]]}; "calibration": a list of bins, each a dict; "text".
Kind = Literal["number", "percent", "count", "ci95", "low", "high", "table", "confusion", "calibration", "text"]
NUMBERS = ("number", "percent", "count", "ci95", "low", "high")


class HasMetrics(Protocol):
    """An object with declared metrics."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics, in the order in which they are shown."""
        ...


@dataclass(frozen=True)
class Metric:
    """A metric of a task.

    unit: such as "nats/token"; of the loss, what stands after the slash is what speeds are counted in. better: which
    values are better. label: shown instead of the name. of: see `Kind`. compute: from the task and the sums over a
    split by term; None leaves the metric out. Without it, the loss is Σ weight · value over the terms that are
    minimized, and any other metric is the value of the term of its name. per_sample: for the metric on which runs are
    compared in pairs, its value on each validation sample as a `PerSampleLoss`, from the task and the option --context.
    """

    name: str
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    kind: Kind = "number"
    label: str = ""
    of: str = ""
    compute: Callable[[Any, Mapping[str, MetricSum]], Any] | None = None
    per_sample: Callable[[Any, str | None], Any] | None = None


def compute_metrics(task: HasMetrics, sums: Mapping[str, MetricSum], *, tables: bool = False) -> dict[str, Any]:
    """Return the metrics by name from the sums over a split. tables: also those that are not numbers."""
    values: dict[str, Any] = {}
    for metric in task.metrics:
        if tables or metric.kind in NUMBERS:
            value = _value(metric, task, sums)
            if value is not None:
                values[metric.name] = value
    return values


def _value(metric: Metric, task: HasMetrics, sums: Mapping[str, MetricSum]) -> Any:
    if metric.compute is not None:
        return metric.compute(task, sums)
    if metric.name == "loss":
        return sum(total.weight * total.value for total in sums.values() if total.weight and total.count)
    return sums[metric.name].value if metric.name in sums else None


def loss_metric(task: HasMetrics) -> Metric:
    """Return the declared loss of a task. Raise ValueError when it declares none."""
    for metric in task.metrics:
        if metric.name == "loss":
            return metric
    raise ValueError(f"{type(task).__name__} declares no metric named loss")


def counted_unit(task: HasMetrics) -> str:
    """Return what the loss is averaged over, in the plural: "tokens" for nats/token."""
    return f"{loss_metric(task).unit.partition('/')[2] or 'target'}s"
