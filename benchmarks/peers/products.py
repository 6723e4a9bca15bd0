"""The matrix products of one training step and nothing else: what no implementation in this precision can be below."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _product(*shape: int, inner: int) -> Callable[[], object]:
    """One product of random matrices of the shape (…, rows, columns), into memory that is there already."""
    *many, rows, columns = shape
    A, B, C = torch.randn(*many, rows, inner), torch.randn(*many, inner, columns), torch.empty(*shape)
    return lambda: torch.matmul(A, B, out=C)


def linear_products(tokens: int, vocab_size: int, D: int, L: int) -> list[Callable[[], object]]:
    """Those of all linear maps: forward X W, backward dY Wᵀ and Xᵀ dY; four of D × D, two of the MLP, the output."""
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
    """Those of attention, all N × N of them: Q Kᵀ and A V forward, two for each of them backward."""
    scores = [_product(B, H, N, N, inner=D // H) for _ in range(2 * L)]
    heads = [_product(B, H, N, D // H, inner=N) for _ in range(4 * L)]
    return [*scores, *heads]


@torch.no_grad()
def run(products: list[Callable[[], object]]) -> None:
    for product in products:
        product()
