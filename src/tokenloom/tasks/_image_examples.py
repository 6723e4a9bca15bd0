"""Tiny pictures for the equality kit, and for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def stripes(folder: Path) -> str:
    """Pictures of 8 × 8 pixels in two folders: noise with stripes that lie or stand. The folder's name."""
    random = np.random.Generator(np.random.Philox(0))
    root = folder / "stripes"
    for number in range(24):
        image = random.integers(0, 60, (8, 8))
        image[number % 2 :: 2] += 150
        lying = number % 3 == 0
        path = root / ("lying" if lying else "standing") / f"{number}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"P5 8 8 255\n" + (image if lying else image.T).astype(np.uint8).tobytes())
    return str(root)
