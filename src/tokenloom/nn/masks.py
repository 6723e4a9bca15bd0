"""Masks: which keys each query may attend to, as small values that know their kind and combine with `&`.

A mask is not an N×M tensor unless it was made one (`DenseMask`). The fused backend of `attention` uses the cheapest
form of each kind; both backends can ask for any rectangle of a mask.

Indices count along the tensors given to `attention`: query n = 0 … N−1, key m = 0 … M−1. Where keys of earlier chunks
come first (a cache), query n has key index n + offset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Mask(ABC):
    """Which keys each query may attend to."""

    @abstractmethod
    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the rectangle of the mask at the given indices.

        queries: (n,) int64 and keys: (m,) int64. Returns bool, broadcastable to (B, H, n, m); True = may attend.
        """

    def key_range(self, start: int, stop: int, M: int) -> tuple[int, int]:
        """Return a range that contains all keys that queries start … stop−1 may attend to."""
        return 0, M

    @property
    def sees_itself(self) -> bool:
        """Whether query n may attend to key n for certain, if there is such a key."""
        return False

    def always_nonempty(self, N: int, M: int) -> bool:
        """Return whether each of N queries has at least one of M keys for certain; False may mean unknown."""
        return N <= M and self.sees_itself

    def __and__(self, other: Mask) -> Mask:
        """Both must allow."""
        return And(self, other)


def _per_row(value: int | Tensor) -> int | Tensor:
    """Return a number for all rows as it is; one per row, (B,), as (B, 1, 1, 1)."""
    return value[:, None, None, None] if isinstance(value, Tensor) else value


@dataclass(frozen=True, eq=False)
class And(Mask):
    """The conjunction of two masks."""

    first: Mask
    second: Mask

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.first.allowed(queries, keys) & self.second.allowed(queries, keys)

    def key_range(self, start: int, stop: int, M: int) -> tuple[int, int]:
        low_a, high_a = self.first.key_range(start, stop, M)
        low_b, high_b = self.second.key_range(start, stop, M)
        return max(low_a, low_b), min(high_a, high_b)

    @property
    def sees_itself(self) -> bool:
        # That each part leaves a query a key is not enough: it need not be the same key.
        return self.first.sees_itself and self.second.sees_itself


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Query n sees keys m ≤ n + offset.

    offset: number of keys before the first query; a number, or (B,) one per row.
    """

    offset: int | Tensor = 0

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return keys[None, :] <= queries[:, None] + _per_row(self.offset)

    def key_range(self, start: int, stop: int, M: int) -> tuple[int, int]:
        if isinstance(self.offset, Tensor):
            return 0, M
        return 0, max(0, min(M, stop + self.offset))

    @property
    def sees_itself(self) -> bool:
        return isinstance(self.offset, int) and self.offset >= 0

    def always_nonempty(self, N: int, M: int) -> bool:
        return M > 0 and self.sees_itself  # key 0 lies in the past of every query


@dataclass(frozen=True, eq=False)
class SlidingWindow(Mask):
    """Query n sees the `width` keys that end with its own: m > n + offset − width. Usually combined with `Causal`."""

    width: int
    offset: int | Tensor = 0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a window of {self.width} keys: at least 1 is needed")

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return keys[None, :] > queries[:, None] + _per_row(self.offset) - self.width

    def key_range(self, start: int, stop: int, M: int) -> tuple[int, int]:
        if isinstance(self.offset, Tensor):
            return 0, M
        return max(0, min(M, start + self.offset - self.width + 1)), M

    @property
    def sees_itself(self) -> bool:
        return isinstance(self.offset, int) and self.offset < self.width


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Prefix-LM mask: query n sees the first `length` keys, and of the others the keys m ≤ n + offset.

    length: a number, or (B,) one per row.
    """

    length: int | Tensor
    offset: int | Tensor = 0

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return Causal(self.offset).allowed(queries, keys) | (keys[None, :] < _per_row(self.length))

    @property
    def sees_itself(self) -> bool:
        return Causal(self.offset).sees_itself

    def always_nonempty(self, N: int, M: int) -> bool:
        return Causal(self.offset).always_nonempty(N, M)


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """No query sees a padded key.

    real: (B, M) bool, True where a key is a real token.
    """

    real: Tensor

    @staticmethod
    def of_lengths(lengths: Tensor, M: int) -> Padding:
        """Return the mask in which row b has lengths[b] real keys, then padding. lengths: (B,)."""
        return Padding(torch.arange(M, device=lengths.device)[None, :] < lengths[:, None])

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.real[:, keys][:, None, None, :]


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """A query sees only keys of its own segment, for documents packed into one row.

    queries: (B, N) and keys: (B, M) int64, the document number of each token.
    """

    queries: Tensor
    keys: Tensor

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        own, other = self.queries[:, queries], self.keys[:, keys]
        return (own[:, :, None] == other[:, None, :])[:, None]

    @property
    def sees_itself(self) -> bool:
        return self.queries is self.keys


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """Any mask, as a tensor of N·M bytes.

    tensor: bool, (N, M), (B, N, M) or (B, H, N, M); True = may attend. nonempty: whether each query is known to have at
    least one key.
    """

    tensor: Tensor
    nonempty: bool = False

    def __post_init__(self) -> None:
        if self.tensor.dtype != torch.bool or self.tensor.dim() not in (2, 3, 4):
            raise ValueError(
                f"a dense mask is a bool tensor (N, M), (B, N, M) or (B, H, N, M), "
                f"not {self.tensor.dtype} of shape {tuple(self.tensor.shape)}"
            )

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        part = self.tensor[..., queries, :][..., keys]
        return part[:, None] if part.dim() == 3 else part

    def always_nonempty(self, N: int, M: int) -> bool:
        return self.nonempty


def to_dense(mask: Mask, N: int, M: int, device: torch.device) -> Tensor:
    """Return the whole mask, bool, broadcastable to (B, H, N, M)."""
    if isinstance(mask, DenseMask) and mask.tensor.shape[-2:] == (N, M):
        return mask.tensor[:, None] if mask.tensor.dim() == 3 else mask.tensor  # no copy
    return mask.allowed(torch.arange(N, device=device), torch.arange(M, device=device))
