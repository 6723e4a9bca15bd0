"""Figures from plain data, as SVG text in either look: lines, heat maps, images."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D")
# Labels of more cells than this would not be legible.
LABELLED = 64
# So many places along an axis are labeled each.
FEW = 8
# Inches: of a figure of lines, of all panels side by side, and of one panel alone.
LINES, WIDE, WIDEST = (7.4, 3.9), 9.6, 6.4


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """A matrix (rows × columns) with labels along its sides.

    signed: a diverging color scale with zero in its middle. image: values are gray levels, or colors (rows, columns,
    3), in 0 … 1.
    """

    title: str
    values: Sequence[Any]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    signed: bool = False
    image: bool = False


@dataclass(frozen=True)
class Plot:
    """A plot as plain data: lines over one pair of axes, panels side by side, or a text.

    caption: one sentence, also the alternative text. x, y: axis labels. places: tick labels of x = 1, 2, 3, …
    above: the legend is above the axes. across: panels per row.
    """

    title: str
    caption: str
    x: str = ""
    y: str = ""
    lines: Sequence[Line] = ()
    panels: Sequence[Panel] = ()
    log_x: bool = False
    log_y: bool = False
    across: int = 2
    places: Sequence[str] = ()
    above: bool = False
    text: str = field(default="")


def plot_from(data: dict[str, Any]) -> Plot:
    """Return a Plot from what `dataclasses.asdict` made of it."""
    lines = [Line(**line) for line in data.get("lines", ())]
    panels = [Panel(**panel) for panel in data.get("panels", ())]
    return Plot(**{**data, "lines": lines, "panels": panels})


def draw(plot: Plot, *, dark: bool = False) -> Figure:
    """Return the matplotlib figure of a plot with lines or panels. Raise UserError without matplotlib."""
    return _panels(plot, dark) if plot.panels else _lines(plot, dark)


def svg(plot: Plot, *, dark: bool = False) -> str:
    """Return one <svg> element without fonts, scripts or links, to embed in a page. Letters are drawn as shapes."""
    import matplotlib

    name = base64.b32encode(f"{plot.title}{dark}".encode()).decode().rstrip("=")
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        buffer = StringIO()
        figure = draw(plot, dark=dark)
        about = {"Date": None, "Creator": None}
        # Tight, because axes of a fixed aspect ratio leave labels outside or much empty space.
        color = figure.get_facecolor()
        figure.savefig(buffer, format="svg", facecolor=color, bbox_inches="tight", pad_inches=0.06, metadata=about)
    text = buffer.getvalue()
    # Without metadata, which contains links.
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _lines(plot: Plot, dark: bool) -> Figure:
    look = style.palette(dark)
    figure = style.new_figure(*LINES)
    axes = figure.add_subplot()
    for place, line in enumerate(plot.lines):
        count = len(look.series)
        axes.plot(
            line.x,
            line.y,
            label=line.name,
            color=look.series[place % count],
            linestyle=DASHES[place // count % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)] if len(line.x) <= 30 else "",
            markersize=5,
            linewidth=1.7,
        )
    if plot.places:
        axes.set_xticks(range(1, len(plot.places) + 1), plot.places)
    elif all(x == int(x) for line in plot.lines for x in line.x):
        # There is no step 2.5.
        axes.locator_params(axis="x", integer=True)
    if plot.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        places = sorted({x for line in plot.lines for x in line.x})
        if len(places) <= FEW and all(x == int(x) for x in places):
            # Powers of ten between which nothing was measured say less than the places themselves.
            axes.set_xticks(places, [f"{x:,g}" for x in places])
            axes.set_xticks([], minor=True)
    if plot.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    if len(plot.lines) > 1:
        if plot.above:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(3, len(plot.lines)), fontsize=10)
        else:
            axes.legend(loc="best", fontsize=10)
    style.apply(figure, axes, dark)
    return figure


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis of less than two decades with 1, 2, 5, 10, …, since it has few powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if 0 < low < high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def _panels(plot: Plot, dark: bool) -> Figure:
    count = len(plot.panels)
    across = min(plot.across, count)
    down = -(-count // across)
    rows, columns = np.shape(plot.panels[0].values)[:2]
    width = min(WIDEST, WIDE / across, 3.6 + columns * 0.12)
    # As high as the cells ask for, with room for the title and what stands along the axes.
    shape = rows / columns if plot.panels[0].image else min(1.2, max(0.35, rows / columns)) * 0.86
    figure = style.new_figure(width * across, (width * shape + 0.35) * down)
    for axes, panel in zip(np.ravel(figure.subplots(down, across, squeeze=False)), plot.panels, strict=False):
        _panel(figure, axes, panel, plot, dark)
    for axes in figure.axes[count : down * across]:
        axes.set_axis_off()
    return figure


def _panel(figure: Figure, axes: Axes, panel: Panel, plot: Plot, dark: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    look, values = style.palette(dark), np.asarray(panel.values, dtype=float)
    ends: dict[str, Any]
    if panel.image:
        ends = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
    elif panel.signed:
        far = float(np.abs(values).max()) or 1.0
        colors = [look.series[1], look.background, look.series[0]]
        ends = {"cmap": LinearSegmentedColormap.from_list("signed", colors), "vmin": -far, "vmax": far}
    else:
        ends = {"cmap": style.colormap(look), "vmin": 0.0}
    image = axes.imshow(values, interpolation="nearest", **ends)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    if panel.columns and len(panel.columns) <= LABELLED:
        axes.set_xticks(
            range(len(panel.columns)), panel.columns, rotation=90 if max(map(len, panel.columns)) > 2 else 0
        )
    if panel.rows and len(panel.rows) <= LABELLED:
        axes.set_yticks(range(len(panel.rows)), panel.rows)
    style.apply(figure, axes, dark)
    axes.grid(False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        size = 10 if max(len(panel.rows), len(panel.columns)) <= 24 else 7
        label.set(parse_math=False, fontsize=size, fontfamily=style.families())
    if panel.image:
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
        bar.ax.tick_params(colors=look.faint, labelcolor=look.ink)
        bar.outline.set_edgecolor(look.faint)
