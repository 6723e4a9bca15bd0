"""A small convolutional network for image classification. Source: Bishop & Bishop, chapter 10."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from tokenloom.models.batch import Batch
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import constant, initialize


@dataclass(frozen=True)
class ConvolutionalConfig:
    """Sizes. shape: (C, H, W) of an image. width: channels of the first block, doubled in each further block. depth:
    number of blocks, each of which halves the sides. outputs: classes."""

    shape: tuple[int, int, int]
    outputs: int
    width: int = 32
    depth: int = 3
    dropout: float = 0.2

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes for config.json."""
        return asdict(self)


class Block(nn.Module):
    """3 × 3 convolution, group norm, GELU, 2 × 2 max pooling.

    Group norm (Wu & He 2018) normalizes each image by itself, so that results do not depend on the batch.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(min(8, outputs), outputs)

    def forward(self, X: Tensor) -> Tensor:
        """Return (B, C′, ⌈H/2⌉, ⌈W/2⌉) for (B, C, H, W)."""
        return F.max_pool2d(F.gelu(self.norm(self.convolution(X))), 2, ceil_mode=True)


class ConvolutionalNetwork(nn.Module):
    """Blocks and a linear head: logits (B, outputs) for the stream "image", whose tokens are
    single pixels (B, H · W, C)."""

    def __init__(self, config: ConvolutionalConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        C, H, W = config.shape
        widths = [C, *(config.width * 2**block for block in range(config.depth))]
        self.blocks = nn.ModuleList(Block(a, b) for a, b in pairwise(widths))
        left = widths[-1] * -(-H // 2**config.depth) * -(-W // 2**config.depth)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(left, config.outputs)
        table = [
            ("*.convolution.weight", _by_inputs),
            ("*.norm.weight", constant(1.0)),
            ("*.bias", constant(0.0)),
            ("head.weight", constant(0.0)),
        ]
        initialize(self, table, torch.Generator().manual_seed(seed))

    @property
    def places(self) -> dict[str, int]:
        """At how many positions of an image each map is applied, by its name; the head once."""
        _, H, W = self.config.shape
        found = {
            f"blocks.{block}.convolution": -(-H // 2**block) * -(-W // 2**block) for block in range(self.config.depth)
        }
        return {**found, "head": 1}

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, outputs)."""
        pixels = batch["image"].tokens.to(self.head.weight.dtype)
        X = pixels.transpose(1, 2).reshape(-1, *self.config.shape)
        for number, block in enumerate(self.blocks):
            X = block(X)
            if hooks is not None:
                X = hooks.record(f"blocks.{number}", X)
        logits: Tensor = self.head(self.dropout(X.flatten(1)))
        return logits if hooks is None else hooks.record("logits", logits)


def _by_inputs(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
    """Initialize from N(0, 2 / inputs) (He et al. 2015)."""
    parameter.normal_(0.0, (2 / parameter[0].numel()) ** 0.5, generator=generator)
