"""Two trained runs on the same samples of the same validation data: is the one really better?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.samples import generator_for
from tokenloom.errors import UserError
from tokenloom.tasks.base import PerSampleLoss, Task
from tokenloom.utils.names import with_article

RESAMPLES = 4000
# So many numbers of a resampling are held at a time.
CHUNK = 4_000_000


@dataclass(frozen=True)
class Paired:
    """Run A against run B, by a bootstrap over the samples that both were measured on.

    difference: value of A − value of B, so that A is better below 0; low, high: its 95 % interval, the quantiles 0.025
    and 0.975 over resamples. wins: the share of resamples in which A is better; a tie counts half. (Efron 1979,
    "Bootstrap methods: another look at the jackknife"; Koehn 2004 for pairs.)
    """

    a: str
    b: str
    value_a: float
    value_b: float
    unit: str
    samples: int
    difference: float
    low: float
    high: float
    wins: float


def paired_bootstrap(
    a: PerSampleLoss, b: PerSampleLoss, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """low, high and wins of `Paired`: n samples are drawn with replacement, the same for both, again and again."""
    tables = np.stack([part.numpy().astype(np.float64) for part in (a.sums, a.counts, b.sums, b.counts)], axis=1)
    n, random = len(tables), generator_for(seed)
    differences: list[NDArray[np.float64]] = []
    for _ in range(0, resamples, per := max(1, CHUNK // n)):
        times = random.multinomial(n, np.full(n, 1 / n), size=min(per, resamples - len(differences) * per))
        sums = times @ tables
        with np.errstate(invalid="ignore", divide="ignore"):
            differences.append(sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3])
    found = np.concatenate(differences)
    # A draw in which nothing is counted says nothing.
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high), float(((found < 0) + 0.5 * (found == 0)).mean())


def compare(runs: Sequence[tuple[str, Task]], context: str | None = None) -> list[Paired]:
    """Every run against every other. context: see `Task.measured`.

    Raises UserError for runs of different tasks, or that were not measured on the same data.
    """
    names, tasks = [name for name, _ in runs], [task for _, task in runs]
    for name, task in runs[1:]:
        if type(task).name != type(tasks[0]).name:
            raise UserError(
                f"{names[0]} is {with_article(tasks[0].name)} run and {name} {with_article(task.name)} run: they answer"
                " different questions"
            )
    measured = [task.measured(context) for task in tasks]
    for name, one in zip(names[1:], measured[1:], strict=True):
        if one.content != measured[0].content:
            raise UserError(
                f"{names[0]} and {name} have different validation data ({tasks[0].source} and"
                f" {tasks[names.index(name)].source}), or read or cut them differently: there are no pairs to compare"
            )
        if len(one.sums) < 2:
            raise UserError(f"{name}: one sample of validation data is too few to compare on")
    return [_pair(names[i], names[j], measured[i], measured[j]) for i, j in itertools.combinations(range(len(runs)), 2)]


def _pair(name_a: str, name_b: str, a: PerSampleLoss, b: PerSampleLoss) -> Paired:
    low, high, wins = paired_bootstrap(a, b)
    if not math.isfinite(a.value - b.value):
        raise UserError(f"{name_a} and {name_b}: nothing in their validation data counts")
    return Paired(name_a, name_b, a.value, b.value, a.unit, len(a.sums), a.value - b.value, low, high, wins)
