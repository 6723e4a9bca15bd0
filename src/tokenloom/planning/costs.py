"""What training a model costs, read off its modules: FLOPs, and bytes of memory per device.

There is one formula for each kind of module; a part of another kind is counted by its linear maps and parameters. The
memory of a plan is that of a GPT, which may be on the meta device (see `planned_model`), so that a model larger than
this machine's memory can be planned. Tests compare the formulas with torch's FLOP counter and with the tensors that
small trainings save; `estimate.py` measures a training that is about to begin.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast

import torch
from torch import nn

from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.modules import count_parameters
from tokenloom.nn.ops import BLOCK_ENTRIES
from tokenloom.nn.positions import Rotary
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.training.optimizers import hidden_matrices

Mode = Literal["one device", "ddp", "fsdp"]
Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["muon", "adamw"]

# Modules that multiply their input with a weight.
MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


def planned_model(config: GPTConfig) -> GPT:
    """Return a GPT on the meta device: its modules and shapes without memory for the weights."""
    with torch.device("meta"):
        return GPT(config)


# FLOPs


def flops_per_token(model: nn.Module, tokens: int) -> int:
    """Return training FLOPs per token: 6 × (weights of linear maps) + 12 × L × D × (keys seen per query).

    A weight costs 2 FLOPs forward and 4 backward. The two products of attention cost 2 × 2 × D per pair of tokens
    forward, three times that with backward. A query sees all `tokens` of a sequence, half of them where attention is
    causal, and W (1 − W / 2N) of N with a sliding window of W < N tokens. After Kaplan et al. 2020, section 2.1. Norms,
    activations and the optimizer are not counted.

    A model names its causal attention by patterns in `causal` (`decoder.*.attention`), and in `places` the maps that
    are not applied once per token, with how often they are applied per sample. A convolution costs 2 × outputs × kernel
    area × input channels forward: 2 per weight and position of the kernel; a transposed one, per input position.
    """
    places: Mapping[str, int] = getattr(model, "places", {})
    causal: Sequence[str] = getattr(model, "causal", ())
    window = getattr(getattr(model, "config", None), "sliding_window", None)
    per_token, per_sample, pairs = 0, 0, 0.0
    for name, part in model.named_modules():
        if isinstance(part, MAPS) and name in places:
            per_sample += part.weight.numel() * places[name]
        elif isinstance(part, MAPS):
            per_token += part.weight.numel()
        elif isinstance(part, nn.RNNBase):
            per_token += sum(p.numel() for weight, p in part.named_parameters() if weight.startswith("weight"))
        elif isinstance(part, MultiHeadAttention):
            seen = float(tokens)
            if any(fnmatchcase(name, pattern) for pattern in causal):
                seen = tokens / 2 if window is None or window >= tokens else window * (1 - window / (2 * tokens))
            pairs += part.heads * part.head_dim * seen
    return 6 * per_token + round(6 * per_sample / tokens) + round(12 * pairs)


@functools.lru_cache(maxsize=64)
def planned_flops_per_token(model: GPT, activation_checkpointing: bool = False) -> int:
    """Return the FLOPs per token of a GPT with its full context; its modules must not change afterwards.

    activation_checkpointing: adds the forward pass of the layers a second time (Chen et al. 2016).
    """
    flops = flops_per_token(model, model.config.context)
    return flops + ((flops - 6 * model.lm_head.weight.numel()) // 3 if activation_checkpointing else 0)


# Memory


@dataclass(frozen=True)
class Memory:
    """Bytes of a training on the device of a process.

    Not included: memory of the framework, temporary workspace, and AdamW's step counters (4 bytes per parameter
    tensor).
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Work:
    """One micro-batch on one device.

    samples: B. dtype: of the products; weights stay in float32 (torch's autocast). activation_checkpointing: each layer
    saves only its input, and is computed again in the backward pass. separate_documents: documents in a sample do not
    attend to each other.
    """

    samples: int
    dtype: Precision = "float32"
    activation_checkpointing: bool = False
    separate_documents: bool = False


def layer_activation_bytes(model: GPT, work: Work) -> int:
    """Return the bytes that one layer saves for its backward pass: those of its norms, attention and MLP per token.

    Derived for these layers in the manner of Korthikanti et al. 2022, section 4.1. A mask is saved too, for a sliding
    window once and for separate documents per sample, unless attention works in blocks (`nn/ops.py`).
    """
    N, H = model.config.context, model.config.heads
    layer = cast(TransformerLayer, model.transformer.layers[0])
    masks = work.samples if work.separate_documents else 1 if model.config.sliding_window is not None else 0
    entries = masks * N**2
    whole = work.samples * H * N**2 <= BLOCK_ENTRIES or entries <= BLOCK_ENTRIES
    mask = _itemsize(work) * entries if whole else 0
    return work.samples * N * _layer_bytes_per_token(layer, _itemsize(work)) + mask


@functools.lru_cache(maxsize=64)
def _layer_bytes_per_token(layer: TransformerLayer, h: int) -> int:
    """Bytes of a layer per token, with h bytes per number of the products: 4, or 2 under autocast."""
    attention, D = layer.attention, layer.attention.W_q.in_features
    total = _norm_bytes(layer.norm_attention, D) + _norm_bytes(layer.norm_mlp, D)
    # The normalized input of queries, keys and values; under autocast each of the three maps has a copy.
    total += (3 if h == 2 else 1) * h * D
    total += _attention_bytes(attention, h) + _mlp_bytes(layer.mlp, D, h)
    if layer.dropout.p > 0:
        total += 2 * h * D  # the scaled masks of both sub-layers
    return total


def _norm_bytes(norm: nn.Module | None, features: int, rows: int = 1) -> int:
    """A norm saves its input in float32; LayerNorm also two statistics per row."""
    if norm is None:
        return 0
    return 4 * features + (8 * rows if isinstance(norm, nn.LayerNorm) else 0)


def _attention_bytes(attention: MultiHeadAttention, h: int) -> int:
    """Queries, keys, values and result of fused attention, and a log-sum-exp per head. Scores are never saved, so no
    term is quadratic in N; a rotation saves nothing of its input. (Our kernel saves shared keys once: less.)"""
    H, Hk, Dh = attention.heads, attention.kv_heads, attention.head_dim
    return 4 * h * H * Dh + 4 * H + _norm_bytes(attention.norm_q, (H + Hk) * Dh, H + Hk)


def _mlp_bytes(mlp: nn.Module, width: int, h: int) -> int:
    """The inputs of the maps, and the inputs of activations and gates: with F hidden features, 2F, gated 4F."""
    maps = [part for part in mlp.modules() if isinstance(part, nn.Linear)]
    if not maps:
        return h * width
    *first, last = maps
    inputs = (len(first) if h == 2 else 1) * width
    # A gate's activation saves its result beside its input.
    return h * (inputs + last.in_features + sum(m.out_features for m in first) + sum(m.out_features for m in first[1:]))


def _itemsize(work: Work) -> int:
    return 2 if work.dtype == "bfloat16" else 4


def activation_bytes(model: GPT, work: Work) -> int:
    """Return the bytes saved for the backward pass of a micro-batch: those of the layers, the last norm, the head, the
    log-softmax, ids and targets. Under autocast also the copies of the matrices, 2 bytes per weight.

    With activation checkpointing: the input of each layer, and everything of the layer that is being recomputed.
    """
    h, (V, D) = _itemsize(work), model.lm_head.weight.shape
    depth, tokens = model.config.depth, work.samples * model.config.context
    outside = tokens * (_norm_bytes(model.transformer.norm, D) + h * D + 4 * V + 16)
    if isinstance(model.positions, Rotary):
        tables = tokens if work.separate_documents else model.config.context
        outside += 2 * 4 * model.positions.head_dim * tables
    layer = layer_activation_bytes(model, work)
    layers = depth * tokens * 4 * D + layer if work.activation_checkpointing else depth * layer
    copies = 0
    if h == 2:
        hidden, head = _sizes(model).hidden, V * D
        copies = 2 * (hidden // depth + head if work.activation_checkpointing else hidden + head)
    return outside + layers + copies


def workspace_bytes(model: GPT, work: Work) -> int:
    """Return the largest temporary need: the gradients of the log-softmax and of the logits, 8 V per token, at the
    start of the backward pass, when all activations are still there."""
    return 8 * work.samples * model.config.context * model.vocab_size


@dataclass(frozen=True)
class _Sizes:
    """Numbers of parameters: all, those of one layer, and those of the hidden matrices, which Muon updates."""

    parameters: int
    layer: int
    hidden: int


@functools.lru_cache(maxsize=64)
def _sizes(model: GPT) -> _Sizes:
    matrices = hidden_matrices(model)
    hidden = sum(p.numel() for name, p in model.named_parameters() if name in matrices)
    return _Sizes(count_parameters(model), count_parameters(model.transformer.layers[0]), hidden)


def memory(
    model: GPT, work: Work, *, optimizer: Optimizer = "muon", mode: Mode = "one device", devices: int = 1
) -> Memory:
    """Return the bytes on each device: weights and gradients in float32; AdamW's two numbers per parameter, Muon's one
    per number of a hidden matrix; and the activations of the device's own micro-batch.

    ddp: every device holds everything, and the batch is split. While gradients are averaged there is a second copy of
    them, when the activations have been freed: the larger of the two counts. fsdp: weights, gradients and optimizer
    state are sharded evenly (Rajbhandari et al. 2020, "ZeRO", stage 3). Beside its shard a device holds, whole, weights
    and gradients outside the layers, which are one unit; two layers of weights, the current and the next; and one layer
    of gradients.
    """
    sizes, depth = _sizes(model), model.config.depth
    total = sizes.parameters
    muon = sizes.hidden if optimizer == "muon" else 0
    state = 4 * muon + 8 * (total - muon)
    activations = activation_bytes(model, work)
    if mode == "one device" or devices == 1:
        return Memory(4 * total, 4 * total, state, activations)
    if mode == "ddp":
        return Memory(4 * total, 4 * total, state, max(activations, 4 * total))
    outside = total - depth * sizes.layer
    return Memory(
        weights=-(-4 * total // devices) + 4 * (outside + min(2, depth) * sizes.layer),
        gradients=-(-4 * total // devices) + 4 * (outside + sizes.layer),
        optimizer=-(-state // devices),
        activations=activations,
    )
