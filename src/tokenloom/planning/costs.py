"""What a model holds and does, from its sizes alone: parameters, FLOPs, and bytes of memory on a device.

Nothing is built, so that a model may be reckoned with that this machine could not hold. The formulas are those of this
project's own layers (`nn/`, `models/gpt.py`), and are tested against what small trainings really save; `estimate.py`
measures a training that is about to begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenloom.models.gpt import GPTConfig
from tokenloom.nn.ops import BLOCK_ENTRIES
from tokenloom.planning.estimate import Memory

Mode = Literal["one device", "ddp", "fsdp"]
Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["muon", "adamw"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a GPT from which everything follows.

    queries, keys: features of all query heads, and of all key–value heads. hidden: features inside an MLP, which has
    `matrices` maps. norm: numbers that a norm of one feature learns (RMSNorm 1, LayerNorm 2, "rms-plain" 0).
    """

    vocab_size: int
    context: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    hidden: int
    gated: bool
    mlp_bias: bool
    norm: str
    qk_norm: str | None
    positions: str
    window: int | None
    dropout: float

    @classmethod
    def of(cls, config: GPTConfig) -> Sizes:
        """The sizes that a config has."""
        gated = config.mlp["kind"] == "gated"
        hidden = config.mlp.get("hidden") or (-(-8 * config.width // 24) * 8 if gated else 4 * config.width)
        return cls(
            vocab_size=config.vocab_size,
            context=config.context,
            width=config.width,
            depth=config.depth,
            heads=config.heads,
            kv_heads=config.kv_heads or config.heads,
            hidden=int(hidden),
            gated=gated,
            mlp_bias=bool(config.mlp.get("bias", not gated)),
            norm=config.norm,
            qk_norm=config.qk_norm,
            positions=str(config.positions["kind"]),
            window=config.sliding_window,
            dropout=config.dropout,
        )

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    @property
    def keys(self) -> int:
        """Features of all key–value heads."""
        return self.kv_heads * self.head_dim


# Numbers that a norm learns for each of its features.
NORM_PARAMETERS = {"layer": 2, "rms": 1, "rms-plain": 0}


def layer_matrices(s: Sizes) -> int:
    """Numbers in the linear maps of one layer: queries and output 2 D², keys and values 2 D Hk Dh, and the MLP 2 D F
    (gated: 3 D F). With Hk = H and F = 4 D that is the 12 D² of Kaplan et al. 2020, table 1."""
    return 2 * s.width**2 + 2 * s.width * s.keys + (3 if s.gated else 2) * s.width * s.hidden


def layer_parameters(s: Sizes) -> int:
    """All numbers that one layer learns: its matrices, biases and norms."""
    norms = 2 * s.width * NORM_PARAMETERS[s.norm]
    if s.qk_norm is not None:
        norms += 2 * s.head_dim * NORM_PARAMETERS[s.qk_norm]
    biases = (s.hidden * (2 if s.gated else 1) + s.width) if s.mlp_bias else 0
    return layer_matrices(s) + norms + biases


def parameters(s: Sizes) -> int:
    """All numbers that the model learns: L layers, the last norm, the embedding V D, the head V D + V (they are not
    tied here), and N D for learned positions."""
    table = s.context * s.width if s.positions == "learned" else 0
    outside = 2 * s.vocab_size * s.width + s.vocab_size + s.width * NORM_PARAMETERS[s.norm]
    return s.depth * layer_parameters(s) + outside + table


def linear_numbers(s: Sizes) -> int:
    """Numbers in all linear maps, the head's among them: those that take part in products."""
    return s.depth * layer_matrices(s) + s.vocab_size * s.width


def flops_per_token(s: Sizes) -> int:
    """Floating-point operations to train one token: 6 × (numbers in linear maps) + 6 × L × D × N.

    Kaplan et al. 2020, section 2.1, with the head counted and the pairs that causality forbids left out. The same
    as `estimate.flops_per_token` says of a model that has been built. With a window of W tokens shorter than N, the
    pairs are those of W keys a query: 12 × L × D × W × (1 − W / 2N).
    """
    N, W = s.context, s.window
    seen = N / 2 if W is None or W >= N else W * (1 - W / (2 * N))
    return 6 * linear_numbers(s) + round(12 * s.depth * s.width * seen)


def recomputed_flops_per_token(s: Sizes) -> int:
    """What activation checkpointing adds: the forward third of the layers' work a second time (Chen et al. 2016)."""
    return (flops_per_token(s) - 6 * s.vocab_size * s.width) // 3


@dataclass(frozen=True)
class Work:
    """One micro-batch on one device.

    samples: B. precision: of the products; weights stay in float32 (torch's autocast). checkpointing: each layer keeps
    its input alone, and is computed again in the backward pass. borders: documents in a window are kept apart.
    """

    samples: int
    precision: Precision = "float32"
    activation_checkpointing: bool = False
    borders: bool = False


def layer_activation_bytes(s: Sizes, work: Work) -> int:
    """Bytes that one layer keeps for its backward pass, its input included: our own derivation, in the manner of
    Korthikanti et al. 2022, section 4.1, for these layers. All a token, with a = 4 bytes, in bfloat16 h = 2:

    - each of the two norms: its input aD, and with LayerNorm two statistics.
    - what the maps take: aD a norm. In bfloat16 each map has a copy of its own: hD for queries, keys, values, and for
      the one or (gated) two maps into the MLP.
    - norms on queries and keys: the same as above, of D + Hk Dh features, always in float32.
    - fused attention: queries, keys, values and result, 4 hD, and a log-sum a head, 4H. Scores are never kept, which is
      why there is no term N². A rotation keeps nothing of its input. (A native kernel keeps shared keys once: less.)
    - the MLP: before and after the activation, 2 hF; gated 4 hF. ReLU² and GELU alike keep their input.
    - dropout, where there is any: what it multiplied with, hD for each of the two sub-layers.
    - a window or borders: the mask, hN a query (a sample when there are borders, else once), up to the size at which
      attention goes through it in blocks and keeps none of it.
    """
    D, F, half = s.width, s.hidden, work.precision == "bfloat16"
    h = 2 if half else 4
    norms = 2 * _norm_bytes(s.norm, D)
    maps = (3 + (2 if s.gated else 1)) * h * D if half else 2 * h * D
    attention = 4 * h * D + 4 * s.heads
    if s.qk_norm is not None:
        norms += _norm_bytes(s.qk_norm, D + s.keys, s.heads + s.kv_heads)
    mlp = (4 if s.gated else 2) * h * F
    dropout = 2 * h * D if s.dropout > 0 else 0
    return work.samples * s.context * (norms + maps + attention + mlp + dropout) + _mask_bytes(s, work)


def _norm_bytes(kind: str, features: int, rows: int = 1) -> int:
    """What norms keep of a token: their input, and LayerNorm two statistics a row."""
    return 4 * features + rows * (8 if kind == "layer" else 0)


def _mask_bytes(s: Sizes, work: Work) -> int:
    rectangles = work.samples if work.borders else 1 if s.window is not None else 0
    entries = rectangles * s.context**2
    whole = work.samples * s.heads * s.context**2 <= BLOCK_ENTRIES or entries <= BLOCK_ENTRIES
    return (2 if work.precision == "bfloat16" else 4) * entries if whole else 0


def activation_bytes(s: Sizes, work: Work) -> int:
    """Bytes kept for the backward pass of a micro-batch: the layers', those of the last norm and the head, the
    log-softmax (4 V a token), ids and targets. In bfloat16 the products' copies of the matrices count too, 2 bytes a
    number.

    With checkpointing: each layer's input, and one layer whole, the one that is being computed again.
    """
    a, half = 4, work.precision == "bfloat16"
    D, V = s.width, s.vocab_size
    tokens = work.samples * s.context
    outside = tokens * (_norm_bytes(s.norm, D) + (2 if half else a) * D + a * V + 16)
    if s.positions == "rotary":
        outside += 2 * a * s.head_dim * (tokens if work.borders else s.context)
    one = layer_activation_bytes(s, work)
    layers = s.depth * tokens * a * D + one if work.activation_checkpointing else s.depth * one
    copies = 2 * linear_numbers(s) if half else 0
    if half and work.activation_checkpointing:
        copies = 2 * (layer_matrices(s) + V * D)
    return outside + layers + copies


def workspace_bytes(s: Sizes, work: Work) -> int:
    """The largest that is needed for a moment: the gradients of the log-softmax and of the logits, 8 V a token, at the
    start of the backward pass, when all activations are still there."""
    return 8 * work.samples * s.context * s.vocab_size


def memory(
    s: Sizes, work: Work, *, optimizer: Optimizer = "muon", mode: Mode = "one device", devices: int = 1
) -> Memory:
    """Bytes on each device: weights and gradients in float32, 4 each a number; AdamW keeps 8 a number, Muon 4 for each
    number in a hidden matrix; and the activations of the device's own micro-batch.

    ddp: every device holds everything, and splits the batch. While gradients are added up there is a second
    copy of them, in the place of the activations, which are gone by then: the larger of the two counts. fsdp:
    weights, gradients and optimizer are shared out evenly (Rajbhandari et al. 2020, "ZeRO", stage 3). Beside its share
    a device holds, whole, the weights and gradients that stand outside the layers, which are one unit; two layers of
    weights, the one at work and the next; and one layer of gradients.
    """
    total = parameters(s)
    hidden = s.depth * layer_matrices(s) if optimizer == "muon" else 0
    state = 4 * hidden + 8 * (total - hidden)
    activations = activation_bytes(s, work)
    if mode == "one device" or devices == 1:
        return Memory(4 * total, 4 * total, state, activations)
    if mode == "ddp":
        return Memory(4 * total, 4 * total, state, max(activations, 4 * total))
    layer = layer_parameters(s)
    outside = total - s.depth * layer
    return Memory(
        weights=-(-4 * total // devices) + 4 * (outside + min(2, s.depth) * layer),
        gradients=-(-4 * total // devices) + 4 * (outside + layer),
        optimizer=-(-state // devices),
        activations=activations,
    )
