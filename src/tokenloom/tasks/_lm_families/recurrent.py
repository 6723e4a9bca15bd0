"""Recurrent networks: a state in the place of a context."""

from __future__ import annotations

from typing import Any, ClassVar

from tokenloom.models.recurrent import RecurrentConfig, RecurrentLM
from tokenloom.tasks._lm_families.base import ModelFamily, ResolvedSizes, fitted_context
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks._text_generation_settings import TextGenerationSettings

# Layers, width and context for each position of the dial.
SIZES = {
    "nano": (1, 64, 64),
    "tiny": (1, 128, 128),
    "small": (1, 256, 128),
    "medium": (2, 384, 128),
    "large": (2, 768, 128),
}
DROPOUT = {"medium": 0.1, "large": 0.3}
# Far above those of transformers; the Elman cell is steep, and wants smaller steps.
LEARNING_RATES = {"rnn": 8e-3, "lstm": 2e-2, "gru": 1.5e-2}


class RecurrentFamily(ModelFamily):
    """Elman network, LSTM and GRU."""

    models: ClassVar = {
        "rnn": "Elman network: one tanh layer, written out",
        "lstm": "long short-term memory",
        "gru": "gated recurrent units",
    }
    takes: ClassVar = frozenset({"size", "width", "depth", "dropout", "burn_in"})
    shown: ClassVar = ("context", "burn_in", "width", "depth", "dropout")

    def check(self, settings: TextGenerationSettings) -> None:
        size_preset(settings.size)

    def settle(self, settings: TextGenerationSettings, tokens: int, vocab_size: int) -> ResolvedSizes:
        s = settings
        depth, width, wanted = SIZES[s.size]
        context, note = fitted_context(s, s.context or wanted, tokens)
        chosen: dict[str, Any] = {
            "context": context,
            "width": s.width or width,
            "depth": s.depth or depth,
            # As much again as gradients go back through, but no more than there is text.
            "burn_in": min(context, max(0, tokens - context - 1)) if s.burn_in is None else s.burn_in,
            "dropout": DROPOUT.get(s.size, 0.0) if s.dropout is None else s.dropout,
        }
        # Few ids need no embedding: the first layer's map looks up a row for each.
        embedding = None if vocab_size <= chosen["width"] else chosen["width"]
        config = RecurrentConfig(cell=s.model, vocab_size=vocab_size, embedding_dim=embedding, **chosen)
        return ResolvedSizes(config.as_dict(), chosen, note)

    def build(self, config: dict[str, Any], seed: int) -> RecurrentLM:
        return RecurrentLM(RecurrentConfig(**config), seed)

    def recipe(self, settings: TextGenerationSettings) -> dict[str, Any]:
        return {
            "optimizer": "adamw",
            "lr": LEARNING_RATES[settings.model],
            "batch_size": 32,
            "weight_decay": 0.0,
            "beta2": 0.99,
            "grad_clip": 1.0,
            "warmup_steps": 20,
            "decay_fraction": 1.0,
            "minutes": 5.0,
        }

    def lead(self, config: dict[str, Any]) -> int:
        return int(config["burn_in"])
