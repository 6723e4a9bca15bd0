"""Figures from plain data, as SVG text in either look: lines, heat maps, sheets of pictures."""

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
    """One course of a picture."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One matrix (rows × columns) with words along its sides; low and high are the ends of the colors.

    `signed` puts zero in the middle of two colors. `picture`: values are gray levels, or colors (rows, columns, 3),
    from 0 to 1.
    """

    title: str
    values: Sequence[Any]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    signed: bool = False
    picture: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure as plain data: courses over one pair of axes, or panels side by side. A text that is set stands alone.

    caption: what is seen, in one sentence, also read out in place of the picture. x, y: labels of the axes. places:
    names of x = 1, 2, 3, … in place of the numbers. above: the names of the courses stand above the axes, for courses
    that leave no room between them.
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


def picture_from(data: dict[str, Any]) -> Picture:
    """What `dataclasses.asdict` of a Picture gave, as a Picture again."""
    lines = [Line(**line) for line in data.get("lines", ())]
    panels = [Panel(**panel) for panel in data.get("panels", ())]
    return Picture(**{**data, "lines": lines, "panels": panels})


def draw(picture: Picture, *, dark: bool = False) -> Figure:
    """The figure of a picture with lines or panels. Raises UserError without matplotlib."""
    return _panels(picture, dark) if picture.panels else _lines(picture, dark)


def svg(picture: Picture, *, dark: bool = False) -> str:
    """One <svg> element without fonts, scripts or links: it may stand in a page. Letters are drawn as shapes."""
    import matplotlib

    name = base64.b32encode(f"{picture.title}{dark}".encode()).decode().rstrip("=")
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        buffer = StringIO()
        figure = draw(picture, dark=dark)
        about = {"Date": None, "Creator": None}
        # Tight, since axes of a fixed shape leave their labels outside or much empty beside them.
        color = figure.get_facecolor()
        figure.savefig(buffer, format="svg", facecolor=color, bbox_inches="tight", pad_inches=0.06, metadata=about)
    text = buffer.getvalue()
    # Without the words about the picture, which name addresses that no one asks.
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _lines(picture: Picture, dark: bool) -> Figure:
    look = style.palette(dark)
    figure = style.new_figure(*LINES)
    axes = figure.add_subplot()
    for place, line in enumerate(picture.lines):
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
    if picture.places:
        axes.set_xticks(range(1, len(picture.places) + 1), picture.places)
    elif all(x == int(x) for line in picture.lines for x in line.x):
        # There is no step 2.5.
        axes.locator_params(axis="x", integer=True)
    if picture.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        places = sorted({x for line in picture.lines for x in line.x})
        if len(places) <= FEW and all(x == int(x) for x in places):
            # Powers of ten between which nothing was measured say less than the places themselves.
            axes.set_xticks(places, [f"{x:,g}" for x in places])
            axes.set_xticks([], minor=True)
    if picture.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
    if len(picture.lines) > 1:
        if picture.above:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(3, len(picture.lines)), fontsize=10)
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


def _panels(picture: Picture, dark: bool) -> Figure:
    count = len(picture.panels)
    across = min(picture.across, count)
    down = -(-count // across)
    rows, columns = np.shape(picture.panels[0].values)[:2]
    width = min(WIDEST, WIDE / across, 3.6 + columns * 0.12)
    # As high as the cells ask for, with room for the title and what stands along the axes.
    shape = rows / columns if picture.panels[0].picture else min(1.2, max(0.35, rows / columns)) * 0.86
    figure = style.new_figure(width * across, (width * shape + 0.35) * down)
    for axes, panel in zip(np.ravel(figure.subplots(down, across, squeeze=False)), picture.panels, strict=False):
        _panel(figure, axes, panel, picture, dark)
    for axes in figure.axes[count : down * across]:
        axes.set_axis_off()
    return figure


def _panel(figure: Figure, axes: Axes, panel: Panel, picture: Picture, dark: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    look, values = style.palette(dark), np.asarray(panel.values, dtype=float)
    ends: dict[str, Any]
    if panel.picture:
        ends = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
    elif panel.signed:
        far = float(np.abs(values).max()) or 1.0
        colors = [look.series[1], look.background, look.series[0]]
        ends = {"cmap": LinearSegmentedColormap.from_list("signed", colors), "vmin": -far, "vmax": far}
    else:
        colors = [look.background, look.series[0]]
        ends = {"cmap": LinearSegmentedColormap.from_list("weights", colors), "vmin": 0.0}
    image = axes.imshow(values, interpolation="nearest", **ends)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
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
    if panel.picture:
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
        bar.ax.tick_params(colors=look.faint, labelcolor=look.ink)
        bar.outline.set_edgecolor(look.faint)
