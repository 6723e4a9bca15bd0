"""What the tests of kernels share: a kernel against its formula in float64, with gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tokenloom.kernels import functions as kernels
from tokenloom.kernels import loader
from tokenloom.nn.attention import explicit_attention
from tokenloom.nn.masks import Causal

native = pytest.mark.skipif(
    any(map(loader.unavailable_reason, ("gelu", "mlp", "norm", "attention", "newton_schulz"))),
    reason="no native kernels here: " + loader.unavailable_reason("gelu"),
)
Formula = Callable[..., Tensor]
# Padding in the end; at the start and within; nothing but padding.
REAL = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 1, 1, 0, 1, 0], [0] * 10]).bool()


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).requires_grad_()


def causal_attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor | None:
    return kernels.attention(Q, K, V, causal=True)


def attention_formula(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return explicit_attention(Q, K, V, Causal())[0]


def assert_equal_to(
    kernel: Formula, formula: Formula, inputs: list[Tensor], gradient: Tensor, tolerance: float
) -> None:
    """Values and all gradients of a kernel against the formula in float64, each to a share of its largest number."""
    Y = kernel(*inputs)
    assert Y is not None
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = formula(*wide)
    found = [Y, *torch.autograd.grad(Y, inputs, gradient)]
    right = [expected, *torch.autograd.grad(expected, wide, gradient.double())]
    for got, want in zip(found, right, strict=True):
        assert got.shape == want.shape
        largest = max(1.0, float(want.detach().abs().max()))
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * largest)


def history(Y: Tensor) -> list[str]:
    """The names of the backward steps behind a tensor."""
    waiting, names = [Y.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.append(node.name())
            waiting += [earlier for earlier, _ in node.next_functions]
    return names
