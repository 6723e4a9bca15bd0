"""Measure two implementations alternately, several times, and compare them by the median of the ratios."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

# A measurement: runs some work and returns its cost, usually in seconds.
Runner = Callable[[], float]
# `timed` reads the last of these; --cpu-time appends time.process_time (see worker.py).
CLOCK: list[Callable[[], float]] = [time.perf_counter]


@dataclass(frozen=True)
class Setting:
    """How to measure. threads: of torch, already set. quick: fewer and shorter measurements. long: also measurements of
    more than ten minutes."""

    threads: int = 1
    quick: bool = False
    long: bool = False

    @property
    def repeats(self) -> int:
        """Number of measurements of each pair."""
        return 3 if self.quick else 7


@dataclass(frozen=True)
class Spread:
    """Median, minimum, maximum and number of several measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raise ValueError for no values."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Goal:
    """A value to reach: at least ("≥") or at most ("≤")."""

    sign: str
    value: float

    def met(self, result: float) -> bool:
        """Return whether a result reaches the goal; NaN never does."""
        return result >= self.value if self.sign == "≥" else result <= self.value


def at_least(value: float) -> Goal:
    return Goal("≥", value)


def at_most(value: float) -> Goal:
    return Goal("≤", value)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    peer: the other implementation, "" for none. ours, theirs: the medians, in `unit`. result: in `result_unit`, which
    is "× as fast" (theirs ÷ ours), "× its time" (ours ÷ theirs), or the unit of a result without a peer.
    """

    name: str
    threads: int
    result: Spread
    result_unit: str
    goal: Goal | None = None
    peer: str = ""
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.met(self.result.median)


def timed(work: Callable[[], Any], times: int = 1, *, clock: Callable[[], float] | None = None) -> Runner:
    """Return a measurement of seconds per call, over some calls in a row."""
    now = CLOCK[-1] if clock is None else clock

    def run() -> float:
        began = now()
        for _ in range(times):
            work()
        return (now() - began) / times

    return run


def alternate(ours: Runner, theirs: Runner, repeats: int) -> tuple[list[float], list[float]]:
    """Measure two implementations alternately, after one warm-up of each.

    The order changes from round to round, so that drift of the machine's speed favors neither.
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


SPEEDUP, RELATIVE_TIME = "× as fast", "× its time"


def compare(
    name: str,
    ours: Runner,
    peer: str,
    theirs: Runner,
    setting: Setting,
    *,
    goal: Goal | None = None,
    result_unit: str = SPEEDUP,
    scale: float = 1e3,
    unit: str = "ms",
) -> Row:
    """Return a row from two runners that return seconds. The result is the median of the ratios.

    result_unit: SPEEDUP or RELATIVE_TIME. scale, unit: how the seconds of each are shown.
    """
    progress(f"{name}: against {peer}, {setting.repeats} times")
    first, second = alternate(ours, theirs, setting.repeats)
    ratios = [b / a if result_unit == SPEEDUP else a / b for a, b in zip(first, second, strict=True)]
    return Row(
        name,
        setting.threads,
        Spread.of(ratios),
        result_unit,
        goal,
        peer,
        scale * median(first),
        scale * median(second),
        unit,
    )


def rate(name: str, work: Runner, amount: float, unit: str, setting: Setting, *, goal: Goal | None = None) -> Row:
    """Return a row without a peer: an amount of work per second, in `unit`."""
    progress(f"{name}: {setting.repeats} times")
    work()
    return Row(name, setting.threads, Spread.of([amount / work() for _ in range(setting.repeats)]), unit, goal)


def seconds(name: str, work: Runner, setting: Setting, *, goal: Goal | None = None) -> Row:
    """Return a row without a peer: the seconds of the work."""
    progress(f"{name}: {setting.repeats} times")
    work()
    return Row(name, setting.threads, Spread.of([work() for _ in range(setting.repeats)]), "s", goal)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent p of the power law y = c xᵖ, by least squares on the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def crossing(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float | None:
    """Return the x at which the first curve rises above the second, by linear interpolation in logarithms.

    Both have the same x. None if it does not, or is above from the start.
    """
    gaps = [(math.log(x), math.log(a / b)) for (x, a), (_, b) in zip(first, second, strict=True)]
    for (x0, g0), (x1, g1) in pairwise(gaps):
        if g0 <= 0 < g1:
            return math.exp(x0 + (x1 - x0) * -g0 / (g1 - g0))
    return None


def progress(text: str) -> None:
    """Print progress on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)
