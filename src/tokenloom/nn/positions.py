"""Positions as parts: how the order of tokens enters a transformer, which by itself maps a set to a set.

A part may add vectors to the embeddings (`add`), rotate queries and keys (`rotation`) or add a bias to the attention
scores (`bias`). All take positions as a tensor, never a length, so that packed documents restart at 0 and cached chunks
continue. A new part is a class here and an entry of `POSITIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.nn.parts import find_part


class RotaryTables(NamedTuple):
    """cos and sin of the angle by which each feature is rotated with its partner: each (B or 1, 1, N, Dh).

    The sine of the first of two partners is stored negated, so that a rotation is x · cos + partner · sin.
    """

    cos: Tensor
    sin: Tensor


class PositionInfo(NamedTuple):
    """What the attentions of a forward pass need of a position part."""

    rotation: RotaryTables | None = None
    bias: Tensor | None = None


class Positions(nn.Module):
    """No positions at all, and the base of every position part. limit: positions from it on are undefined."""

    limit: int | None = None

    @property
    def relative(self) -> bool:
        """Whether only differences of positions matter, so that a sequence may be of any length."""
        return self.limit is None and type(self).add is Positions.add

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors of the positions to X (B, N, D). positions: (B or 1, N) int64."""
        return X

    def rotation(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> RotaryTables | None:
        """Return the rotation of queries and keys at these positions (B or 1, N), for a model of this dtype."""
        return None

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Return the bias on the scores, (B or 1, H, N, M), for positions (B or 1, N) and (B or 1, M)."""
        return None

    def position_info(
        self, queries: Tensor, keys: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> PositionInfo:
        """Return what attention needs for queries and keys at these positions. keys: as for queries when None."""
        return PositionInfo(self.rotation(queries, dtype), self.bias(queries, queries if keys is None else keys))


def _exact(device: torch.device) -> torch.dtype:
    """The dtype of angles: large positions need float64, whatever the model's dtype; MPS devices lack it."""
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
        """Return the vectors r of any positions: (…) → (…, D)."""
        exact = _exact(positions.device)
        j = torch.arange(self.width // 2, device=positions.device, dtype=exact)
        angles = positions.to(exact)[..., None] * self.base ** (-2.0 * j / self.width)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        return X + self.encode(positions, X.dtype)


class Sinusoidal2D(Positions):
    """Half of the features encode the row, half the column: [r(row); r(column)] with r as in `Sinusoidal`.

    Position 0 is the class token, which gets no encoding; patch (row, column) has position 1 + row · columns + column.
    """

    def __init__(self, grid: tuple[int, int] | None, width: int) -> None:
        super().__init__()
        if grid is None:
            raise ValueError("two-dimensional positions are for the patches of images")
        if width % 4:
            raise ValueError(f"two-dimensional sinusoidal positions need a width divisible by 4, not {width}")
        self.grid, self.limit = grid, 1 + grid[0] * grid[1]
        self.one = Sinusoidal(width // 2)

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        patch = (positions - 1).clamp(min=0)
        rows, columns = patch // self.grid[1], patch % self.grid[1]
        r = torch.cat((self.one.encode(rows, X.dtype), self.one.encode(columns, X.dtype)), dim=-1)
        return X + r * (positions > 0)[..., None]


class Learned(Positions):
    """One learned vector per position, added to the embeddings. Raises ValueError for positions past the table (on a
    CPU; other devices report them themselves)."""

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
                f"there are learned positions for 0 … {self.table.shape[0] - 1} only"
            ) from error


class Rotary(Positions):
    """Queries and keys rotated by angles n · base^(−2j/Dh) / scaling, so that scores depend on n − m alone.

    Feature j is rotated with feature j + Dh/2. scaling > 1 stretches the positions (position interpolation,
    Chen et al. 2023). Source: Su et al. 2021, "RoFormer".
    """

    def __init__(self, head_dim: int, base: float = 10_000.0, scaling: float = 1.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even number of features per head, not {head_dim}")
        if not (base > 0 and scaling > 0):
            raise ValueError(f"rotary positions need base > 0 and scaling > 0, not {base} and {scaling}")
        self.head_dim, self.base, self.scaling = head_dim, base, scaling

    def rotation(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> RotaryTables:
        exact = _exact(positions.device)
        j = torch.arange(self.head_dim // 2, device=positions.device, dtype=exact)
        frequencies = torch.pow(self.base, j * (-2.0 / self.head_dim)) / self.scaling
        angles = positions[:, None, :, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        # Half precision is too coarse for the tables; `apply_rotary` rounds only its result.
        table = dtype if dtype == torch.float64 else torch.float32
        return RotaryTables(torch.cat((cos, cos), dim=-1).to(table), torch.cat((-sin, sin), dim=-1).to(table))


def apply_rotary(X: Tensor, rotation: RotaryTables) -> Tensor:
    """Rotate the pairs (j, j + Dh/2) of X (B, H, N, Dh) by the angles of `rotation`."""
    partner = X.roll(X.shape[-1] // 2, dims=-1)
    return (X * rotation.cos + partner * rotation.sin).to(X.dtype)


class RelativeBias(Positions):
    """bias[h, n, m] = table[clip(n − m, −reach, reach), h]: one number per offset and head, for all layers.

    Source: after Shaw et al. 2018 and Raffel et al. 2020 (T5), here without T5's buckets.
    """

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        offsets = (queries[:, :, None] - keys[:, None, :]).clamp(-self.reach, self.reach)
        return self.table[offsets + self.reach].permute(0, 3, 1, 2)  # (B, N, M, H) → (B, H, N, M)


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


class PositionSizes(NamedTuple):
    """What a position part may depend on. width: D. heads: H. head_dim: Dh. limit: positions at most. grid: rows and
    columns of patches in an image."""

    width: int
    heads: int
    head_dim: int
    limit: int
    grid: tuple[int, int] | None = None


# Each makes a part from the sizes and the settings of the config.
POSITIONS: dict[str, Callable[..., Positions]] = {
    "none": lambda sizes: Positions(),
    "learned": lambda sizes: Learned(sizes.limit, sizes.width),
    "sinusoidal": lambda sizes, **settings: Sinusoidal(sizes.width, **settings),
    "sinusoidal-2d": lambda sizes: Sinusoidal2D(sizes.grid, sizes.width),
    "rotary": lambda sizes, **settings: Rotary(sizes.head_dim, **settings),
    "relative-bias": lambda sizes, **settings: RelativeBias(sizes.heads, **{"reach": sizes.limit, **settings}),
    "alibi": lambda sizes: ALiBi(sizes.heads),
}


def make_positions(
    spec: dict[str, object], *, width: int, heads: int, limit: int, grid: tuple[int, int] | None = None
) -> Positions:
    """Return the position part of a config: {"kind": "rotary", "base": 10000}, say.

    kind: an entry of `POSITIONS`, or a subclass of `Positions` as "./file.py:Name"; it is called with a `PositionSizes`
    and all other settings. Raises ValueError for an unknown kind or setting.
    """
    settings = dict(spec)
    kind = settings.pop("kind", None)
    make = find_part("position part", kind, POSITIONS)
    try:
        return make(PositionSizes(width, heads, width // heads, limit, grid), **settings)
    except TypeError as error:
        raise ValueError(f"position part {kind!r} does not take {sorted(settings)}") from error
