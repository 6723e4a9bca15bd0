"""One more token through a GPT in few operations: what decoding a small model costs on a CPU is calls, not arithmetic.

The same formula as `GPT.forward`, for a chunk of one token and rows of equal length: queries, keys and values come from
one product, scales of norms are folded into what comes after them, and nothing is checked or built that the step does
not need. The equality kit holds it against the whole pass ("cached = uncached").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.parts import MLP, RMSNorm
from tokenloom.nn.positions import Learned, Positions, Rotary, Sinusoidal
from tokenloom.nn.transformer import Transformer, TransformerLayer

# Matrices are copied to be folded. Where they hold more numbers than this, arithmetic is what a step costs.
MOST_NUMBERS = 20_000_000


class LeanStep:
    """The step of a GPT with the weights that it has now; one is made for each new state.

    tokens, positions, body, readout: the parts of the GPT. context: as many positions as there can be.
    """

    def __init__(
        self, tokens: nn.Embedding, positions: Positions, body: Transformer, readout: nn.Linear, context: int
    ) -> None:
        self.table = tokens.weight
        places = torch.arange(context, device=self.table.device)
        self.added = positions.add(self.table.new_zeros(1, context, self.table.shape[1]), places[None])[0]
        self.adds = isinstance(positions, Learned | Sinusoidal)
        rotation = positions.rotation(places[None], self.table.dtype)
        angles = None if rotation is None else (rotation.cos[0, 0, :, None], rotation.sin[0, 0, :, None])
        self.layers = [_LeanLayer.of(cast(TransformerLayer, layer), angles) for layer in body.layers]
        assert body.norm is not None
        self.norm = _without_scale(body.norm)
        self.readout = _Map.after(body.norm, [readout])

    @classmethod
    @torch.no_grad()
    def of(
        cls, tokens: nn.Embedding, positions: Positions, body: Transformer, readout: nn.Linear, context: int
    ) -> LeanStep | None:
        """The lean step, or None for a model that is large, or has parts that are not written out here."""
        known = type(positions) in (Positions, Rotary, Learned, Sinusoidal) and _is_norm(body.norm)
        small = sum(p.numel() for p in body.parameters()) <= MOST_NUMBERS
        if not (known and small and all(map(_is_known, body.layers))):
            return None
        return cls(tokens, positions, body, readout, context)

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits (B, vocab) of the token after ids (B,), whose keys and values go into the cache, not yet advanced."""
        n = cache.longest
        X = F.embedding(ids, self.table)
        if self.adds:
            X = X + self.added[n]
        for layer, K, V in zip(self.layers, cache.keys, cache.values, strict=True):
            X = layer(X, n, K, V)
        return self.readout(self.norm(X))


@dataclass(frozen=True, slots=True)
class _Map:
    """x W + b, with W (in, out)."""

    W: Tensor
    b: Tensor | None

    @classmethod
    def after(cls, norm: nn.Module | None, maps: Sequence[nn.Linear]) -> _Map:
        """Maps side by side, with the scale and the shift of a norm before them folded in."""
        W = torch.cat([m.weight for m in maps])
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
class _LeanLayer:
    """A layer's maps; angles (context, heads, Dh) by which queries and keys turn; how they are normalised."""

    heads: tuple[int, int, int]
    norm: Callable[[Tensor], Tensor]
    qkv: _Map
    cos: Tensor | None
    sin: Tensor | None
    head_norm: Callable[[Tensor], Tensor] | None
    head_scale: Tensor | None
    out: _Map
    into: _Map
    activation: Callable[[Tensor], Tensor]
    back: _Map

    @classmethod
    def of(cls, layer: TransformerLayer, angles: tuple[Tensor, Tensor] | None) -> _LeanLayer:
        attention, mlp = layer.attention, cast(MLP, layer.mlp)
        H, Hk, Dh = attention.heads, attention.kv_heads, attention.head_width
        scale, head_norm = None, None
        if attention.norm_q is not None and attention.norm_k is not None:
            head_norm = _without_scale(attention.norm_q)
            if isinstance(attention.norm_q.weight, Tensor) and isinstance(attention.norm_k.weight, Tensor):
                scale = torch.stack([attention.norm_q.weight] * H + [attention.norm_k.weight] * Hk)
        cos, sin = (None, None) if angles is None else angles
        if cos is not None and sin is not None and scale is not None:
            # A feature's partner brings its own scale along.
            cos, sin, scale = cos * scale, sin * scale.roll(Dh // 2, -1), None
        return cls(
            (H, Hk, Dh),
            _without_scale(layer.norm_attention),
            _Map.after(layer.norm_attention, [attention.W_q, attention.W_k, attention.W_v]),
            cos,
            sin,
            head_norm,
            scale,
            _Map.after(None, [attention.W_o]),
            _Map.after(layer.norm_mlp, [mlp.W_in]),
            mlp.activation,
            _Map.after(None, [mlp.W_out]),
        )

    def __call__(self, X: Tensor, n: int, K: Tensor, V: Tensor) -> Tensor:
        """X (B, D) at position n through the layer; its keys and values into K and V (B, Hk, capacity, Dh)."""
        B = len(X)
        H, Hk, Dh = self.heads
        QKV = self.qkv(self.norm(X)).view(B, H + 2 * Hk, Dh)
        QK = QKV[:, : H + Hk]
        if self.head_norm is not None:
            QK = self.head_norm(QK)
        if self.head_scale is not None:
            QK = QK * self.head_scale
        if self.cos is not None and self.sin is not None:
            QK = torch.addcmul(QK * self.cos[n], QK.roll(Dh // 2, -1), self.sin[n])
        K[:, :, n] = QK[:, H:]
        V[:, :, n] = QKV[:, H + Hk :]
        # Heads that share keys stand in a row as queries.
        Q = QK[:, :H].view(B, Hk, H // Hk, Dh)
        Y = F.scaled_dot_product_attention(Q, K[:, :, : n + 1], V[:, :, : n + 1])
        X = self.out.added(X, Y.reshape(B, H * Dh))
        return self.back.added(X, self.activation(self.into(self.norm(X))))


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


def _without_scale(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm without its scale and shift."""
    if isinstance(norm, nn.LayerNorm):
        shape, epsilon = norm.normalized_shape, norm.eps
        return lambda X: F.layer_norm(X, shape, None, None, epsilon)
    rms = cast(RMSNorm, norm)
    eps = next(iter(rms.parameters()), torch.empty(0)).new_tensor(rms.eps)

    def normalise(X: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
        return X * torch.addcmul(eps, length, length, value=1 / X.shape[-1]).rsqrt_()

    return normalise
