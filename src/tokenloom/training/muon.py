"""Muon: momentum whose every step is an orthogonal matrix. Source: Jordan et al. 2024, "Muon"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.nn import ops
from tokenloom.training.distributed import like, whole

# The quintic's coefficients and the number of steps, of Jordan et al.: singular values end within about 0.7 … 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """M ← M + (1 − μ)(G − M);  W ← (1 − η λ) W − η √max(1, rows / columns) · orthogonalize(G + μ (M − G)).

    lr: η. weight_decay: λ. momentum: μ. The same update as `torch.optim.Muon`, but matrices of one shape are
    orthogonalized together, on a CPU in float32: bfloat16 is slow there, and its rounding grows from step to step. Of
    parameters in parts each process orthogonalizes the whole matrix; the momentum stays in parts.

    Raises ValueError for a parameter that is no matrix.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, *, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.dim() != 2:
                raise ValueError(f"Muon moves matrices, not a parameter of shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            updates = []
            for p in moved:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p.grad))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                updates.append(whole(p.grad.lerp(buffer, group["momentum"])))
            for p, direction in zip(moved, orthogonalized(updates), strict=True):
                rows, columns = direction.shape
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(like(direction, p), alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalized(matrices: Sequence[Tensor]) -> list[Tensor]:
    """For each matrix U S Vᵀ about U Vᵀ, in its own dtype; what is of one shape, or one transposed, goes together."""
    found: list[Tensor] = list(matrices)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, matrix in enumerate(matrices):
        shapes.setdefault(tuple(sorted(matrix.shape)), []).append(number)
    for numbers in shapes.values():
        wide = [matrices[n] if matrices[n].shape[0] <= matrices[n].shape[1] else matrices[n].T for n in numbers]
        X = torch.stack(wide)
        if X.dtype != torch.float64:
            X = X.to(torch.bfloat16 if X.device.type == "cuda" else torch.float32)
        for number, row in zip(numbers, newton_schulz(X), strict=True):
            tall = matrices[number].shape[0] > matrices[number].shape[1]
            found[number] = (row.T if tall else row).to(matrices[number].dtype)
    return found


def newton_schulz(X: Tensor) -> Tensor:
    """X ← p(X Xᵀ) X, with p(A) = a I + b A + c A², `STEPS` times. X: (n, rows, columns), rows ≤ columns."""
    X = X / X.norm(dim=(1, 2), keepdim=True).clamp(min=TINY)
    return ops.newton_schulz(X, QUINTIC, STEPS)
