"""Positions as parts: how the order of tokens enters a transformer, which by itself sees a set.

A part may add vectors to the embeddings (`add`), rotate queries and keys (`rotation`) or put a bias on the
attention scores (`bias`). All take positions as a tensor, never a length, so that packed documents restart by
themselves and cached chunks go on where they left off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RotaryTables(NamedTuple):
    """cos and sin of the angle by which each feature turns with its partner: each (B or 1, 1, N, Dh).

    The sine of a first partner is stored with its sign turned, so that a rotation is x · cos + partner · sin.
    """

    cos: Tensor
    sin: Tensor


class PositionInfo(NamedTuple):
    """What a position part hands to every attention of a forward pass."""

    rotation: RotaryTables | None = None
    bias: Tensor | None = None


class Positions(nn.Module):
    """No positions at all, and the base of every position part. `limit`: positions from it on are undefined."""

    limit: int | None = None

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        """X with what belongs to its positions added. X: (B, N, D); positions: (B or 1, N) int64."""
        return X

    def rotation(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> RotaryTables | None:
        """The rotation of queries and keys at these positions, (B or 1, N), for a model of this dtype."""
        return None

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The bias on the scores, (B or 1, H, N, M), from positions (B or 1, N) and (B or 1, M)."""
        return None

    def position_info(
        self, queries: Tensor, keys: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> PositionInfo:
        """What attention needs, for queries at these positions and keys at theirs (the same when None)."""
        return PositionInfo(self.rotation(queries, dtype), self.bias(queries, queries if keys is None else keys))


def _exact(device: torch.device) -> torch.dtype:
    """Far positions need exact angles, whatever the model's dtype; Apple's devices have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


class Sinusoidal(Positions):
    """r[n, 2j] = sin(w_j n), r[n, 2j+1] = cos(w_j n), w_j = base^(−2j/D), added to the embeddings.

    Source: Vaswani et al. 2017, section 3.5; Bishop & Bishop, section 12.1.9.
    """

    def __init__(self, width: int, base: float = 10_000.0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        self.width, self.base = width, base

    def encode(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The vectors r of any positions (…): (…, D)."""
        exact = _exact(positions.device)
        j = torch.arange(self.width // 2, device=positions.device, dtype=exact)
        angles = positions.to(exact)[..., None] * self.base ** (-2.0 * j / self.width)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        return X + self.encode(positions, X.dtype)


class Learned(Positions):
    """One learned vector a position, added to the embeddings. Raises ValueError for positions past the table (on a
    CPU; elsewhere the device reports them)."""

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.limit = limit
        self.table = nn.Parameter(torch.empty(limit, width))
        nn.init.normal_(self.table, std=0.02)

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        try:
            return X + F.embedding(positions, self.table)
        except IndexError as error:
            raise ValueError(
                f"positions {int(positions.min())} … {int(positions.max())}: "
                f"there are learned positions for 0 … {self.table.shape[0] - 1} alone"
            ) from error


class Rotary(Positions):
    """Queries and keys turned by angles n · base^(−2j/Dh) / scaling, so that scores depend on n − m alone.

    Feature j turns together with feature j + Dh/2. scaling > 1 stretches the positions (position interpolation,
    Chen et al. 2023). Source: Su et al. 2021, "RoFormer".
    """

    def __init__(self, head_dim: int, base: float = 10_000.0, scaling: float = 1.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even number of features a head, not {head_dim}")
        if not (base > 0 and scaling > 0):
            raise ValueError(f"rotary positions need base > 0 and scaling > 0, not {base} and {scaling}")
        self.head_dim, self.base, self.scaling = head_dim, base, scaling

    def rotation(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> RotaryTables:
        exact = _exact(positions.device)
        j = torch.arange(self.head_dim // 2, device=positions.device, dtype=exact)
        speeds = torch.pow(self.base, j * (-2.0 / self.head_dim)) / self.scaling
        angles = positions[:, None, :, None] * speeds
        cos, sin = angles.cos(), angles.sin()
        # Half precision is too coarse for the tables; `apply_rotary` rounds the result alone.
        kept = dtype if dtype == torch.float64 else torch.float32
        return RotaryTables(torch.cat((cos, cos), dim=-1).to(kept), torch.cat((-sin, sin), dim=-1).to(kept))


def apply_rotary(X: Tensor, rotation: RotaryTables) -> Tensor:
    """Turn the pairs (j, j + Dh/2) of X (B, H, N, Dh) by the angles of `rotation`."""
    partner = X.roll(X.shape[-1] // 2, dims=-1)
    return (X * rotation.cos + partner * rotation.sin).to(X.dtype)


class RelativeBias(Positions):
    """bias[h, n, m] = table[clip(n − m, −reach, reach), h]: a learned number an offset and head, shared by layers.

    Source: after Shaw et al. 2018 and Raffel et al. 2020 (T5), here without T5's buckets.
    """

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        offsets = (queries[:, :, None] - keys[:, None, :]).clamp(-self.reach, self.reach)
        return self.table[offsets + self.reach].permute(0, 3, 1, 2)


class ALiBi(Positions):
    """bias[h, n, m] = −s_h |n − m| with slopes s_h = 2^(−8 h / H), h = 1 … H. Nothing is learned.

    Source: Press et al. 2022, "Train short, test long" (ALiBi).
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes: Tensor
        slopes = torch.tensor([2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)])
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, :, None] - keys[:, None, :]).abs()
        return -self.slopes[:, None, None] * distance[:, None]


def make_positions(
    spec: dict[str, object], *, width: int, heads: int, limit: int, head_dim: int | None = None
) -> Positions:
    """The position part that a config names: {"kind": "rotary", "base": 10000}, say.

    Raises ValueError for an unknown kind or setting.
    """
    spec = dict(spec)
    kind = spec.pop("kind", None)
    head_dim = width // heads if head_dim is None else head_dim
    makers: dict[str, Callable[..., Positions]] = {
        "none": Positions,
        "learned": lambda **rest: Learned(limit, width, **rest),
        "sinusoidal": lambda **rest: Sinusoidal(width, **rest),
        "rotary": lambda **rest: Rotary(head_dim, **rest),
        "relative-bias": lambda **rest: RelativeBias(heads, **{"reach": limit, **rest}),
        "fixed-slopes": lambda **rest: ALiBi(heads, **rest),
    }
    if kind not in makers:
        raise ValueError(f"no position part {kind!r}: there are {', '.join(makers)}")
    try:
        return makers[str(kind)](**spec)
    except TypeError as error:
        raise ValueError(f"position part {kind!r} does not take {sorted(spec)}") from error


def is_relative(positions: Positions) -> bool:
    """True when only differences of positions matter, so that a sequence may go on past any length."""
    return not isinstance(positions, Learned | Sinusoidal) and positions.limit is None
