"""The fused decode step as one call of compiled code, in float32: `decode.cpp`, on one core, rows of any lengths.

The step of a small model takes as long as reading its weights. `nn/ops.py` chooses between this and the step in torch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenloom.kernels.loader import library

PANEL = 16  # columns, as in decode.cpp
# By the names of `nn.mlp.ACTIVATIONS`, in the order of decode.cpp.
ACTIVATIONS = ("relu", "relu2", "silu", "gelu-tanh", "gelu")


@dataclass(frozen=True, slots=True)
class DecodeMap:
    """x W + b, with W (in, out)."""

    W: Tensor
    b: Tensor | None


@dataclass(frozen=True, slots=True)
class DecodeLayer:
    """The maps of a layer, with the scale and shift of the norm before each folded in.

    qk_scale: (H + Hk, Dh), of the norm of queries and keys.
    """

    qkv: DecodeMap
    qk_scale: Tensor | None
    out: DecodeMap
    mlp_in: DecodeMap
    mlp_out: DecodeMap


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """What one decode step of a GPT reads.

    embedding: (vocab, D). position_vectors: (context, D), added to embeddings. rotation: cosines and sines, (context,
    Dh) each. heads, kv_heads, head_dim: H, Hk, Dh. centered: LayerNorm instead of RMSNorm. eps: of the norms. qk_eps:
    of the norm of queries and keys (RMSNorm), None for none. activation: a name of `nn.mlp.ACTIVATIONS`.
    """

    embedding: Tensor
    position_vectors: Tensor | None
    rotation: tuple[Tensor, Tensor] | None
    heads: int
    kv_heads: int
    head_dim: int
    centered: bool
    eps: float
    qk_eps: float | None
    activation: str
    layers: list[DecodeLayer]
    lm_head: DecodeMap


_SIZES = ("layers", "D", "H", "Hk", "Dh", "hidden", "vocab_size", "capacity", "centered", "qk_norm", "activation")


class _Model(ctypes.Structure):
    """`Model` of decode.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_float) for name in ("eps", "qk_eps")),
        *((name, ctypes.c_void_p) for name in ("embedding", "position_vectors", "cos", "sin", "weights")),
    ]


class DecodeKernel:
    """The decode step for given weights, which are copied."""

    def __init__(self, weights: DecodeWeights, code: ctypes.CDLL) -> None:
        w = weights
        cos, sin = (None, None) if w.rotation is None else (table.contiguous() for table in w.rotation)
        # Held here as long as the code may read them.
        self._tensors = (w.embedding.contiguous(), w.position_vectors, cos, sin, _packed(w))
        self._vocab_size, D = w.embedding.shape
        hidden = w.layers[0].mlp_in.W.shape[1]
        sizes = (len(w.layers), D, w.heads, w.kv_heads, w.head_dim, hidden, self._vocab_size, 0)
        kinds = (w.centered, w.qk_eps is not None, ACTIVATIONS.index(w.activation))
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in self._tensors]
        self._model = _Model(*sizes, *kinds, w.eps, w.qk_eps or 0.0, *pointers)
        self._decode = code.decode
        self._decode.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 4]

    @classmethod
    def of(cls, weights: DecodeWeights) -> DecodeKernel | None:
        """Return the step, or None for weights that it does not serve and where there is no compiled code."""
        table = weights.embedding
        if table.device.type != "cpu" or table.dtype != torch.float32 or weights.activation not in ACTIVATIONS:
            return None
        code = library("decode")
        return None if code is None else cls(weights, code)

    def __call__(self, ids: Tensor, cache: Tensor, lengths: Tensor) -> Tensor:
        """Return logits (B, vocab) after ids (B,) at positions `lengths` (B,); writes keys and values into the cache.

        cache: (L, 2, B, Hk, capacity, Dh), contiguous. Raises IndexError for an id outside the vocabulary.
        """
        ids = ids.contiguous()
        logits = cache.new_empty(len(ids), -(-self._vocab_size // PANEL) * PANEL)
        self._model.capacity = cache.shape[4]
        pointers = (ids.data_ptr(), lengths.data_ptr(), cache.data_ptr(), logits.data_ptr())
        if self._decode(ctypes.byref(self._model), len(ids), *pointers):
            raise IndexError(f"an id is outside 0 … {self._vocab_size - 1}")
        return logits[:, : self._vocab_size]


def _packed(weights: DecodeWeights) -> Tensor:
    """All weights in the order in which decode.cpp reads them: of each layer the scales of queries and keys and four
    maps, then the head. A map is panels of 16 columns, each (in, 16), then the bias; zeros where there is no more."""
    pieces: list[Tensor | DecodeMap] = []
    for x in weights.layers:
        ones = weights.embedding.new_ones(weights.heads + weights.kv_heads, weights.head_dim)
        pieces += [ones if x.qk_scale is None else x.qk_scale, x.qkv, x.out, x.mlp_in, x.mlp_out]
    pieces.append(weights.lm_head)
    packed = weights.embedding.new_zeros(sum(map(_packed_size, pieces)))
    for piece, slot in zip(pieces, torch.split(packed, [_packed_size(piece) for piece in pieces]), strict=True):
        if isinstance(piece, Tensor):
            slot.copy_(piece.flatten())
            continue
        wide = F.pad(piece.W, (0, -piece.W.shape[1] % PANEL))
        # (in, panels · 16) → (panels, in, 16)
        slot[: wide.numel()].view(-1, len(wide), PANEL).copy_(wide.view(len(wide), -1, PANEL).transpose(0, 1))
        if piece.b is not None:
            slot[wide.numel() :][: len(piece.b)] = piece.b
    return packed


def _packed_size(piece: Tensor | DecodeMap) -> int:
    if isinstance(piece, Tensor):
        return piece.numel()
    return (piece.W.shape[0] + 1) * -(-piece.W.shape[1] // PANEL) * PANEL
