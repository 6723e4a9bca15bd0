"""The lean step as one call of compiled code, in float32: `kernels/decode.cpp`, one processor core, rows of any lengths.

A step of a small model is then the reading of its weights. It is on wherever a compiler is found (see
`kernels/loader.py`); without one, or with TOKENLOOM_NATIVE=0, `lean_host` computes the same.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenloom.kernels.loader import library
from tokenloom.models.fused_decode import Folded, FoldedMap
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.mlp import ACTIVATIONS

PANEL = 16  # columns, as in decode.cpp
_ACTIVATIONS = {ACTIVATIONS[name]: i for i, name in enumerate(("relu", "relu2", "silu", "gelu-tanh", "gelu"))}
_SIZES = ("layers", "D", "H", "Hk", "Dh", "hidden", "vocab_size", "capacity", "centerd", "qk_norm", "activation")


class _Model(ctypes.Structure):
    """`Model` of decode.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_float) for name in ("eps", "head_eps")),
        *((name, ctypes.c_void_p) for name in ("table", "added", "cos", "sin", "weights")),
    ]


class KernelDecodeStep:
    """The step for rows of any lengths."""

    ragged = True

    def __init__(self, parts: Folded, run: ctypes.CDLL) -> None:
        H, Hk, Dh = parts.heads
        first = parts.layers[0]
        weights = _packed(parts)
        cos, sin = (None, None) if parts.angles is None else (table.contiguous() for table in parts.angles)
        self._tensors = (parts.table.contiguous(), parts.added, cos, sin, weights)
        self._vocab, D = parts.table.shape
        sizes = (len(parts.layers), D, H, Hk, Dh, first.into.W.shape[1], self._vocab)
        kinds = (parts.norm.centerd, first.qk_norm is not None, _ACTIVATIONS[first.activation])
        epsilons = (parts.norm.eps, 0.0 if first.qk_norm is None else first.qk_norm.eps)
        places = [None if tensor is None else tensor.data_ptr() for tensor in self._tensors]
        self._model = _Model(*sizes, 0, *kinds, *epsilons, *places)
        self._run = run.decode
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4]

    @classmethod
    def of(cls, parts: Folded) -> KernelDecodeStep | None:
        """None for parts that are elsewhere or not in float32, that differ from layer to layer, and where there is no
        compiled code."""
        if parts.table.device.type != "cpu" or parts.table.dtype != torch.float32:
            return None
        first = parts.layers[0]
        alike = {(x.norm, x.qk_norm, x.activation, x.into.W.shape) for x in parts.layers}
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


def _packed(parts: Folded) -> Tensor:
    """All weights as decode.cpp reads them, one after the other: of each layer the scales of its heads and four maps,
    then the head. A map is panels of 16 columns, each (in, 16), then the bias; zeros where there is no more."""
    H, Hk, Dh = parts.heads
    pieces: list[Tensor | FoldedMap] = []
    for x in parts.layers:
        ones = parts.table.new_ones(H + Hk, Dh) if x.head_scale is None else x.head_scale
        pieces += [ones, x.qkv, x.out, x.into, x.back]
    pieces.append(parts.lm_head)
    weights = parts.table.new_zeros(sum(map(_room, pieces)))
    for piece, slot in zip(pieces, torch.split(weights, [_room(piece) for piece in pieces]), strict=True):
        if isinstance(piece, Tensor):
            slot.copy_(piece.flatten())
            continue
        wide = F.pad(piece.W, (0, -piece.W.shape[1] % PANEL))
        slot[: wide.numel()].view(-1, len(wide), PANEL).copy_(wide.view(len(wide), -1, PANEL).transpose(0, 1))
        if piece.b is not None:
            slot[wide.numel() :][: len(piece.b)] = piece.b
    return weights


def _room(piece: Tensor | FoldedMap) -> int:
    """How many numbers a piece takes."""
    if isinstance(piece, Tensor):
        return piece.numel()
    return (piece.W.shape[0] + 1) * -(-piece.W.shape[1] // PANEL) * PANEL
