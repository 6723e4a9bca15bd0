"""Random draws of word2vec training: which words are kept, the window of each, and the negative words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.word_vectors import BLOCK, ModelFamily, neighbors_of, window_mask
from tokenloom.training.batches import BatchContext

# Negative words of a row, shared by its pairs, each of which takes their mean. More cost time, fewer make the gradient
# noisy.
SHARED = 32
POWER = 0.75

Floats = NDArray[np.float64]


def keep_probability(counts: ArrayLike, threshold: float) -> Floats:
    """Return the probability with which an occurrence of each word is kept: min(1, √(t/f) + t/f), f its frequency.

    A threshold t of 0 keeps everything. Source: the word2vec code, whose formula differs from that of the paper.
    """
    counts = np.asarray(counts, np.float64)
    if threshold == 0:
        return np.ones_like(counts)
    ratio = threshold * counts.sum() / counts
    return np.asarray(np.minimum(1.0, np.sqrt(ratio) + ratio))


def negative_distribution(counts: ArrayLike) -> Floats:
    """Return the probability of each word as a negative: ∝ count^0.75. Source: Mikolov et al. 2013, section 2.2."""
    raised = np.asarray(counts, np.float64) ** POWER
    return np.asarray(raised / raised.sum())


@dataclass(frozen=True)
class NegativeSampling:
    """Make batches of rows of words. keep: see `keep_probability`; negative: see `negative_distribution`."""

    kind: ModelFamily
    window: int
    keep: Floats
    negative: Floats

    def batch(self, rows: NDArray[np.int64], context: BatchContext) -> Batch:
        """Return rows of ids (B, span), negative at the end of a document and where there is none, as a batch.

        In each row frequent words are left out at random, and the others move together; the window of each position
        extends `reach` words to either side, uniform in 1 … window, within its document. All random numbers of a row
        come from its own generator, so that they do not depend on the batch.
        """
        B, span = rows.shape
        chance, reach = np.empty((B, span), np.float32), np.empty((B, span), np.int32)
        drawn = np.empty((B, SHARED))
        for row in range(B):
            random = context.random(row)
            chance[row] = random.random(span, np.float32)
            reach[row] = random.integers(1, self.window + 1, span, np.int32)
            drawn[row] = random.random(SHARED)
        kept = (rows >= 0) & (chance < self.keep[rows])
        counts = kept.sum(1)
        # Whole blocks, so that the model need not pad: (B, N).
        real = np.arange(BLOCK * max(1, -(-int(counts.max()) // BLOCK))) < counts[:, None]

        def compact(values: NDArray[Any], fill: int) -> Tensor:
            moved = np.full(real.shape, fill, values.dtype)
            moved[real] = values[kept]
            return torch.from_numpy(moved)

        ids = compact(rows, 0)
        segments = compact(np.cumsum(rows < 0, 1, dtype=np.int32), -1)
        mask = window_mask(segments, compact(reach, 0), self.window)  # (B, N, 2 window)
        # The last cumulative sum may be slightly below 1, and a draw above it.
        edges = np.cumsum(self.negative)
        negatives = np.searchsorted(edges[:-1], drawn, side="right")
        streams = {
            "words": Stream(ids=ids, real=torch.from_numpy(real), segments=segments.long()),
            "negatives": Stream(ids=torch.from_numpy(negatives)),
        }
        if self.kind == "skip-gram":
            targets = torch.where(mask, neighbors_of(ids, self.window), IGNORE)
        else:
            streams["window"] = Stream(features=mask)
            targets = torch.where(mask.any(-1), ids, IGNORE)[..., None]
        return Batch(streams, {"loss": targets})
