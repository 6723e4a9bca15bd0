"""Losses and metrics as sums over counted targets, divided once and at the end."""

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

    sums: (B,) each sample's sum, with its gradient history. counts: (B,) its number of counted targets. weight: the
    term's share in what is minimized; 0 makes it a metric.
    """

    sums: Tensor
    counts: Tensor
    weight: float = 1.0


LossTerms = dict[str, LossTerm]


def cross_entropy_term(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> LossTerm:
    """−log softmax(logits)[target], summed over the counted targets of each sample.

    logits: (B, N, vocab), targets: (B, N) int64 with `IGNORE` where nothing is asked; or (B, vocab) and (B,); or
    (B, N, Q, vocab) and (B, N, Q). smoothing: the share of each target that is spread over all ids evenly (Szegedy et
    al. 2016, section 7).
    """
    rows = logits.flatten(0, -2)
    if rows.dtype != torch.float64:
        rows = rows.float()  # half precision would round the sum
    losses = cross_entropy(rows, targets.flatten(), ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
    B = len(targets)
    return LossTerm(losses.reshape(B, -1).sum(1), (targets != IGNORE).reshape(B, -1).sum(1))


def negative_sampling_term(positive: Tensor, negative: Tensor, asked: Tensor, negatives: int) -> LossTerm:
    """−log σ(s) for each pair that is asked for, and K draws' worth of −log σ(−s′) for each, in expectation.

    positive: (B, N, C) logits s of pairs. asked: (B, N, C) bool, those that count. negative: (B, N, S) logits s′ of S
    words drawn for the whole row, of which each pair takes the mean × K. Unlike in word2vec's own code, a negative word
    that happens to be the right one is not left out. Source: Mikolov et al. 2013, equation 4.
    """
    pairs = asked.sum(-1)
    sums = (softplus(-positive) * asked).sum((1, 2)) + negatives * (softplus(negative).mean(-1) * pairs).sum(1)
    return LossTerm(sums, pairs.sum(1))


class MetricSum:
    """The running sums of a term over many batches, sample by sample, in float64. weight: the term's."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.sums: list[Tensor] = []
        self.counts: list[Tensor] = []

    def update(self, term: LossTerm) -> None:
        """Add a batch."""
        # First to the CPU, then wider: not every device has float64.
        self.sums.append(term.sums.detach().cpu().double())
        self.counts.append(term.counts.detach().cpu().double())

    def share(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Take in what others counted. rows: gives the rows of all, in the order of the samples."""
        sums, counts = self.samples
        self.sums, self.counts = [rows(sums)], [rows(counts)]

    @property
    def samples(self) -> tuple[Tensor, Tensor]:
        """Each sample's sum and count, in the order in which they came."""
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
        """Half the width of the 95 % interval of `value`, with the n samples as the independent units:

        1.96 · √(n / (n−1) · Σ (s_i − value · c_i)²) / Σ c_i (the ratio estimator; Cochran 1977, section 6.5). NaN for
        fewer than two samples. Samples that depend on each other make it too narrow.
        """
        sums, counts = self.samples
        n = len(sums)
        if n < 2 or not self.count:
            return math.nan
        off = ((sums - self.value * counts) ** 2).sum() * n / (n - 1)
        return 1.96 * math.sqrt(float(off)) / self.count
