"""Vision transformer: a transformer encoder over the patches of an image.

Sources: Dosovitskiy et al. 2021; Bishop & Bishop, section 12.4.1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tokenloom.models.batch import Batch
from tokenloom.models.encoder import mean_over_real
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import Table, constant, initialize, normal, normal_by_inputs
from tokenloom.nn.masks import Padding
from tokenloom.nn.mlp import make_mlp
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import Learned, Positions, Sinusoidal
from tokenloom.nn.transformer import Transformer, TransformerLayer

POOLS = ("cls", "mean")
POSITIONS = ("learned", "sinusoidal")


@dataclass(frozen=True)
class VisionConfig:
    """Sizes and parts. grid: (rows, columns) of patches. inputs: features per patch. outputs: classes.

    pool: the head's input, the class token ("cls") or the mean over the patches ("mean", without a class token).
    positions: learned, or sinusoidal in two dimensions. start: "modern" initializes each layer as the identity.
    """

    grid: tuple[int, int]
    inputs: int
    outputs: int
    width: int
    depth: int
    heads: int
    pool: str = "mean"
    positions: str = "learned"
    mlp: dict[str, Any] = field(default_factory=lambda: {"kind": "plain", "activation": "relu2", "bias": False})
    norm: str = "layer"
    qk_norm: str | None = None
    bias: bool = False
    dropout: float = 0.0
    start: str = "modern"

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes for config.json."""
        return asdict(self)


class Sinusoidal2D(Positions):
    """Half of the features encode the row, half the column: [r(row); r(column)] with r as in `Sinusoidal`.

    Position 0 is the class token, which gets no encoding; patch (row, column) has position 1 + row · columns + column.
    """

    def __init__(self, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"two-dimensional sinusoidal positions need a width divisible by 4, not {width}")
        self.grid, self.limit = grid, 1 + grid[0] * grid[1]
        self.one = Sinusoidal(width // 2)

    def add(self, X: Tensor, positions: Tensor) -> Tensor:
        patch = (positions - 1).clamp(min=0)
        rows, columns = patch // self.grid[1], patch % self.grid[1]
        r = torch.cat((self.one.encode(rows, X.dtype), self.one.encode(columns, X.dtype)), dim=-1)
        return X + r * (positions > 0)[..., None]


class VisionBackbone(nn.Module):
    """Linear patch embedding, class token, positions → bidirectional transformer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        if config.pool not in POOLS or config.positions not in POSITIONS:
            raise ValueError(
                f"pool {config.pool} is not in {POOLS}, or positions {config.positions} not in {POSITIONS}"
            )
        D, limit = config.width, 1 + config.grid[0] * config.grid[1]
        self.embedding = nn.Linear(config.inputs, D)
        self.class_token = nn.Parameter(torch.zeros(D)) if config.pool == "cls" else None
        learned = config.positions == "learned"
        self.positions: Positions = Learned(limit, D) if learned else Sinusoidal2D(config.grid, D)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = Transformer([_layer(config) for _ in range(config.depth)], make_norm(config.norm, D))

    def forward(self, patches: Tensor, real: Tensor | None, positions: Tensor, hooks: Hooks | None = None) -> Tensor:
        """Return (B, N or N + 1, D), the class token first. patches: (B, N, P); positions: (B or 1, N), from 0."""
        X = self.embedding(patches.to(self.embedding.weight.dtype))  # (B, N, D)
        positions = positions + 1
        if self.class_token is not None:
            X = torch.cat((self.class_token.expand(len(X), 1, -1), X), dim=1)
            positions = torch.cat((torch.zeros_like(positions[:, :1]), positions), dim=1)
            if real is not None:
                real = torch.cat((torch.ones_like(real[:, :1]), real), dim=1)
        X = self.dropout(self.positions.add(X, positions))
        if hooks is not None:
            X = hooks.record("embed", X)
        Y: Tensor = self.transformer(X, mask=None if real is None else Padding(real), hooks=hooks)
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


def _layer(config: VisionConfig) -> TransformerLayer:
    qk_norm = config.qk_norm
    attention = MultiHeadAttention(
        config.width,
        config.heads,
        bias=config.bias,
        qk_norm=None if qk_norm is None else lambda width: make_norm(qk_norm, width),
    )
    mlp = make_mlp(config.mlp, config.width)
    return TransformerLayer(attention, mlp, lambda: make_norm(config.norm, config.width), dropout=config.dropout)


class VisionTransformer(nn.Module):
    """The backbone and a linear head: logits (B, outputs) for the stream "image" of patches (B, N, P)."""

    def __init__(self, config: VisionConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.backbone = VisionBackbone(config)
        self.head = nn.Linear(config.width, config.outputs)
        initialize(self, _table(config), torch.Generator().manual_seed(seed))

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, outputs). Padding patches are masked."""
        image = batch["image"]
        X = self.backbone(image.tokens, image.real, image.positions_or_count(), hooks)
        X = X[:, 0] if self.config.pool == "cls" else mean_over_real(X, image.real)
        logits: Tensor = self.head(X)
        return logits if hooks is None else hooks.record("logits", logits)


def _table(config: VisionConfig) -> Table:
    modern = config.start == "modern"
    last = constant(0.0) if modern else normal_by_inputs()
    return [
        ("backbone.embedding.weight", normal_by_inputs()),
        ("backbone.embedding.bias", constant(0.0)),
        ("backbone.class_token?", normal(0.02)),
        ("backbone.positions.table?", normal(0.02)),
        ("*.W_[qkv].weight", normal_by_inputs()),
        ("*.mlp.W_in.weight", normal_by_inputs()),
        ("*.mlp.W_gate.weight?", normal_by_inputs()),
        # Every sub-layer of a modern model starts as the identity: its last map adds nothing yet.
        ("*.W_o.weight", last),
        ("*.mlp.W_out.weight", last),
        ("*.bias?", constant(0.0)),
        ("*norm*.weight?", constant(1.0)),
        # Not zero, so that the backbone learns from the first step.
        ("head.weight", normal_by_inputs(0.5)),
    ]
