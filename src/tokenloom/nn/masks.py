"""Masks: which keys each query may attend to, as small values that know their kind and combine with `&`.

A mask is never stored as an N×M tensor unless somebody made it one (`DenseMask`). The fused road of `attention` asks
for the cheapest form, and both roads can ask for any rectangle of it.

Indices count along the tensors as they are handed to `attention`: query n = 0 … N−1, key m = 0 … M−1. Where keys
of earlier chunks come first (a cache), query n stands at key index n + offset.
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
        """The rectangle of the mask at the given indices.

        queries: (n,) int64 and keys: (m,) int64. Returns bool, broadcastable to (B, H, n, m); True = may attend.
        """

    def key_range(self, start: int, stop: int, M: int) -> tuple[int, int]:
        """The range of keys that queries start … stop−1 can reach at most; keys outside need not be looked at."""
        return 0, M

    @property
    def sees_itself(self) -> bool:
        """True when query n may attend to key n for certain, as far as there is such a key."""
        return False

    def always_something(self, N: int, M: int) -> bool:
        """True when none of N queries over M keys can end up with nothing to attend to; False may mean: unknown."""
        return N <= M and self.sees_itself

    def __and__(self, other: Mask) -> Mask:
        """Both must allow."""
        return And(self, other)


def _per_row(value: int | Tensor) -> int | Tensor:
    """A number for all rows as it is; one a row, (B,), shaped to stand before (H, n, m)."""
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
        # That each part leaves a query something is not enough, for it need not be the same key.
        return self.first.sees_itself and self.second.sees_itself


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Query n sees keys m ≤ n + offset.

    offset: how many keys come before the first query; a number, or (B,) one a row.
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

    def always_something(self, N: int, M: int) -> bool:
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
    """Query n sees the first `length` keys, and beyond them only keys m ≤ n + offset: a text read as a whole, then
    continued token by token.

    length: a number, or (B,) one a row.
    """

    length: int | Tensor
    offset: int | Tensor = 0

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return Causal(self.offset).allowed(queries, keys) | (keys[None, :] < _per_row(self.length))

    @property
    def sees_itself(self) -> bool:
        return Causal(self.offset).sees_itself

    def always_something(self, N: int, M: int) -> bool:
        return Causal(self.offset).always_something(N, M)


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """No query sees a padded key.

    real: (B, M) bool, True where a key is a real token.
    """

    real: Tensor

    @staticmethod
    def of_lengths(lengths: Tensor, M: int) -> Padding:
        """Row b has its first lengths[b] keys real. lengths: (B,)."""
        return Padding(torch.arange(M, device=lengths.device)[None, :] < lengths[:, None])

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.real[:, keys][:, None, None, :]


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """A query sees only keys of its own segment: documents packed into one row stay apart.

    queries: (B, N) and keys: (B, M) int64, the number of the document that each token belongs to.
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
    """Any mask at all, written out.

    tensor: bool, (N, M), (B, N, M) or (B, H, N, M); True = may attend. Costs N·M bytes: the other kinds do not.
    something: that its maker knows of no query left with nothing to attend to.
    """

    tensor: Tensor
    something: bool = False

    def __post_init__(self) -> None:
        if self.tensor.dtype != torch.bool or self.tensor.dim() not in (2, 3, 4):
            raise ValueError(
                f"a dense mask is a bool tensor (N, M), (B, N, M) or (B, H, N, M), "
                f"not {self.tensor.dtype} of shape {tuple(self.tensor.shape)}"
            )

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        part = self.tensor[..., queries, :][..., keys]
        return part[:, None] if part.dim() == 3 else part

    def always_something(self, N: int, M: int) -> bool:
        return self.something


def to_dense(mask: Mask, N: int, M: int, device: torch.device) -> Tensor:
    """The whole mask, bool, broadcastable to (B, H, N, M)."""
    if isinstance(mask, DenseMask) and mask.tensor.shape[-2:] == (N, M):
        return mask.tensor[:, None] if mask.tensor.dim() == 3 else mask.tensor  # no need of a copy
    return mask.allowed(torch.arange(N, device=device), torch.arange(M, device=device))
