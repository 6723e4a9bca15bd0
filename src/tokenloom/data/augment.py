"""Augmentation: pictures that are changed a little at each visit, in ways that leave what they show as it is.

All draws of a picture come from one generator, so that they are a pure function of (seed, step, picture); a batch is
then changed as a tensor, all pictures at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

# The elastic noise is drawn on a coarse grid of so many points a side, and smoothed in between.
_COARSE = 6


@dataclass(frozen=True)
class Augmentation:
    """How far pictures may be changed; 0 changes nothing.

    shift: of a side, either way (0.1 of 28 pixels is 2.8). rotate: degrees, either way. scale: 0.1 for sizes of 0.9 to
    1.1. elastic: standard deviation of a smooth displacement, in shares of a side (Simard et al. 2003). flip: how many
    are mirrored, left and right. color: how far brightness and contrast change, and each channel by itself.
    """

    shift: float = 0.0
    rotate: float = 0.0
    scale: float = 0.0
    elastic: float = 0.0
    flip: float = 0.0
    color: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether all stay as they are."""
        return not any(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class Draws:
    """What chance decides of B pictures. affine: (B, 5), uniform in −1 … 1: rotation, scale, shifts, mirror; noise:
    (B, 2, _COARSE, _COARSE) normal; color: (B, 2 + C), uniform in −1 … 1."""

    affine: NDArray[np.float32]
    noise: NDArray[np.float32]
    color: NDArray[np.float32]

    @classmethod
    def of(cls, generators: list[np.random.Generator], channels: int) -> Self:
        """One generator a picture."""
        affine, noise, color = [], [], []
        for random in generators:
            uniform = random.random(7 + channels, np.float32) * 2 - 1
            affine.append(uniform[:5])
            color.append(uniform[5:])
            noise.append(random.standard_normal((2, _COARSE, _COARSE), np.float32))
        return cls(np.stack(affine), np.stack(noise), np.stack(color))


def augment(pixels: Tensor, how: Augmentation, draws: Draws) -> Tensor:
    """pixels: (B, C, H, W), 0 … 255 → the same shape, float32. What comes in at the borders repeats the border."""
    X = pixels.float()
    if how.shift or how.rotate or how.scale or how.elastic or how.flip:
        X = F.grid_sample(X, _grid(X, how, draws), mode="bilinear", padding_mode="border", align_corners=False)
    if how.color:
        brightness, contrast, *_ = torch.from_numpy(draws.color).T
        own = torch.from_numpy(draws.color[:, 2:])[:, :, None, None]
        mean = X.mean((1, 2, 3), keepdim=True)
        X = (X - mean) * (1 + how.color * contrast)[:, None, None, None] + mean
        X = X + 255 * how.color * (0.5 * brightness[:, None, None, None] + (0.25 * own if X.shape[1] > 1 else 0))
        X = X.clamp(0, 255)
    return X


def _grid(X: Tensor, how: Augmentation, draws: Draws) -> Tensor:
    """Where each pixel of the result comes from, (B, H, W, 2), in −1 … 1."""
    turn, size, right, down, mirror = torch.from_numpy(draws.affine).T
    angle, larger = turn * math.radians(how.rotate), 1 + how.scale * size
    sign = torch.where((mirror + 1) / 2 < how.flip, -1.0, 1.0)
    H, W = X.shape[2:]
    c, s = angle.cos() / larger, angle.sin() / larger
    # Rotations are of the pixels, which are square whatever the sides of the picture are.
    rows = [
        torch.stack((sign * c, -s * (H / W), 2 * how.shift * right), -1),
        torch.stack((sign * s * (W / H), c, 2 * how.shift * down), -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(X.shape), align_corners=False)
    if how.elastic:
        noise = F.interpolate(torch.from_numpy(draws.noise), (H, W), mode="bicubic", align_corners=False)
        grid = grid + 2 * how.elastic * noise.permute(0, 2, 3, 1)
    return grid
