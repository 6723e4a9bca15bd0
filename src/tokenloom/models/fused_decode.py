"""One more token through a GPT in few operations: what decoding a small model costs on a CPU is calls, not arithmetic.

The same formula as `GPT.forward`, for a chunk of one token: queries, keys and values come from one product, scales of
norms are folded into what comes after them, and nothing is checked or built that the step does not need. Three ways
through the folded parts compute the same, and the equality kit holds them against the whole pass ("cached = uncached",
"compiled = eager"): `FusedDecodeStep` on any device, `lean_host` on a CPU, `lean_native` on a CPU with a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.mlp import MLP
from tokenloom.nn.norms import RMSNorm
from tokenloom.nn.positions import Learned, Positions, Rotary, Sinusoidal
from tokenloom.nn.transformer import Transformer, TransformerLayer

# Matrices are copied to be folded. Where they hold more numbers than this, arithmetic is what a step costs.
MOST_NUMBERS = 20_000_000


class Step(Protocol):
    """ids (B,), cache → logits (B, vocab) of the token after them. Keys and values go into the cache, which is not
    advanced. ragged: whether rows may have different lengths. Raises IndexError for an id past the vocabulary."""

    ragged: bool

    def __call__(self, ids: Tensor, cache: KeyValueCache, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class FoldedMap:
    """x W + b, with W (in, out)."""

    W: Tensor
    b: Tensor | None

    @classmethod
    def after(cls, norm: nn.Module | None, maps: Sequence[nn.Linear]) -> FoldedMap:
        """Maps side by side, with the scale and the shift of a norm before them folded in."""
        W = maps[0].weight.detach() if len(maps) == 1 else torch.cat([m.weight for m in maps])
        b = None if maps[0].bias is None else torch.cat([m.bias for m in maps])
        scale, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
        if shift is not None:
            b = W @ shift if b is None else torch.addmv(b, W, shift)
        return cls((W if scale is None else W * scale).T.contiguous(), b)

    def __call__(self, X: Tensor) -> Tensor:
        return X @ self.W if self.b is None else torch.addmm(self.b, X, self.W)

    def added(self, X: Tensor, Y: Tensor) -> Tensor:
        """X + (Y W + b)."""
        Z = torch.addmm(X, Y, self.W)
        return Z if self.b is None else Z.add_(self.b)


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm without its scale and shift: LayerNorm's where `centerd`, else RMSNorm's."""

    centerd: bool
    eps: float

    @classmethod
    def of(cls, norm: nn.Module) -> Norm:
        return cls(isinstance(norm, nn.LayerNorm), cast(RMSNorm, norm).eps)

    def __call__(self, X: Tensor) -> Tensor:
        """X (…, width), normalized along its last dimension."""
        if self.centerd:
            Y: Tensor = F.layer_norm(X, X.shape[-1:], None, None, self.eps)
            return Y
        length: Tensor = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
        return X * (length * length).mul_(1 / X.shape[-1]).add_(self.eps).rsqrt_()


@dataclass(frozen=True, slots=True)
class FoldedLayer:
    """A layer's maps. norm: of both sub-layers. head_norm: of queries and keys, scaled by head_scale (H + Hk, Dh)."""

    norm: Norm
    qkv: FoldedMap
    qk_norm: Norm | None
    head_scale: Tensor | None
    out: FoldedMap
    into: FoldedMap
    activation: Callable[[Tensor], Tensor]
    back: FoldedMap

    @classmethod
    def of(cls, layer: TransformerLayer) -> FoldedLayer:
        attention, mlp = layer.attention, cast(MLP, layer.mlp)
        scale, qk_norm = None, None
        if attention.norm_q is not None and attention.norm_k is not None:
            qk_norm = Norm.of(attention.norm_q)
            if isinstance(attention.norm_q.weight, Tensor) and isinstance(attention.norm_k.weight, Tensor):
                weights = (attention.norm_q.weight, attention.norm_k.weight)
                scale = torch.stack([weights[0]] * attention.heads + [weights[1]] * attention.kv_heads)
        return cls(
            Norm.of(layer.norm_attention),
            FoldedMap.after(layer.norm_attention, [attention.W_q, attention.W_k, attention.W_v]),
            qk_norm,
            scale,
            FoldedMap.after(None, [attention.W_o]),
            FoldedMap.after(layer.norm_mlp, [mlp.W_in]),
            mlp.activation,
            FoldedMap.after(None, [mlp.W_out]),
        )


@dataclass(frozen=True, slots=True)
class Folded:
    """The parts of a GPT with the weights that it has now.

    table (vocab, D). added (context, D): to the embeddings. angles: cosines and sines, (context, Dh) each, by which
    queries and keys turn. heads: H, Hk, Dh.
    """

    table: Tensor
    added: Tensor | None
    angles: tuple[Tensor, Tensor] | None
    heads: tuple[int, int, int]
    layers: list[FoldedLayer]
    norm: Norm
    lm_head: FoldedMap

    @classmethod
    def of(
        cls, tokens: nn.Embedding, positions: Positions, backbone: Transformer, lm_head: nn.Linear, context: int
    ) -> Folded:
        table = tokens.weight.detach()
        places = torch.arange(context, device=table.device)[None]
        added = None
        if isinstance(positions, Learned | Sinusoidal):
            added = positions.add(table.new_zeros(1, context, table.shape[1]), places)[0]
        rotation = positions.rotation(places, table.dtype)
        angles = None if rotation is None else (rotation.cos[0, 0], rotation.sin[0, 0])
        layers = [cast(TransformerLayer, layer) for layer in backbone.layers]
        first = layers[0].attention
        assert backbone.norm is not None
        return cls(
            table,
            added,
            angles,
            (first.heads, first.kv_heads, first.head_dim),
            [FoldedLayer.of(layer) for layer in layers],
            Norm.of(backbone.norm),
            FoldedMap.after(backbone.norm, [lm_head]),
        )


@torch.no_grad()
def fused_decode_step(
    tokens: nn.Embedding, positions: Positions, backbone: Transformer, lm_head: nn.Linear, context: int
) -> Step | None:
    """The fastest step there is for these parts of a GPT, or None for a model that is large, or has parts that are not
    written out here. It has the weights of this moment. context: as many positions as there can be."""
    from tokenloom.models.fused_decode_kernel import KernelDecodeStep
    from tokenloom.models.fused_decode_numpy import NumpyDecodeStep

    known = (
        type(positions) in (Positions, Rotary, Learned, Sinusoidal) and _is_norm(backbone.norm) and len(backbone.layers)
    )
    small = sum(p.numel() for p in backbone.parameters()) <= MOST_NUMBERS
    if not (known and small and all(map(_is_known, backbone.layers))):
        return None
    parts = Folded.of(tokens, positions, backbone, lm_head, context)
    return KernelDecodeStep.of(parts) or NumpyDecodeStep.of(parts) or FusedDecodeStep(parts)


class FusedDecodeStep:
    """The step in torch alone, on any device."""

    ragged = False

    def __init__(self, parts: Folded) -> None:
        self.parts = parts

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        parts, n = self.parts, cache.longest
        X = F.embedding(ids, parts.table)
        if parts.added is not None:
            X = X + parts.added[n]
        angles = None if parts.angles is None else (parts.angles[0][n], parts.angles[1][n])
        for layer, K, V in zip(parts.layers, cache.keys, cache.values, strict=True):
            X = self._layer(layer, X, n, K, V, angles)
        return parts.lm_head(parts.norm(X))

    def _layer(
        self, layer: FoldedLayer, X: Tensor, n: int, K: Tensor, V: Tensor, angles: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """X (B, D) at position n through a layer; its keys and values into K and V (B, Hk, capacity, Dh)."""
        B = len(X)
        H, Hk, Dh = self.parts.heads
        QKV = layer.qkv(layer.norm(X)).view(B, H + 2 * Hk, Dh)
        QK = QKV[:, : H + Hk]
        if layer.qk_norm is not None:
            QK = layer.qk_norm(QK)
        if layer.head_scale is not None:
            QK = QK * layer.head_scale
        if angles is not None:
            QK = torch.addcmul(QK * angles[0], QK.roll(Dh // 2, -1), angles[1])
        K[:, :, n] = QK[:, H:]
        V[:, :, n] = QKV[:, H + Hk :]
        # Heads that share keys stand in a row as queries.
        Q = QK[:, :H].view(B, Hk, H // Hk, Dh)
        Y = F.scaled_dot_product_attention(Q, K[:, :, : n + 1], V[:, :, : n + 1])
        X = layer.out.added(X, Y.reshape(B, H * Dh))
        return layer.back.added(X, layer.activation(layer.into(layer.norm(X))))


def _is_known(layer: nn.Module) -> bool:
    """Whether a layer has the parts that are written out here, and no others."""
    if type(layer) is not TransformerLayer or layer.cross is not None or not layer.pre_norm:
        return False
    attention, mlp = layer.attention, layer.mlp
    if type(attention) is not MultiHeadAttention or type(mlp) is not MLP:
        return False
    maps = (attention.W_q, attention.W_k, attention.W_v, attention.W_o, mlp.W_in, mlp.W_out)
    norms = (layer.norm_attention, layer.norm_mlp)
    return (
        all(type(m) is nn.Linear for m in maps)
        and all(map(_is_norm, norms))
        and type(norms[0]) is type(norms[1])
        and (attention.norm_q is None or type(attention.norm_q) is RMSNorm)
    )


def _is_norm(norm: nn.Module | None) -> bool:
    return type(norm) in (nn.LayerNorm, RMSNorm)
