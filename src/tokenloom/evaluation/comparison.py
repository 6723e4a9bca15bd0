"""Paired comparison: are the losses of one run really lower than those of another, on the same samples?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tokenloom.data.samples import generator_for

RESAMPLES = 4000
# Numbers of a resampling that are in memory at a time.
CHUNK = 4_000_000


@dataclass(frozen=True)
class PerSampleLoss:
    """The loss of a run on each validation sample: value = Σ sums / Σ counts, lower is better.

    content: a hash of the targets; runs with the same hash were evaluated on the same samples, in the same order.
    """

    sums: Tensor
    counts: Tensor
    unit: str
    content: str

    @property
    def value(self) -> float:
        """Return the loss over all samples."""
        return float(self.sums.sum() / self.counts.sum())


def paired_bootstrap(
    a: PerSampleLoss, b: PerSampleLoss, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """Return (low, high, wins) for the difference a − b, by resampling the n samples with replacement, alike for both.

    low, high: the quantiles 0.025 and 0.975 of the differences. wins: the fraction of resamples in which a is lower; a
    tie counts half. Sources: Efron 1979, "Bootstrap methods: another look at the jackknife"; Koehn 2004 for pairs.
    """
    tables = np.stack([part.numpy().astype(np.float64) for part in (a.sums, a.counts, b.sums, b.counts)], axis=1)
    n, random = len(tables), generator_for(seed)
    differences: list[NDArray[np.float64]] = []
    for _ in range(0, resamples, per := max(1, CHUNK // n)):
        times = random.multinomial(n, np.full(n, 1 / n), size=min(per, resamples - len(differences) * per))
        sums = times @ tables
        with np.errstate(invalid="ignore", divide="ignore"):
            differences.append(sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3])
    found = np.concatenate(differences)
    # A resample without targets has no loss.
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high), float(((found < 0) + 0.5 * (found == 0)).mean())
