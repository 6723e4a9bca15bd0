"""The matrix products of one training step alone: a lower bound on its time in this precision."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _product(*shape: int, inner: int) -> Callable[[], object]:
    """Return a function that computes one product (…, rows, columns) of random matrices into allocated memory."""
    *batch, rows, columns = shape
    A, B, C = torch.randn(*batch, rows, inner), torch.randn(*batch, inner, columns), torch.empty(*shape)
    return lambda: torch.matmul(A, B, out=C)


def linear_products(tokens: int, vocab_size: int, D: int, L: int) -> list[Callable[[], object]]:
    """Return the products of all linear layers: forward X W, backward dY Wᵀ and Xᵀ dY; 4 of D × D and 2 of the MLP per
    layer, and the head."""
    maps = [*[(D, D)] * 4 * L, *[(D, 4 * D), (4 * D, D)] * L, (D, vocab_size)]
    products = []
    for a, b in maps:
        products += [
            _product(tokens, b, inner=a),
            _product(tokens, a, inner=b),
            _product(a, b, inner=tokens),
        ]
    return products


def attention_products(B: int, N: int, D: int, H: int, L: int) -> list[Callable[[], object]]:
    """Return the products of attention without a causal shortcut: Q Kᵀ and A V forward, two for each backward."""
    scores = [_product(B, H, N, N, inner=D // H) for _ in range(2 * L)]
    heads = [_product(B, H, N, D // H, inner=N) for _ in range(4 * L)]
    return [*scores, *heads]


@torch.no_grad()
def run(products: list[Callable[[], object]]) -> None:
    for product in products:
        product()
