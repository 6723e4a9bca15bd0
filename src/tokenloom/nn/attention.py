"""Scaled dot-product attention as a pure function with two backends, and multi-head attention on top of it.

Source: Vaswani et al. 2017, "Attention is all you need"; Bishop & Bishop, *Deep Learning*, section 12.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, overload

from torch import Tensor, nn

from tokenloom.nn.cache import LayerCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.masks import Mask, to_dense
from tokenloom.nn.ops import fused_attention, repeat_kv
from tokenloom.nn.positions import PositionInfo, apply_rotary


@overload
def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask | None = ...,
    bias: Tensor | None = ...,
    *,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask | None = ...,
    bias: Tensor | None = ...,
    *,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    *,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Y = softmax(Q Kᵀ / √Dh + bias) V, row by row over the keys that the mask allows.

    Q: (B, H, N, Dh). K: (B, Hk, M, Dh). V: (B, Hk, M, Dv); H is a multiple of Hk, and each key–value head serves
    H / Hk consecutive query heads. mask: None = all keys allowed. bias: finite numbers added to the scores,
    broadcastable to (B, H, N, M). A query that may attend to nothing gives zeros, and finite gradients.

    Returns Y (B, H, N, Dv); with return_weights also the weights (B, H, N, M), computed by the explicit backend. The
    fused backend gives the same values and gradients in memory linear in N (unless a bias is given: that is N×M).

    Raises ValueError when the shapes do not fit.
    """
    _check(Q, K, V)
    if return_weights:
        return explicit_attention(Q, K, V, mask, bias)
    return fused_attention(Q, K, V, mask, bias)


def explicit_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `attention` by its formula, with all N×M weights. Returns Y (B, H, N, Dv) and the weights."""
    scores = attention_scores(Q, K, mask, bias)  # (B, H, N, M)
    # Without a mask no row can be empty, and the passes that look for one are spared.
    A = scores.softmax(-1) if mask is None else attention_weights(scores)
    return A @ repeat_kv(V, Q.shape[1]), A


def attention_scores(Q: Tensor, K: Tensor, mask: Mask | None, bias: Tensor | None) -> Tensor:
    """Return Q Kᵀ / √Dh + bias, with −∞ where the mask forbids: (B, H, N, M)."""
    # Dividing the queries is a pass over N × Dh numbers instead of N × M.
    scores = (Q / math.sqrt(Q.shape[-1])) @ repeat_kv(K, Q.shape[1]).transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~to_dense(mask, Q.shape[-2], K.shape[-2], Q.device), -math.inf)
    return scores


def attention_weights(scores: Tensor) -> Tensor:
    """Return the softmax of each row; a row that is all −∞ becomes zeros instead of NaN."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _check(Q: Tensor, K: Tensor, V: Tensor) -> None:
    fits = (
        Q.dim() == K.dim() == V.dim() == 4
        and Q.shape[0] == K.shape[0] == V.shape[0]
        and K.shape[1:3] == V.shape[1:3]
        and Q.shape[1] % K.shape[1] == 0
        and Q.shape[3] == K.shape[3]
    )
    if not fits:
        raise ValueError(
            "attention wants Q (B, H, N, Dh), K (B, Hk, M, Dh), V (B, Hk, M, Dv) with H a multiple of Hk, "
            f"not {tuple(Q.shape)}, {tuple(K.shape)}, {tuple(V.shape)}"
        )


class MultiHeadAttention(nn.Module):
    """H attention heads in parallel: Y = concat_h(attention(X W_q,h, Z W_k,h, Z W_v,h)) W_o, with Z = X or a memory.

    Bishop & Bishop, section 12.1.6. With fewer key–value heads than heads this is grouped-query attention (Ainslie
    et al. 2023).

    width: D. heads: H. kv_heads: key–value heads, H unless given. memory_width: features of the memory in
    cross-attention, D unless given. bias: biases on the four maps. qk_norm: makes the norm of Dh features applied to
    queries and keys (Dehghani et al. 2023); none unless given.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        memory_width: int | None = None,
        bias: bool = False,
        qk_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or width % heads:
            raise ValueError(f"a width of {width} does not divide into {heads} heads")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads cannot share {kv_heads} key–value heads evenly")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        memory_width = width if memory_width is None else memory_width
        self.W_q = nn.Linear(width, width, bias=bias)
        self.W_k = nn.Linear(memory_width, kv_heads * self.head_dim, bias=bias)
        self.W_v = nn.Linear(memory_width, kv_heads * self.head_dim, bias=bias)
        self.W_o = nn.Linear(width, width, bias=bias)
        self.norm_q = None if qk_norm is None else qk_norm(self.head_dim)
        self.norm_k = None if qk_norm is None else qk_norm(self.head_dim)

    def forward(
        self,
        X: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        position_info: PositionInfo | None = None,
        cache: LayerCache | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """X (B, N, D) gives the queries; memory (B, M, D'), X when None, gives keys and values. Returns (B, N, D).

        position_info: rotation of queries and keys, bias on the scores; of self-attention alone. cache: keys and
        values of earlier chunks, to which those of this chunk are appended; those of a memory are computed once.
        Hooks: `q`, `k`, `v` (B, N or M, H or Hk, Dh), before any rotation; `attn_scores` and `pattern` (B, H, N, M);
        `z` (B, N, H, Dh), the result of each head.
        """
        rotation, bias = (None, None) if position_info is None or memory is not None else position_info
        Q = self._split(self.W_q(X), self.heads, self.norm_q, "q", hooks)  # (B, H, N, Dh)
        if rotation is not None:
            Q = apply_rotary(Q, rotation)
        if cache is not None and cache.complete:
            K, V = cache.stored()
        else:
            Z = X if memory is None else memory
            K = self._split(self.W_k(Z), self.kv_heads, self.norm_k, "k", hooks)  # (B, Hk, M, Dh)
            V = self._split(self.W_v(Z), self.kv_heads, None, "v", hooks)
            if rotation is not None:
                K = apply_rotary(K, rotation)
            if cache is not None:
                K, V = cache.extend(K, V)
        if hooks is not None and hooks.active("attn_scores", "pattern"):
            scores = hooks.record("attn_scores", attention_scores(Q, K, mask, bias))  # (B, H, N, M)
            A = hooks.record("pattern", attention_weights(scores))
            Y = A @ repeat_kv(V, self.heads)
        else:
            Y = attention(Q, K, V, mask, bias)
        Y = record(hooks, "z", Y.transpose(1, 2))  # (B, N, H, Dh)
        result: Tensor = self.W_o(Y.flatten(-2))  # (B, N, H·Dh) → (B, N, D)
        return result

    def _split(self, X: Tensor, heads: int, norm: nn.Module | None, name: str, hooks: Hooks | None) -> Tensor:
        """(B, N, heads·Dh) → (B, heads, N, Dh), each head normalized. The memory order stays that of X, so that
        concatenating the heads again copies nothing."""
        Y = X.view(*X.shape[:-1], heads, self.head_dim)
        Y = record(hooks, name, Y if norm is None else norm(Y))
        return Y.transpose(1, 2)
