"""Low-rank adapters (LoRA): a frozen linear map plus a learned change of low rank. Hu et al. 2021."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """Y = X W₀ + X A B + b, with W₀ and b frozen, A (inputs × R) and B (R × outputs) trained.

    A starts as N(0, 1)/√inputs and B as zero, so that a new adapter changes nothing. `merge` adds A B to W₀, which
    removes the extra cost; `unmerge` restores W₀ exactly. `weight` and `bias` are those of the equivalent linear map.
    Raises ValueError for a rank that is not from 1 to the smaller side of W₀.
    """

    def __init__(self, base: nn.Linear, rank: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        smaller = min(base.in_features, base.out_features)
        if not 1 <= rank <= smaller:
            raise ValueError(f"rank {rank}: must be from 1 to {smaller}, the smaller side of the weights")
        self.base = base.requires_grad_(False)
        like = base.weight
        A = torch.randn(base.in_features, rank, generator=generator, dtype=like.dtype) / math.sqrt(base.in_features)
        self.A = nn.Parameter(A.to(like.device))
        self.B = nn.Parameter(torch.zeros(rank, base.out_features, dtype=like.dtype, device=like.device))
        self._unmerged: Tensor | None = None

    @property
    def merged(self) -> bool:
        """Whether A B has been added to W₀."""
        return self._unmerged is not None

    @property
    def weight(self) -> Tensor:
        """(W₀ + A B)ᵀ, (outputs × inputs), as `nn.Linear` stores it."""
        return self.base.weight if self.merged else self.base.weight + (self.A @ self.B).T

    @property
    def bias(self) -> Tensor | None:
        """The bias of the frozen map."""
        return self.base.bias

    def forward(self, X: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        Y: Tensor = self.base(X)
        return Y if self.merged else Y + F.linear(F.linear(X, self.A.T), self.B.T)

    @torch.no_grad()
    def merge(self) -> None:
        """Add A B to W₀, unless that is done already."""
        if not self.merged:
            before = self.base.weight.clone()
            self.base.weight += (self.A @ self.B).T
            self._unmerged = before

    @torch.no_grad()
    def unmerge(self) -> None:
        """Restore W₀ bit for bit."""
        if self._unmerged is not None:
            self.base.weight.copy_(self._unmerged)
            self._unmerged = None


def apply_lora(
    model: nn.Module, rank: int, names: Iterable[str] = ("W_q", "W_v"), generator: torch.Generator | None = None
) -> list[LoRALinear]:
    """Freeze a model and replace every linear map whose own name is one of `names` by an adapter; return them in order.

    Raises ValueError where no map has such a name.
    """
    wanted = set(names)
    found = [
        (parent, name, child)
        for parent in model.modules()
        if not isinstance(parent, LoRALinear)
        for name, child in parent.named_children()
        if name in wanted and isinstance(child, nn.Linear)
    ]
    if not found:
        raise ValueError(f"no linear map of the model is called {' or '.join(sorted(wanted))}")
    model.requires_grad_(False)
    adapters = []
    for parent, name, child in found:
        adapter = LoRALinear(child, rank, generator)
        setattr(parent, name, adapter)
        adapters.append(adapter)
    return adapters
