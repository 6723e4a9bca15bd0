"""Confusion matrices, as a table and as a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
    from matplotlib.colors import LinearSegmentedColormap

    axes = figure.add_subplot()
    shades = LinearSegmentedColormap.from_list("share", [look.background, look.series[0]])
    axes.imshow(shares, cmap=shades, vmin=0, vmax=1)
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
