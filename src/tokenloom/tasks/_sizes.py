"""The size dial: one word that derives depth, width, heads, context, batch and rates for a next-token model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean


@dataclass(frozen=True)
class SizePreset:
    """One position of the dial."""

    sizes: dict[str, int]
    dropout: float
    recipe: dict[str, Any]


def rates(width: int) -> dict[str, float]:
    """Peak rates for a transformer of that width: Muon's holds over widths, AdamW's falls with them."""
    return {"muon_lr": 0.02, "lr": round(3e-3 * min(1.0, (128 / width) ** 0.5), 5)}


def _dial(
    depth: int, width: int, heads: int, context: int, batch_size: int, dropout: float = 0.0, **lr: float
) -> SizePreset:
    sizes = {"depth": depth, "width": width, "heads": heads, "context": context}
    recipe = {
        "batch_size": batch_size,
        **rates(width),
        "weight_decay": 0.05,
        "decay_fraction": 1.0,
        "minutes": 5.0,
        **lr,
    }
    return SizePreset(sizes, dropout, recipe)


SIZE_PRESETS = {
    # What is small enough for a training of seconds has rates to match; over minutes they do no harm.
    "nano": _dial(2, 64, 4, 64, 16, lr=0.012, muon_lr=0.04),
    "tiny": _dial(3, 96, 4, 128, 16),
    "small": _dial(4, 128, 4, 256, 12),
    "medium": _dial(6, 256, 8, 256, 16, 0.1),
    "large": _dial(8, 512, 8, 512, 16, 0.1),
}


def size_preset(size: str, positions: Mapping[str, SizePreset] = SIZE_PRESETS) -> SizePreset:
    """The position of that name. Raises UserError naming the nearest."""
    if size not in positions:
        raise UserError(f"--size {size}: no such size{did_you_mean(size, positions)}; there are {', '.join(positions)}")
    return positions[size]
