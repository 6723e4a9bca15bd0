"""Metrics as text, by kind: a line per number; tables of classes, confusions and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.plotting.tables import plain_table

if TYPE_CHECKING:
    from tokenloom.training.metrics import Metric

# A confusion matrix of more classes is too wide for a terminal: the most frequent confusions are listed instead.
MAX_CLASSES = 12
NUM_CONFUSIONS = 10


def metric_lines(declared: Sequence[Metric], values: Mapping[str, Any]) -> list[str]:
    """Return the metrics as lines, in the order of their declaration, tables last. Those without a value are left out.

    Intervals (kinds "ci95", "low" and "high") stand beside the metric that `of` names.
    """
    bounds: dict[tuple[str, str], float] = {
        (m.of, m.kind): values[m.name] for m in declared if m.of and m.name in values
    }
    rows: list[tuple[str, str]] = []
    tables: list[str] = []
    for metric in declared:
        if metric.of or values.get(metric.name) is None:
            continue
        label, value = metric.label or metric.name.replace("_", " "), values[metric.name]
        if metric.kind == "table":
            tables += ["", _table(value)]
        elif metric.kind == "confusion":
            tables += ["", _confusions(value["classes"], value["counts"])]
        elif metric.kind == "calibration":
            header = ["probability", "mean probability", "accuracy", "examples"]
            cells = [[f"{b['from']:.1f} – {b['to']:.1f}", b["probability"], b["accuracy"], b["n"]] for b in value]
            tables += ["", plain_table(cells, header)]
        else:
            rows.append((f"{label}:", _with_interval(metric, value, bounds)))
    width = max((len(label) for label, _ in rows), default=0)
    return [*(f"{label:<{width}} {text}" for label, text in rows), *tables]


def _with_interval(metric: Metric, value: Any, bounds: Mapping[tuple[str, str], float]) -> str:
    """Return a value with its unit and its interval, if there is one."""
    ends = [_number(bounds[key], metric.kind) for end in ("low", "high") if (key := (metric.name, end)) in bounds]
    half = bounds.get((metric.name, "ci95"), math.nan)
    text = _number(value, metric.kind)
    if not math.isnan(half):
        text += f" ± {_number(half, metric.kind)}"
    if metric.unit:
        text += f" {metric.unit}"
    if ends:
        return f"{text} (95 % interval {' to '.join(ends)})"
    return text if math.isnan(half) else f"{text} (95 % interval)"


def _number(value: Any, kind: str) -> str:
    if kind == "text":
        return str(value)
    if kind == "count":
        return f"{value:,.0f}"
    if math.isnan(value):
        return "undefined"
    if kind == "percent":
        return f"{value:.2%}"
    # Four digits behind the point hide what small numbers are.
    return f"{value:,.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.4g}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of rows that have the same keys; a metric between 0 and 1 has three decimals."""
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return plain_table(cells, [name.replace("_", " ") for name in rows[0]] if rows else [])


def _confusions(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a confusion matrix, or its largest entries off the diagonal when it has many classes."""
    if len(classes) <= MAX_CLASSES:
        cells = [[name, *map(int, row)] for name, row in zip(classes, counts, strict=True)]
        return plain_table(cells, ["true \\ predicted", *classes])
    pairs = [(n, classes[i], classes[j]) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    cells = [[true, predicted, n] for n, true, predicted in pairs[:NUM_CONFUSIONS]]
    return "most frequent confusions\n" + plain_table(cells, ["true", "predicted", "examples"])
