"""A counting model that fills in a token from its two neighbors: what an encoder has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A table of pairs has vocab² numbers; above this it would not be worth its memory.
MOST_PAIRS = 4096
# How much the unigram counts beside the pairs that were seen.
PRIOR = 5.0


class Neighbors:
    """p(x | left, right) ∝ p(x | left) · p(right | x), from counts of pairs smoothed by the unigram.

    p(b | a) = (n(a, b) + 5 p(b)) / (n(a) + 5), p(b) = (n(b) + 1) / (n + vocab). A neighbor that is not known says
    nothing. Above 4,096 ids the unigram alone decides.
    """

    def __init__(self, unigram: NDArray[np.float32], pairs: NDArray[np.float32] | None) -> None:
        self._unigram, self._pairs = unigram, pairs
        self.name = "the unigram" if pairs is None else "what both neighbors say"

    @classmethod
    def fit(cls, documents: Sequence[NDArray[Any]], vocab_size: int) -> Neighbors:
        """Count documents of ids."""
        counts = np.bincount(np.concatenate(documents), minlength=vocab_size).astype(np.float64)
        unigram = (counts + 1) / (counts.sum() + vocab_size)
        if vocab_size > MOST_PAIRS:
            return cls(np.log(unigram).astype(np.float32), None)
        joint = np.zeros(vocab_size * vocab_size, np.float32)
        for document in documents:
            keys, found = np.unique(document[:-1].astype(np.int64) * vocab_size + document[1:], return_counts=True)
            joint[keys] += found
        pairs = joint.reshape(vocab_size, vocab_size)
        total = pairs.sum(1, keepdims=True)
        pairs += PRIOR * unigram.astype(np.float32)
        pairs /= total + PRIOR
        return cls(np.log(unigram).astype(np.float32), np.log(pairs))

    def log_probs(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p(x | left, right) for every x: (n, vocab). left, right: (n,) ids, −1 where unknown."""
        scores = np.tile(self._unigram.astype(np.float64), (len(left), 1))
        if self._pairs is not None:
            known = left >= 0
            scores[known] = self._pairs[left[known]]
            known = right >= 0
            scores[known] += self._pairs[:, right[known]].T
        top = scores.max(1, keepdims=True)
        normalized: NDArray[np.float64] = scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))
        return normalized
