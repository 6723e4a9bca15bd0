"""Loss curves in text, for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Points = Sequence[tuple[float, float]]

# A Braille cell is 2 dots wide and 4 high; the bit of each dot, by row from the top and by column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BRAILLE = 0x2800
MARKS = "●○◆◇▲△"
PLAIN_MARKS = "ox+#%@"
SMALLEST = (30, 8)
# Larger values count as infinite, since sums and differences could overflow.
LARGEST = 1e150
ASCII = str.maketrans({"–": "-", "—": "-", "−": "-", "×": "x", "·": ".", "’": "'", "…": "~"})


@dataclass(frozen=True)
class Frame:
    """The drawn part of the plane, on columns × rows of characters."""

    left: float
    right: float
    low: float
    high: float
    columns: int
    rows: int

    def column(self, x: float, cells: int) -> int:
        """Return in which of `cells` equal parts from left to right x lies."""
        return _part(x, self.left, self.right, cells)

    def row(self, y: float, cells: int) -> int:
        """Return in which of `cells` equal parts from top to bottom y lies."""
        return cells - 1 - _part(y, self.low, self.high, cells)


def terminal_curve(
    series: dict[str, Points],
    width: int,
    height: int,
    baseline: tuple[str, float] | None = None,
    ascii_only: bool = False,
    x_label: str = "step",
) -> str:
    """Draw series of points (x, y) as lines of text: plot, both axes with their limits, legend.

    The first series is a line of Braille dots (where it has more points than dots, each column shows their
    mean); each further one shows a mark of its own at its points. Points that are not finite are omitted and
    break the line. baseline: (name, y), a dashed line. The plot has `height` lines of at most `width`
    columns, but is never smaller than 30 × 8. ascii_only: for terminals without UTF-8; letters of names that
    ASCII lacks become "?".
    """
    width, height = max(width, SMALLEST[0]), max(height, SMALLEST[1])
    if baseline is not None and not _finite((0.0, baseline[1])):
        baseline = None
    finite = {name: [p for p in points if _finite(p)] for name, points in series.items()}
    everything = [point for points in finite.values() for point in points]
    if not everything:
        return "no finite values to draw"
    legend = _legend(finite, baseline, width, ascii_only)[: height - 5]
    rows = height - 2 - len(legend)
    low, high = _limits([y for _, y in everything] + ([baseline[1]] if baseline else []))
    labels = _labels(low, high, rows)
    margin = max(map(len, labels)) + 1
    left, right = _limits([x for x, _ in everything], share=1e-9, least=1.0)
    frame = Frame(left, right, low, high, width - margin - 1, rows)
    canvas = _canvas(frame, list(series.values()), baseline, ascii_only)
    bar, corner, rule = ("|", "+", "-") if ascii_only else ("│", "└", "─")
    lines = [f"{label:>{margin - 1}} {bar}{''.join(cells)}" for label, cells in zip(labels, canvas, strict=True)]
    lines.append(" " * margin + corner + rule * frame.columns)
    lines.append(" " * (margin + 1) + _x_axis(left, right, x_label, frame.columns))
    lines += [" " + line for line in legend]
    text = "\n".join(line.rstrip() for line in lines)
    return text.translate(ASCII).encode("ascii", "replace").decode() if ascii_only else text


def _finite(point: tuple[float, float]) -> bool:
    return all(math.isfinite(value) and abs(value) < LARGEST for value in point)


def _part(value: float, low: float, high: float, cells: int) -> int:
    share = (value - low) / (high - low)
    return min(max(round(share * (cells - 1)), 0), cells - 1)


def _limits(values: list[float], share: float = 0.1, least: float = 0.1) -> tuple[float, float]:
    """Return the range of the values; equal ones get a margin: a fraction of the value, at least `least`."""
    low, high = min(values), max(values)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = max(share * abs(low), least)
        return low - room, high + room
    return low, high


def _canvas(
    frame: Frame, series: list[Points], baseline: tuple[str, float] | None, ascii_only: bool
) -> list[list[str]]:
    """Return the cells of the plot by rows: markers over the line over the baseline."""
    cells = [[" "] * frame.columns for _ in range(frame.rows)]
    if baseline is not None:
        cells[frame.row(baseline[1], frame.rows)] = [("-" if ascii_only else "╌")] * frame.columns
    if series:
        _draw_line(cells, frame, series[0], ascii_only)
    marks = PLAIN_MARKS if ascii_only else MARKS
    for number, points in enumerate(series[1:]):
        for x, y in filter(_finite, points):
            row, column = frame.row(y, frame.rows), frame.column(x, frame.columns)
            cells[row][column] = marks[number % len(marks)]
    return cells


def _draw_line(cells: list[list[str]], frame: Frame, points: Points, ascii_only: bool) -> None:
    across, down = (1, 1) if ascii_only else (2, 4)
    dots: dict[tuple[int, int], int] = {}
    for column, row in _trace(frame, points, frame.columns * across, frame.rows * down):
        cell = (row // down, column // across)
        dots[cell] = dots.get(cell, 0) | DOTS[row % down][column % across]
    for (row, column), bits in dots.items():
        cells[row][column] = "*" if ascii_only else chr(BRAILLE + bits)


def _trace(frame: Frame, points: Points, width: int, height: int) -> list[tuple[int, int]]:
    """Return all dots (column, row) of a line through the points; a point that is not finite breaks it."""
    dots: list[tuple[int, int]] = []
    for run in _runs(points):
        columns: dict[int, list[float]] = {}
        for x, y in run:
            columns.setdefault(frame.column(x, width), []).append(y)
        path = [(column, frame.row(sum(ys) / len(ys), height)) for column, ys in sorted(columns.items())]
        dots += path
        for (c0, r0), (c1, r1) in pairwise(path):
            steps = max(c1 - c0, abs(r1 - r0))
            dots += [(c0 + round((c1 - c0) * i / steps), r0 + round((r1 - r0) * i / steps)) for i in range(1, steps)]
    return dots


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """Split the points where one is not finite."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if _finite(point):
            runs[-1].append(point)
        else:
            runs.append([])
    return runs


def _labels(low: float, high: float, rows: int) -> list[str]:
    """Return labels of the top row, the bottom row and about every fourth row between; the rest are empty."""
    labels = [""] * rows
    count = max(2, (rows - 1) // 4 + 1)
    for i in range(count):
        row = round(i * (rows - 1) / (count - 1))
        labels[row] = _number(high - (high - low) * row / (rows - 1), high - low)
    return labels


def _x_axis(left: float, right: float, label: str, width: int) -> str:
    """Return the first and the last x with the name of the axis between them."""
    whole = float(left).is_integer() and float(right).is_integer() and max(abs(left), abs(right)) < 1e9
    first, last = (f"{x:,.0f}" if whole else _number(x, right - left) for x in (left, right))
    return first + label.center(width - len(first) - len(last)) + last


def _number(value: float, span: float) -> str:
    """Format a value with decimals that distinguish a hundredth of the span."""
    if max(abs(value), span) >= 1e9 or span < 1e-6:
        return f"{value:.3g}"
    return f"{value:,.{min(max(2 - math.floor(math.log10(span)), 0), 8)}f}"


def _value(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1e6 else f"{value:.3g}"


def _legend(
    finite: dict[str, list[tuple[float, float]]],
    baseline: tuple[str, float] | None,
    width: int,
    ascii_only: bool,
) -> list[str]:
    """Return one entry per series with its last and lowest value, and one for the baseline, in lines that fit."""
    from rich.cells import cell_len, set_cell_size

    marks = ("*" + PLAIN_MARKS) if ascii_only else ("⠒" + MARKS)
    entries = []
    for number, (name, points) in enumerate(finite.items()):
        mark = marks[0] if number == 0 else marks[1 + (number - 1) % (len(marks) - 1)]
        ys = [y for _, y in points]
        entries.append(f"{mark} {name} {_value(ys[-1])} (lowest {_value(min(ys))})" if ys else f"{mark} {name} –")
    if baseline is not None:
        entries.append(f"{'-' if ascii_only else '╌'} {baseline[0]} {_value(baseline[1])}")
    lines: list[str] = []
    for entry in entries:
        if cell_len(entry) > width - 1:
            entry = set_cell_size(entry, width - 2) + ("~" if ascii_only else "…")
        if lines and cell_len(lines[-1]) + 3 + cell_len(entry) < width:
            lines[-1] += "   " + entry
        else:
            lines.append(entry)
    return lines
