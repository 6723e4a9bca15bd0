"""Multi-layer perceptrons and their activations, and how a config names them.

A new activation is a function and an entry of `ACTIVATIONS`; a new MLP is a class and an entry of `MLPS`. Kernels and
the fused decode step serve those that they know by name; all others take the ordinary path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.nn import ops
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.parts import find_part


class _ReluSquared(torch.autograd.Function):
    """max(x, 0)² with one saved tensor and three passes backward; composed of operations it takes more of both."""

    @staticmethod
    def forward(ctx: Any, X: Tensor) -> Tensor:
        # Saving X rather than max(X, 0) keeps the second derivative right, at no cost in memory.
        ctx.save_for_backward(X)
        R = F.relu(X)
        return R * R

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (X,) = ctx.saved_tensors
        return torch.mul(gradient, F.relu(X)).mul_(2)


def relu_squared(X: Tensor) -> Tensor:
    """Return max(x, 0)². So et al. 2021, "Primer"."""
    if not torch.is_grad_enabled():
        return F.relu(X).square_()
    squared: Tensor = _ReluSquared.apply(X)  # type: ignore[no-untyped-call]
    return squared


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda X: F.gelu(X, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu_squared,
    "silu": F.silu,
}


def make_activation(kind: str) -> Callable[[Tensor], Tensor]:
    """Return an entry of `ACTIVATIONS`, or the function of "./file.py:name". Raises ValueError for an unknown kind."""
    return find_part("activation", kind, ACTIVATIONS)


class MLP(nn.Module):
    """W_out f(W_in x + b) + b', on each token alone. Bishop & Bishop, section 12.1.7.

    hidden: features inside. activation: see `make_activation`.
    """

    def __init__(self, width: int, hidden: int, activation: str = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.W_in = nn.Linear(width, hidden, bias=bias)
        self.W_out = nn.Linear(hidden, width, bias=bias)
        self.activation_kind, self.activation = activation, make_activation(activation)

    @staticmethod
    def default_hidden(width: int) -> int:
        """Return 4D."""
        return 4 * width

    def forward(self, X: Tensor, hooks: Hooks | None = None) -> Tensor:
        """(…, D) → (…, D). Hooks: `mlp_post` (…, hidden), after the activation."""
        if hooks is not None and hooks.active("mlp_post"):
            Y: Tensor = self.W_out(hooks.record("mlp_post", self.activation(self.W_in(X))))
            return Y
        return ops.mlp(X, self.W_in, self.W_out, self.activation_kind, self.activation)


class GatedMLP(nn.Module):
    """W_out (f(W_gate x) ⊙ W_in x): Shazeer 2020, "GLU variants"; with f = silu this is SwiGLU."""

    def __init__(self, width: int, hidden: int, activation: str = "silu", *, bias: bool = False) -> None:
        super().__init__()
        self.W_gate = nn.Linear(width, hidden, bias=bias)
        self.W_in = nn.Linear(width, hidden, bias=bias)
        self.W_out = nn.Linear(hidden, width, bias=bias)
        self.activation = make_activation(activation)

    @staticmethod
    def default_hidden(width: int) -> int:
        """Return 8D/3 rounded up to a multiple of 8: as many parameters as a plain MLP has."""
        return -(-8 * width // 24) * 8

    def forward(self, X: Tensor, hooks: Hooks | None = None) -> Tensor:
        """(…, D) → (…, D). Hooks: `mlp_post` (…, hidden), after the gate."""
        H = record(hooks, "mlp_post", self.activation(self.W_gate(X)) * self.W_in(X))  # (…, hidden)
        Y: Tensor = self.W_out(H)
        return Y


MLPS: dict[str, type[nn.Module]] = {"plain": MLP, "gated": GatedMLP}


def make_mlp(spec: dict[str, Any], width: int) -> nn.Module:
    """Return the MLP of a config: {"kind": "plain", "activation": "gelu", "hidden": 256, "bias": True}, say.

    kind: "plain", "gated" or "./file.py:Name". The class is called with the width and all other settings; `hidden`,
    unless given, is its `default_hidden(width)` if it has one; its `forward` takes X and `hooks`.

    Raises ValueError for an unknown kind, activation or setting.
    """
    settings = dict(spec)
    kind = settings.pop("kind", None)
    make = find_part("MLP", kind, MLPS)
    sizes = {"hidden": make.default_hidden(width)} if hasattr(make, "default_hidden") else {}
    try:
        return make(width, **{**sizes, **settings})
    except TypeError as error:
        raise ValueError(f"MLP {kind!r} does not take {sorted(settings)}") from error
