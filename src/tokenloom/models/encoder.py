"""Transformer encoder: every token attends to every other; what is read from the features depends on the task.

Devlin et al. 2019 ("BERT"); Bishop & Bishop, section 12.3.2. All tasks share the backbone, so that its weights carry
over from one to another; each has a head of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import embedding_init, head_init, initialize, transformer_init
from tokenloom.nn.masks import Mask, Padding, Segments
from tokenloom.nn.positions import make_positions
from tokenloom.nn.transformer import TransformerConfig, make_transformer

POOLS = ("none", "cls", "mean")


@dataclass(frozen=True)
class EncoderConfig(TransformerConfig):
    """Sizes, and the parts by name.

    vocab_size: ids. context: tokens at most. outputs: logits of the head. pool: what the head reads: "none" (each
    token, for masked tokens and for labels of words), "cls" (the first real token of a row, the class token), or "mean"
    (over all real tokens).
    """

    vocab_size: int
    context: int
    outputs: int = 1
    pool: str = "none"


class EncoderBackbone(nn.Module):
    """Token embedding + positions → bidirectional transformer. Features (B, N, D) of a stream's tokens."""

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__()
        D = config.width
        self.tokens = nn.Embedding(config.vocab_size, D)
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=config.context)
        self.transformer = make_transformer(config)
        table = [*embedding_init(), *transformer_init(config.init)]
        initialize(self, table, torch.Generator().manual_seed(seed))

    def forward(self, text: Stream, hooks: Hooks | None = None) -> Tensor:
        """text: ids (B, N) → (B, N, D). No token sees padding, nor a token of another segment."""
        positions = text.positions_or_count(relative=self.positions.relative)
        X: Tensor = self.positions.add(self.tokens(text.tokens), positions)  # (B, N) → (B, N, D)
        X = record(hooks, "embed", X)
        position_info = self.positions.position_info(positions, dtype=X.dtype)
        X = self.transformer(X, mask=_mask(text), position_info=position_info, hooks=hooks)
        return X


def _mask(text: Stream) -> Mask | None:
    mask: Mask | None = None
    if text.real is not None:
        mask = Padding(text.real)
    if text.segments is not None:
        segments = Segments(text.segments, text.segments)
        mask = segments if mask is None else segments & mask
    return mask


class Encoder(nn.Module):
    """The backbone and a linear head."""

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__()
        if config.pool not in POOLS:
            raise ValueError(f"no pool {config.pool!r}: there are {', '.join(POOLS)}")
        self.config = config
        self.backbone = EncoderBackbone(config, seed)
        self.head = nn.Linear(config.width, config.outputs)
        # A generator of its own: the head starts the same whatever the backbone is.
        table = [(name.removeprefix("head."), rule) for name, rule in head_init(config.init, "head")]
        initialize(self.head, table, torch.Generator().manual_seed(seed + 1))

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits for the stream "text": (B, N, outputs) with pool "none", else (B, outputs)."""
        text = batch["text"]
        X: Tensor = self.backbone(text, hooks)
        if self.config.pool == "cls":
            X = class_token(X, text.real)
        elif self.config.pool == "mean":
            X = mean_over_real(X, text.real)
        return record(hooks, "logits", self.head(X))


def class_token(X: Tensor, real: Tensor | None) -> Tensor:
    """Return the features of each row's first real token. X: (B, N, D), real: (B, N) bool or None → (B, D)."""
    if real is None:
        return X[:, 0]
    return X[torch.arange(len(X), device=X.device), real.int().argmax(1)]


def mean_over_real(X: Tensor, real: Tensor | None) -> Tensor:
    """Return Σ_n real_n x_n / Σ_n real_n. X: (B, N, D), real: (B, N) bool or None → (B, D); zeros for all padding."""
    if real is None:
        return X.mean(1)
    weights = real[..., None].to(X.dtype)  # (B, N, 1)
    return (X * weights).sum(1) / weights.sum(1).clamp(min=1)
