"""Evaluation of word vectors: rank correlation of cosine similarity with word co-occurrence in a text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Number of most frequent words compared, and the smallest expected count of a pair.
WORDS = 1000
MIN_EXPECTED = 2.0


def cooccurrences(ids: NDArray[np.int64], words: int, window: int) -> Floats:
    """Return how often the words 0 … words − 1 occur at most `window` words apart, in either order: (words, words).

    ids: documents in sequence, each ended by a negative number; pairs lie within a document. Other words count as
    positions.
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


def spearman_pmi(vectors: Floats, ids: NDArray[np.int64], window: int) -> tuple[float, int]:
    """Return Spearman's ρ between cosine similarity and pointwise mutual information (PMI), and the number of pairs.

    vectors: (vocab, D), the most frequent words first. ids: see `cooccurrences`. Pairs of the first `WORDS` words are
    ranked by n_ij / e_ij with e_ij = n_i · n_j / n, which ranks pairs as PMI does, and by the cosine. Only pairs with
    e_ij ≥ `MIN_EXPECTED` are used: counts of rarer pairs are noise, and using those that occur would select pairs by
    the outcome. ρ is NaN for fewer than three pairs.
    """
    words = min(WORDS, len(vectors))
    counts = cooccurrences(ids, words, window)
    expected = np.outer(counts.sum(1), counts.sum(1)) / max(1.0, counts.sum())
    asked = np.triu(expected >= MIN_EXPECTED, 1)
    if asked.sum() < 3:
        return float("nan"), int(asked.sum())
    directions = unit(vectors[:words])
    cosines = (directions @ directions.T)[asked]
    return rank_correlation(cosines, counts[asked] / expected[asked]), int(asked.sum())


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1 for the smallest; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's ρ, the correlation of the ranks; NaN where one side is constant."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else float("nan")


def unit(vectors: Floats) -> Floats:
    """Return each row divided by its norm; a row of zeros stays."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1.0))
