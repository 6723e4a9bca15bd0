"""Operations that have native kernels: for each the reference in torch, and the choice between the two.

This is the only module that asks whether kernels exist. A kernel function gives None for tensors, sizes or modes that
it does not serve (see `kernels/functions.py`), and the reference is used; both agree to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tokenloom.kernels import functions as kernels
from tokenloom.kernels.decode import DecodeKernel, DecodeWeights
from tokenloom.nn.masks import And, Causal, Mask, Padding, to_dense

# Fused attention asks a mask for about this many entries at a time, so that memory stays linear in N.
BLOCK_ENTRIES = 1 << 22


# RMSNorm


def rms_norm(X: Tensor, w: Tensor | None, eps: float) -> Tensor:
    """Return w ⊙ x / √(mean(x²) + ε) over the last dimension, in X's dtype. X: (…, D), w: (D)."""
    if not torch.is_grad_enabled():
        # Calling a Function takes longer than the norm of one token.
        return F.rms_norm(X, X.shape[-1:], None if w is None else w.to(X.dtype), eps)
    Y = kernels.rms_norm(X, w, eps)
    if Y is None:
        Y = _RMSNorm.apply(X, w, eps)  # type: ignore[no-untyped-call]
    return Y


class _RMSNorm(torch.autograd.Function):
    """RMSNorm in half the passes of torch's, which is composed of seven operations on a CPU.

    Only X is saved, and the backward pass is made of differentiable operations, so the second derivative is right too.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, w: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward(X, w)
        ctx.eps = eps
        Y = X * _inverse_rms(X, eps)
        return Y if w is None else Y.mul_(w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        X, w = ctx.saved_tensors
        r = _inverse_rms(X, ctx.eps)
        Y = X * r
        products = gradient * Y
        if w is None:
            dw, mean = None, products.mean(-1, keepdim=True)
        else:
            dw = products.flatten(0, -2).sum(0)
            mean = (products @ w)[..., None] / X.shape[-1]
            gradient = gradient * w
        # With g = w ⊙ gradient: dx = r (g − y mean(g y)).
        return torch.addcmul(gradient, Y, mean, value=-1) * r, dw, None


def _inverse_rms(X: Tensor, eps: float) -> Tensor:
    """1 / √(mean(x²) + ε): (…, D) → (…, 1)."""
    return torch.rsqrt(torch.linalg.vector_norm(X, dim=-1, keepdim=True).square() / X.shape[-1] + eps)


# MLP


def mlp(X: Tensor, W_in: nn.Module, W_out: nn.Module, kind: str, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return W_out(f(W_in(X))), (…, D) → (…, D), for two linear maps. kind: the name of f in `nn.mlp.ACTIVATIONS`."""
    if kind in ("gelu", "relu2") and _is_plain_linear(W_in):
        if _is_plain_linear(W_out):
            Y = kernels.mlp(X, W_in.weight, W_in.bias, W_out.weight, W_out.bias, kind == "relu2")
            if Y is not None:
                return Y
        H = kernels.linear_gelu(X, W_in.weight, W_in.bias) if kind == "gelu" else None
        if H is not None:
            return cast(Tensor, W_out(H))
    return cast(Tensor, W_out(f(W_in(X))))


def _is_plain_linear(map: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a map is nn.Linear itself, without module hooks, so that a kernel may read its weights."""
    hooks = (map._forward_hooks, map._forward_pre_hooks, map._backward_hooks, map._backward_pre_hooks)
    return type(map) is nn.Linear and not any(hooks)


# Attention


def fused_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None = None, bias: Tensor | None = None) -> Tensor:
    """Compute `nn.attention.attention` with a fused kernel, ours or torch's, and each mask in its cheapest form.

    Arguments and result as there; nothing of size N×M is saved, unless a bias is given.
    """
    H, N, M = Q.shape[1], Q.shape[2], K.shape[2]
    offset = mask.offset if isinstance(mask, Causal) and isinstance(mask.offset, int) else None
    if offset is not None and offset >= M - 1:
        mask = None  # every key is in the past of every query
    if bias is None:
        Y = _attention_kernel(Q, K, V, mask)
        if Y is not None:
            return Y
    if bias is None and mask is None and N == 1 and K.shape[1] != H:
        # One query per head: the query heads that share a key head become its queries, and nothing is copied.
        B, Hk = K.shape[:2]
        Y = scaled_dot_product_attention(Q.view(B, Hk, H // Hk, Q.shape[-1]), K, V)  # (B, Hk, H / Hk, Dv)
        return Y.reshape(B, H, 1, V.shape[-1])
    K, V = repeat_kv(K, H), repeat_kv(V, H)
    if bias is None and mask is None:
        return scaled_dot_product_attention(Q, K, V)
    if bias is None and offset == 0 and N == M:
        return scaled_dot_product_attention(Q, K, V, is_causal=True)
    rows = _rows_per_block(Q, K, mask)
    if rows >= N:
        return _masked_block(Q, K, V, mask, bias, 0, N)
    blocks = [_checkpointed_block(Q, K, V, mask, bias, start, min(start + rows, N)) for start in range(0, N, rows)]
    return torch.cat(blocks, dim=-2)


def _attention_kernel(Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None) -> Tensor | None:
    """The result of our kernel, or None where it does not serve this mask or these tensors."""
    causal, real = False, None
    for part in (mask.first, mask.second) if isinstance(mask, And) else (mask,):
        if isinstance(part, Padding) and real is None:
            real = part.real
        elif isinstance(part, Causal) and isinstance(part.offset, int) and part.offset == 0:
            causal = True
        elif part is not None:
            return None
    return kernels.attention(Q, K, V, causal=causal, real=real)


def _rows_per_block(Q: Tensor, K: Tensor, mask: Mask | None) -> int:
    """How many queries to compute at once, so that a block of the mask has about `BLOCK_ENTRIES` entries."""
    N, M = Q.shape[2], K.shape[2]
    if Q.shape[0] * Q.shape[1] * N * M <= BLOCK_ENTRIES or mask is None:
        return N
    corner = torch.zeros(1, dtype=torch.int64, device=Q.device)
    rectangles = math.prod(mask.allowed(corner, corner).shape[:-2])
    return max(1, BLOCK_ENTRIES // (M * rectangles))


def _checkpointed_block(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None, bias: Tensor | None, start: int, stop: int
) -> Tensor:
    """`_masked_block`, recomputed in the backward pass: the saved masks of all blocks would be the N×M tensor again."""
    if not torch.is_grad_enabled():
        return _masked_block(Q, K, V, mask, bias, start, stop)
    Y: Tensor = checkpoint(
        _masked_block, Q, K, V, mask, bias, start, stop, use_reentrant=False, preserve_rng_state=False
    )
    return Y


def _masked_block(
    Q: Tensor, K: Tensor, V: Tensor, mask: Mask | None, bias: Tensor | None, start: int, stop: int
) -> Tensor:
    """Rows start … stop−1 of fused attention, over the keys that the mask lets them reach."""
    N, M = Q.shape[2], K.shape[2]
    low, high = (0, M) if mask is None else mask.key_range(start, stop, M)
    high = max(low, high)
    Q, K, V = Q[:, :, start:stop], K[:, :, low:high], V[:, :, low:high]
    if low == high:
        return Q @ K.transpose(-2, -1) @ V  # a sum over no keys: zeros, with zero gradients
    if bias is not None:
        bias = _to_4d(bias).expand(-1, -1, N, M)[:, :, start:stop, low:high].to(Q.dtype)
    if mask is None:
        return scaled_dot_product_attention(Q, K, V, attn_mask=bias)
    if (start, stop, low, high) == (0, N, 0, M):
        allowed = to_dense(mask, N, M, Q.device)
    else:
        allowed = mask.allowed(torch.arange(start, stop, device=Q.device), torch.arange(low, high, device=Q.device))
    if mask.always_nonempty(N, M):
        return scaled_dot_product_attention(Q, K, V, attn_mask=_to_4d(_with_bias(allowed, bias)))
    nonempty = allowed.any(-1, keepdim=True)
    # Rows without an allowed key attend to all keys, and their result is replaced by zeros, with its gradient.
    Y = scaled_dot_product_attention(Q, K, V, attn_mask=_to_4d(_with_bias(allowed | ~nonempty, bias)))
    return torch.where(nonempty, Y, 0.0)


def _with_bias(allowed: Tensor, bias: Tensor | None) -> Tensor:
    return allowed if bias is None else bias.masked_fill(~allowed, -math.inf)


def _to_4d(scores: Tensor) -> Tensor:
    return scores if scores.dim() == 4 else scores[(None,) * (4 - scores.dim())]


def repeat_kv(K: Tensor, H: int) -> Tensor:
    """Repeat key–value heads for the H query heads: (B, Hk, M, Dh) → (B, H, M, Dh)."""
    return K if K.shape[1] == H else K.repeat_interleave(H // K.shape[1], dim=1)


# Newton–Schulz iteration


def newton_schulz(X: Tensor, polynomial: tuple[float, float, float], steps: int) -> Tensor:
    """X ← p(X Xᵀ) X with p(A) = a I + b A + c A², `steps` times. X: (n, rows, columns), rows ≤ columns."""
    a, b, c = polynomial
    if (Y := kernels.newton_schulz(X, polynomial, steps)) is not None:
        return Y
    if X.shape[2] < 2 * X.shape[1] or X.dtype == torch.bfloat16:
        for _ in range(steps):
            A = X @ X.mT  # (n, rows, rows)
            X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
        return X
    # p(A) commutes with A: the polynomials of all steps are multiplied as small square matrices first.
    A, product = X @ X.mT, None
    for step in range(steps):
        P = torch.baddbmm(A, A, A, beta=b, alpha=c)
        P.diagonal(dim1=1, dim2=2).add_(a)
        product = P if product is None else P @ product
        if step < steps - 1:
            A = P @ A @ P
    assert product is not None
    return product @ X


# The fused decode step; its reference is `models/fused_decode.py`


def decode_kernel(weights: DecodeWeights) -> DecodeKernel | None:
    """Return the kernel that decodes a token with these weights, or None where the step in torch has to."""
    return DecodeKernel.of(weights)
