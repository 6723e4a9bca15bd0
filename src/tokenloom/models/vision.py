"""Vision transformer: a transformer encoder over the patches of an image.

Sources: Dosovitskiy et al. 2021; Bishop & Bishop, section 12.4.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tokenloom.models.batch import Batch
from tokenloom.models.encoder import mean_over_real
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import constant, head_init, initialize, normal, normal_by_inputs, transformer_init
from tokenloom.nn.masks import Padding
from tokenloom.nn.positions import make_positions
from tokenloom.nn.transformer import TransformerConfig, make_transformer

POOLS = ("cls", "mean")


@dataclass(frozen=True)
class VisionConfig(TransformerConfig):
    """Sizes, and the parts by name. grid: (rows, columns) of patches. inputs: features per patch. outputs: classes.

    pool: the head's input, the class token ("cls") or the mean over the patches ("mean", without a class token).
    positions: position 0 is the class token; patch (row, column) has position 1 + row · columns + column.
    """

    grid: tuple[int, int]
    inputs: int
    outputs: int
    pool: str = "mean"
    norm: str = field(default="layer", kw_only=True)
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "learned"}, kw_only=True)
    qk_norm: str | None = field(default=None, kw_only=True)

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "modern": {},
        "classic": {**TransformerConfig.presets["classic"], "bias": True},
    }


class VisionBackbone(nn.Module):
    """Linear patch embedding, class token, positions → bidirectional transformer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        if config.pool not in POOLS:
            raise ValueError(f"no pool {config.pool!r}: there are {', '.join(POOLS)}")
        D, limit = config.width, 1 + config.grid[0] * config.grid[1]
        self.embedding = nn.Linear(config.inputs, D)
        self.class_token = nn.Parameter(torch.zeros(D)) if config.pool == "cls" else None
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=limit, grid=config.grid)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = make_transformer(config)

    def forward(self, patches: Tensor, real: Tensor | None, positions: Tensor, hooks: Hooks | None = None) -> Tensor:
        """Return (B, N or N + 1, D), the class token first. patches: (B, N, P); positions: (B or 1, N), from 0."""
        X = self.embedding(patches.to(self.embedding.weight.dtype))  # (B, N, D)
        positions = positions + 1
        if self.class_token is not None:
            X = torch.cat((self.class_token.expand(len(X), 1, -1), X), dim=1)
            positions = torch.cat((torch.zeros_like(positions[:, :1]), positions), dim=1)
            if real is not None:
                real = torch.cat((torch.ones_like(real[:, :1]), real), dim=1)
        X = record(hooks, "embed", self.dropout(self.positions.add(X, positions)))
        mask = None if real is None else Padding(real)
        position_info = self.positions.position_info(positions, dtype=X.dtype)
        Y: Tensor = self.transformer(X, mask=mask, position_info=position_info, hooks=hooks)
        return Y


def resized_positions(table: Tensor, grid: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Return learned positions (1 + rows · columns, D) for another grid, by bicubic interpolation.

    The first position, that of the class token, stays. Source: Dosovitskiy et al. 2021, section 3.2.
    """
    if grid == new:
        return table
    plane = table[1:].T.reshape(1, -1, *grid)
    resized = interpolate(plane, new, mode="bicubic", align_corners=False)
    return torch.cat((table[:1], resized[0].flatten(1).T))


class VisionTransformer(nn.Module):
    """The backbone and a linear head: logits (B, outputs) for the stream "image" of patches (B, N, P)."""

    def __init__(self, config: VisionConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.backbone = VisionBackbone(config)
        self.head = nn.Linear(config.width, config.outputs)
        table = [
            ("backbone.embedding.weight", normal_by_inputs()),
            ("backbone.embedding.bias", constant(0.0)),
            ("backbone.class_token?", normal(0.02)),
            ("backbone.positions.table?", normal(0.02)),
            *transformer_init(config.init),
            *head_init(config.init, "head"),
        ]
        initialize(self, table, torch.Generator().manual_seed(seed))

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, outputs). Padding patches are masked."""
        image = batch["image"]
        X = self.backbone(image.tokens, image.real, image.positions_or_count(), hooks)
        X = X[:, 0] if self.config.pool == "cls" else mean_over_real(X, image.real)
        return record(hooks, "logits", self.head(X))
