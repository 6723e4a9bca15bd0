"""The transformer layer and the stack of layers.

Encoder, decoder and encoder–decoder differ by the mask and by whether a memory is given, not by class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache, LayerCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.masks import Mask
from tokenloom.nn.positions import PositionInfo


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention if there is one, and an MLP, each with a residual connection and a norm.

    Pre-norm:  x + f(norm(x)).  Post-norm:  norm(x + f(x)).  Bishop & Bishop, section 12.1.7; Xiong et al. 2020.

    attention, mlp, cross: the parts. norm: makes one norm; each sub-layer gets its own. dropout: on what each
    sub-layer adds.
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
        """X: (B, N, D) → (B, N, D). memory: (B, M, D'), with a mask of its own. cache: of itself and of the memory.

        A memory that the cache has read already may be left out. Raises ValueError when a layer with cross-attention
        has none at all; one without has no use for it.

        Taps: `resid_pre`, `attn_out`, `resid_mid`, (`cross_out`, and the taps of cross-attention within `cross`),
        `mlp_out`, `resid_post`, all (B, N, D), and those of attention.
        """
        own, other = (None, None) if cache is None else cache
        if hooks is not None:
            X = hooks.record("resid_pre", X)

        def attend(Z: Tensor) -> Tensor:
            Y: Tensor = self.attention(Z, mask=mask, position_info=position_info, cache=own, hooks=hooks)
            return Y

        X = self._add(X, attend, self.norm_attention, "attn_out", hooks)
        if self.cross is not None:
            if memory is None and not (other is not None and other.complete):
                raise ValueError("this layer has cross-attention, and was given no memory to look at")
            look, inner = self.cross, None if hooks is None else hooks.scope("cross")

            def consult(Z: Tensor) -> Tensor:
                Y: Tensor = look(Z, memory, mask=memory_mask, cache=other, hooks=inner)
                return Y

            assert self.norm_cross is not None
            X = self._add(X, consult, self.norm_cross, "cross_out", hooks)
        if hooks is not None:
            X = hooks.record("resid_mid", X)
        X = self._add(X, self.mlp, self.norm_mlp, "mlp_out", hooks)
        return X if hooks is None else hooks.record("resid_post", X)

    def _add(self, X: Tensor, f: Callable[[Tensor], Tensor], norm: nn.Module, name: str, hooks: Hooks | None) -> Tensor:
        """One sub-layer with its residual connection."""
        Y = f(norm(X)) if self.pre_norm else f(X)
        if hooks is not None:
            Y = hooks.record(name, Y)
        X = X + (self.dropout(Y) if self.training else Y)
        return X if self.pre_norm else norm(X)


class Transformer(nn.Module):
    """A stack of layers, and the norm after the last one (pre-norm stacks need it; None leaves it out)."""

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
        """X: (B, N, D) → (B, N, D). Arguments as for a layer; the taps of layer l have names `layers.l.…`.

        With a cache, `cache.chunk(N)` must have been asked for, and `cache.advance` must follow.
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
        return X if hooks is None else hooks.record("final", X)
