"""The GPT: its sizes come from one dial."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.errors import UserError
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.tasks._lm_families.base import ModelFamily, ResolvedSizes, fitted_context, sliding
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks._text_generation_settings import TextGenerationSettings
from tokenloom.utils.names import did_you_mean

# The textbook's own training.
CHAPTER_RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 6e-3,
    "weight_decay": 0.01,
    "weight_decay_on": "all",
    "beta2": 0.999,
    "grad_clip": 0.0,
    "lr_schedule": "cosine",
    "warmup_steps": 100,
    "steps": 900,
    "batch_size": 32,
}


class GPTFamily(ModelFamily):
    """A decoder-only transformer."""

    models: ClassVar = {
        "gpt": "decoder-only transformer; --preset modern (rotary, RMSNorm, ReLU²), classic (learned, LayerNorm, GELU)"
    }
    takes: ClassVar = frozenset({"size", "preset", "width", "depth", "heads", "kv_heads", "window", "dropout"})
    shown: ClassVar = ("context", "width", "depth", "heads", "dropout")

    def check(self, settings: TextGenerationSettings) -> None:
        s = settings
        if s.preset not in GPTConfig.presets:
            raise UserError(f"--preset {s.preset}: no such preset{did_you_mean(s.preset, GPTConfig.presets)}")
        if s.preset == "classic" and s.window is not None:
            raise UserError(f"--window {s.window}: needs relative positions, which --preset classic does not have")
        size_preset(s.size)

    def settle(self, settings: TextGenerationSettings, tokens: int, vocab_size: int) -> ResolvedSizes:
        s, size = settings, size_preset(settings.size)
        chosen: dict[str, Any] = {name: getattr(s, name) or value for name, value in size.sizes.items()}
        chosen["context"], note = fitted_context(s, chosen["context"], tokens)
        if chosen["width"] % chosen["heads"]:
            raise UserError(f"--width {chosen['width']}: cannot be shared evenly among --heads {chosen['heads']}")
        dropout = size.dropout if s.dropout is None else s.dropout
        config = GPTConfig(vocab_size=vocab_size, **chosen, **GPTConfig.parts(s.preset)).as_dict()
        config["dropout"] = 0.0 if s.preset == "classic" and s.dropout is None else dropout
        config |= {"kv_heads": s.kv_heads, "sliding_window": s.window}
        _try(config)
        return ResolvedSizes(config, {**chosen, "dropout": config["dropout"]}, note)

    def build(self, config: dict[str, Any], seed: int) -> GPT:
        return GPT(GPTConfig(**config), seed)

    def recipe(self, settings: TextGenerationSettings) -> dict[str, Any]:
        return CHAPTER_RECIPE if settings.preset == "classic" else size_preset(settings.size).recipe

    def largest(self, config: dict[str, Any]) -> int | None:
        return None if config["sliding_window"] is not None else int(config["context"])

    def running(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        """A window mask carries its ring; any other model reads windows that overlap by half."""
        context: Any = model.context
        return super().running(model, ids) if context is None else sliding(model, ids, context)


def _try(config: dict[str, Any]) -> None:
    """Sizes that do not go together are the user's mistake: say so before any work."""
    small = {"depth": 1, "vocab_size": 1, "context": 1}
    if config["width"] % (2 * config["heads"]) == 0:
        # However large the model is to be, so that one too large for this machine can be planned.
        small["width"] = 2 * config["heads"]
    try:
        GPT(GPTConfig(**{**config, **small}))
    except ValueError as error:
        raise UserError(f"{error} (--width, --heads and --kv-heads decide)") from error
