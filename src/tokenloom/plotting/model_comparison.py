"""A plot of models: bits per byte against training time and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_models(models: Sequence[Mapping[str, Any]], path: str | Path, *, title: str, dark: bool = False) -> Figure:
    """Draw bits per byte against training seconds and against the number of saved values, on logarithmic scales.

    models: mappings with the keys of `tokenloom.runs.sweep.ModelComparison`. A dot is bits per byte with sliding
    context, a ring that in separate windows. Raise UserError without matplotlib and for a path that cannot be written.
    """
    figure = style.new_figure(11, 4.8)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key in zip(panels, ("seconds", "saved_numbers"), strict=True):
        _panel(axes, models, key, style.palette(dark))
    panels[0].set_xlabel("seconds of training")
    panels[1].set_xlabel("saved numbers")
    panels[0].set_ylabel("bits per byte of the validation text")
    panels[0].set_title(title, loc="left", pad=12, fontsize=13)
    context = models[0]["context"]
    handles, labels = panels[1].get_legend_handles_labels()
    labels = [label.format(context=context) for label in labels]
    panels[1].legend(handles, labels, loc="upper right", fontsize=10)
    for axes in panels:
        style.apply(figure, axes, dark)
    figure.draw_without_rendering()
    for axes in panels:
        _place_names(axes, figure.dpi)
    style.save(figure, path)
    return figure


def _panel(axes: Axes, models: Sequence[Mapping[str, Any]], key: str, palette: style.Palette) -> None:
    axes.set_xscale("log")
    xs = [max(float(model[key]), 1e-3) for model in models]
    sliding, windows = ([float(model[f"bits_per_byte_{name}"]) for model in models] for name in ("sliding", "windows"))
    axes.vlines(xs, sliding, windows, color=palette.faint, linewidth=1)
    axes.scatter(xs, sliding, s=42, color=palette.series[0], zorder=3, label="with sliding context")
    axes.scatter(
        xs,
        windows,
        s=42,
        facecolors=palette.background,
        edgecolors=palette.series[1],
        linewidths=1.5,
        zorder=3,
        label="in separate windows of {context} tokens",
    )
    for x, low, high, model in zip(xs, sliding, windows, models, strict=True):
        name, middle = str(model["model"]), (low + high) / 2
        axes.annotate(name, (x, middle), (0, 0), textcoords="offset points", fontsize=10, in_layout=False)
    axes.margins(x=0.12, y=0.15)


def _place_names(axes: Axes, dpi: float) -> None:
    """Place each name next to its model, where it overlaps as few markers, names and legends as possible."""
    from matplotlib.transforms import Bbox

    _, sliding, windows = axes.collections
    markers = [axes.transData.transform(collection.get_offsets()) for collection in (sliding, windows)]
    occupied = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for points in markers for x, y in points]
    occupied += [Bbox([np.minimum(a, b) - 1, np.maximum(a, b) + 1]) for a, b in zip(*markers, strict=True)]
    legend = axes.get_legend()
    if legend is not None:
        occupied.append(legend.get_window_extent())
    for (_, low), (_, high), text in zip(*markers, axes.texts, strict=True):
        half = abs(high - low) / 2 * 72 / dpi  # from the middle to a marker, in points
        sides = [(sign * 9, 0, "left" if sign > 0 else "right", "center") for sign in (1, -1)]
        above, below = (
            [(0, sign * (half + 8 + gap), "center", va) for gap in (0, 14)] for sign, va in ((1, "bottom"), (-1, "top"))
        )
        positions = [below[0], above[0], *sides, above[1], below[1]]  # nearest first
        boxes = []
        for x, y, ha, va in positions:
            text.set(position=(x, y), ha=ha, va=va)
            boxes.append(text.get_window_extent().padded(1))
        overlaps = [sum(box.overlaps(other) for other in occupied) for box in boxes]
        best = overlaps.index(min(overlaps))
        x, y, ha, va = positions[best]
        text.set(position=(x, y), ha=ha, va=va)
        occupied.append(boxes[best])
