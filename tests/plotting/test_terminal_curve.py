"""The curve made of characters: read back from the text that is printed."""

import itertools
import math
import random

import pytest
from rich.cells import cell_len

from tokenloom.plotting.terminal import terminal_curve

FALL = [(step, 1.5 + 3 * math.exp(-step / 40)) for step in range(0, 201, 2)]


def parts(text, bar="│"):
    """The rows of the plot without their labels, the labels, and the lines below."""
    split = [line.split(bar, 1) for line in text.split("\n")]
    rows = [line[1] for line in split if len(line) == 2]
    labels = [line[0].strip() for line in split if len(line) == 2]
    return rows, labels, text.split("\n")[len(rows) :]


def dots(rows):
    """(column, row) of every Braille dot, with the numbering of the dots as Unicode's chart gives it."""
    places = {1: (0, 0), 2: (0, 1), 3: (0, 2), 4: (1, 0), 5: (1, 1), 6: (1, 2), 7: (0, 3), 8: (1, 3)}
    found = set()
    for row, line in enumerate(rows):
        for column, char in enumerate(line):
            if 0x2800 <= ord(char) <= 0x28FF:
                for number, (dx, dy) in places.items():
                    if (ord(char) - 0x2800) >> (number - 1) & 1:
                        found.add((2 * column + dx, 4 * row + dy))
    return found


def test_the_line_follows_the_points():
    text = terminal_curve({"training": FALL}, 60, 16)
    rows, labels, below = parts(text)
    width, height = 2 * (len(below[0]) - below[0].index("└") - 1), 4 * len(rows)
    found = dots(rows)
    high, low = FALL[0][1], FALL[-1][1]
    for step, loss in FALL:
        x, y = step / 200 * (width - 1), (high - loss) / (high - low) * (height - 1)
        assert any(abs(column - x) <= 1 and abs(row - y) <= 1.5 for column, row in found), (step, loss)
    # Falling from the upper left to the lower right without a gap, and nowhere else.
    assert (0, 0) in found
    assert (width - 1, height - 1) in found
    assert {column for column, _ in found} == set(range(width))
    tops = [min(row for column, row in found if column == c) for c in range(width)]
    assert tops == sorted(tops)
    assert labels[0] == "4.50"
    assert labels[-1] == f"{low:.2f}"


def test_labels_limits_and_legend():
    validation = [(0, 4.4), (100, 1.9), (200, 1.7)]
    text = terminal_curve({"training": FALL, "validation": validation}, 78, 18, ("n-gram", 1.555))
    rows, labels, below = parts(text)
    assert len(text.split("\n")) == 18
    assert [label for label in labels if label] == sorted((label for label in labels if label), reverse=True)
    assert below[1].split() == ["0", "step", "200"]
    assert (
        below[2].strip()
        == f"⠒ training {FALL[-1][1]:.3f} (lowest {FALL[-1][1]:.3f})   ● validation 1.700 (lowest 1.700)"
    )
    assert below[3].strip() == "╌ n-gram 1.555"
    marks = [(row, line.index("●"), line.rindex("●")) for row, line in enumerate(rows) if "●" in line]
    assert marks[0][0] == 0
    assert marks[0][1] == 0
    assert marks[-1][2] == len(below[0]) - below[0].index("└") - 2
    assert sum("╌" in line for line in rows) == 1
    assert len(rows) - 2 <= next(row for row, line in enumerate(rows) if "╌" in line)


def test_a_baseline_outside_the_values_widens_the_axis():
    _, labels, _ = parts(terminal_curve({"t": [(0, 4.0), (1, 3.0)]}, 50, 12, ("b", 1.0)))
    assert (labels[0], labels[-1]) == ("4.00", "1.00")
    rows, _, _ = parts(terminal_curve({"t": [(0, 4.0), (1, 3.0)]}, 50, 12, ("b", 5.0)))
    assert set(rows[0]) == {"╌"}


def test_plain_ascii_for_terminals_without_utf8():
    series = {"Verlust ÷": FALL, "validation": [(0, 4.4), (200, 1.7)], "more": [(100, 3.0)]}
    text = terminal_curve(series, 60, 16, ("Kneser–Ney", 1.6), ascii_only=True)
    assert text.isascii()
    rows, _, below = parts(text, "|")
    assert rows[0][0] == "o"
    assert "x" in "".join(rows)
    assert all(any(line[column : column + 1] in ("*", "o") for line in rows) for column in range(len(rows[0])))
    assert "* Verlust ?" in below[2]
    assert "- Kneser-Ney 1.600" in "\n".join(below)


def test_a_noisy_series_is_averaged_to_its_course():
    noisy = [(step, 3 - step / 10_000 + 0.5 * (-1) ** step) for step in range(10_000)]
    rows, _, _ = parts(terminal_curve({"t": noisy, "corners": [(0, 4.0), (0, 1.0)]}, 60, 20))
    found = dots(rows)
    heights = [row for column, row in found if column > 3]
    # Each column is one mean: a thin falling line, not the 1.0 thick band of the points.
    assert all(sum(column == c for column, _ in found) <= 2 for c in range(4, 100))
    assert max(heights) - min(heights) < 0.4 * 4 * len(rows)


def test_points_that_are_not_finite_break_the_line():
    points = [(0, 1.0), (1, 1.0), (2, math.nan), (3, math.inf), (4, 1.0), (5, 1.0), (math.nan, 2.0)]
    rows, _, _ = parts(terminal_curve({"t": points}, 60, 10))
    (line,) = [row for row in rows if row.strip()]
    left, right = line.rstrip().split(" ", 1)
    gap = len(right) - len(right.lstrip())
    assert len(left) == pytest.approx(len(right.strip()), abs=1)
    assert gap > 2 * len(left)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_constant_single_and_empty_series(ascii_only):
    bar = "|" if ascii_only else "│"
    rows, labels, below = parts(terminal_curve({"t": [(0, 2.0), (9, 2.0)]}, 50, 9, ascii_only=ascii_only), bar)
    assert (labels[0], labels[-1]) == ("2.200", "1.800")
    assert [bool(row) for row in rows].count(True) == 1
    assert len(rows[len(rows) // 2]) == len(below[0].strip()) - 1
    rows, _, below = parts(terminal_curve({"t": [(5, 2.0)]}, 50, 9, ascii_only=ascii_only), bar)
    assert [len(row.strip()) for row in rows if row] == [1]
    assert below[1].split() == ["4", "step", "6"]
    for empty in ({}, {"t": []}, {"t": [(1, math.nan)]}):
        assert terminal_curve(empty, 50, 9, ascii_only=ascii_only) == "no finite values to draw"
    text = terminal_curve({"t": [], "v": [(0, 1.0), (1, 2.0)]}, 50, 9, ascii_only=ascii_only)
    assert ("o v 2.000" if ascii_only else "● v 2.000") in text


def test_every_size_and_value_gives_a_picture_within_its_size():
    generator = random.Random(0)
    numbers = [0, 1e-300, 5e-324, -3.5, 1e12, 1e149, -1e149, 1e308, math.inf, math.nan, 2, 7, 1e6, 1e-9]
    names = ["training", "訓練の損失がとても長い名前である場合", "x" * 200, ""]
    for _ in range(300):
        series = {
            generator.choice(names): [
                (generator.choice(numbers), generator.choice(numbers)) for _ in range(generator.randint(0, 6))
            ]
            for _ in range(generator.randint(0, 4))
        }
        baseline = generator.choice([None, ("b" * generator.randint(0, 90), generator.choice(numbers))])
        width, height = generator.randint(1, 100), generator.randint(1, 30)
        text = terminal_curve(series, width, height, baseline, generator.random() < 0.5)
        lines = text.split("\n")
        assert max(map(cell_len, lines)) <= max(width, 30), text
        if any(math.isfinite(x) and math.isfinite(y) for x, y in itertools.chain(*series.values())):
            assert len(lines) in (1, max(height, 8))
