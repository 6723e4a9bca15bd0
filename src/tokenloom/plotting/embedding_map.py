"""Embeddings as a two-dimensional map."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_embeddings(
    points: NDArray[np.float64], labels: Sequence[str], path: str | Path, *, title: str, dark: bool = False
) -> Figure:
    """Draw labeled points (n, 2) with equal scales on both axes, write the PNG and return the figure.

    labels: in order of importance; one that would cover an earlier one is left out, its point is not. Raise UserError
    without matplotlib and for a path that cannot be written.
    """
    look = style.palette(dark)
    figure = style.new_figure(8, 7)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", pad=12, fontsize=13)
    axes.scatter(points[:, 0], points[:, 1], s=9, color=look.series[0])
    texts = [
        axes.annotate(label, (x, y), xytext=(3, 2), textcoords="offset points", fontsize=9)
        for (x, y), label in zip(points, labels, strict=True)
    ]
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second principal component")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    style.apply(figure, axes, dark)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # as in `style.save`
        figure.draw_without_rendering()
    boxes = [text.get_window_extent().padded(2) for text in texts]
    shown: list[int] = []
    for number, box in enumerate(boxes):
        if any(box.overlaps(boxes[other]) for other in shown):
            texts[number].set_visible(False)
        else:
            shown.append(number)
    style.save(figure, path)
    return figure
