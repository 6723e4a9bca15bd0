"""Heat maps: a matrix of numbers from 0 to 1 with labels along its sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    from matplotlib.colors import LinearSegmentedColormap

    look = style.palette(dark)
    width, height = (min(LARGEST, 1.8 + CELL * len(labels)) for labels in (source, target))
    figure = style.new_figure(width + 0.9, height)
    axes = figure.add_subplot()
    colors = LinearSegmentedColormap.from_list("weights", [look.background, look.series[0]])
    image = axes.imshow(weights, cmap=colors, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
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
