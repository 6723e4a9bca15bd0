"""Models side by side: what each needs for the text, against what it took to train and what it takes to store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.drawing import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_ladder(models: Sequence[Mapping[str, Any]], path: str | Path, *, title: str, dark: bool = False) -> Figure:
    """Two panels: bits per byte against training seconds and against stored numbers, both on a logarithmic scale.

    models: mappings with "model", "running" and "windows" (bits per byte, with running context and in separate windows
    of "window" tokens), "seconds" and "numbers". A dot is the first of the two, a ring the second. Raises UserError
    without matplotlib and for a path that cannot be written.
    """
    figure = style.new_figure(11, 4.8)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, label in zip(panels, ("seconds", "numbers"), ("seconds of training", "stored numbers"), strict=True):
        _panel(axes, models, key, style.palette(dark))
        axes.set_xlabel(label)
    panels[0].set_ylabel("bits per byte of the validation text")
    panels[0].set_title(title, loc="left", pad=12, fontsize=13)
    window = models[0]["window"]
    handles, labels = panels[1].get_legend_handles_labels()
    labels = [label.format(window=window) for label in labels]
    panels[1].legend(handles, labels, loc="upper right", fontsize=10)
    for axes in panels:
        style.apply(figure, axes, dark)
    style.save(figure, path)
    return figure


def _panel(axes: Axes, models: Sequence[Mapping[str, Any]], key: str, look: style.Palette) -> None:
    axes.set_xscale("log")
    places = [max(float(model[key]), 1e-3) for model in models]
    running, windows = ([float(model[name]) for model in models] for name in ("running", "windows"))
    axes.vlines(places, running, windows, color=look.faint, linewidth=1)
    axes.scatter(places, running, s=42, color=look.series[0], zorder=3, label="with running context")
    axes.scatter(
        places,
        windows,
        s=42,
        facecolors=look.background,
        edgecolors=look.series[1],
        linewidths=1.5,
        zorder=3,
        label="in separate windows of {window} tokens",
    )
    spread = max(max(windows), max(running)) - min(min(windows), min(running)) or 1.0
    taken: list[tuple[float, float]] = []
    for x, low, high, model in sorted(zip(places, running, windows, models, strict=True), key=lambda one: one[0]):
        # A name stands beneath its dot, or above its ring where another stands beneath already.
        below = all(abs(low - y) > 0.08 * spread or x > 6 * at for at, y in taken)
        y = min(low, high) if below else max(low, high)
        taken.append((x, y))
        axes.annotate(
            str(model["model"]),
            (x, y),
            xytext=(0, -8 if below else 8),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=10,
        )
    axes.margins(x=0.12, y=0.15)
