"""The lean step on a CPU without a compiler: NumPy for all that is small, torch for the products, in shared memory.

A call of NumPy on a few hundred numbers takes half a microsecond, one of torch two or three. Products are left to
torch, which keeps to the number of threads that it was given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tokenloom.models.fused_decode import Folded, FoldedLayer, FoldedMap, Norm
from tokenloom.nn.cache import KeyValueCache

Array = NDArray[Any]


def _squares(X: Array) -> Array:
    """Σ x² along the last dimension. Before version 2 NumPy had no `vecdot`, which is twice as fast."""
    sums: Array = np.vecdot(X, X) if hasattr(np, "vecdot") else np.einsum("...d,...d", X, X)
    return sums


class NumpyDecodeStep:
    """The step for rows of one length in float32 or float64. Not for two threads at once."""

    ragged = False

    def __init__(self, parts: Folded) -> None:
        self.parts = parts
        H, Hk, Dh = parts.heads
        self.table = parts.table.numpy()
        self.added = None if parts.added is None else parts.added.numpy()
        self.angles = None if parts.angles is None else tuple(table.numpy() for table in parts.angles)
        self.scales = [None if x.head_scale is None else x.head_scale.numpy() for x in parts.layers]
        # Feature j turns together with feature j + Dh/2 of its head.
        self.partners = np.roll(np.arange((H + Hk) * Dh).reshape(-1, Dh), Dh // 2, axis=1).ravel()
        self.places: dict[int, _Place] = {}

    @classmethod
    def of(cls, parts: Folded) -> NumpyDecodeStep | None:
        """None for parts on another device or in half precision."""
        fits = parts.table.device.type == "cpu" and parts.table.dtype in (torch.float32, torch.float64)
        return cls(parts) if fits else None

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        parts, n, B = self.parts, cache.longest, len(ids)
        place = self.places.get(B)
        if place is None:
            place = self.places[B] = _Place.of(parts, B)
        X = place.X
        np.take(self.table, ids.numpy(), axis=0, out=X)
        if self.added is not None:
            X += self.added[n]
        angles = None if self.angles is None else (self.angles[0][n], self.angles[1][n])
        kept = cache.both.numpy()
        seen = cache.both[..., : n + 1, :].flatten(0, 1).unbind(0)
        for number, layer in enumerate(parts.layers):
            _product(layer.qkv, place.norm(layer.norm), place.QKV_t)
            QK = place.QK
            if layer.qk_norm is not None:
                sizes = _squares(QK)
                sizes *= 1 / QK.shape[-1]
                sizes += layer.qk_norm.eps
                np.divide(QK, np.sqrt(sizes, out=sizes)[..., None], out=QK)
            if (scale := self.scales[number]) is not None:
                QK *= scale
            if angles is not None:
                np.take(place.flat, self.partners, axis=1, out=place.partner, mode="clip")
                turned = np.multiply(place.turned, angles[1], out=place.turned)
                QK *= angles[0]
                QK += turned
            kept[number, 0, :, :, n] = place.K
            kept[number, 1, :, :, n] = place.V
            Y = F.scaled_dot_product_attention(place.Q_t, seen[2 * number], seen[2 * number + 1])
            self._rest(layer, place, Y.reshape(B, -1))
        return parts.lm_head(place.norm(parts.norm))

    def _rest(self, layer: FoldedLayer, place: _Place, Y: Tensor) -> None:
        """From the mixed values to the end of the layer."""
        X = place.X_t.addmm_(Y, layer.out.W)
        if layer.out.b is not None:
            X += layer.out.b
        X.addmm_(layer.activation(layer.into(place.norm(layer.norm))), layer.back.W)
        if layer.back.b is not None:
            X += layer.back.b


def _product(map: FoldedMap, X: Tensor, out: Tensor) -> None:
    if map.b is None:
        torch.mm(X, map.W, out=out)
    else:
        torch.addmm(map.b, X, map.W, out=out)


@dataclass(frozen=True, slots=True)
class _Place:
    """Working memory for B rows; a name with _t is the same memory as a tensor.

    X, N (B, D): the residual stream, and its norm. QKV_t (B, (H + 2 Hk) Dh), of which flat (B, (H + Hk) Dh) and
    QK (B, H + Hk, Dh) are queries and keys, Q_t (B, Hk, H/Hk, Dh) the queries, K and V (B, Hk, Dh). partner is shaped
    as flat, turned as QK: each feature's partner.
    """

    X: Array
    X_t: Tensor
    N: Array
    N_t: Tensor
    QKV_t: Tensor
    flat: Array
    QK: Array
    Q_t: Tensor
    K: Array
    V: Array
    partner: Array
    turned: Array

    @classmethod
    def of(cls, parts: Folded, B: int) -> _Place:
        H, Hk, Dh = parts.heads
        X, N = parts.table.new_empty(2, B, parts.table.shape[1])
        QKV = parts.table.new_empty(B, (H + 2 * Hk) * Dh)
        heads = QKV.view(B, H + 2 * Hk, Dh)
        partner = parts.table.new_empty(B, (H + Hk) * Dh)
        return cls(
            X.numpy(),
            X,
            N.numpy(),
            N,
            QKV,
            QKV[:, : (H + Hk) * Dh].numpy(),
            heads[:, : H + Hk].numpy(),
            heads[:, :H].view(B, Hk, H // Hk, Dh),
            heads[:, H : H + Hk].numpy(),
            heads[:, H + Hk :].numpy(),
            partner.numpy(),
            partner.view(B, H + Hk, Dh).numpy(),
        )

    def norm(self, norm: Norm) -> Tensor:
        """X normalized, until the next call."""
        if norm.centerd:
            return norm(self.X_t)
        X = self.X
        if len(X) == 1:
            np.multiply(X, 1 / math.sqrt(X[0].dot(X[0]) / X.shape[1] + norm.eps), out=self.N)
        else:
            sizes = _squares(X)
            sizes *= 1 / X.shape[1]
            sizes += norm.eps
            np.divide(X, np.sqrt(sizes, out=sizes)[:, None], out=self.N)
        return self.N_t
