"""The attention kernel against the explicit formula, with each mask, wherever its numbers lie."""

import math

import pytest
import torch
from held_kernels import REAL, assert_equal_to, attention_formula, causal_attention, drawn, history, native
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tokenloom.kernels import functions as kernels
from tokenloom.nn.attention import attention, explicit_attention
from tokenloom.nn.masks import And, Causal, Mask, Padding

HEADS = [(1, 1, 1, 1, 8), (2, 3, 3, 7, 16), (1, 4, 2, 33, 24), (2, 2, 2, 65, 32), (1, 6, 1, 100, 8), (1, 1, 1, 256, 16)]


@native
@pytest.mark.parametrize(("B", "H", "Hk", "N", "D"), HEADS)
def test_attention_is_its_formula(B: int, H: int, Hk: int, N: int, D: int) -> None:
    """Odd lengths, and heads that share keys and values."""
    inputs = [drawn(B, H, N, D, scale=2), drawn(B, Hk, N, D, seed=1), drawn(B, Hk, N, D, seed=2)]
    assert_equal_to(causal_attention, attention_formula, inputs, drawn(B, H, N, D, seed=3).detach(), 2e-6)


MASKS = [None, Causal(), Padding(REAL), And(Causal(), Padding(REAL)), And(Padding(REAL), Causal())]


@native
@pytest.mark.parametrize("D", [8, 24, 32])
@pytest.mark.parametrize("mask", MASKS, ids=["all", "causal", "padded", "causal padded", "padded causal"])
def test_attention_with_each_mask(mask: Mask | None, D: int) -> None:
    """Padding at the end, at the start and within, of everything; a key–value head for two heads of queries."""
    inputs = [drawn(3, 4, 10, D, scale=2), drawn(3, 2, 10, D, seed=1), drawn(3, 2, 10, D, seed=2)]

    def kernel(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        Y = attention(Q, K, V, mask)
        assert "_AttentionBackward" in history(Y)
        return Y

    assert_equal_to(
        kernel, lambda *x: explicit_attention(*x, mask)[0], inputs, drawn(3, 4, 10, D, seed=3).detach(), 2e-6
    )


@native
@pytest.mark.parametrize(("N", "M"), [(1, 50), (37, 17), (6, 100), (70, 3), (4, 1)])
def test_attention_to_a_memory(N: int, M: int) -> None:
    """Another number of keys than of queries, padded too, and none of what is padded is read: it may be no number."""
    real = torch.arange(M) < torch.tensor([[M], [(M + 1) // 2]])
    inputs = [drawn(2, 3, N, 16), drawn(2, 3, M, 16, seed=1), drawn(2, 3, M, 16, seed=2)]
    gradient = drawn(2, 3, N, 16, seed=3).detach()
    assert_equal_to(
        lambda *x: kernels.attention(*x, real=real),
        lambda *x: explicit_attention(*x, Padding(real))[0],
        *(inputs, gradient, 2e-6),
    )
    Y = kernels.attention(*inputs, real=real)
    with torch.no_grad():
        for x in inputs[1:]:
            x[~real[:, None].expand(2, 3, M)] = math.nan
    again = kernels.attention(*inputs, real=real)
    assert Y is not None
    assert again is not None
    assert torch.equal(Y, again)
    assert all(g.isfinite().all() for g in torch.autograd.grad(again, inputs, gradient))


@native
def test_attention_takes_what_lies_anywhere_in_memory() -> None:
    """Heads beside each other, slices of one tensor, features that are apart, a gradient that is one number."""
    whole = drawn(2, 40, 3, 2, 16)  # (B, N, which, H, Dh)
    views = [whole[:, :, i].transpose(1, 2) for i in range(3)]
    apart = [view.transpose(-1, -2).contiguous().transpose(-1, -2) for view in views]
    for inputs in (views, apart):
        detached = [x.detach().requires_grad_() for x in inputs]
        assert detached[0].stride() == inputs[0].stride()
        assert_equal_to(causal_attention, attention_formula, detached, torch.ones(1).expand(2, 2, 40, 16), 2e-6)
    causal_attention(*views).sum().backward()  # type: ignore[union-attr]
    (expected,) = torch.autograd.grad(attention_formula(*views).sum(), whole)
    assert whole.grad is not None
    torch.testing.assert_close(whole.grad, expected, rtol=1e-5, atol=1e-5)


@native
def test_attention_of_large_scores_and_of_what_is_no_number() -> None:
    Q, K, V = (drawn(1, 1, 20, 8, seed=s, scale=scale) for s, scale in ((0, 60.0), (1, 60.0), (2, 1.0)))
    assert_equal_to(causal_attention, attention_formula, [Q, K, V], torch.ones(1, 1, 20, 8), 2e-4)
    with torch.no_grad():
        K[0, 0, 12] = math.nan
    for value in (math.nan, math.inf):
        with torch.no_grad():
            K[0, 0, 12] = value
        Y = causal_attention(Q, K, V)
        assert Y is not None
        torch.testing.assert_close(Y[:, :, :12], scaled_dot_product_attention(Q, K, V, is_causal=True)[:, :, :12])
        assert Y[:, :, 12:].isnan().flatten(2).any(-1).all() == attention_formula(Q, K, V)[:, :, 12:].isnan().any()
        assert Y.detach()[:, :, :12].isfinite().all()
