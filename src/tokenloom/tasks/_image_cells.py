"""Pictures as rows of ids: samples to learn from, and counts of neighboring cells to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.data.augment import Augmentation, Draws, augment
from tokenloom.data.image_files import Pixels
from tokenloom.data.samples import Keys, fingerprint_of, generator_for
from tokenloom.utils.progress import track_progress

Ids = NDArray[np.int64]
# How copies of a picture are changed.
SLIGHTLY = Augmentation(shift=0.05, rotate=7.0, scale=0.08, elastic=0.03)
# Pictures that are changed and encoded at a time.
TOGETHER = 500


@dataclass(frozen=True)
class CellSamples:
    """Pictures as ids; the key is the place. `take` gives (ids (B, copies, cells), labels (B,)), −1 for no class.

    pixels: (n, C, H, W). encode: from pictures to ids (n, cells), which is done when it is first needed. name: of the
    encoding, a hash. copies: ways in which a picture is seen: as it is, and turned, moved, scaled and bent a little.
    """

    pixels: Pixels
    labels: NDArray[np.int64]
    encode: Callable[[Pixels], Ids]
    name: str
    copies: int = 1

    def __len__(self) -> int:
        return len(self.pixels)

    def epoch(self, seed: int, epoch: int) -> Keys:
        return generator_for(seed, epoch).permutation(len(self)).astype(np.int64)

    def all(self) -> Keys:
        return np.arange(len(self), dtype=np.int64)

    @cached_property
    def ids(self) -> NDArray[np.int32]:
        """(n, copies, cells); copy 0 is the picture itself."""
        pieces = [(copy, at) for copy in range(self.copies) for at in range(0, len(self), TOGETHER)]
        found: list[list[Ids]] = [[] for _ in range(self.copies)]
        size = min(TOGETHER, len(self))
        for copy, at in track_progress(pieces, "pictures encoded", self.copies * len(self), size):
            pixels = self.pixels[at : at + TOGETHER]
            found[copy].append(self.encode(varied(pixels, copy, at) if copy else pixels))
        return np.stack([np.concatenate(one) for one in found], 1).astype(np.int32)

    def take(self, keys: Keys) -> tuple[Ids, NDArray[np.int64]]:
        return self.ids[keys].astype(np.int64), self.labels[keys]

    def fingerprint(self) -> str:
        return fingerprint_of((self.pixels, self.labels, self.name, self.copies))


def varied(pixels: Pixels, copy: int, first: int = 0) -> Pixels:
    """Each picture (n, C, H, W) turned, moved, scaled and bent a little: a pure function of it, of the copy's number
    and of its place, which is `first` for the first."""
    draws = Draws.of([generator_for(copy, first + row) for row in range(len(pixels))], pixels.shape[1])
    changed = augment(torch.from_numpy(pixels), SLIGHTLY, draws)
    return changed.round().clamp(0, 255).to(torch.uint8).numpy()


def neighbors(ids: Ids, rows: int, columns: int, nothing: int) -> Ids:
    """(n, cells, 4) ids of the left, upper left, upper and upper right cell of each cell of (n, cells) in raster order;
    `nothing` where there is none."""
    grid = np.full((len(ids), rows + 1, columns + 2), nothing, dtype=np.int64)
    grid[:, 1:, 1:-1] = ids.reshape(-1, rows, columns)
    parts = (grid[:, 1:, :-2], grid[:, :-1, :-2], grid[:, :-1, 1:-1], grid[:, :-1, 2:])
    return np.stack(parts, -1).reshape(len(ids), rows * columns, 4)


def histogram_nats(training: Ids, held: Ids, vocab_size: int) -> float:
    """Nats a cell on held-out ids by how often each came in training, with one added to every count."""
    counts = np.bincount(training.ravel(), minlength=vocab_size) + 1.0
    return float(-np.log(counts / counts.sum())[held].mean())


def neighbor_nats(training: Ids, held: Ids, grid: tuple[int, int], vocab_size: int, strength: float = 1.0) -> float:
    """Nats a cell on held-out ids (n, cells), by counts of each id after its four neighbors.

    p₄(x) = (n₄(x) + s p₂(x)) / (n₄ + s), with n₄ counted where left, upper left, upper and upper right are the same;
    p₂ likewise of left and upper alone, then p₀ by how often x came. strength: s, of the smoothing (Dirichlet; MacKay &
    Peto 1995).
    """
    counts = np.bincount(training.ravel(), minlength=vocab_size) + 1.0
    p = (counts / counts.sum())[held.ravel()]
    seen, asked = (neighbors(ids, *grid, vocab_size).reshape(-1, 4) for ids in (training, held))
    for chosen in ((0, 2), (0, 1, 2, 3)):
        keys, wanted = (_numbered(part[:, chosen], vocab_size + 1) for part in (seen, asked))
        joint = _looked_up(keys * vocab_size + training.ravel(), wanted * vocab_size + held.ravel())
        p = (joint + strength * p) / (_looked_up(keys, wanted) + strength)
    return -float(np.log(p).mean())


def _numbered(ids: Ids, base: int) -> Ids:
    """One number a row of ids (n, k) below `base`."""
    if math.log2(base) * (ids.shape[1] + 1) > 62:
        raise ValueError(f"{base} different cells are too many to be counted by {ids.shape[1]} neighbors")
    numbers: Ids = ids @ base ** np.arange(ids.shape[1], dtype=np.int64)
    return numbers


def _looked_up(keys: Ids, wanted: Ids) -> NDArray[np.int64]:
    """How often each of `wanted` stands among `keys`."""
    found, counts = np.unique(keys, return_counts=True)
    at = np.searchsorted(found, wanted).clip(max=len(found) - 1)
    return np.where(found[at] == wanted, counts[at], 0)
