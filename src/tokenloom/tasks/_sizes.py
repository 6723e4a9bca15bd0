"""Size presets: depth, width, heads, context, batch size and learning rates by one word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean


@dataclass(frozen=True)
class SizePreset:
    """Sizes, dropout and training settings of a preset."""

    sizes: dict[str, int]
    dropout: float
    recipe: dict[str, Any]


def rates(width: int) -> dict[str, float]:
    """Return peak learning rates for a transformer of a width: that of AdamW decreases with the width."""
    return {"muon_lr": 0.02, "lr": round(3e-3 * min(1.0, (128 / width) ** 0.5), 5)}


def _preset(
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
    # Higher learning rates for trainings of seconds; they also work for minutes.
    "nano": _preset(2, 64, 4, 64, 16, lr=0.012, muon_lr=0.04),
    "tiny": _preset(3, 96, 4, 128, 16),
    "small": _preset(4, 128, 4, 256, 12),
    "medium": _preset(6, 256, 8, 256, 16, 0.1),
    "large": _preset(8, 512, 8, 512, 16, 0.1),
}


def size_preset(size: str, presets: Mapping[str, SizePreset] = SIZE_PRESETS) -> SizePreset:
    """Return the preset of a name. Raise UserError with the nearest name when there is none."""
    if size not in presets:
        raise UserError(f"--size {size}: no such size{did_you_mean(size, presets)}; there are {', '.join(presets)}")
    return presets[size]
