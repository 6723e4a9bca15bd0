"""A batch: named streams of tokens with positions, segments and padding, and the targets."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

# A target that is not counted, as in torch.nn.functional.cross_entropy.
IGNORE = -100


@dataclass
class Stream:
    """One kind of data in a batch: a text, an image, a sound.

    ids: (B, N) int64, or (B, N, Q) with Q codes per step. features: (B, N, …) for data without ids. real: (B, N) bool,
    False for padding; None = no padding. positions: (B or 1, N) int64; None = counted from each row's first real token.
    segments: (B, N) int64, the document number of each token; None = one document per row.
    """

    ids: Tensor | None = None
    features: Tensor | None = None
    real: Tensor | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None

    @property
    def tokens(self) -> Tensor:
        """The ids, or the features of a stream without ids. Raises ValueError without both."""
        tokens = self.ids if self.ids is not None else self.features
        if tokens is None:
            raise ValueError("a stream without ids or features")
        return tokens

    @property
    def shape(self) -> tuple[int, int]:
        """B and N."""
        B, N = self.tokens.shape[:2]
        return B, N

    def positions_or_count(self, *, relative: bool = False) -> Tensor:
        """Return the positions; unless given, 0, 1, … from each row's first real token (padding before it has 0).

        relative: only differences of positions matter, so that counting from the first column serves all rows.
        """
        if self.positions is not None:
            return self.positions
        counted = torch.arange(self.shape[1], device=self.tokens.device)[None]
        if self.real is None or relative:
            return counted
        return (counted - self.real.int().argmax(1, keepdim=True)).clamp(min=0)

    def depths(self) -> Tensor:
        """Return the number of tokens of its document before each token of a row, (B, N) int64; −1 for padding."""
        index = torch.arange(self.shape[1], device=self.tokens.device).expand(self.shape)
        starts = (index == 0).clone()
        if self.segments is not None:
            starts[:, 1:] |= self.segments[:, 1:] != self.segments[:, :-1]
        if self.real is not None:
            starts[:, 1:] |= self.real[:, 1:] & ~self.real[:, :-1]
        depths = index - torch.where(starts, index, 0).cummax(1).values
        return depths if self.real is None else depths.masked_fill(~self.real, -1)

    def to(self, device: torch.device) -> Stream:
        """Return the stream on another device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Stream(**{k: v if v is None else v.to(device, non_blocking=True) for k, v in moved.items()})


@dataclass
class Batch:
    """Inputs of a model, and its targets.

    streams: by name. targets: by the name of the loss term, int64 with `IGNORE` where nothing is predicted.
    """

    streams: dict[str, Stream]
    targets: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Stream:
        return self.streams[name]

    def __len__(self) -> int:
        return next(iter(self.streams.values())).shape[0]

    def counts(self) -> dict[str, int]:
        """Return the number of counted targets of each loss term."""
        return {name: int((target != IGNORE).sum()) for name, target in self.targets.items()}

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return Batch(
            {name: stream.to(device) for name, stream in self.streams.items()},
            {name: target.to(device, non_blocking=True) for name, target in self.targets.items()},
        )


def pad(rows: list[Tensor], fill: int = 0, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Pad rows (n_b,) to one tensor (B, max n_b); return it and which entries are real, (B, max n_b) bool."""
    N = max(len(row) for row in rows)
    tokens = torch.full((len(rows), N), fill, dtype=rows[0].dtype)
    real = torch.zeros(len(rows), N, dtype=torch.bool)
    for b, row in enumerate(rows):
        place = slice(N - len(row), N) if left else slice(0, len(row))
        tokens[b, place] = row
        real[b, place] = True
    return tokens, real
