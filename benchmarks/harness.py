"""How two things are compared: in turn, several times, by the median of their ratios."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

# One measurement: does some work and returns what a unit of it cost, usually seconds.
Runner = Callable[[], float]
# What `timed` reads, the last of these: a try on a busy machine counts this process's own seconds (see worker.py).
CLOCK: list[Callable[[], float]] = [time.perf_counter]


@dataclass(frozen=True)
class Setting:
    """How to measure.

    threads: of torch, already set. quick: a try, with fewer and shorter measurements. long: also what takes more than
    ten minutes.
    """

    threads: int = 1
    quick: bool = False
    long: bool = False

    @property
    def repeats(self) -> int:
        """How often each pair is measured."""
        return 3 if self.quick else 7


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing: their median, the smallest and the largest, and how many they are."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError for no values."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Goal:
    """A figure to reach: at least the value, or at most."""

    sign: str
    value: float

    def met(self, figure: float) -> bool:
        """Whether a figure reaches it; not-a-number never does."""
        return figure >= self.value if self.sign == "≥" else figure <= self.value


def at_least(value: float) -> Goal:
    return Goal("≥", value)


def at_most(value: float) -> Goal:
    return Goal("≤", value)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    what: what was done. peer: what it is held against, "" for none. ours, theirs: the medians, in `unit`. figure: what
    is claimed, in words of `measure`: "× as fast" (theirs ÷ ours), "× its time" (ours ÷ theirs), or a unit of its own.
    """

    what: str
    threads: int
    figure: Spread
    measure: str
    goal: Goal | None = None
    peer: str = ""
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        return None if self.goal is None else self.goal.met(self.figure.median)


def timed(work: Callable[[], Any], times: int = 1, *, clock: Callable[[], float] | None = None) -> Runner:
    """A measurement of some work: seconds for one time, over so many times in a row, on the wall unless said."""
    now = CLOCK[-1] if clock is None else clock

    def run() -> float:
        began = now()
        for _ in range(times):
            work()
        return (now() - began) / times

    return run


def alternate(ours: Runner, theirs: Runner, repeats: int) -> tuple[list[float], list[float]]:
    """Measure two things in turn, so many times each, after one time each that does not count.

    Who goes first changes from round to round, so that a machine that slows down or speeds up favors neither.
    """
    ours(), theirs()
    first: list[float] = []
    second: list[float] = []
    for number in range(repeats):
        if number % 2:
            second.append(theirs())
            first.append(ours())
        else:
            first.append(ours())
            second.append(theirs())
    return first, second


FASTER, TIMES = "× as fast", "× its time"


def compare(
    what: str,
    ours: Runner,
    peer: str,
    theirs: Runner,
    setting: Setting,
    *,
    goal: Goal | None = None,
    measure: str = FASTER,
    scale: float = 1e3,
    unit: str = "ms",
) -> Row:
    """A row from two runners that return seconds. The figure is the median of the rounds' ratios.

    measure: FASTER or TIMES. scale, unit: how the seconds of each are shown.
    """
    progress(f"{what}: against {peer}, {setting.repeats} times")
    first, second = alternate(ours, theirs, setting.repeats)
    ratios = [b / a if measure == FASTER else a / b for a, b in zip(first, second, strict=True)]
    return Row(
        what,
        setting.threads,
        Spread.of(ratios),
        measure,
        goal,
        peer,
        scale * median(first),
        scale * median(second),
        unit,
    )


def rate(what: str, work: Runner, amount: float, measure: str, setting: Setting, *, goal: Goal | None = None) -> Row:
    """A row without a peer: an amount (of megabytes, of tokens) by the seconds that the work takes."""
    progress(f"{what}: {setting.repeats} times")
    work()
    return Row(what, setting.threads, Spread.of([amount / work() for _ in range(setting.repeats)]), measure, goal)


def seconds(what: str, work: Runner, setting: Setting, *, goal: Goal | None = None) -> Row:
    """A row without a peer: how long the work takes."""
    progress(f"{what}: {setting.repeats} times")
    work()
    return Row(what, setting.threads, Spread.of([work() for _ in range(setting.repeats)]), "s", goal)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent p of the power law y = c xᵖ that fits best: least squares on the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def crossing(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float | None:
    """Where the first curve comes to lie above the second, between two of their common places x, by straight lines in
    logarithms; None where it does not, or was there from the start."""
    gaps = [(math.log(x), math.log(a / b)) for (x, a), (_, b) in zip(first, second, strict=True)]
    for (x0, g0), (x1, g1) in pairwise(gaps):
        if g0 <= 0 < g1:
            return math.exp(x0 + (x1 - x0) * -g0 / (g1 - g0))
    return None


def progress(text: str) -> None:
    """Say what is being measured; the results go elsewhere."""
    print(f"  {text}", file=sys.stderr, flush=True)
