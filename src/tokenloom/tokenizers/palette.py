"""Pixels as tokens: each pixel becomes the id of its nearest color in a palette learned by k-means."""

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
MAX_PIXELS = 1_000_000  # Colors are learned from at most this many pixels.
Pixels = NDArray[np.uint8]
Ids = NDArray[np.int64]


class Palette:
    """K colors, from dark to light; a pixel's id is the index of the nearest color.

    colors: (K, C) in 0 … 1. height, width: of the images, in pixels.
    """

    def __init__(self, colors: NDArray[np.float32], height: int, width: int) -> None:
        self.colors, self.height, self.width = colors.astype(np.float32), height, width

    @classmethod
    def train(cls, pixels: Pixels, palette_size: int, seed: int = 0) -> Palette:
        """Learn a palette by k-means from images (n, C, H, W), deterministic by the seed.

        Images with fewer distinct colors keep them all, so the palette may be smaller. Raises UserError when there is
        only one color.
        """
        _, C, H, W = pixels.shape
        points = pixels.transpose(0, 2, 3, 1).reshape(-1, C)
        points = points[:: -(-len(points) // MAX_PIXELS)]
        distinct = np.unique(points, axis=0)
        if len(distinct) < 2:
            raise UserError(f"all pixels of these images have one color ({distinct[0].tolist()}): nothing to learn")
        if len(distinct) <= palette_size:
            colors: NDArray[np.float32] = (distinct / 255).astype(np.float32)
        else:
            generator = torch.Generator().manual_seed(seed)
            colors = kmeans(torch.from_numpy(points.astype(np.float32) / 255), palette_size, generator).numpy()
        # By lightness, then by channel, so that ids do not depend on the order in which k-means found the colors.
        order = np.lexsort((*colors.T[::-1], colors.mean(1)))
        return cls(colors[order], H, W)

    @property
    def vocab_size(self) -> int:
        """Return K, the number of colors."""
        return len(self.colors)

    @property
    def grid(self) -> tuple[int, int]:
        """Return the rows and columns of ids."""
        return self.height, self.width

    @property
    def token_size(self) -> int:
        """Return the pixels per side of a token."""
        return 1

    def encode(self, pixels: Pixels) -> Ids:
        """Return the ids (n, H·W) of images (n, C, H, W), in raster order. Raises ValueError for another size."""
        n, C, H, W = pixels.shape
        if (self.colors.shape[1], self.height, self.width) != (C, H, W):
            raise ValueError(f"images of {C} × {H} × {W} do not fit this palette")
        points = torch.from_numpy(pixels.transpose(0, 2, 3, 1).reshape(-1, C).astype(np.float32) / 255)
        index, _ = nearest(points, torch.from_numpy(self.colors))
        return index.numpy().reshape(n, H * W)

    def decode(self, ids: Ids) -> Pixels:
        """Return images (n, C, H, W) of ids (n, H·W)."""
        colors = np.rint(self.colors * 255).astype(np.uint8)[ids]
        return np.ascontiguousarray(colors.reshape(len(ids), self.height, self.width, -1).transpose(0, 3, 1, 2))

    def to_json(self) -> dict[str, Any]:
        """Return everything needed to rebuild the palette, as JSON types."""
        colors = [[float(value) for value in color] for color in self.colors]
        return {"format": FORMAT, "kind": KIND, "height": self.height, "width": self.width, "colors": colors}

    def fingerprint(self) -> str:
        """Return the SHA-256 of all that determines the ids."""
        return sha256(json.dumps(self.to_json(), sort_keys=True))

    def save(self, path: Path) -> None:
        """Write the palette as JSON, atomically."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Palette:
        """Read what `save` wrote. Raises UserError with the file for anything else."""
        try:
            data = json.loads(path.read_text("utf-8"))
            if (data["format"], data["kind"]) != (FORMAT, KIND):
                raise UserError(f"{path}: not a palette of format {FORMAT}")
            return cls(np.array(data["colors"], dtype=np.float32), int(data["height"]), int(data["width"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: cannot be read as a palette ({type(error).__name__}: {error})") from error
