"""Pixels as tokens: each pixel is the nearest color of a palette learned from the images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.errors import UserError
from tokenloom.nn.vector_quantizer import kmeans, nearest
from tokenloom.utils.files import sha256, write_json

FORMAT = 1
KIND = "palette"
# Colors are learned from at most this many pixels, evenly spaced.
MOST_PIXELS = 1_000_000
Pixels = NDArray[np.uint8]
Ids = NDArray[np.int64]


class Palette:
    """K colors, from dark to light; the id of a pixel is the index of the nearest color.

    colors: (K, C) in 0 … 1. height, width: of the images, in pixels.
    """

    def __init__(self, colors: NDArray[np.float32], height: int, width: int) -> None:
        self.colors, self.height, self.width = colors.astype(np.float32), height, width

    @classmethod
    def learn(cls, pixels: Pixels, count: int, seed: int = 0) -> Palette:
        """Return a palette of `count` colors by k-means on the pixels of images (n, C, H, W).

        Images with fewer different colors keep them all: the palette is then smaller. Raise UserError for images of a
        single color.
        """
        _, C, H, W = pixels.shape
        points = pixels.transpose(0, 2, 3, 1).reshape(-1, C)
        points = points[:: -(-len(points) // MOST_PIXELS)]
        different = np.unique(points, axis=0)
        if len(different) < 2:
            raise UserError(f"all pixels of these images have one color ({different[0].tolist()}): nothing to learn")
        if len(different) <= count:
            colors: NDArray[np.float32] = (different / 255).astype(np.float32)
        else:
            generator = torch.Generator().manual_seed(seed)
            colors = kmeans(torch.from_numpy(points.astype(np.float32) / 255), count, generator).numpy()
        # Sort by lightness, then by channel, so that a palette does not depend on the order of the clusters.
        order = np.lexsort((*colors.T[::-1], colors.mean(1)))
        return cls(colors[order], H, W)

    @property
    def vocab_size(self) -> int:
        """K, the number of colors."""
        return len(self.colors)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of ids."""
        return self.height, self.width

    @property
    def token_size(self) -> int:
        """Pixels per side of a token."""
        return 1

    def encode(self, pixels: Pixels) -> Ids:
        """Return the ids (n, H·W) of images (n, C, H, W), in raster order. Raise ValueError for another shape."""
        n, C, H, W = pixels.shape
        if (self.colors.shape[1], self.height, self.width) != (C, H, W):
            raise ValueError(f"images of {C} × {H} × {W}, and a palette for others")
        points = torch.from_numpy(pixels.transpose(0, 2, 3, 1).reshape(-1, C).astype(np.float32) / 255)
        index, _ = nearest(points, torch.from_numpy(self.colors))
        return index.numpy().reshape(n, H * W)

    def decode(self, ids: Ids) -> Pixels:
        """Return the images (n, C, H, W) of ids (n, H·W)."""
        colors = np.rint(self.colors * 255).astype(np.uint8)[ids]
        return np.ascontiguousarray(colors.reshape(len(ids), self.height, self.width, -1).transpose(0, 3, 1, 2))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        colors = [[float(value) for value in color] for color in self.colors]
        return {"format": FORMAT, "kind": KIND, "height": self.height, "width": self.width, "colors": colors}

    def fingerprint(self) -> str:
        """Return a hash of all that decides ids."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True))

    def save(self, path: Path) -> None:
        """Write the palette atomically."""
        write_json(path, self.as_dict())

    @classmethod
    def load(cls, path: Path) -> Palette:
        """Read a palette. Raise UserError, naming the file, for anything else."""
        try:
            kept = json.loads(path.read_text("utf-8"))
            if (kept["format"], kept["kind"]) != (FORMAT, KIND):
                raise UserError(f"{path}: holds no palette of format {FORMAT}")
            return cls(np.array(kept["colors"], dtype=np.float32), int(kept["height"]), int(kept["width"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as a palette ({type(error).__name__}: {error})") from error
