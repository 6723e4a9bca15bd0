"""The loss curve of a run as a figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

# Fewer points are not smoothed.
SMOOTH_FROM = 20
# With more points the y axis may exclude the steep start.
LONG_RUN = 200


def draw_loss_curve(
    points: Iterable[Mapping[str, Any]],
    path: str | Path,
    *,
    title: str,
    unit: str = "nats/token",
    baseline: tuple[str, float] | None = None,
    dark: bool = False,
    log_y: bool = False,
) -> Figure:
    """Draw the losses of a run over its steps, write the PNG and return the figure.

    points: one mapping a moment, with "step" and one or both of "loss" (training) and "validation", in `unit`;
    other keys are ignored, and so are losses that are absent, None or not finite. The training loss is a light line
    with its smoothed course (`smoothed`) over it; validation is a line with markers. baseline: what the run has to
    beat, (name, value in that unit), a dashed line. Of a long run the first steep steps may lie above the picture.
    Raises UserError without matplotlib and for a path that cannot be written.
    """
    points = list(points)
    if baseline is not None and not math.isfinite(baseline[1]):
        baseline = None
    look = style.palette(dark)
    training, validation = _column(points, "loss"), _column(points, "validation")
    figure = style.new_figure(8, 4.8)
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(title, 76), loc="left", pad=12, fontsize=13)
    axes.set_xlabel("training step")
    axes.set_ylabel(f"loss, {unit}")
    if baseline is not None:
        _draw_baseline(axes, *baseline, look)
    _draw_training(axes, training, look)
    _draw_validation(axes, validation, look)
    _scale(axes, log_y)
    _frame(axes, np.concatenate([training, validation], 1), baseline, log_y)
    if axes.get_lines():
        axes.legend(loc="best", fontsize=10)
    style.apply(figure, axes, dark)
    style.save(figure, path)
    return figure


def smoothed(values: Floats) -> Floats:
    """Return a centered moving mean over about a thirtieth of the points.

    A mean of past values alone would lag behind and show a falling loss higher than it is. For the same reason
    the window is narrow at the start, where the fall is steepest; at the end it is what there is of it.
    """
    n = len(values)
    places = np.arange(n)
    reach = np.minimum(max(n // 60, 2), places // 5)
    first, last = places - reach, np.minimum(places + reach, n - 1) + 1
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _column(points: list[Mapping[str, Any]], key: str) -> Floats:
    """Return (2, points): the steps, ascending, and the finite values of one key."""
    pairs = [(float(point["step"]), float(point[key])) for point in points if point.get(key) is not None]
    pairs = sorted(pair for pair in pairs if math.isfinite(pair[1]))
    return np.array(pairs, dtype=np.float64).reshape(-1, 2).T


def _draw_baseline(axes: Axes, name: str, value: float, look: style.Palette) -> None:
    label = textwrap.fill(f"{name}: {_format(value)}", 40)
    # Below the curves, which may coincide with it.
    axes.axhline(value, color=look.ink, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1.9, label=label)


def _format(value: float) -> str:
    """Format with three decimals, small values with three significant digits."""
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def _draw_training(axes: Axes, drawn: Floats, look: style.Palette) -> None:
    steps, losses = drawn
    color = look.series[0]
    if len(losses) >= SMOOTH_FROM:
        axes.plot(steps, losses, color=color, alpha=0.35, linewidth=0.9, label="training, each point")
        axes.plot(steps, smoothed(losses), color=color, linewidth=1.8, label="training, smoothed")
    elif len(losses):
        axes.plot(steps, losses, color=color, linewidth=1.8, marker="o", markersize=4, label="training")


def _draw_validation(axes: Axes, drawn: Floats, look: style.Palette) -> None:
    steps, losses = drawn
    if len(losses):
        best = int(np.argmin(losses))
        label = f"validation, lowest {_format(losses[best])} at step {steps[best]:,.0f}"
        marker = "o" if len(losses) <= 60 else ""
        axes.plot(steps, losses, color=look.series[1], linewidth=1.5, marker=marker, markersize=4.5, label=label)


def _scale(axes: Axes, log_y: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, ScalarFormatter

    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 20 * low:  # powers of ten alone would give one label or none
            axes.yaxis.set_major_locator(MaxNLocator(8))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())


def _frame(axes: Axes, drawn: Floats, baseline: tuple[str, float] | None, log_y: bool) -> None:
    """Set the axis limits. drawn: (2, points), steps and losses."""
    steps, losses = drawn
    if not len(steps):
        axes.text(0.5, 0.5, "no finite loss to draw", transform=axes.transAxes, ha="center", fontsize=11)
        return
    first, last = float(steps.min()), float(steps.max())
    if first == last:
        axes.set_xlim(first - 1, last + 1)
        return
    axes.margins(x=0.02)
    extra = [] if baseline is None else [baseline[1]]
    low, high = min([*losses, *extra]), max([*losses, *extra])
    top = max([*losses[steps >= first + 0.02 * (last - first)], *extra])
    if not log_y and len(steps) >= LONG_RUN and top - low < 0.5 * (high - low):
        # Leaves space for the legend above the curves.
        axes.set_ylim(low - 0.08 * (top - low), top + 0.45 * (top - low))
