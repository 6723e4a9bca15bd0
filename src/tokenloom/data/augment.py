"""Image augmentation: random changes of training images that leave their content recognizable.

The random numbers of an image come from one generator of its own, so that they are a pure function of (seed, step,
image); a batch is then transformed as one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tokenloom.config import Options, option

# Elastic noise is drawn on a grid of this many points per side and interpolated.
_COARSE = 6
_DEFAULTS = {"translate": 0.07, "rotate": 10.0, "scale": 0.1, "elastic": 0.04}


@dataclass(frozen=True)
class Augmentation(Options):
    """How much training images are changed at random; 0 (or None) changes nothing.

    elastic: standard deviation of a smooth displacement field, as a fraction of the side (Simard et al. 2003).
    """

    group: ClassVar[str] = "Data"

    translate: float | None = option(
        None, "random translation, as a fraction of the side [default: 0.07, many images less]", low=0, below=1
    )
    rotate: float | None = option(None, "random rotation, in degrees [default: 10, many images less]", low=0, high=180)
    scale: float | None = option(
        None, "random scaling: 0.1 for factors of 0.9 to 1.1 [default: 0.1, many images less]", low=0, below=1
    )
    elastic: float | None = option(
        None,
        "random elastic distortion, as a fraction of the side [default: 0.04, many images less]",
        low=0,
        below=1,
    )
    hflip: float = option(0.0, "probability of a horizontal flip", low=0, high=1)
    color_jitter: float = option(0.0, "random change of brightness, contrast and channels", low=0, below=1)

    def with_default_augmentation(self, strength: float) -> Self:
        """Return the settings with every None replaced by its default times a strength, to two digits."""
        scaled = {name: float(f"{strength * value:.2g}") for name, value in _DEFAULTS.items()}
        return replace(self, **{name: value for name, value in scaled.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class Draws:
    """The random numbers for B images. affine: (B, 5), uniform in −1 … 1: rotation, scale, two translations, flip;
    noise: (B, 2, _COARSE, _COARSE), standard normal; color: (B, 2 + C), uniform in −1 … 1."""

    affine: NDArray[np.float32]
    noise: NDArray[np.float32]
    color: NDArray[np.float32]

    @classmethod
    def of(cls, generators: Iterable[np.random.Generator], channels: int) -> Self:
        """Draw for each image from its own generator."""
        affine, noise, color = [], [], []
        for random in generators:
            uniform = random.random(7 + channels, np.float32) * 2 - 1
            affine.append(uniform[:5])
            color.append(uniform[5:])
            noise.append(random.standard_normal((2, _COARSE, _COARSE), np.float32))
        return cls(np.stack(affine), np.stack(noise), np.stack(color))


def augment_each(pixels: Tensor, how: Augmentation, generators: Iterable[np.random.Generator]) -> Tensor:
    """Return images (B, C, H, W) augmented, each with the random numbers of its own generator."""
    if not any(getattr(how, f.name) for f in fields(Augmentation)):
        return pixels
    return augment(pixels, how, Draws.of(generators, pixels.shape[1]))


def augment(pixels: Tensor, how: Augmentation, draws: Draws) -> Tensor:
    """Return images (B, C, H, W) of values 0 … 255 augmented: the same shape, float32. Borders are repeated."""
    X = pixels.float()
    if how.translate or how.rotate or how.scale or how.elastic or how.hflip:
        X = F.grid_sample(X, _grid(X, how, draws), mode="bilinear", padding_mode="border", align_corners=False)
    if how.color_jitter:
        brightness, contrast, *_ = torch.from_numpy(draws.color).T
        channel = torch.from_numpy(draws.color[:, 2:])[:, :, None, None]  # (B, C, 1, 1)
        mean = X.mean((1, 2, 3), keepdim=True)
        X = (X - mean) * (1 + how.color_jitter * contrast)[:, None, None, None] + mean
        shift = 0.5 * brightness[:, None, None, None] + (0.25 * channel if X.shape[1] > 1 else 0)
        X = (X + 255 * how.color_jitter * shift).clamp(0, 255)
    return X


def _grid(X: Tensor, how: Augmentation, draws: Draws) -> Tensor:
    """Return the source coordinates of each output pixel, (B, H, W, 2), in −1 … 1."""
    rotation, scaling, right, down, flip = torch.from_numpy(draws.affine).T
    angle, factor = rotation * math.radians(how.rotate or 0.0), 1 + (how.scale or 0.0) * scaling
    sign = torch.where((flip + 1) / 2 < how.hflip, -1.0, 1.0)
    translate = how.translate or 0.0
    H, W = X.shape[2:]
    c, s = angle.cos() / factor, angle.sin() / factor
    # Coordinates run from −1 to 1 whatever the sides are: rotate in pixels, not in coordinates.
    rows = [
        torch.stack((sign * c, -s * (H / W), 2 * translate * right), -1),
        torch.stack((sign * s * (W / H), c, 2 * translate * down), -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(X.shape), align_corners=False)  # (B, H, W, 2)
    if how.elastic:
        noise = F.interpolate(torch.from_numpy(draws.noise), (H, W), mode="bicubic", align_corners=False)
        grid = grid + 2 * how.elastic * noise.permute(0, 2, 3, 1)
    return grid
