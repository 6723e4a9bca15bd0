"""Documents of any length as pieces that a model can read at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.samples import Keys, fingerprint_of, generator_for


class Pieces:
    """Documents of ids, each cut into pieces of at most `size`; none holds a part of two documents. The key is the
    place of the first id, counted over all documents.

    Evaluation cuts every document at 0, size, 2·size … A training epoch shifts the cuts of each document that is longer
    than a piece at random, so that pieces differ from epoch to epoch; the first two may then overlap, so that all are
    full and none is lost.

    Raises ValueError without any id, and for a size below 1.
    """

    def __init__(self, documents: Sequence[NDArray[Any]], size: int) -> None:
        kept = [document for document in documents if len(document)]
        if not kept or size < 1:
            raise ValueError(f"{len(kept)} documents in pieces of {size} hold nothing")
        self.ids, self.size = np.concatenate(kept), size
        self.ends = np.cumsum([len(document) for document in kept])
        lengths = np.diff(self.ends, prepend=0)
        counts = -(-lengths // size)
        self._document = np.repeat(np.arange(len(kept)), counts)
        self._number = np.arange(len(self._document)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._room = counts * size - lengths
        self._begins = self.ends - lengths

    def __len__(self) -> int:
        return len(self._document)

    def epoch(self, seed: int, epoch: int) -> Keys:
        random = generator_for(seed, epoch)
        shift = random.integers(self._room + 1) * (self.ends - self._begins > self.size)
        chosen: Keys = random.permutation(self._cut(shift))
        return chosen

    def all(self) -> Keys:
        return self._cut(np.zeros(len(self.ends), np.int64))

    def _cut(self, shift: NDArray[np.int64]) -> Keys:
        within = np.maximum(0, self._number * self.size - shift[self._document])
        cut: Keys = (self._begins[self._document] + within).astype(np.int64)
        return cut

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """How many ids each piece holds."""
        end = self.ends[np.searchsorted(self.ends, keys, side="right")]
        shortest: NDArray[np.int64] = np.minimum(end - keys, self.size)
        return shortest

    def take(self, keys: Keys) -> list[NDArray[Any]]:
        """The ids of each piece, (n,)."""
        return [
            self.ids[key : key + length] for key, length in zip(keys.tolist(), self.lengths(keys).tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        """See `Samples`."""
        return fingerprint_of((self.size, self.ends, self.ids))
