"""The key–value cache: keys and values of the tokens that a transformer has read, as a value.

Each layer has keys and values (B, Hk, capacity, Dh), allocated once. Row b has its own length. For a chunk of N new
tokens, `chunk` returns their positions and mask, each layer's `extend` stores its keys and values and returns all that
attention needs, and `advance` increases the lengths.

The full cache holds positions 0 … capacity−1, slot = position. The ring buffer holds the last `window` tokens of a
model with sliding-window attention: slot = position mod window, and a text may be of any length.
"""

from __future__ import annotations

import math
import mmap
from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.nn.masks import Causal, DenseMask, Mask

# Bytes from which zeros are allocated as pages that the system provides on first write.
_LARGE = 1 << 18


class Chunk(NamedTuple):
    """The positions of a chunk's tokens (B or 1, N), those of all keys (B or 1, M), and the mask."""

    positions: Tensor
    key_positions: Tensor
    mask: Mask | None


class LayerCache:
    """One layer of a cache, as attention uses it."""

    def __init__(self, owner: KeyValueCache, layer: int) -> None:
        self._owner, self._layer = owner, layer

    @property
    def complete(self) -> bool:
        """Whether `stored` may be called instead of `extend`: never for a growing sequence."""
        return False

    def stored(self) -> tuple[Tensor, Tensor]:
        """Raise RuntimeError: only the cache of a memory can be read without extending it."""
        raise RuntimeError("a cache of a growing sequence is read by extending it")

    def extend(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Store the chunk's K and V (B, Hk, N, Dh); return all keys and values that its queries may need."""
        return self._owner._extend(self._layer, K, V)


class MemoryCache(LayerCache):
    """Keys and values of a memory in cross-attention, computed at the first chunk."""

    def __init__(self) -> None:
        self._stored: tuple[Tensor, Tensor] | None = None

    @property
    def complete(self) -> bool:
        return self._stored is not None

    def stored(self) -> tuple[Tensor, Tensor]:
        if self._stored is None:
            raise RuntimeError("the memory has not been read yet")
        return self._stored

    def extend(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        self._stored = (K, V)
        return K, V

    def select(self, rows: Tensor) -> MemoryCache:
        """Return the same memory for the given rows."""
        chosen = MemoryCache()
        if self._stored is not None:
            chosen._stored = (self._stored[0][rows], self._stored[1][rows])
        return chosen


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros. Large ones on a CPU are fresh pages, which cost nothing until written."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


class KeyValueCache:
    """Keys and values of all layers in one tensor, `both` (L, 2, B, Hk, capacity, Dh), and each row's length.

    window: None for the full cache; a number for the ring buffer, whose capacity it is.
    """

    def __init__(self, layers: int, shape: tuple[int, int, int, int], like: Tensor, window: int | None = None) -> None:
        batch, _, capacity, _ = shape
        if window is not None and window != capacity:
            raise ValueError(f"a ring buffer of {capacity} slots cannot serve a window of {window}")
        self._hold(_zeros((layers, 2, *shape), like))
        self.memories: list[MemoryCache] = [MemoryCache() for _ in range(layers)]
        self.capacity, self.window = capacity, window
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        # Known without a synchronization with the device: the longest length, and whether all rows have it.
        self.longest, self.uniform = 0, True
        self._slots = torch.arange(capacity, device=like.device)[None]
        self._rows = torch.arange(batch, device=like.device)[:, None]
        self._chunk: Chunk | None = None
        self._pending: dict[int, tuple[Tensor, Tensor]] = {}

    def _hold(self, both: Tensor) -> None:
        """Set keys and values; `keys` and `values` list those of each layer, (B, Hk, capacity, Dh)."""
        self.both = both
        self.keys, self.values = list(both[:, 0]), list(both[:, 1])

    def layer(self, index: int) -> LayerCache:
        """Return the cache of layer number `index`."""
        return LayerCache(self, index)

    @property
    def free(self) -> int | None:
        """Number of tokens that still fit into every row; None for a ring buffer."""
        return None if self.window is not None else self.capacity - self.longest

    def chunk(self, N: int) -> Chunk:
        """Return positions and mask of the next N tokens of every row; call it before the layers' `extend`.

        Raises ValueError for more tokens than fit.
        """
        self._pending.clear()
        if self.window is not None:
            self._chunk = self._ring_chunk(N, self.window)
            return self._chunk
        if self.longest + N > self.capacity:
            raise ValueError(f"{N} tokens after {self.longest}: the cache holds {self.capacity}")
        slots = self._slots[:, : self.longest + N]
        if self.uniform:
            self._chunk = Chunk(slots[:, self.longest :], slots, Causal(self.longest))
        else:
            # Slots past a row's length hold stale values; causality masks them, since slot = position. The mask of one
            # query is small enough to be made here once for all layers.
            mask = (
                DenseMask((slots <= self.lengths[:, None])[:, None], nonempty=True) if N == 1 else Causal(self.lengths)
            )
            self._chunk = Chunk(self.lengths[:, None] + self._slots[:, :N], slots, mask)
        return self._chunk

    def _ring_chunk(self, N: int, W: int) -> Chunk:
        positions = self.lengths[:, None] + torch.arange(N, device=self.lengths.device)
        if N == 1:
            # The new token takes the slot that just left its window, so all filled slots are visible.
            if self.uniform and self.longest < W:
                return Chunk(positions, self._slots[:, : self.longest + 1], None)
            keys = self._slot_positions(self.lengths + 1)
            return Chunk(positions, keys, None if self.uniform else DenseMask((keys >= 0)[:, None], nonempty=True))
        keys = torch.cat((self._slot_positions(self.lengths), positions), dim=1)
        apart = positions[:, :, None] - keys[:, None, :]
        visible = (keys[:, None] >= 0) & (apart >= 0) & (apart < W)
        return Chunk(positions, keys, DenseMask(visible, nonempty=True))

    def _slot_positions(self, lengths: Tensor) -> Tensor:
        """Return the position in each slot of the ring buffer, (B, window), for these lengths; negative if empty."""
        last = lengths[:, None] - 1
        return last - (last - self._slots) % self.capacity

    def _extend(self, layer: int, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        assert self._chunk is not None, "chunk(N) comes before the layers"
        keys, values = self.keys[layer], self.values[layer]
        N = K.shape[2]
        if self.window is not None and N > 1:
            # The chunk may overwrite keys that its first queries need: it is stored in `advance`.
            self._pending[layer] = (K, V)
            return torch.cat((keys, K), dim=2), torch.cat((values, V), dim=2)
        if self.uniform:
            start = self.longest if self.window is None else self.longest % self.window
            keys[:, :, start : start + N] = K
            values[:, :, start : start + N] = V
        else:
            slots = self._chunk.positions % self.capacity
            keys[self._rows, :, slots] = K.transpose(1, 2)
            values[self._rows, :, slots] = V.transpose(1, 2)
        seen = self._chunk.key_positions.shape[1]
        return keys[:, :, :seen], values[:, :, :seen]

    def advance(self, N: int, counts: Tensor | None = None) -> None:
        """Increase the lengths after a chunk: row b by counts[b] tokens, or by N."""
        if self._pending:
            self._store_ring(N, counts)
        self._chunk = None
        if counts is None:
            self.lengths = self.lengths + N
            self.longest += N
        else:
            self.lengths = self.lengths + counts
            self._measure()

    def _measure(self) -> None:
        shortest, self.longest = torch.stack(self.lengths.aminmax()).tolist()
        self.uniform = shortest == self.longest

    def _store_ring(self, N: int, counts: Tensor | None) -> None:
        assert self.window is not None
        new = torch.arange(N, device=self.lengths.device)
        real = torch.full_like(self.lengths, N) if counts is None else counts
        keep = (new < real[:, None]) & (new >= real[:, None] - self.window)
        rows, columns = keep.nonzero(as_tuple=True)
        slots = (self.lengths[rows] + columns) % self.window
        for layer, (K, V) in self._pending.items():
            self.keys[layer][rows, :, slots] = K[rows, :, columns]
            self.values[layer][rows, :, slots] = V[rows, :, columns]
        self._pending.clear()

    def select(self, rows: Tensor) -> KeyValueCache:
        """Return a new cache of the given rows (B',), which may repeat."""
        chosen = object.__new__(KeyValueCache)
        chosen._hold(self.both[:, :, rows])
        chosen.memories = [memory.select(rows) for memory in self.memories]
        chosen.capacity, chosen.window = self.capacity, self.window
        chosen.lengths, chosen._slots = self.lengths[rows], self._slots
        chosen._rows = torch.arange(len(rows), device=self.lengths.device)[:, None]
        chosen.longest, chosen.uniform = self.longest, self.uniform
        chosen._chunk, chosen._pending = None, {}
        if not self.uniform and len(rows):
            chosen._measure()
        return chosen

    def repeat(self, n: int) -> KeyValueCache:
        """Return a new cache with every row n times: a a b b for rows a b and n = 2."""
        return self.select(torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(n))

    def reset(self) -> None:
        """Remove all tokens; the tensors stay allocated, and the memories stay."""
        self.lengths = torch.zeros_like(self.lengths)
        self.longest, self.uniform = 0, True
        self._chunk = None

    @property
    def nbytes(self) -> int:
        """Bytes allocated for tokens (not memories), the same at every length."""
        return self.both.nbytes
