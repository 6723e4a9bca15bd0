"""An image, and the same image overlaid with maps of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
