"""Embedding spaces: nearest neighbors, analogies and a projection to two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean

Neighbors = list[tuple[str, float]]


class EmbeddingSpace:
    """Names and their vectors (n, D), compared by cosine similarity."""

    def __init__(self, names: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.names = list(names)
        self.directions = _unit(vectors.astype(np.float64))
        self._index = {name: i for i, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """Return the index of a name. Raise UserError, with the nearest spelling, for an unknown one."""
        if name not in self._index:
            hint = did_you_mean(name, self.names)
            raise UserError(f"{name!r} is not in the vocabulary of {len(self.names):,}{hint}")
        return self._index[name]

    def nearest(self, direction: NDArray[np.float64], n: int, exclude: Sequence[int]) -> Neighbors:
        """Return the n names whose vectors have the largest cosine with a direction, and the cosines."""
        cosines = self.directions @ _unit(direction[None])[0]
        cosines[list(exclude)] = -np.inf
        order = np.argsort(-cosines, kind="stable")[: min(n, len(cosines) - len(set(exclude)))]
        return [(self.names[i], float(cosines[i])) for i in order]

    def neighbors(self, name: str, n: int = 10) -> Neighbors:
        """Return the n nearest neighbors of a name."""
        index = self.index(name)
        return self.nearest(self.directions[index], n, [index])

    def analogy(self, a: str, b: str, c: str, n: int = 5) -> Neighbors:
        """Return the n names nearest to a − b + c of unit vectors, without a, b and c.

        Source: Mikolov, Yih & Zweig 2013, "Linguistic regularities in continuous space word representations".
        """
        i, j, k = (self.index(name) for name in (a, b, c))
        return self.nearest(self.directions[i] - self.directions[j] + self.directions[k], n, [i, j, k])

    def project(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Return the first two principal components of the directions of some names: (names, 2)."""
        chosen = self.directions[[self.index(name) for name in names]]
        left, sizes, _ = np.linalg.svd(chosen - chosen.mean(0), full_matrices=False)
        plane = np.zeros((len(names), 2))
        plane[:, : len(sizes[:2])] = left[:, :2] * sizes[:2]
        return plane


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row divided by its norm; a row of zeros stays."""
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norm > 0, norm, 1.0))
