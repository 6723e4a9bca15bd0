"""Count models of images as grids of token ids: the unigram, and each token given four neighbors before it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def neighbors(ids: Ids, rows: int, columns: int, outside: int) -> Ids:
    """Return the left, upper left, upper and upper right neighbor of each token: (n, tokens) → (n, tokens, 4).

    Tokens are in raster order. outside: the id that stands for a neighbor outside the grid.
    """
    grid = np.full((len(ids), rows + 1, columns + 2), outside, dtype=np.int64)
    grid[:, 1:, 1:-1] = ids.reshape(-1, rows, columns)
    parts = (grid[:, 1:, :-2], grid[:, :-1, :-2], grid[:, :-1, 1:-1], grid[:, :-1, 2:])
    return np.stack(parts, -1).reshape(len(ids), rows * columns, 4)


def unigram_nats(train: Ids, val: Ids, vocab_size: int) -> float:
    """Return the nats/token of a unigram model with add-one smoothing on validation ids."""
    counts = np.bincount(train.ravel(), minlength=vocab_size) + 1.0
    return float(-np.log(counts / counts.sum())[val].mean())


def neighbor_nats(train: Ids, val: Ids, grid: tuple[int, int], vocab_size: int, strength: float = 1.0) -> float:
    """Return the nats/token of counts given four neighbors on validation ids (n, tokens).

    p₄(x) = (n₄(x) + s p₂(x)) / (n₄ + s), where n₄ counts tokens with the same left, upper left, upper and upper right
    neighbor; p₂ likewise with left and upper alone, backed off to the unigram. strength: s, of the Dirichlet smoothing
    (MacKay & Peto 1995).
    """
    counts = np.bincount(train.ravel(), minlength=vocab_size) + 1.0
    p = (counts / counts.sum())[val.ravel()]
    train_context, val_context = (neighbors(ids, *grid, vocab_size).reshape(-1, 4) for ids in (train, val))
    for chosen in ((0, 2), (0, 1, 2, 3)):
        keys, wanted = (_as_numbers(part[:, chosen], vocab_size + 1) for part in (train_context, val_context))
        joint = _counts_of(keys * vocab_size + train.ravel(), wanted * vocab_size + val.ravel())
        p = (joint + strength * p) / (_counts_of(keys, wanted) + strength)
    return -float(np.log(p).mean())


def _as_numbers(ids: Ids, base: int) -> Ids:
    """Return each row of ids (n, k) below `base` as one number."""
    if math.log2(base) * (ids.shape[1] + 1) > 62:
        raise ValueError(f"a vocabulary of {base} is too large for counts given {ids.shape[1]} neighbors")
    numbers: Ids = ids @ base ** np.arange(ids.shape[1], dtype=np.int64)
    return numbers


def _counts_of(keys: Ids, wanted: Ids) -> NDArray[np.int64]:
    """Return how often each of `wanted` occurs among `keys`."""
    unique, counts = np.unique(keys, return_counts=True)
    index = np.searchsorted(unique, wanted).clip(max=len(unique) - 1)
    return np.where(unique[index] == wanted, counts[index], 0)
