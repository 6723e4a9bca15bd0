"""The transformer layer and the stack of layers.

Encoder, decoder and encoder–decoder differ by the mask and by whether a memory (an encoder's output) is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache, LayerCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.masks import Mask
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
