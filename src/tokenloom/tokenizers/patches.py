"""Pictures as tokens: patches, each the vector of its pixel values."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.utils.files import sha256

FORMAT = 1
_KEYS = {"format", "kind", "shape", "patch", "mean", "deviation"}


class Patches:
    """A picture cut into patches in reading order: x = (pixels / 255 − mean) / deviation, a vector a patch.

    shape: (C, H, W) of a picture. patch: (height, width) of a patch, which divide H and W. mean, deviation: a number a
    channel. Within a vector the order is channel, row, column. Source: Dosovitskiy et al. 2021, section 3.1.

    Raises UserError when the patches do not fit.
    """

    kind = "patches"

    def __init__(
        self,
        shape: tuple[int, int, int],
        patch: tuple[int, int],
        mean: list[float] | None = None,
        deviation: list[float] | None = None,
    ) -> None:
        C, H, W = shape
        for side, pixels, size in (("height", H, patch[0]), ("width", W, patch[1])):
            if size < 1 or pixels % size:
                fitting = ", ".join(str(n) for n in range(1, pixels + 1) if pixels % n == 0)
                raise UserError(f"--patch: a {side} of {pixels} pixels does not divide by {size}, but by {fitting}")
        self.shape, self.patch = shape, patch
        self.grid = (H // patch[0], W // patch[1])
        self.mean, self.deviation = mean or [0.5] * C, deviation or [0.5] * C
        if len(self.mean) != C or len(self.deviation) != C or not all(d > 0 for d in self.deviation):
            raise ValueError(f"{C} channels need as many means and deviations, all above 0")

    @classmethod
    def learn(cls, pixels: Tensor, patch: tuple[int, int]) -> Self:
        """With the mean and the deviation of some pictures (n, C, H, W), uint8."""
        _, C, H, W = pixels.shape
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, deviation = [], []
        for channel in range(C):
            # Counted value by value: exact, and without a copy of all pictures as numbers with a point.
            share = torch.bincount(pixels[:, channel].flatten().int(), minlength=256).double()
            share = share / share.sum()
            m = float((share * values).sum())
            mean.append(round(m, 6))
            deviation.append(round(max(math.sqrt(float((share * (values - m) ** 2).sum())), 1e-3), 6))
        return cls((C, H, W), patch, mean, deviation)

    @property
    def count(self) -> int:
        """Tokens a picture, N."""
        return self.grid[0] * self.grid[1]

    @property
    def features(self) -> int:
        """Numbers a token, P."""
        return self.shape[0] * self.patch[0] * self.patch[1]

    def encode(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W), 0 … 255 → (B, N, P) float32. Raises ValueError for pictures of another shape."""
        if tuple(pixels.shape[1:]) != self.shape:
            raise ValueError(f"pictures of {tuple(pixels.shape[1:])}, where {self.shape} are known")
        (R, K), (h, w), C = self.grid, self.patch, self.shape[0]
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        X = (pixels.float() / 255 - mean) / deviation
        return X.view(-1, C, R, h, K, w).permute(0, 2, 4, 1, 3, 5).reshape(-1, R * K, C * h * w)

    def decode(self, tokens: Tensor) -> Tensor:
        """(B, N, P) → (B, C, H, W) uint8, rounded and cut to 0 … 255: the inverse of `encode`."""
        (R, K), (h, w), C = self.grid, self.patch, self.shape[0]
        X = tokens.float().view(-1, R, K, C, h, w).permute(0, 3, 1, 4, 2, 5).reshape(-1, *self.shape)
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        return ((X * deviation + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "shape": list(self.shape),
            "patch": list(self.patch),
            "mean": self.mean,
            "deviation": self.deviation,
        }

    def fingerprint(self) -> str:
        """A hash of all that decides how pictures become tokens."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read it back. Raises UserError when the file holds no such tokenizer."""
        try:
            kept = json.loads(Path(path).read_text("utf-8"))
            if not isinstance(kept, dict) or kept.get("kind") != cls.kind or set(kept) != _KEYS:
                raise ValueError("it holds no patches")
            if kept["format"] != FORMAT:
                raise ValueError(f"it has format {kept['format']}, and this version reads {FORMAT}")
            C, H, W = (int(n) for n in kept["shape"])
            h, w = (int(n) for n in kept["patch"])
            return cls((C, H, W), (h, w), [float(m) for m in kept["mean"]], [float(d) for d in kept["deviation"]])
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as a tokenizer of pictures: {error}") from None
