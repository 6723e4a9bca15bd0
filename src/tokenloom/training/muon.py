"""Muon: momentum with orthogonalized updates. Source: Jordan et al. 2024, "Muon"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.nn import ops
from tokenloom.training.distributed import full_tensor, shard_like

# Coefficients of the quintic polynomial and number of iterations of Jordan et al.: singular values become 0.7 to 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """M ← M + (1 − μ)(G − M);  W ← (1 − η λ) W − η √max(1, rows / columns) · orthogonalize(G + μ (M − G)).

    lr: η. weight_decay: λ. momentum: μ. The same update as `torch.optim.Muon`, but matrices of one shape are
    orthogonalized together, on a CPU in float32: bfloat16 is slow there and less accurate. Of sharded parameters each
    process orthogonalizes the whole matrix; the momentum stays sharded.

    Raise ValueError for a parameter that is not a matrix.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, *, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.dim() != 2:
                raise ValueError(f"Muon is for matrices, not for a parameter of shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            updates = []
            for p in params:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p.grad))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                updates.append(full_tensor(p.grad.lerp(buffer, group["momentum"])))
            for p, update in zip(params, orthogonalize(updates), strict=True):
                rows, columns = update.shape
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(shard_like(update, p), alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalize(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return approximately U Vᵀ for each matrix U S Vᵀ, in its dtype.

    Matrices of the same shape, up to transposition, are stacked and orthogonalized together.
    """
    results: list[Tensor] = list(matrices)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        shapes.setdefault(tuple(sorted(matrix.shape)), []).append(i)
    for indices in shapes.values():
        wide = [matrices[i] if matrices[i].shape[0] <= matrices[i].shape[1] else matrices[i].T for i in indices]
        X = torch.stack(wide)  # (n, rows, columns)
        if X.dtype != torch.float64:
            X = X.to(torch.bfloat16 if X.device.type == "cuda" else torch.float32)
        for i, Y in zip(indices, newton_schulz(X), strict=True):
            tall = matrices[i].shape[0] > matrices[i].shape[1]
            results[i] = (Y.T if tall else Y).to(matrices[i].dtype)
    return results


def newton_schulz(X: Tensor) -> Tensor:
    """Return X after `STEPS` iterations of X ← p(X Xᵀ) X with p(A) = a I + b A + c A².

    X: (n, rows, columns), rows ≤ columns.
    """
    X = X / X.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    return ops.newton_schulz(X, QUINTIC, STEPS)
