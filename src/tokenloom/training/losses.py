"""Losses and metrics as sums over counted targets, divided once at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from tokenloom.models.batch import IGNORE


@dataclass
class LossTerm:
    """One term of a loss, or a metric: value = Σ sums / Σ counts.

    sums: (B,) sum of each sample, with gradient. counts: (B,) number of counted targets of each sample. weight: of the
    term in the minimized loss; 0 for a metric.
    """

    sums: Tensor
    counts: Tensor
    weight: float = 1.0


LossTerms = dict[str, LossTerm]


def cross_entropy_term(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossTerm:
    """Return −log softmax(logits)[target], summed over the counted targets of each sample.

    logits: (B, N, V), targets: (B, N) int64, with `IGNORE` for positions that do not count; or (B, V) and (B,); or
    (B, N, Q, V) and (B, N, Q). label_smoothing: probability mass of each target that is spread evenly over all ids
    (Szegedy et al. 2016, section 7).
    """
    rows = logits.flatten(0, -2)
    if rows.dtype != torch.float64:
        rows = rows.float()  # half precision would round the sum
    losses = cross_entropy(
        rows, targets.flatten(), ignore_index=IGNORE, reduction="none", label_smoothing=label_smoothing
    )
    B = len(targets)
    return LossTerm(losses.reshape(B, -1).sum(1), (targets != IGNORE).reshape(B, -1).sum(1))


def negative_sampling_term(positive: Tensor, negative: Tensor, counted: Tensor, negatives: int) -> LossTerm:
    """Return −log σ(s) of each counted pair plus K times the mean of −log σ(−s′) over negative words.

    positive: (B, N, C) logits s of pairs. counted: (B, N, C) bool. negative: (B, N, S) logits s′ of the S negative
    words of the row, of which each pair takes the mean × K. negatives: K. Unlike in the original word2vec, negative
    words equal to the target are not skipped. Source: Mikolov et al. 2013, equation 4.
    """
    pairs = counted.sum(-1)
    sums = (softplus(-positive) * counted).sum((1, 2)) + negatives * (softplus(negative).mean(-1) * pairs).sum(1)
    return LossTerm(sums, pairs.sum(1))


class MetricSum:
    """Sums and counts of a term over many batches, for each sample, in float64. weight: of the term."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.sums: list[Tensor] = []
        self.counts: list[Tensor] = []

    def update(self, term: LossTerm) -> None:
        """Add the samples of a batch."""
        # Convert on the CPU: not every device has float64.
        self.sums.append(term.sums.detach().cpu().double())
        self.counts.append(term.counts.detach().cpu().double())

    def share(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Merge the samples of all processes. rows: returns the rows of all processes, in the order of the samples."""
        sums, counts = self.samples
        self.sums, self.counts = [rows(sums)], [rows(counts)]

    @property
    def samples(self) -> tuple[Tensor, Tensor]:
        """Sums and counts of the samples (n,), in the order in which they were added."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return torch.cat([nothing, *self.sums]), torch.cat([nothing, *self.counts])

    @property
    def total(self) -> float:
        """Σ sums."""
        return float(self.samples[0].sum())

    @property
    def count(self) -> float:
        """Σ counts."""
        return float(self.samples[1].sum())

    @property
    def value(self) -> float:
        """Σ sums / Σ counts; NaN when nothing was counted."""
        return self.total / self.count if self.count else math.nan

    def interval(self) -> float:
        """Return half the width of the 95 % confidence interval of `value`, with the n samples as independent units:

        1.96 · √(n / (n−1) · Σ (s_i − value · c_i)²) / Σ c_i (the ratio estimator; Cochran 1977, section 6.5). NaN for
        fewer than two samples. Correlated samples make it too narrow.
        """
        sums, counts = self.samples
        n = len(sums)
        if n < 2 or not self.count:
            return math.nan
        variance = ((sums - self.value * counts) ** 2).sum() * n / (n - 1)
        return 1.96 * math.sqrt(float(variance)) / self.count
