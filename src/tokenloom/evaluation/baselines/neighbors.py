"""The baseline of masked-token prediction: counts of a token's two neighbors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Largest vocabulary with a table of pairs, which has vocab² numbers.
MAX_PAIR_VOCAB = 4096
# Weight of the unigram beside the pair counts.
PRIOR = 5.0


class NeighborModel:
    """p(x | left, right) ∝ p(x | left) · p(right | x), from counts of pairs smoothed by the unigram.

    p(b | a) = (n(a, b) + 5 p(b)) / (n(a) + 5), p(b) = (n(b) + 1) / (n + vocab). Unknown neighbors
    are ignored. Above 4,096 ids only the unigram is used.
    """

    def __init__(self, unigram: NDArray[np.float32], pairs: NDArray[np.float32] | None) -> None:
        self._unigram, self._pairs = unigram, pairs
        self.name = "the unigram" if pairs is None else "token given both neighbors"

    @classmethod
    def fit(cls, documents: Sequence[NDArray[Any]], vocab_size: int) -> NeighborModel:
        """Count documents of ids."""
        counts = np.bincount(np.concatenate(documents), minlength=vocab_size).astype(np.float64)
        unigram = (counts + 1) / (counts.sum() + vocab_size)
        if vocab_size > MAX_PAIR_VOCAB:
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
        """Return log p(x | left, right), (n, vocab). left, right: (n,) ids, −1 where unknown."""
        scores = np.tile(self._unigram.astype(np.float64), (len(left), 1))
        if self._pairs is not None:
            known = left >= 0
            scores[known] = self._pairs[left[known]]
            known = right >= 0
            scores[known] += self._pairs[:, right[known]].T
        top = scores.max(1, keepdims=True)
        normalized: NDArray[np.float64] = scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))
        return normalized
