"""Do word vectors agree with a text that they have not seen? Rank correlation with how words occur together there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WORDS = 1000
ENOUGH = 2.0


def cooccurrences(ids: NDArray[np.int64], words: int, window: int) -> Floats:
    """How often the words 0 … words − 1 stand at most `window` words apart, in either order: (words, words).

    ids: a run in which a negative number ends a document; no pair goes across. Other words count as places.
    """
    counts = np.zeros(words * words)
    documents, real = np.cumsum(ids < 0), ids >= 0
    ids, documents = ids[real], documents[real]
    for distance in range(1, window + 1):
        left, right = ids[:-distance], ids[distance:]
        both = (documents[:-distance] == documents[distance:]) & (left < words) & (right < words)
        counts += np.bincount(left[both] * words + right[both], minlength=words * words)
    square = counts.reshape(words, words)
    return square + square.T


def agreement(vectors: Floats, ids: NDArray[np.int64], window: int) -> tuple[float, int]:
    """Spearman's ρ between the cosine of two words' vectors and how much oftener than by chance they meet in a text.

    vectors: (vocab, D), the most frequent words first. ids: see `cooccurrences`. For each pair of the first `WORDS`
    words, n_ij / e_ij with e_ij = n_i · n_j / n, which ranks pairs as their pointwise mutual information does, against
    the cosine. Only pairs of e_ij ≥ `ENOUGH` are asked for: of rarer ones the text says nothing, and to take those that
    do meet would choose pairs by the answer. Returns ρ, NaN when there are fewer than three pairs, and their number.
    """
    words = min(WORDS, len(vectors))
    counts = cooccurrences(ids, words, window)
    expected = np.outer(counts.sum(1), counts.sum(1)) / max(1.0, counts.sum())
    asked = np.triu(expected >= ENOUGH, 1)
    if asked.sum() < 3:
        return float("nan"), int(asked.sum())
    directions = unit(vectors[:words])
    cosines = (directions @ directions.T)[asked]
    return rank_correlation(cosines, counts[asked] / expected[asked]), int(asked.sum())


def ranks(values: Floats) -> Floats:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's ρ: the correlation of the ranks. NaN where one side is constant."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else float("nan")


def unit(vectors: Floats) -> Floats:
    """Each row divided by its length; a row of zeros stays."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1.0))
