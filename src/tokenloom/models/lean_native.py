"""The lean step as one call of compiled code, in float32: `native/decode.cpp`, one processor core, rows of any lengths.

A step of a small model is then the reading of its weights. It is on wherever a compiler is found (see
`native/loader.py`); without one, or with TOKENLOOM_NATIVE=0, `lean_host` computes the same.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenloom.models.lean import Folded, FoldedMap
from tokenloom.native.loader import library
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.parts import ACTIVATIONS

PANEL = 16  # columns, as in decode.cpp
_ACTIVATIONS = {ACTIVATIONS[name]: i for i, name in enumerate(("relu", "relu2", "silu", "gelu-tanh", "gelu"))}
_SIZES = ("layers", "D", "H", "Hk", "Dh", "hidden", "vocab", "capacity", "centred", "head_norm", "activation")


class _Model(ctypes.Structure):
    """`Model` of decode.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_float) for name in ("eps", "head_eps")),
        *((name, ctypes.c_void_p) for name in ("table", "added", "cos", "sin", "weights")),
    ]


class NativeStep:
    """The step for rows of any lengths."""

    ragged = True

    def __init__(self, parts: Folded, run: ctypes.CDLL) -> None:
        H, Hk, Dh = parts.heads
        first = parts.layers[0]
        packed = []
        for layer in parts.layers:
            ones = parts.table.new_ones(H + Hk, Dh) if layer.head_scale is None else layer.head_scale
            maps = map(_packed, (layer.qkv, layer.out, layer.into, layer.back))
            packed += [ones.flatten(), *maps]
        weights = torch.cat([*packed, _packed(parts.readout)])
        cos, sin = (None, None) if parts.angles is None else (table.contiguous() for table in parts.angles)
        self._tensors = (parts.table.contiguous(), parts.added, cos, sin, weights)
        self._vocab, D = parts.table.shape
        sizes = (len(parts.layers), D, H, Hk, Dh, first.into.W.shape[1], self._vocab)
        kinds = (parts.norm.centred, first.head_norm is not None, _ACTIVATIONS[first.activation])
        epsilons = (parts.norm.eps, 0.0 if first.head_norm is None else first.head_norm.eps)
        places = [None if tensor is None else tensor.data_ptr() for tensor in self._tensors]
        self._model = _Model(*sizes, 0, *kinds, *epsilons, *places)
        self._run = run.decode
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4]

    @classmethod
    def of(cls, parts: Folded) -> NativeStep | None:
        """None for parts that are elsewhere or not in float32, that differ from layer to layer, and where there is no
        compiled code."""
        if parts.table.device.type != "cpu" or parts.table.dtype != torch.float32:
            return None
        first = parts.layers[0]
        alike = {(x.norm, x.head_norm, x.activation, x.into.W.shape) for x in parts.layers}
        if len(alike) > 1 or first.norm != parts.norm or first.activation not in _ACTIVATIONS:
            return None
        run = library("decode")
        return None if run is None else cls(parts, run)

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        ids = ids.contiguous()
        both, lengths = cache.both, cache.lengths
        logits = both.new_empty(len(ids), -(-self._vocab // PANEL) * PANEL)
        self._model.capacity = cache.capacity
        places = (ids.data_ptr(), lengths.data_ptr(), both.data_ptr(), logits.data_ptr())
        if self._run(ctypes.byref(self._model), len(ids), *places):
            raise IndexError(f"an id is outside 0 … {self._vocab - 1}")
        return logits[:, : self._vocab]


def _packed(map: FoldedMap) -> Tensor:
    """A map as decode.cpp reads it: panels of 16 columns, each (in, 16), then the bias; the rest are zeros."""
    wide = F.pad(map.W, (0, -map.W.shape[1] % PANEL))
    bias = wide.new_zeros(wide.shape[1])
    if map.b is not None:
        bias[: len(map.b)] = map.b
    return torch.cat((wide.view(len(wide), -1, PANEL).transpose(0, 1).flatten(), bias))
