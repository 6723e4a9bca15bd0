"""Images as tokens: patches, each the vector of its pixel values."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.utils.files import sha256

FORMAT = 1
_KEYS = {"format", "kind", "shape", "patch", "mean", "deviation"}


class Patches:
    """Cut images into patches in raster order: one vector (pixels / 255 − mean) / deviation per patch.

    shape: (C, H, W) of an image. patch: (height, width) of a patch, which divide H and W. mean, deviation: one number
    per channel. Within a vector the order is channel, row, column. Source: Dosovitskiy et al. 2021, section 3.1.

    Raise UserError when the patches do not fit.
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
                raise UserError(f"{flag('patch_size')} {size}: must divide the {side} of {pixels} pixels: {fitting}")
        self.shape, self.patch = shape, patch
        self.grid = (H // patch[0], W // patch[1])
        self.mean, self.deviation = mean or [0.5] * C, deviation or [0.5] * C
        if len(self.mean) != C or len(self.deviation) != C or not all(d > 0 for d in self.deviation):
            raise ValueError(f"{C} channels need {C} means and deviations, the deviations above 0")

    @classmethod
    def learn(cls, pixels: Tensor, patch: tuple[int, int]) -> Self:
        """Return patches normalized by the mean and standard deviation of images (n, C, H, W), uint8."""
        _, C, H, W = pixels.shape
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, deviation = [], []
        for channel in range(C):
            # From a histogram of the 256 values: exact, and without a float copy of all images.
            share = torch.bincount(pixels[:, channel].flatten().int(), minlength=256).double()
            share = share / share.sum()
            m = float((share * values).sum())
            mean.append(round(m, 6))
            deviation.append(round(max(math.sqrt(float((share * (values - m) ** 2).sum())), 1e-3), 6))
        return cls((C, H, W), patch, mean, deviation)

    @property
    def count(self) -> int:
        """Tokens per image, N."""
        return self.grid[0] * self.grid[1]

    @property
    def features(self) -> int:
        """Features per token, P."""
        return self.shape[0] * self.patch[0] * self.patch[1]

    def encode(self, pixels: Tensor) -> Tensor:
        """Return (B, N, P) float32 for (B, C, H, W), 0 … 255. Raise ValueError for images of another shape."""
        if tuple(pixels.shape[1:]) != self.shape:
            raise ValueError(f"images of shape {tuple(pixels.shape[1:])}, not {self.shape}")
        (R, K), (h, w), C = self.grid, self.patch, self.shape[0]
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        X = (pixels.float() / 255 - mean) / deviation
        return X.view(-1, C, R, h, K, w).permute(0, 2, 4, 1, 3, 5).reshape(-1, R * K, C * h * w)

    def decode(self, tokens: Tensor) -> Tensor:
        """Return (B, C, H, W) uint8 for (B, N, P), rounded and clipped to 0 … 255: the inverse of `encode`."""
        (R, K), (h, w), C = self.grid, self.patch, self.shape[0]
        X = tokens.float().view(-1, R, K, C, h, w).permute(0, 3, 1, 4, 2, 5).reshape(-1, *self.shape)
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        return ((X * deviation + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "shape": list(self.shape),
            "patch": list(self.patch),
            "mean": self.mean,
            "deviation": self.deviation,
        }

    def fingerprint(self) -> str:
        """Return a hash of all that decides the tokens."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tokenizer. Raise UserError, naming the file, for anything else."""
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
            raise UserError(f"{path}: cannot be read as an image tokenizer: {error}") from None
