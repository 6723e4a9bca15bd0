"""Scaled dot-product attention as a pure function with two roads, and multi-head attention on top of it.

Source: Vaswani et al. 2017, "Attention is all you need"; Bishop & Bishop, *Deep Learning*, section 12.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tokenloom.kernels import functions as kernels
from tokenloom.nn.cache import LayerCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.masks import And, Causal, Mask, Padding, to_dense
from tokenloom.nn.positions import PositionInfo, rotate

# The fused road asks a mask for about this many entries at a time, so that memory stays linear in N.
BLOCK_ENTRIES = 1 << 22


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
    H / Hk query heads in a row. mask: None = all keys allowed. bias: finite numbers added to the scores,
    broadcastable to (B, H, N, M). A query that may attend to nothing gives zeros, and finite gradients.

    Returns Y (B, H, N, Dv); with return_weights also the weights (B, H, N, M), which takes the explicit road. The
    fused road gives the same values and gradients in memory linear in N (unless a bias is given: that is N×M).

    Raises ValueError when the shapes do not fit.
    """
    _check(Q, K, V)
    if return_weights:
        return explicit_attention(Q, K, V, mask, bias)
    return fused_attention(Q, K, V, mask, bias)


def explicit_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The formula of `attention`, step by step, N×M weights and all. Returns Y and the weights."""
    scores = attention_scores(Q, K, mask, bias)
    # Without a mask no row can be empty, and the passes that look for one are spared.
    A = scores.softmax(-1) if mask is None else attention_weights(scores)
    return A @ repeat_kv(V, Q.shape[1]), A


def attention_scores(Q: Tensor, K: Tensor, mask: Mask | None, bias: Tensor | None) -> Tensor:
    """Q Kᵀ / √Dh + bias, with −∞ where the mask forbids: (B, H, N, M)."""
    # Dividing the queries is a pass over N × Dh numbers in the place of N × M.
    scores = (Q / math.sqrt(Q.shape[-1])) @ repeat_kv(K, Q.shape[1]).transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~to_dense(mask, Q.shape[-2], K.shape[-2], Q.device), -math.inf)
    return scores


def attention_weights(scores: Tensor) -> Tensor:
    """Row softmax in which a row of nothing but −∞ becomes zeros instead of not-a-number."""
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)


def fused_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
    """`attention` through the framework's fused kernel, with each mask in its cheapest form."""
    H, N, M = Q.shape[1], Q.shape[2], K.shape[2]
    offset = mask.offset if isinstance(mask, Causal) and isinstance(mask.offset, int) else None
    if offset is not None and offset >= M - 1:
        mask = None  # every key lies in the past of every query
    if bias is None:
        Y = _native(Q, K, V, mask)
        if Y is not None:
            return Y
    if bias is None and mask is None and N == 1 and K.shape[1] != H:
        # One query a head: the heads that share keys can stand in a row as queries, and nothing is copied.
        B, Hk = K.shape[:2]
        Y = scaled_dot_product_attention(Q.view(B, Hk, H // Hk, Q.shape[-1]), K, V)
        return Y.reshape(B, H, 1, V.shape[-1])
    K, V = repeat_kv(K, H), repeat_kv(V, H)
    if bias is None and mask is None:
        return scaled_dot_product_attention(Q, K, V)
    if bias is None and offset == 0 and N == M:
        return scaled_dot_product_attention(Q, K, V, is_causal=True)
    rows = _rows_at_a_time(Q, K, mask)
    if rows >= N:
        return _masked_block(Q, K, V, mask, bias, 0, N)
    blocks = [_without_keeping(Q, K, V, mask, bias, start, min(start + rows, N)) for start in range(0, N, rows)]
    return torch.cat(blocks, dim=-2)


def _native(Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None) -> Tensor | None:
    """By our own kernel where there is one for this mask and these tensors, else None."""
    causal, real = False, None
    for part in (mask.first, mask.second) if isinstance(mask, And) else (mask,):
        if isinstance(part, Padding) and real is None:
            real = part.real
        elif isinstance(part, Causal) and isinstance(part.offset, int) and part.offset == 0:
            causal = True
        elif part is not None:
            return None
    return kernels.attention(Q, K, V, causal=causal, real=real)


def _rows_at_a_time(Q: Tensor, K: Tensor, mask: Mask | None) -> int:
    """How many queries may ask a mask at once, when it has a rectangle of its own for each row of the batch or not."""
    N, M = Q.shape[2], K.shape[2]
    if Q.shape[0] * Q.shape[1] * N * M <= BLOCK_ENTRIES or mask is None:
        return N
    corner = torch.zeros(1, dtype=torch.int64, device=Q.device)
    rectangles = math.prod(mask.allowed(corner, corner).shape[:-2])
    return max(1, BLOCK_ENTRIES // (M * rectangles))


def _without_keeping(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None, bias: Tensor | None, start: int, stop: int
) -> Tensor:
    """`_masked_block`, made anew for the backward pass: the blocks' masks together would be the N×M tensor again."""
    if not torch.is_grad_enabled():
        return _masked_block(Q, K, V, mask, bias, start, stop)
    Y: Tensor = checkpoint(
        _masked_block, Q, K, V, mask, bias, start, stop, use_reentrant=False, preserve_rng_state=False
    )
    return Y


def _masked_block(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None, bias: Tensor | None, start: int, stop: int
) -> Tensor:
    """The rows start … stop−1 of fused attention, over no more keys than the mask lets them reach."""
    N, M = Q.shape[2], K.shape[2]
    low, high = (0, M) if mask is None else mask.key_range(start, stop, M)
    high = max(low, high)
    Q, K, V = Q[:, :, start:stop], K[:, :, low:high], V[:, :, low:high]
    if low == high:
        return Q @ K.transpose(-2, -1) @ V  # sums over no keys: zeros, with zero gradients
    if bias is not None:
        bias = _as_four(bias).expand(-1, -1, N, M)[:, :, start:stop, low:high].to(Q.dtype)
    if mask is None:
        return scaled_dot_product_attention(Q, K, V, attn_mask=bias)
    if (start, stop, low, high) == (0, N, 0, M):
        allowed = to_dense(mask, N, M, Q.device)
    else:
        allowed = mask.allowed(torch.arange(start, stop, device=Q.device), torch.arange(low, high, device=Q.device))
    if mask.always_something(N, M):
        return scaled_dot_product_attention(Q, K, V, attn_mask=_as_four(_joined(allowed, bias)))
    something = allowed.any(-1, keepdim=True)
    # Rows with nothing allowed attend to everything instead, and their result, with its gradient, is dropped.
    Y = scaled_dot_product_attention(Q, K, V, attn_mask=_as_four(_joined(allowed | ~something, bias)))
    return torch.where(something, Y, 0.0)


def _joined(allowed: Tensor, bias: Tensor | None) -> Tensor:
    return allowed if bias is None else bias.masked_fill(~allowed, -math.inf)


def _as_four(scores: Tensor) -> Tensor:
    return scores if scores.dim() == 4 else scores[(None,) * (4 - scores.dim())]


def repeat_kv(K: Tensor, H: int) -> Tensor:
    """Key–value heads repeated so that there is one for each of the H query heads."""
    return K if K.shape[1] == H else K.repeat_interleave(H // K.shape[1], dim=1)


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
    """H attention heads side by side: Y = concat_h(attention(X W_q,h, Z W_k,h, Z W_v,h)) W_o, with Z = X or a memory.

    Bishop & Bishop, section 12.1.6. With fewer key–value heads than heads this is grouped-query attention (Ainslie
    et al. 2023).

    width: D. heads: H. kv_heads: how many key–value heads, H unless given. memory_width: features of the memory
    in cross-attention, D unless given. bias: biases on the four maps. head_norm: makes the norm of Dh features put
    on queries and on keys (Dehghani et al. 2023), none unless given.
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
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        memory_width = width if memory_width is None else memory_width
        self.W_q = nn.Linear(width, width, bias=bias)
        self.W_k = nn.Linear(memory_width, kv_heads * self.head_width, bias=bias)
        self.W_v = nn.Linear(memory_width, kv_heads * self.head_width, bias=bias)
        self.W_o = nn.Linear(width, width, bias=bias)
        self.norm_q = None if qk_norm is None else qk_norm(self.head_width)
        self.norm_k = None if qk_norm is None else qk_norm(self.head_width)

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
        """X: (B, N, D) asks; memory: (B, M, D') is asked, X itself when None. Returns (B, N, D).

        placement: how positions enter (rotation of queries and keys, bias on the scores). cache: keys and values
        of earlier chunks, to which those of this chunk are added; for a memory, they are computed once.
        Taps: `attn_scores` and `pattern` (B, H, N, M), and `attn_heads` (B, N, H, Dh), each head's own result.
        """
        Q = self._split(self.W_q(X), self.heads, self.norm_q)
        K, V = self._keys_values(X, memory, position_info, cache)
        bias = None
        if position_info is not None and memory is None:
            bias = position_info.bias
            if position_info.rotation is not None:
                Q = rotate(Q, position_info.rotation)
        if hooks is not None and hooks.active("attn_scores", "pattern"):
            scores = hooks.record("attn_scores", attention_scores(Q, K, mask, bias))
            A = hooks.record("pattern", attention_weights(scores))
            Y = A @ repeat_kv(V, self.heads)
        else:
            Y = attention(Q, K, V, mask, bias)
        Y = Y.transpose(1, 2)
        if hooks is not None:
            Y = hooks.record("attn_heads", Y)
        result: Tensor = self.W_o(Y.flatten(-2))
        return result

    def _keys_values(
        self, X: Tensor, memory: Tensor | None, position_info: PositionInfo | None, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.complete:
            return cache.stored()
        source = X if memory is None else memory
        K = self._split(self.W_k(source), self.kv_heads, self.norm_k)
        V = self._split(self.W_v(source), self.kv_heads)
        if memory is None and position_info is not None and position_info.rotation is not None:
            K = rotate(K, position_info.rotation)
        return (K, V) if cache is None else cache.extend(K, V)

    def _split(self, X: Tensor, heads: int, norm: nn.Module | None = None) -> Tensor:
        """(B, N, heads·Dh) → (B, heads, N, Dh), each head normalized. The memory order stays, so that heads which are
        put together again afterwards are not copied."""
        Y = X.view(*X.shape[:-1], heads, self.head_width)
        return (Y if norm is None else norm(Y)).transpose(1, 2)
