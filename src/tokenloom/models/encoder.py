"""A transformer encoder: every token looks at every other, and what is read from the features depends on the task.

Devlin et al. 2019 ("BERT"); Bishop & Bishop, section 12.3.2. The backbone is one for all tasks, so that its weights carry
over from one to another; the head is each task's own. The styles are those of `gpt.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPTConfig, backbone_init, head_init, make_layer
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import initialize
from tokenloom.nn.masks import Mask, Padding, Segments
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import is_relative, make_positions
from tokenloom.nn.transformer import Transformer

READS = ("tokens", "class", "mean")


@dataclass(frozen=True)
class EncoderConfig(GPTConfig):
    """Sizes and parts as in `GPTConfig`.

    outputs: logits of the head. read: from what they are read: "tokens" (each token, for words to be filled in and
    for labels of words), "class" (the first real token of a row, which is the class token), or "mean" (over all real
    tokens).
    """

    outputs: int = 1
    read: str = "tokens"


class EncoderBackbone(nn.Module):
    """Token embedding + positions → bidirectional transformer. Features (B, N, D) of a stream's tokens."""

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        if config.window is not None:
            raise ValueError("an encoder looks both ways, and has no window")
        D = config.width
        self.tokens = nn.Embedding(config.vocab_size, D)
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=config.context)
        self.transformer = Transformer([make_layer(config) for _ in range(config.depth)], make_norm(config.norm, D))
        initialize(self, backbone_init(config), torch.Generator().manual_seed(seed))

    def forward(self, text: Stream, hooks: Hooks | None = None) -> Tensor:
        """text: ids (B, N) → (B, N, D). No token sees padding, nor a token of another segment."""
        positions = text.positions_or_count(relative=is_relative(self.positions))
        X: Tensor = self.positions.add(self.tokens(text.tokens), positions)
        if hooks is not None:
            X = hooks.record("embed", X)
        position_info = self.positions.position_info(positions, dtype=X.dtype)
        X = self.transformer(X, mask=_mask(text), position_info=position_info, hooks=hooks)
        return X


def _mask(text: Stream) -> Mask | None:
    mask: Mask | None = None
    if text.real is not None:
        mask = Padding(text.real)
    if text.segments is not None:
        own = Segments(text.segments, text.segments)
        mask = own if mask is None else own & mask
    return mask


class Encoder(nn.Module):
    """The backbone and a linear head."""

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__()
        if config.read not in READS:
            raise ValueError(f"no head {config.read!r}: there are {', '.join(READS)}")
        self.config = config
        self.backbone = EncoderBackbone(config, seed)
        self.head = nn.Linear(config.width, config.outputs)
        # A generator of its own: the head starts the same whatever the backbone is.
        rows = [(name.removeprefix("lm_head."), rule) for name, rule in head_init(config)]
        initialize(self.head, rows, torch.Generator().manual_seed(seed + 1))

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Logits for the stream "text": (B, N, outputs) when read from each token, else (B, outputs)."""
        text = batch["text"]
        X: Tensor = self.backbone(text, hooks)
        if self.config.read == "class":
            X = class_token(X, text.real)
        elif self.config.read == "mean":
            X = mean_over_real(X, text.real)
        logits: Tensor = self.head(X)
        return logits if hooks is None else hooks.record("logits", logits)


def class_token(X: Tensor, real: Tensor | None) -> Tensor:
    """The features of each row's first real token. X: (B, N, D), real: (B, N) bool or None → (B, D)."""
    if real is None:
        return X[:, 0]
    return X[torch.arange(len(X), device=X.device), real.int().argmax(1)]


def mean_over_real(X: Tensor, real: Tensor | None) -> Tensor:
    """Σ_n real_n x_n / Σ_n real_n. X: (B, N, D), real: (B, N) bool or None → (B, D); zeros for a row of padding."""
    if real is None:
        return X.mean(1)
    kept = real[..., None].to(X.dtype)
    return (X * kept).sum(1) / kept.sum(1).clamp(min=1)
