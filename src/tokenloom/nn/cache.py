"""The key–value cache: what a transformer keeps of the tokens it has read, as a value.

Each layer keeps keys and values (B, Hk, capacity, Dh), allocated once. Row b has its own length. A chunk of N new
tokens goes through four moments: `chunk` says where its tokens stand and what they may see, each layer's `extend`
stores its keys and values and returns all that attention needs, and `advance` moves the lengths on.

Two kinds. The full cache holds positions 0 … capacity−1, slot = position. The ring holds the last `window` tokens
of a model whose every attention has a window mask: slot = position mod window, and a text may go on for ever.
"""

from __future__ import annotations

import math
import mmap
from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.nn.masks import Causal, DenseMask, Mask

# Bytes from which zeros are made page by page.
_LARGE = 1 << 18


class Chunk(NamedTuple):
    """Where the tokens of a chunk stand: their positions (B or 1, N), those of all keys (B or 1, M), and the mask."""

    positions: Tensor
    key_positions: Tensor
    mask: Mask | None


class LayerCache:
    """One layer's share of a cache, as attention sees it."""

    def __init__(self, owner: KeyValueCache, layer: int) -> None:
        self._owner, self._layer = owner, layer

    @property
    def complete(self) -> bool:
        """Keys of a growing sequence are never complete."""
        return False

    def stored(self) -> tuple[Tensor, Tensor]:
        """Only a memory's cache can be read without being extended."""
        raise RuntimeError("a cache of a growing sequence is read by extending it")

    def extend(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Store the chunk's K and V (B, Hk, N, Dh); returns all keys and values that its queries may need."""
        return self._owner._extend(self._layer, K, V)


class MemoryCache(LayerCache):
    """Keys and values of a memory in cross-attention: computed at the first chunk, the same ever after."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Tensor] | None = None

    @property
    def complete(self) -> bool:
        return self._kept is not None

    def stored(self) -> tuple[Tensor, Tensor]:
        if self._kept is None:
            raise RuntimeError("the memory has not been read yet")
        return self._kept

    def extend(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        self._kept = (K, V)
        return K, V

    def select(self, rows: Tensor) -> MemoryCache:
        """The same memory for the given rows."""
        chosen = MemoryCache()
        if self._kept is not None:
            chosen._kept = (self._kept[0][rows], self._kept[1][rows])
        return chosen


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros. Large ones on a CPU are fresh pages, which the system hands over where something is written for the first
    time: a cache is mostly never filled."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


class KeyValueCache:
    """Keys and values of all layers in one tensor, `both` (L, 2, B, Hk, capacity, Dh), and each row's length.

    window: None for the full cache; a number for the ring of a windowed model, which is then also its capacity.
    The caller sees to it that a full cache is never given more than it has room for.
    """

    def __init__(self, layers: int, shape: tuple[int, int, int, int], like: Tensor, window: int | None = None) -> None:
        batch, _, capacity, _ = shape
        if window is not None and window != capacity:
            raise ValueError(f"a ring of {capacity} slots cannot serve a window of {window}")
        self._hold(_zeros((layers, 2, *shape), like))
        self.memories: list[MemoryCache] = [MemoryCache() for _ in range(layers)]
        self.capacity, self.window = capacity, window
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        # What is known of the lengths without asking the device: the longest, and whether all rows have it.
        self.longest, self.uniform = 0, True
        self._slots = torch.arange(capacity, device=like.device)[None]
        self._rows = torch.arange(batch, device=like.device)[:, None]
        self._chunk: Chunk | None = None
        self._waiting: dict[int, tuple[Tensor, Tensor]] = {}

    def _hold(self, both: Tensor) -> None:
        """Take this as keys and values: `keys` and `values` are the layers' shares, (B, Hk, capacity, Dh) each."""
        self.both = both
        self.keys, self.values = list(both[:, 0]), list(both[:, 1])

    def layer(self, index: int) -> LayerCache:
        """What layer number `index` is given."""
        return LayerCache(self, index)

    @property
    def free(self) -> int | None:
        """How many more tokens fit into every row; None when there is no end to it."""
        return None if self.window is not None else self.capacity - self.longest

    def chunk(self, N: int) -> Chunk:
        """Where the next N tokens of every row stand. Must come before the layers' `extend`."""
        self._waiting.clear()
        if self.window is not None:
            self._chunk = self._ring_chunk(N, self.window)
            return self._chunk
        if self.longest + N > self.capacity:
            raise ValueError(f"{N} tokens after {self.longest}: the cache holds {self.capacity}")
        slots = self._slots[:, : self.longest + N]
        if self.uniform:
            self._chunk = Chunk(slots[:, self.longest :], slots, Causal(self.longest))
        else:
            # Slots past a row's length hold leftovers; causality hides them, since slot = position. A mask for one
            # query is small enough to be made here once for all layers.
            mask = (
                DenseMask((slots <= self.lengths[:, None])[:, None], something=True) if N == 1 else Causal(self.lengths)
            )
            self._chunk = Chunk(self.lengths[:, None] + self._slots[:, :N], slots, mask)
        return self._chunk

    def _ring_chunk(self, N: int, W: int) -> Chunk:
        positions = self.lengths[:, None] + torch.arange(N, device=self.lengths.device)
        if N == 1:
            # The new token takes the slot that just fell out of its window, so all filled slots are visible.
            if self.uniform and self.longest < W:
                return Chunk(positions, self._slots[:, : self.longest + 1], None)
            keys = self._slot_positions(self.lengths + 1)
            return Chunk(positions, keys, None if self.uniform else DenseMask((keys >= 0)[:, None], something=True))
        keys = torch.cat((self._slot_positions(self.lengths), positions), dim=1)
        apart = positions[:, :, None] - keys[:, None, :]
        visible = (keys[:, None] >= 0) & (apart >= 0) & (apart < W)
        return Chunk(positions, keys, DenseMask(visible, something=True))

    def _slot_positions(self, lengths: Tensor) -> Tensor:
        """The position held by each slot of the ring, (B, window), when rows have these lengths; negative if empty."""
        last = lengths[:, None] - 1
        return last - (last - self._slots) % self.capacity

    def _extend(self, layer: int, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        assert self._chunk is not None, "chunk(N) comes before the layers"
        keys, values = self.keys[layer], self.values[layer]
        N = K.shape[2]
        if self.window is not None and N > 1:
            # A ring cannot store the chunk before its early queries have read what it overwrites: see `advance`.
            self._waiting[layer] = (K, V)
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
        """The chunk is read: row b grows by counts[b] tokens, or by N."""
        if self._waiting:
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
        for layer, (K, V) in self._waiting.items():
            self.keys[layer][rows, :, slots] = K[rows, :, columns]
            self.values[layer][rows, :, slots] = V[rows, :, columns]
        self._waiting.clear()

    def select(self, rows: Tensor) -> KeyValueCache:
        """A new cache of the given rows (B',), which may repeat."""
        chosen = object.__new__(KeyValueCache)
        chosen._hold(self.both[:, :, rows])
        chosen.memories = [memory.select(rows) for memory in self.memories]
        chosen.capacity, chosen.window = self.capacity, self.window
        chosen.lengths, chosen._slots = self.lengths[rows], self._slots
        chosen._rows = torch.arange(len(rows), device=self.lengths.device)[:, None]
        chosen.longest, chosen.uniform = self.longest, self.uniform
        chosen._chunk, chosen._waiting = None, {}
        if not self.uniform and len(rows):
            chosen._measure()
        return chosen

    def repeat(self, n: int) -> KeyValueCache:
        """A new cache in which every row stands n times: a a b b for rows a b and n = 2."""
        return self.select(torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(n))

    def reset(self) -> None:
        """Forget all tokens, keeping the allocated tensors, and the memories."""
        self.lengths = torch.zeros_like(self.lengths)
        self.longest, self.uniform = 0, True
        self._chunk = None

    @property
    def nbytes(self) -> int:
        """Bytes held for the tokens (not the memories), the same at every length."""
        return self.both.nbytes
