"""The key–value cache: what a transformer keeps of the tokens it has read, as a value.

Each layer keeps keys and values (B, Hk, capacity, Dh), allocated once. Row b has its own length. A chunk of N new
tokens goes through four moments: `chunk` says where its tokens stand and what they may see, each layer's `extend`
stores its keys and values and returns all that attention needs, and `advance` moves the lengths on.

Two kinds. The full cache holds positions 0 … capacity−1, slot = position. The ring holds the last `window` tokens
of a model whose every attention has a window mask: slot = position mod window, and a text may go on for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.nn.masks import Causal, Dense, Mask


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


class KeyValueCache:
    """Keys and values of all layers, (L, 2) tensors (B, Hk, capacity, Dh), and each row's length.

    window: None for the full cache; a number for the ring of a windowed model, which is then also its capacity.
    """

    def __init__(self, layers: int, shape: tuple[int, int, int, int], like: Tensor, window: int | None = None) -> None:
        batch, _, capacity, _ = shape
        if window is not None and window != capacity:
            raise ValueError(f"a ring of {capacity} slots cannot serve a window of {window}")
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]
        self.memories: list[MemoryCache] = [MemoryCache() for _ in range(layers)]
        self.capacity, self.window = capacity, window
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        # The common length of all rows, known without asking the device; None when rows differ.
        self.common: int | None = 0
        self._chunk: Chunk | None = None
        self._waiting: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int) -> LayerCache:
        """What layer number `index` is given."""
        return LayerCache(self, index)

    def room_for(self, N: int) -> bool:
        """Whether N more tokens can be stored in every row."""
        if self.window is not None:
            return True
        longest = self.common if self.common is not None else int(self.lengths.max())
        return longest + N <= self.capacity

    def chunk(self, N: int) -> Chunk:
        """Where the next N tokens of every row stand. Must come before the layers' `extend`."""
        new = torch.arange(N, device=self.lengths.device)
        if self.window is not None:
            self._chunk = self._ring_chunk(new)
        elif self.common is not None:
            stop = self.common + N
            everything = torch.arange(stop, device=new.device)[None]
            self._chunk = Chunk(everything[:, self.common :], everything, Causal(self.common))
        else:
            # Slots past a row's length hold leftovers; causality hides them, since slot = position.
            slots = torch.arange(self.capacity, device=new.device)[None]
            self._chunk = Chunk(self.lengths[:, None] + new, slots, Causal(self.lengths))
        return self._chunk

    def _ring_chunk(self, new: Tensor) -> Chunk:
        assert self.window is not None
        W, N = self.window, len(new)
        lengths = self.lengths[:, None]
        positions = lengths + new
        if N == 1:
            # The new token takes the slot that just fell out of its window, so all filled slots are visible.
            if self.common is not None and self.common + 1 <= W:
                slots = torch.arange(self.common + 1, device=new.device)[None]
                return Chunk(positions, slots, None)
            keys = self._slot_positions(self.lengths + 1)
            full = self.common is not None and self.common >= W
            return Chunk(positions, keys, None if full else Dense((keys >= 0)[:, None]))
        old = self._slot_positions(self.lengths)
        keys = torch.cat((old, positions), dim=1)
        apart = positions[:, :, None] - keys[:, None, :]
        return Chunk(positions, keys, Dense((keys[:, None] >= 0) & (apart >= 0) & (apart < W)))

    def _slot_positions(self, lengths: Tensor) -> Tensor:
        """The position held by each slot of the ring, (B, window), when rows have these lengths; −1 − … if empty."""
        assert self.window is not None
        last = lengths[:, None] - 1
        slots = torch.arange(self.window, device=lengths.device)
        held = last - (last - slots) % self.window
        return torch.where(last < 0, -1, held)

    def _extend(self, layer: int, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        assert self._chunk is not None, "chunk(N) comes before the layers"
        keys, values = self.keys[layer], self.values[layer]
        N = K.shape[2]
        if self.window is None and self.common is not None:
            stop = self.common + N
            keys[:, :, self.common : stop] = K
            values[:, :, self.common : stop] = V
            return keys[:, :, :stop], values[:, :, :stop]
        if self.window is None or N == 1:
            slots = self._chunk.positions if self.window is None else self._chunk.positions % self.window
            rows = torch.arange(len(keys), device=keys.device)[:, None]
            keys[rows, :, slots] = K.transpose(1, 2)
            values[rows, :, slots] = V.transpose(1, 2)
            seen = self._chunk.key_positions.shape[1]
            return keys[:, :, :seen], values[:, :, :seen]
        # A ring cannot store the chunk before its early queries have read what it overwrites: store on `advance`.
        self._waiting[layer] = (K, V)
        return torch.cat((keys, K), dim=2), torch.cat((values, V), dim=2)

    def advance(self, N: int, counts: Tensor | None = None) -> None:
        """The chunk is read: row b grows by counts[b] tokens, or by N."""
        if self._waiting:
            self._store_ring(N, counts)
        self._chunk = None
        if counts is None:
            self.lengths = self.lengths + N
            self.common = None if self.common is None else self.common + N
        else:
            self.lengths = self.lengths + counts
            same = bool((self.lengths == self.lengths[0]).all())
            self.common = int(self.lengths[0]) if same else None

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
        chosen.keys = [K[rows] for K in self.keys]
        chosen.values = [V[rows] for V in self.values]
        chosen.memories = [memory.select(rows) for memory in self.memories]
        chosen.capacity, chosen.window = self.capacity, self.window
        chosen.lengths = self.lengths[rows]
        chosen.common, chosen._chunk, chosen._waiting = self.common, None, {}
        return chosen

    def reset(self) -> None:
        """Forget everything, keeping the allocated tensors."""
        self.lengths = torch.zeros_like(self.lengths)
        self.common, self._chunk = 0, None

    @property
    def nbytes(self) -> int:
        """Bytes held, the same at every length."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
