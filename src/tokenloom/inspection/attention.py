"""Attention maps: what a vision transformer attends to over an image, and attention rollout."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.vision import VisionTransformer
from tokenloom.nn.hooks import Hooks


class ImageAttention(NamedTuple):
    """logits (classes,); heads (H, rows, columns): attention of each head of a layer to each patch; rollout (rows,
    columns). Attention is that of the class token, or the mean over all patches where there is none."""

    logits: Tensor
    heads: Tensor
    rollout: Tensor


def image_attention(model: VisionTransformer, patches: Tensor, layer: int) -> ImageAttention:
    """Return the attention over one image. patches: (1, N, P). layer: from 0; the rollout is over all layers."""
    hooks = Hooks("layers.*.pattern")
    with torch.no_grad():
        logits = model(Batch({"image": Stream(features=patches)}), hooks=hooks)[0]
    patterns = [hooks.values[f"layers.{number}.pattern"] for number in range(model.config.depth)]
    pool, grid = model.config.pool, model.config.grid
    heads = _pooled(patterns[layer][0], pool).reshape(-1, *grid)
    return ImageAttention(logits, heads, _pooled(rollout(patterns)[0], pool).reshape(grid))


def rollout(patterns: list[Tensor]) -> Tensor:
    """Return A_L … A_1 with A_l = (mean over the heads of layer l + I) / 2.

    patterns: (B, H, N, N) per layer, first layer first → (B, N, N), whose rows sum to 1. Source: Abnar & Zuidema 2020.
    """
    product: Tensor | None = None
    for pattern in patterns:
        mean = pattern.mean(1)  # (B, N, N)
        mixed = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)) / 2
        product = mixed if product is None else mixed @ product
    assert product is not None
    return product


def _pooled(pattern: Tensor, pool: str) -> Tensor:
    """Return the attention of the pooled token to each patch: (…, N, N) → (…, patches)."""
    return pattern[..., 0, 1:] if pool == "cls" else pattern.mean(-2)
