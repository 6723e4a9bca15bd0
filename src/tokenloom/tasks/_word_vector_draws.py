"""What is drawn anew at each step of training word vectors: which words are seen, how far, and against which others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.word_vectors import BLOCK, ModelFamily, neighbors_of, surroundings
from tokenloom.training.batches import BatchContext

# Negative words of a row; each pair takes their mean. More cost time, fewer make the gradient noisy.
SHARED = 32
POWER = 0.75

Floats = NDArray[np.float64]


def keep_probability(counts: ArrayLike, threshold: float) -> Floats:
    """With which probability an occurrence of each word is kept: min(1, √(t/f) + t/f), f its share of all words.

    A threshold t of 0 keeps everything. Source: the code of word2vec, whose rule is not that of the paper.
    """
    counted = np.asarray(counts, np.float64)
    if threshold == 0:
        return np.ones_like(counted)
    ratio = threshold * counted.sum() / counted
    return np.asarray(np.minimum(1.0, np.sqrt(ratio) + ratio))


def negative_distribution(counts: ArrayLike) -> Floats:
    """The probability of each word as a negative: ∝ count^0.75. Source: Mikolov et al. 2013, section 2.2."""
    raised = np.asarray(counts, np.float64) ** POWER
    return np.asarray(raised / raised.sum())


@dataclass(frozen=True)
class Draws:
    """Makes batches of rows of words. keep: see `keep_probability`; negative: see `negative_distribution`."""

    kind: ModelFamily
    window: int
    keep: Floats
    negative: Floats

    def batch(self, rows: NDArray[np.int64], moment: BatchContext) -> Batch:
        """Rows of ids (B, span), negative where a document ends or nothing is, as a batch with targets.

        Of each row, frequent words are left out at random, and those that are left move together; each place sees
        `reach` words to either side, uniform in 1 … window, but none of another document. All of a row's draws come
        from its own generator, however rows are put together.
        """
        B, span = rows.shape
        chance, reach = np.empty((B, span), np.float32), np.empty((B, span), np.int32)
        drawn = np.empty((B, SHARED))
        for row in range(B):
            random = moment.random(row)
            chance[row] = random.random(span, np.float32)
            reach[row] = random.integers(1, self.window + 1, span, np.int32)
            drawn[row] = random.random(SHARED)
        kept = (rows >= 0) & (chance < self.keep[rows])
        counts = kept.sum(1)
        # Whole blocks, so that the model need not lengthen and cut what it computes.
        real = np.arange(BLOCK * max(1, -(-int(counts.max()) // BLOCK))) < counts[:, None]

        def compact(values: NDArray[Any], fill: int) -> Tensor:
            moved = np.full(real.shape, fill, values.dtype)
            moved[real] = values[kept]
            return torch.from_numpy(moved)

        ids = compact(rows, 0)
        segments = compact(np.cumsum(rows < 0, 1, dtype=np.int32), -1)
        around = surroundings(segments, compact(reach, 0), self.window)
        # The last sum may be a little below 1, and a draw above it.
        edges = np.cumsum(self.negative)
        negatives = np.searchsorted(edges[:-1], drawn, side="right")
        streams = {
            "words": Stream(ids=ids, real=torch.from_numpy(real), segments=segments.long()),
            "negatives": Stream(ids=torch.from_numpy(negatives)),
        }
        if self.kind == "skip-gram":
            targets = torch.where(around, neighbors_of(ids, self.window), IGNORE)
        else:
            streams["around"] = Stream(features=around)
            targets = torch.where(around.any(-1), ids, IGNORE)[..., None]
        return Batch(streams, {"loss": targets})
