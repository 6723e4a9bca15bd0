"""Norms and multi-layer perceptrons: the exchangeable parts of a layer, and how a config names them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.kernels.functions import linear_gelu, mlp, rms_norm


def make_norm(kind: str, width: int) -> nn.Module:
    """ "layer": LayerNorm (Ba et al. 2016); "rms": RMSNorm (Zhang & Sennrich 2019), both with learned scale;
    "rms-plain": RMSNorm without parameters."""
    if kind == "layer":
        return nn.LayerNorm(width)
    if kind == "rms":
        return RMSNorm(width)
    if kind == "rms-plain":
        return RMSNorm(width, scale=False)
    raise ValueError(f"no norm {kind!r}: there are layer, rms, rms-plain")


class _Normalize(torch.autograd.Function):
    """w ⊙ x / √(mean(x²) + ε), in half the passes of the framework's, which is composed of seven operations on a CPU.

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
    """1 / √(mean(x²) + ε) over the last dimension, kept."""
    return torch.rsqrt(torch.linalg.vector_norm(X, dim=-1, keepdim=True).square() / X.shape[-1] + eps)


class RMSNorm(nn.Module):
    """w ⊙ x / √(mean(x²) + ε), with ε = 1e-6, computed in float32 or wider. Zhang & Sennrich 2019.

    scale: whether w is learned, or left out.
    """

    def __init__(self, width: int, *, scale: bool = True) -> None:
        super().__init__()
        self.eps = 1e-6
        self.weight = nn.Parameter(torch.ones(width)) if scale else None

    def forward(self, X: Tensor) -> Tensor:
        wide = X.to(torch.promote_types(X.dtype, torch.float32))
        if not torch.is_grad_enabled():
            # Calling a Function costs more than a token's norm.
            weight = None if self.weight is None else self.weight.to(wide.dtype)
            return F.rms_norm(wide, X.shape[-1:], weight, self.eps).to(self._result(X))
        Y = rms_norm(wide, self.weight, self.eps)
        if Y is None:
            Y = _Normalize.apply(wide, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return Y.to(self._result(X))

    def _result(self, X: Tensor) -> torch.dtype:
        # Under autocast the scale is float32, and so is the result; a model in half precision stays in it.
        return X.dtype if self.weight is None else torch.promote_types(X.dtype, self.weight.dtype)


class _ReluSquared(torch.autograd.Function):
    """The derivative 2 max(x, 0) from one saved tensor in three passes; composed, it takes more, and more memory."""

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
    """max(x, 0)², So et al. 2021 ("Primer")."""
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


class MLP(nn.Module):
    """W_out f(W_in x + b) + b', on each token alone. Bishop & Bishop, section 12.1.7.

    hidden: features inside. activation: a name of `ACTIVATIONS`.
    """

    def __init__(self, width: int, hidden: int, activation: str = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.W_in = nn.Linear(width, hidden, bias=bias)
        self.W_out = nn.Linear(hidden, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, X: Tensor) -> Tensor:
        into, back = self.W_in, self.W_out
        if self.activation in _WITH_KERNEL and _is_bare(into):
            if _is_bare(back):
                squared = self.activation is relu_squared
                Y = mlp(X, into.weight, into.bias, back.weight, back.bias, squared)
                if Y is not None:
                    return Y
            H = linear_gelu(X, into.weight, into.bias) if self.activation is F.gelu else None
            if H is not None:
                return self._back(H)
        return self._back(self.activation(into(X)))

    def _back(self, H: Tensor) -> Tensor:
        Y: Tensor = self.W_out(H)
        return Y


_WITH_KERNEL = (F.gelu, relu_squared)


def _is_bare(map: nn.Module) -> bool:
    """Whether a map is just that, and nobody listens at it, so that it may be part of a kernel."""
    hooks = (map._forward_hooks, map._forward_pre_hooks, map._backward_hooks, map._backward_pre_hooks)
    return type(map) is nn.Linear and not any(hooks)


class GatedMLP(nn.Module):
    """W_out (f(W_gate x) ⊙ W_in x): Shazeer 2020, "GLU variants"; with f = silu this is SwiGLU."""

    def __init__(self, width: int, hidden: int, activation: str = "silu", *, bias: bool = False) -> None:
        super().__init__()
        self.W_gate = nn.Linear(width, hidden, bias=bias)
        self.W_in = nn.Linear(width, hidden, bias=bias)
        self.W_out = nn.Linear(hidden, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, X: Tensor) -> Tensor:
        Y: Tensor = self.W_out(self.activation(self.W_gate(X)) * self.W_in(X))
        return Y


def make_mlp(spec: dict[str, object], width: int) -> nn.Module:
    """The MLP that a config names: {"kind": "plain" or "gated", "activation": …, "hidden": …, "bias": …}.

    `hidden` is 4D for a plain one unless given, and 8D/3 rounded up to a multiple of 8 for a gated one, which gives
    both the same number of parameters. Raises ValueError for an unknown kind, activation or setting.
    """
    spec = dict(spec)
    kind = spec.pop("kind", None)
    classes: dict[str, tuple[type[MLP] | type[GatedMLP], int]] = {
        "plain": (MLP, 4 * width),
        "gated": (GatedMLP, -(-8 * width // 24) * 8),
    }
    if kind not in classes:
        raise ValueError(f"no MLP {kind!r}: there are {', '.join(classes)}")
    activation = spec.get("activation")
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"no activation {activation!r}: there are {', '.join(ACTIVATIONS)}")
    make, hidden = classes[str(kind)]
    try:
        return make(width, **{"hidden": hidden, **spec})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"MLP {kind!r} does not take {sorted(spec)}") from error


def device_of(model: nn.Module) -> torch.device:
    """Where a module's numbers are: the device of its first parameter, else of its first buffer, else the CPU."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def count_numbers(model: nn.Module) -> int:
    """How many numbers a saved module takes: its parameters, and the buffers that it keeps; each tensor once."""
    kept = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values() if tensor.numel()}
    return sum(kept.values())


def count_parameters(model: nn.Module, *, trained_only: bool = False) -> int:
    """How many numbers a model holds; a tensor that stands in two places counts once."""
    seen = {id(p): p for p in model.parameters() if p.requires_grad or not trained_only}
    return sum(p.numel() for p in seen.values())
