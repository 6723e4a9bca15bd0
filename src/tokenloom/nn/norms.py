"""Norms, and how a config names them. A new norm is a class here and an entry of `NORMS`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tokenloom.nn import ops
from tokenloom.nn.parts import find_part


class RMSNorm(nn.Module):
    """w ⊙ x / √(mean(x²) + ε), with ε = 1e-6, computed in float32 or wider. Zhang & Sennrich 2019.

    scale: whether w is learned; without it the norm has no parameters.
    """

    def __init__(self, width: int, *, scale: bool = True) -> None:
        super().__init__()
        self.eps = 1e-6
        self.weight = nn.Parameter(torch.ones(width)) if scale else None

    def forward(self, X: Tensor) -> Tensor:
        """Normalize along the last dimension: (…, width) → (…, width)."""
        wide = X.to(torch.promote_types(X.dtype, torch.float32))
        # Under autocast the scale is float32, and so is the result; a model in half precision stays in it.
        dtype = X.dtype if self.weight is None else torch.promote_types(X.dtype, self.weight.dtype)
        return ops.rms_norm(wide, self.weight, self.eps).to(dtype)


# Each makes a norm of a width. "rms-plain" has no parameters.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": RMSNorm,
    "rms-plain": lambda width: RMSNorm(width, scale=False),
}


def make_norm(kind: str, width: int) -> nn.Module:
    """Return the norm of that kind: "layer" (LayerNorm, Ba et al. 2016), "rms", "rms-plain" or "./file.py:Name".

    Raises ValueError for an unknown kind.
    """
    return find_part("norm", kind, NORMS)(width)
