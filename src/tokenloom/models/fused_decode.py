"""Decoding one more token through a GPT with few operations: on a CPU, calls cost a small model more than arithmetic.

The formula is that of `GPT.forward` for a chunk of one token: queries, keys and values come from one product, scales of
norms are folded into the maps after them, and nothing is checked or built that the step does not need. Two backends
compute it: `FusedDecodeStep` in torch, on any device, and the kernel of `kernels/decode.py`; the equality kit compares
them with the whole pass ("cached = uncached", "compiled = eager"). A model with other parts takes the whole pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.kernels.decode import DecodeKernel, DecodeLayer, DecodeMap, DecodeWeights
from tokenloom.nn import ops
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.mlp import MLP
from tokenloom.nn.norms import RMSNorm
from tokenloom.nn.positions import Learned, Positions, Rotary, Sinusoidal
from tokenloom.nn.transformer import Transformer, TransformerLayer

# The folded weights are copies. A model with more parameters is bound by arithmetic, not by calls.
MAX_PARAMETERS = 20_000_000


class DecodeStep(Protocol):
    """ids (B,), cache → logits (B, vocab) of the next token.

    Keys and values are written into the cache, which is not advanced. ragged: whether rows may have different lengths.
    Raises IndexError for an id outside the vocabulary.
    """

    ragged: bool

    def __call__(self, ids: Tensor, cache: KeyValueCache, /) -> Tensor: ...


@torch.no_grad()
def fused_decode_step(
    tokens: nn.Embedding, positions: Positions, transformer: Transformer, lm_head: nn.Linear, context: int
) -> DecodeStep | None:
    """Return the fastest step for these parts of a GPT; None for a large model, and for parts not written out here.

    The step has a copy of the weights. context: positions at most.
    """
    layers = [layer for layer in transformer.layers if isinstance(layer, TransformerLayer)]
    known = type(positions) in (Positions, Rotary, Learned, Sinusoidal) and layers and all(map(_is_known, layers))
    if not known or len({_kinds(layer) for layer in layers}) > 1 or type(transformer.norm) is not _kinds(layers[0])[0]:
        return None
    if sum(p.numel() for p in transformer.parameters()) > MAX_PARAMETERS:
        return None
    weights = fold_weights(tokens, positions, transformer, lm_head, context)
    kernel = ops.decode_kernel(weights)
    mlp = cast(MLP, layers[0].mlp)
    return FusedDecodeStep(weights, mlp.activation) if kernel is None else KernelDecodeStep(kernel)


def _is_known(layer: TransformerLayer) -> bool:
    """Whether a layer has only parts that are written out here."""
    attention, mlp = layer.attention, layer.mlp
    if layer.cross is not None or not layer.pre_norm or type(layer) is not TransformerLayer:
        return False
    if type(attention) is not MultiHeadAttention or type(mlp) is not MLP:
        return False
    maps = (attention.W_q, attention.W_k, attention.W_v, attention.W_o, mlp.W_in, mlp.W_out)
    norms = (layer.norm_attention, layer.norm_mlp)
    return (
        all(type(m) is nn.Linear for m in maps)
        and type(norms[0]) is type(norms[1])
        and isinstance(norms[0], nn.LayerNorm | RMSNorm)
        and (attention.norm_q is None or type(attention.norm_q) is RMSNorm)
    )


def _kinds(layer: TransformerLayer) -> tuple[object, ...]:
    """What the layers of a model must have in common."""
    mlp, norm_q = cast(MLP, layer.mlp), layer.attention.norm_q
    return type(layer.norm_attention), norm_q is None, mlp.activation, mlp.W_in.weight.shape


@torch.no_grad()
def fold_weights(
    tokens: nn.Embedding, positions: Positions, transformer: Transformer, lm_head: nn.Linear, context: int
) -> DecodeWeights:
    """Return the weights of a GPT for decoding, as they are now."""
    embedding = tokens.weight.detach()
    indices = torch.arange(context, device=embedding.device)[None]
    position_vectors = None
    if isinstance(positions, Learned | Sinusoidal):
        position_vectors = positions.add(embedding.new_zeros(1, context, embedding.shape[1]), indices)[0]
    rotation = positions.rotation(indices, embedding.dtype)
    layers = [cast(TransformerLayer, layer) for layer in transformer.layers]
    attention, mlp, norm = layers[0].attention, cast(MLP, layers[0].mlp), transformer.norm
    assert norm is not None
    return DecodeWeights(
        embedding,
        position_vectors,
        None if rotation is None else (rotation.cos[0, 0], rotation.sin[0, 0]),
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        isinstance(norm, nn.LayerNorm),
        cast(RMSNorm, norm).eps,
        None if attention.norm_q is None else cast(RMSNorm, attention.norm_q).eps,
        mlp.activation_kind,
        [_fold_layer(layer) for layer in layers],
        _fold(norm, [lm_head]),
    )


def _fold_layer(layer: TransformerLayer) -> DecodeLayer:
    attention, mlp, qk_scale = layer.attention, cast(MLP, layer.mlp), None
    if attention.norm_q is not None and attention.norm_k is not None:
        q, k = attention.norm_q.weight, attention.norm_k.weight
        if isinstance(q, Tensor) and isinstance(k, Tensor):
            qk_scale = torch.stack([q] * attention.heads + [k] * attention.kv_heads)  # (H + Hk, Dh)
    return DecodeLayer(
        _fold(layer.norm_attention, [attention.W_q, attention.W_k, attention.W_v]),
        qk_scale,
        _fold(None, [attention.W_o]),
        _fold(layer.norm_mlp, [mlp.W_in]),
        _fold(None, [mlp.W_out]),
    )


def _fold(norm: nn.Module | None, maps: Sequence[nn.Linear]) -> DecodeMap:
    """Maps side by side, with the scale and shift of the norm before them folded in."""
    W = maps[0].weight.detach() if len(maps) == 1 else torch.cat([m.weight for m in maps])  # (out, in)
    b = None if maps[0].bias is None else torch.cat([m.bias for m in maps])
    scale, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if shift is not None:
        b = W @ shift if b is None else torch.addmv(b, W, shift)
    return DecodeMap((W if scale is None else W * scale).T.contiguous(), b)


class KernelDecodeStep:
    """The step by the kernel."""

    ragged = True

    def __init__(self, kernel: DecodeKernel) -> None:
        self.kernel = kernel

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        return self.kernel(ids, cache.both, cache.lengths)


class FusedDecodeStep:
    """The step in torch, on any device."""

    ragged = False

    def __init__(self, weights: DecodeWeights, activation: Callable[[Tensor], Tensor]) -> None:
        self.weights, self.activation = weights, activation
        D, Dh = weights.embedding.shape[1], weights.head_dim
        # √(D ε) and √D: see `_rms_norm`.
        self.norm = (weights.embedding.new_tensor((D * weights.eps) ** 0.5), D**0.5)
        self.qk_norm = None
        if weights.qk_eps is not None:
            self.qk_norm = (weights.embedding.new_tensor((Dh * weights.qk_eps) ** 0.5), Dh**0.5)

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        w, n = self.weights, cache.longest
        X = F.embedding(ids, w.embedding)  # (B, D)
        if w.position_vectors is not None:
            X = X + w.position_vectors[n]
        rotation = None if w.rotation is None else (w.rotation[0][n], w.rotation[1][n])
        for layer, K, V in zip(w.layers, cache.keys, cache.values, strict=True):
            X = self._layer(layer, X, n, K, V, rotation)
        return _apply(w.lm_head, self._normalize(X))

    def _layer(
        self, layer: DecodeLayer, X: Tensor, n: int, K: Tensor, V: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return X (B, D) at position n after a layer; writes its keys and values into K, V (B, Hk, capacity, Dh)."""
        B, (H, Hk, Dh) = len(X), (self.weights.heads, self.weights.kv_heads, self.weights.head_dim)
        QKV = _apply(layer.qkv, self._normalize(X)).view(B, H + 2 * Hk, Dh)
        QK = QKV[:, : H + Hk]
        if self.qk_norm is not None:
            QK = _rms_norm(QK, *self.qk_norm)
        if layer.qk_scale is not None:
            QK = QK * layer.qk_scale
        if rotation is not None:
            QK = torch.addcmul(QK * rotation[0], QK.roll(Dh // 2, -1), rotation[1])
        K[:, :, n] = QK[:, H:]
        V[:, :, n] = QKV[:, H + Hk :]
        # The query heads that share a key head become its queries.
        Q = QK[:, :H].view(B, Hk, H // Hk, Dh)
        Y = F.scaled_dot_product_attention(Q, K[:, :, : n + 1], V[:, :, : n + 1])
        X = _add_applied(X, layer.out, Y.reshape(B, H * Dh))
        return _add_applied(X, layer.mlp_out, self.activation(_apply(layer.mlp_in, self._normalize(X))))

    def _normalize(self, X: Tensor) -> Tensor:
        """The norm of a sub-layer without its scale and shift. X: (B, D)."""
        if self.weights.centered:
            Y: Tensor = F.layer_norm(X, X.shape[-1:], None, None, self.weights.eps)
            return Y
        return _rms_norm(X, *self.norm)


def _rms_norm(X: Tensor, c: Tensor, root: float) -> Tensor:
    """x √D / hypot(|x|, √(D ε)), which is x / √(mean(x²) + ε), over the last dimension of X (…, D)."""
    return X / torch.hypot(torch.linalg.vector_norm(X, dim=-1, keepdim=True), c).mul_(1 / root)


def _apply(map: DecodeMap, X: Tensor) -> Tensor:
    return X @ map.W if map.b is None else torch.addmm(map.b, X, map.W)


def _add_applied(X: Tensor, map: DecodeMap, Y: Tensor) -> Tensor:
    """X + (Y W + b)."""
    Z = torch.addmm(X, Y, map.W)
    return Z if map.b is None else Z.add_(map.b)
