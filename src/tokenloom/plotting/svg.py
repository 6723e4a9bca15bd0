"""Plots from plain data as SVG text, light or dark: lines, heat maps, images."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
MAX_LABELS = 64
# Up to this many x values get a tick each.
MAX_TICKS = 8
# Sizes in inches: of a line plot (width, height), of all panels in a row, and of one panel.
LINES_SIZE, ROW_WIDTH, MAX_PANEL_WIDTH = (7.4, 3.9), 9.6, 6.4


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

    caption: one sentence, also the alternative text. x, y: axis labels. x_labels: tick labels of x = 1, 2, 3, …
    legend_above: the legend is above the axes. num_columns: panels per row.
    """

    title: str
    caption: str
    x: str = ""
    y: str = ""
    lines: Sequence[Line] = ()
    panels: Sequence[Panel] = ()
    log_x: bool = False
    log_y: bool = False
    num_columns: int = 2
    x_labels: Sequence[str] = ()
    legend_above: bool = False
    text: str = ""


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
        metadata = {"Date": None, "Creator": None}
        # A tight bounding box, because axes of a fixed aspect ratio leave labels outside or empty space.
        color = figure.get_facecolor()
        figure.savefig(buffer, format="svg", facecolor=color, bbox_inches="tight", pad_inches=0.06, metadata=metadata)
    text = buffer.getvalue()
    # Remove the metadata, which contains links.
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _lines(plot: Plot, dark: bool) -> Figure:
    palette = style.palette(dark)
    figure = style.new_figure(*LINES_SIZE)
    axes = figure.add_subplot()
    for number, line in enumerate(plot.lines):
        count = len(palette.series)
        axes.plot(
            line.x,
            line.y,
            label=line.name,
            color=palette.series[number % count],
            linestyle=DASHES[number // count % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)] if len(line.x) <= 30 else "",
            markersize=5,
            linewidth=1.7,
        )
    if plot.x_labels:
        axes.set_xticks(range(1, len(plot.x_labels) + 1), plot.x_labels)
    elif all(x == int(x) for line in plot.lines for x in line.x):
        # Steps and tokens are integers.
        axes.locator_params(axis="x", integer=True)
    if plot.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        xs = sorted({x for line in plot.lines for x in line.x})
        if len(xs) <= MAX_TICKS and all(x == int(x) for x in xs):
            # A tick at each measured x instead of powers of ten.
            axes.set_xticks(xs, [f"{x:,g}" for x in xs])
            axes.set_xticks([], minor=True)
    if plot.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    if len(plot.lines) > 1:
        if plot.legend_above:
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
    num_columns = min(plot.num_columns, count)
    num_rows = -(-count // num_columns)
    rows, columns = np.shape(plot.panels[0].values)[:2]
    width = min(MAX_PANEL_WIDTH, ROW_WIDTH / num_columns, 3.6 + columns * 0.12)
    # The height follows the shape of the matrix, with space for the title and labels.
    aspect = rows / columns if plot.panels[0].image else min(1.2, max(0.35, rows / columns)) * 0.86
    figure = style.new_figure(width * num_columns, (width * aspect + 0.35) * num_rows)
    for axes, panel in zip(np.ravel(figure.subplots(num_rows, num_columns, squeeze=False)), plot.panels, strict=False):
        _panel(figure, axes, panel, plot, dark)
    for axes in figure.axes[count : num_rows * num_columns]:
        axes.set_axis_off()
    return figure


def _panel(figure: Figure, axes: Axes, panel: Panel, plot: Plot, dark: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    palette, values = style.palette(dark), np.asarray(panel.values, dtype=float)
    scale: dict[str, Any]
    if panel.image:
        scale = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0}
    elif panel.signed:
        limit = float(np.abs(values).max()) or 1.0
        colors = [palette.series[1], palette.background, palette.series[0]]
        scale = {"cmap": LinearSegmentedColormap.from_list("signed", colors), "vmin": -limit, "vmax": limit}
    else:
        scale = {"cmap": style.colormap(palette), "vmin": 0.0}
    image = axes.imshow(values, interpolation="nearest", **scale)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    if panel.columns and len(panel.columns) <= MAX_LABELS:
        axes.set_xticks(
            range(len(panel.columns)), panel.columns, rotation=90 if max(map(len, panel.columns)) > 2 else 0
        )
    if panel.rows and len(panel.rows) <= MAX_LABELS:
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
        colorbar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
        colorbar.ax.tick_params(colors=palette.faint, labelcolor=palette.ink)
        colorbar.outline.set_edgecolor(palette.faint)
