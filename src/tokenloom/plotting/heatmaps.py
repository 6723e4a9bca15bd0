"""Heat maps: confusion matrices, attention between tokens, and maps of weights over an image."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.plotting import style
from tokenloom.plotting.tables import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Matrix = Sequence[Sequence[int]]
# Larger matrices show no numbers, which would be too small to read.
MAX_NUMBERED = 20


def confusion_table(counts: Matrix, classes: Sequence[str]) -> str:
    """Return a confusion matrix as a table. Rows: true classes; columns: predictions."""
    rows = [[name, *map(int, row)] for name, row in zip(classes, counts, strict=True)]
    return plain_table(rows, ["true \\ predicted", *classes])


def draw_confusion(
    counts: Matrix, classes: Sequence[str], path: str | Path, *, title: str, dark: bool = False
) -> Figure:
    """Draw a confusion matrix, write the PNG and return the figure.

    counts: (classes, classes), rows are true classes, columns predictions. The shade of a cell is its fraction of the
    row, the number is the count. Raise UserError without matplotlib and for a path that cannot be
    written.
    """
    look = style.palette(dark)
    matrix = np.asarray(counts, dtype=np.float64)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    K = len(classes)
    side = min(max(3.2 + 0.42 * K, 4.5), 14)
    figure = style.new_figure(side + 0.8, side)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap=style.colormap(look), vmin=0, vmax=1)
    labels = [textwrap.shorten(name, 24, placeholder="…") for name in classes]
    size = 10 if K <= MAX_NUMBERED else 7
    upright = K <= 3 or (K <= MAX_NUMBERED and max(map(len, labels)) <= 3)
    axes.set_xticks(range(K), labels, rotation=0 if upright else 90)
    axes.set_yticks(range(K), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(textwrap.fill(title, 60), loc="left", pad=12, fontsize=13)
    style.apply(figure, axes, dark)
    axes.grid(False)
    axes.tick_params(labelsize=size)
    if K <= MAX_NUMBERED:
        for i, j in np.ndindex(K, K):
            if matrix[i, j]:
                # Whichever of the two inks stands out against the shade.
                ink = look.background if shares[i, j] > 0.55 else look.ink
                axes.text(j, i, f"{int(matrix[i, j]):,}", ha="center", va="center", fontsize=9, color=ink)
    style.save(figure, path)
    return figure


# Inches of a cell, and of the whole at most.
CELL, LARGEST = 0.3, 16.0


def draw_alignment(
    source: Sequence[str],
    target: Sequence[str],
    weights: Sequence[Sequence[float]],
    path: str | Path,
    *,
    dark: bool = False,
) -> Figure:
    """Draw the attention of target tokens to source tokens, write the PNG and return the figure.

    source: M labels along the bottom. target: N labels down the side. weights: (N, M) from 0 to 1. Raise UserError
    without matplotlib and for a path that cannot be written.
    """
    look = style.palette(dark)
    width, height = (min(LARGEST, 1.8 + CELL * len(labels)) for labels in (source, target))
    figure = style.new_figure(width + 0.9, height)
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap=style.colormap(look), vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    turned = 90 if max(map(len, source)) > 2 else 0
    axes.set_xticks(range(len(source)), source, rotation=turned)
    axes.set_yticks(range(len(target)), target)
    axes.set_xlabel("source")
    axes.set_ylabel("translation")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("attention", color=look.ink, fontsize=11)
    bar.ax.tick_params(colors=look.faint, labelcolor=look.ink)
    bar.outline.set_edgecolor(look.faint)
    style.apply(figure, axes, dark)
    axes.grid(False)
    size = 10 if max(len(source), len(target)) * CELL <= LARGEST else 6
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        # A token may hold a dollar sign, which starts no formula.
        label.set(parse_math=False, fontsize=size, fontfamily=style.families())
    style.save(figure, path)
    return figure


_COLUMNS = 4


def draw_overlays(
    pixels: NDArray[np.uint8],
    maps: Mapping[str, Sequence[Sequence[float]]],
    path: str | Path,
    *,
    title: str,
    dark: bool = False,
) -> Figure:
    """Draw an image and one panel per map, write the PNG and return the figure.

    pixels: (C, H, W). maps: by name, weights (rows, columns), each with a color scale of its own, whose range is
    written below. Raise UserError without matplotlib and for a path that cannot be written.
    """
    look = style.palette(dark)
    C, H, W = pixels.shape
    image = pixels.transpose(1, 2, 0) if C == 3 else pixels[0]
    panels = 1 + len(maps)
    columns = min(_COLUMNS, panels)
    rows = -(-panels // columns)
    figure = style.new_figure(2.3 * columns, 2.55 * rows + 0.4)
    for place, name in enumerate([title, *maps]):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=(0, W, H, 0), interpolation="nearest")
        if place > 0:
            weights = np.asarray(maps[name], dtype=np.float64)
            low, high = float(weights.min()), float(weights.max())
            even = (weights - low) / max(high - low, 1e-12)
            axes.imshow(even, cmap="inferno", alpha=0.65, extent=(0, W, H, 0), interpolation="nearest", vmin=0, vmax=1)
            axes.set_xlabel(f"{low:.3f} to {high:.3f}", fontsize=9)
        else:
            axes.set_xlabel("brighter: more weight", fontsize=9)
        style.apply(figure, axes, dark)
        axes.grid(False)
        for spine in axes.spines.values():  # For images that are white at their border.
            spine.set_visible(True)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(name, fontsize=11, color=look.ink, loc="center", parse_math=False)
    style.save(figure, path)
    return figure
