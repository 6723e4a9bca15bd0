"""Image patches as tokens: each patch is the vector of its pixel values."""

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
from tokenloom.utils.files import sha256, write_json

FORMAT = 1
_KEYS = {"format", "kind", "shape", "patch_size", "mean", "std"}


class Patches:
    """An image split into patches in reading order: x = (pixels / 255 − mean) / std, one vector per patch.

    shape: (C, H, W) of an image. patch_size: (height, width) of a patch, which divide H and W. mean, std: per channel.
    Within a vector the order is channel, row, column. Source: Dosovitskiy et al. 2021, section 3.1.

    Raises UserError when the patch size does not divide the image size.
    """

    kind = "patches"

    def __init__(
        self,
        shape: tuple[int, int, int],
        patch_size: tuple[int, int],
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        C, H, W = shape
        for side, pixels, size in (("height", H, patch_size[0]), ("width", W, patch_size[1])):
            if size < 1 or pixels % size:
                divisors = ", ".join(str(n) for n in range(1, pixels + 1) if pixels % n == 0)
                raise UserError(f"{flag('patch_size')} {size}: must divide the {side} of {pixels} pixels: {divisors}")
        self.shape, self.patch_size = shape, patch_size
        self.grid = (H // patch_size[0], W // patch_size[1])
        self.mean, self.std = mean or [0.5] * C, std or [0.5] * C
        if len(self.mean) != C or len(self.std) != C or not all(d > 0 for d in self.std):
            raise ValueError(f"{C} channels need {C} means and {C} standard deviations above 0")

    @classmethod
    def train(cls, pixels: Tensor, patch_size: tuple[int, int]) -> Self:
        """Use the mean and standard deviation of images (n, C, H, W), uint8."""
        _, C, H, W = pixels.shape
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in range(C):
            # A histogram is exact, and needs no copy of all images as floating-point numbers.
            weights = torch.bincount(pixels[:, channel].flatten().int(), minlength=256).double()
            weights = weights / weights.sum()
            m = float((weights * values).sum())
            mean.append(round(m, 6))
            std.append(round(max(math.sqrt(float((weights * (values - m) ** 2).sum())), 1e-3), 6))
        return cls((C, H, W), patch_size, mean, std)

    @property
    def num_patches(self) -> int:
        """Return N, the tokens per image."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_dim(self) -> int:
        """Return P, the numbers per token."""
        return self.shape[0] * self.patch_size[0] * self.patch_size[1]

    def encode(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W), 0 … 255 → (B, N, P) float32. Raises ValueError for images of another shape."""
        if tuple(pixels.shape[1:]) != self.shape:
            raise ValueError(f"images of {tuple(pixels.shape[1:])}, expected {self.shape}")
        (R, K), (h, w), C = self.grid, self.patch_size, self.shape[0]
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        X = (pixels.float() / 255 - mean) / std
        # (B, C, R, h, K, w) → (B, R·K, C·h·w)
        return X.view(-1, C, R, h, K, w).permute(0, 2, 4, 1, 3, 5).reshape(-1, R * K, C * h * w)

    def decode(self, tokens: Tensor) -> Tensor:
        """(B, N, P) → (B, C, H, W) uint8, rounded and clamped to 0 … 255: the inverse of `encode`."""
        (R, K), (h, w), C = self.grid, self.patch_size, self.shape[0]
        X = tokens.float().view(-1, R, K, C, h, w).permute(0, 3, 1, 4, 2, 5).reshape(-1, *self.shape)
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        return ((X * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def to_json(self) -> dict[str, Any]:
        """Return everything needed to rebuild the tokenizer, as JSON types."""
        sizes = {"shape": list(self.shape), "patch_size": list(self.patch_size)}
        return {"format": FORMAT, "kind": self.kind, **sizes, "mean": self.mean, "std": self.std}

    def fingerprint(self) -> str:
        """Return the SHA-256 of all that determines the tokens."""
        return sha256(json.dumps(self.to_json(), sort_keys=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer as JSON, atomically."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raises UserError with the file for anything else."""
        try:
            data = json.loads(Path(path).read_text("utf-8"))
            if not isinstance(data, dict) or data.get("kind") != cls.kind or set(data) != _KEYS:
                raise ValueError("it does not hold patches")
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']}, and this version reads {FORMAT}")
            C, H, W = (int(n) for n in data["shape"])
            h, w = (int(n) for n in data["patch_size"])
            return cls((C, H, W), (h, w), [float(m) for m in data["mean"]], [float(d) for d in data["std"]])
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as an image tokenizer: {error}") from None
