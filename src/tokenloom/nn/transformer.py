"""The transformer layer and the stack of layers.

Encoder, decoder and encoder–decoder differ by the mask and by whether a memory (an encoder's output) is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor, nn

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache, LayerCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.masks import Mask
from tokenloom.nn.mlp import make_mlp
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import PositionInfo


class TransformerLayer(nn.Module):
    """Self-attention, optional cross-attention and an MLP, each with a residual connection and a norm.

    Pre-norm:  x + f(norm(x)).  Post-norm:  norm(x + f(x)).  Bishop & Bishop, section 12.1.7; Xiong et al. 2020.

    attention, mlp, cross: the parts. norm: makes one norm; each sub-layer gets its own. dropout: on the output of each
    sub-layer.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        cross: MultiHeadAttention | None = None,
        pre_norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.norm_attention = norm()
        self.norm_cross = None if cross is None else norm()
        self.norm_mlp = norm()
        self.mlp = mlp
        self.pre_norm = pre_norm
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        X: Tensor,
        *,
        mask: Mask | None = None,
        position_info: PositionInfo | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: tuple[LayerCache, LayerCache] | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """X: (B, N, D) → (B, N, D). memory: (B, M, D'), with its mask. cache: of self-attention and of the memory.

        A layer without cross-attention ignores the memory; with it, the memory may be left out once the cache has its
        keys and values. Raises ValueError when cross-attention has neither.

        Hooks: `resid_pre`, `attn_out`, `resid_mid`, (`cross_out`, and those of cross-attention under `cross.`),
        `mlp_out`, `resid_post`, all (B, N, D), and those of attention and MLP.
        """
        own_cache, memory_cache = (None, None) if cache is None else cache

        def attend(Z: Tensor) -> Tensor:
            Y = self.attention(Z, mask=mask, position_info=position_info, cache=own_cache, hooks=hooks)
            return record(hooks, "attn_out", Y)

        def attend_memory(Z: Tensor) -> Tensor:
            assert self.cross is not None
            if memory is None and not (memory_cache is not None and memory_cache.complete):
                raise ValueError("a layer with cross-attention needs a memory")
            inner = None if hooks is None else hooks.scope("cross")
            return record(hooks, "cross_out", self.cross(Z, memory, mask=memory_mask, cache=memory_cache, hooks=inner))

        def feed_forward(Z: Tensor) -> Tensor:
            Y = self.mlp(Z) if hooks is None else self.mlp(Z, hooks=hooks)
            return record(hooks, "mlp_out", Y)

        X = record(hooks, "resid_pre", X)
        X = self._residual(X, attend, self.norm_attention)
        if self.norm_cross is not None:
            X = self._residual(X, attend_memory, self.norm_cross)
        X = record(hooks, "resid_mid", X)
        X = self._residual(X, feed_forward, self.norm_mlp)
        return record(hooks, "resid_post", X)

    def _residual(self, X: Tensor, f: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        """x + f(norm(x)), or norm(x + f(x)) in a post-norm layer."""
        Y = f(norm(X)) if self.pre_norm else f(X)
        if self.training:
            Y = self.dropout(Y)
        X = X + Y
        return X if self.pre_norm else norm(X)


class Transformer(nn.Module):
    """A stack of layers, and the norm after the last one, which pre-norm stacks need; None for no norm."""

    def __init__(self, layers: Sequence[TransformerLayer], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        X: Tensor,
        *,
        mask: Mask | None = None,
        position_info: PositionInfo | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        hooks: Hooks | None = None,
    ) -> Tensor:
        """X: (B, N, D) → (B, N, D). Arguments as for a layer; the hooks of layer l have the prefix `layers.l.`.

        With a cache, call `cache.chunk(N)` before and `cache.advance` after.
        """
        for number, layer in enumerate(self.layers):
            X = layer(
                X,
                mask=mask,
                position_info=position_info,
                memory=memory,
                memory_mask=memory_mask,
                cache=None if cache is None else (cache.layer(number), cache.memories[number]),
                hooks=None if hooks is None else hooks.scope(f"layers.{number}"),
            )
        if self.norm is not None:
            X = self.norm(X)
        return record(hooks, "final", X)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of a stack and its parts by name: what the configs of all transformer models have.

    width: D. depth: L. heads: H. kv_heads: H unless given. norm, mlp, positions: see `make_norm`, `make_mlp`,
    `make_positions`. qk_norm: norm of queries and keys, or None. bias: biases on the maps of attention. init: see
    `transformer_init`.
    """

    width: int
    depth: int
    heads: int
    kv_heads: int | None = None
    norm: str = "rms"
    mlp: dict[str, Any] = field(default_factory=lambda: {"kind": "plain", "activation": "relu2", "bias": False})
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "rotary"})
    qk_norm: str | None = "rms"
    bias: bool = False
    dropout: float = 0.0
    init: str = "modern"

    # What each preset changes of the defaults. Classic are the textbook's parts.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "modern": {},
        "classic": {
            "norm": "layer",
            "mlp": {"kind": "plain", "activation": "gelu", "bias": True},
            "positions": {"kind": "learned"},
            "qk_norm": None,
            "init": "classic",
        },
    }

    @classmethod
    def parts(
        cls,
        preset: str = "modern",
        *,
        norm: str | None = None,
        mlp: str | None = None,
        positions: str | None = None,
        qk_norm: str | None = None,
        activation: str | None = None,
    ) -> dict[str, Any]:
        """Return the config entries of a preset, with the given parts in place of its own.

        qk_norm: "none" for no norm. An MLP of another kind than the preset's has its own default activation and bias.
        """
        defaults = {f.name: f.default_factory() for f in fields(cls) if f.default_factory is not MISSING}
        entries = {**defaults, **cls.presets[preset]}
        if mlp is not None and mlp != entries["mlp"]["kind"]:
            entries["mlp"] = {"kind": mlp}
        if activation is not None:
            entries["mlp"] = {**entries["mlp"], "activation": activation}
        if positions is not None and positions != entries["positions"]["kind"]:
            entries["positions"] = {"kind": positions}
        if norm is not None:
            entries["norm"] = norm
        if qk_norm is not None:
            entries["qk_norm"] = None if qk_norm == "none" else qk_norm
        return entries

    def as_dict(self) -> dict[str, Any]:
        """Return the entries for config.json."""
        return asdict(self)


def make_transformer(config: TransformerConfig, *, cross: bool = False, final_norm: bool = True) -> Transformer:
    """Return the stack of a config. cross: with cross-attention. final_norm: with a norm after the last layer."""
    layers = [_make_layer(config, cross) for _ in range(config.depth)]
    return Transformer(layers, make_norm(config.norm, config.width) if final_norm else None)


def _make_layer(config: TransformerConfig, cross: bool) -> TransformerLayer:
    c = config

    def attention(kv_heads: int | None = None) -> MultiHeadAttention:
        qk_norm = None if c.qk_norm is None else functools.partial(make_norm, c.qk_norm)
        return MultiHeadAttention(c.width, c.heads, kv_heads=kv_heads, bias=c.bias, qk_norm=qk_norm)

    return TransformerLayer(
        attention(c.kv_heads),
        make_mlp(c.mlp, c.width),
        lambda: make_norm(c.norm, c.width),
        cross=attention() if cross else None,
        dropout=c.dropout,
    )
