"""GPT: a decoder-only transformer that predicts the next token.

Bishop & Bishop, section 12.3.1; Radford et al. 2019. The chapter's style and the modern one differ in their parts
alone: see `classic_preset` and `modern_preset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.fused_decode import Step, fused_decode_step
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import (
    Table,
    constant,
    framework_linear,
    initialize,
    normal,
    normal_by_inputs,
)
from tokenloom.nn.masks import Causal, Mask, Padding, Segments, SlidingWindow
from tokenloom.nn.mlp import make_mlp
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import is_relative, make_positions
from tokenloom.nn.transformer import Transformer, TransformerLayer

# A ring reads a long chunk in pieces of so many tokens (or of its window, if that is more): each piece needs a mask
# of its own length times what it can see, and a whole chunk one of its length squared.
PIECE = 256


@dataclass(frozen=True)
class GPTConfig:
    """Sizes, and the parts by name.

    vocab: ids. context: tokens that a prediction is trained to see. width: D. depth: L. heads: H. kv_heads: H unless
    given. window: each token attends to so many tokens only (needs positions that are relative). positions, mlp,
    norm, head_norm: parts, as `nn` names them. start: "chapter" or "modern", the initialization table.
    """

    vocab_size: int
    context: int
    width: int
    depth: int
    heads: int
    kv_heads: int | None = None
    window: int | None = None
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "rotary"})
    mlp: dict[str, Any] = field(default_factory=lambda: {"kind": "plain", "activation": "relu2", "bias": False})
    norm: str = "rms"
    qk_norm: str | None = "rms"
    dropout: float = 0.0
    start: str = "modern"

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)


def classic_preset(vocab_size: int, context: int, width: int, depth: int, heads: int) -> GPTConfig:
    """Learned positions, LayerNorm, GELU; the draws of reference 3.4, digit for digit."""
    parts: dict[str, Any] = {
        "positions": {"kind": "learned"},
        "mlp": {"kind": "plain", "activation": "gelu", "bias": True},
    }
    return GPTConfig(vocab_size, context, width, depth, heads, **parts, norm="layer", qk_norm=None, start="chapter")


def modern_preset(vocab_size: int, context: int, width: int, depth: int, heads: int) -> GPTConfig:
    """Rotary positions, RMSNorm also on queries and keys, ReLU², output maps that start at zero."""
    return GPTConfig(vocab_size, context, width, depth, heads)


PRESETS = {"classic": classic_preset, "modern": modern_preset}


def backbone_init(config: GPTConfig) -> Table:
    """How each parameter of tokens, positions and layers starts. Rows that end in `?` serve parts that may be left
    out."""
    if config.start == "chapter":
        attention = normal_by_inputs()
        return [
            ("tokens.weight", normal(1.0)),
            ("positions.table*?", normal(0.02)),
            ("*.W_[qkvo].weight", attention),
            ("*norm*.weight?", constant(1.0)),
            ("*norm*.bias?", constant(0.0)),
            ("*.mlp.*", framework_linear),
        ]
    return [
        ("tokens.weight", normal(1.0)),
        ("positions.table*?", normal(0.02)),
        ("*.W_[qkv].weight", normal_by_inputs()),
        ("*.mlp.W_in.weight", normal_by_inputs()),
        ("*.mlp.W_gate.weight?", normal_by_inputs()),
        # Every sub-layer starts as the identity: its last map adds nothing yet.
        ("*.W_o.weight", constant(0.0)),
        ("*.mlp.W_out.weight", constant(0.0)),
        ("*norm*.weight?", constant(1.0)),
        ("*norm*.bias?", constant(0.0)),
        ("*.mlp.*.bias?", constant(0.0)),
    ]


def head_init(config: GPTConfig) -> Table:
    """How the linear map from features to logits starts."""
    if config.start == "chapter":
        return [("lm_head.*", framework_linear)]
    return [("lm_head.weight", normal_by_inputs(0.5)), ("lm_head.bias", constant(0.0))]


def make_layer(config: GPTConfig) -> TransformerLayer:
    """One layer of the stack."""
    qk_norm = config.qk_norm
    attention = MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        qk_norm=None if qk_norm is None else lambda width: make_norm(qk_norm, width),
    )
    mlp = make_mlp(config.mlp, config.width)
    return TransformerLayer(attention, mlp, lambda: make_norm(config.norm, config.width), dropout=config.dropout)


class GPT(nn.Module):
    """Token embedding + positions → causal transformer → linear head. Predicts token n+1 at token n."""

    # What causality halves the pairs of, for who counts operations (`planning/estimate.py`).
    causal: ClassVar[tuple[str, ...]] = ("*",)

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.tokens = nn.Embedding(config.vocab_size, D)
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=config.context)
        if config.window is not None and not is_relative(self.positions):
            raise ValueError(f"a window needs relative positions, and {config.positions['kind']!r} ones are not")
        self.transformer = Transformer([make_layer(config) for _ in range(config.depth)], make_norm(config.norm, D))
        self.lm_head = nn.Linear(D, config.vocab_size)
        initialize(self, [*backbone_init(config), *head_init(config)], torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """How many ids the model predicts over."""
        return self.config.vocab_size

    @property
    def context(self) -> int | None:
        """How many of the last tokens a prediction sees; a window mask lets each layer look one window further."""
        return None if self.config.window is not None else self.config.context

    def forward(self, batch: Batch, cache: KeyValueCache | None = None, hooks: Hooks | None = None) -> Tensor:
        """Logits (B, N, vocab) for the stream "text". With a cache, the stream is the next chunk of every row, which
        says by itself where its tokens stand: padding, positions and segments are then refused with ValueError.
        """
        text = batch["text"]
        if cache is None:
            positions = key_positions = text.positions_or_count(relative=is_relative(self.positions))
            mask: Mask | None = self._mask(text)
        else:
            if not (text.real is None and text.positions is None and text.segments is None):
                raise ValueError("a chunk with a cache has neither padding nor positions nor segments of its own")
            positions, key_positions, mask = cache.chunk(text.shape[1])
        X: Tensor = self.positions.add(self.tokens(text.tokens), positions)
        if hooks is not None:
            X = hooks.record("embed", X)
        position_info = self.positions.position_info(positions, key_positions, X.dtype)
        X = self.transformer(X, mask=mask, position_info=position_info, cache=cache, hooks=hooks)
        logits: Tensor = self.lm_head(X)
        return logits if hooks is None else hooks.record("logits", logits)

    def _mask(self, text: Stream) -> Mask:
        mask: Mask = Causal()
        if self.config.window is not None:
            mask = mask & SlidingWindow(self.config.window)
        if text.segments is not None:
            mask = mask & Segments(text.segments, text.segments)
        if text.real is not None:
            mask = mask & Padding(text.real)
        return mask

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> GPTState:
        """The state of rows that have read nothing."""
        c = self.config
        capacity = c.context if c.window is None else c.window
        shape = (batch, c.kv_heads or c.heads, capacity, c.width // c.heads)
        cache = KeyValueCache(c.depth, shape, self.tokens.weight.detach(), c.window)
        ids = cache.lengths.new_zeros(batch, 0 if c.window is not None else c.context)
        decode_step = None
        if c.window is None:
            decode_step = fused_decode_step(self.tokens, self.positions, self.transformer, self.lm_head, c.context)
        return GPTState(cache, ids, cache.lengths, decode_step)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, GPTState]:
        """Feed a chunk (B, N); log-probabilities (B, N, vocab) of each next token (see `StepModel`).

        Within the context every token is computed once. Past it, a model with a window mask goes on in its ring;
        any other reads its last `context` tokens anew at each token, which is the chapter's behavior.

        Raises ValueError for a state that another model made or that has been fed already, and for tokens or counts
        that do not fit it.
        """
        own = _checked(tokens, state, counts)
        own.consumed = True
        after = GPTState(
            own.cache, own.ids, own.lengths + (tokens.shape[1] if counts is None else counts), own.decode_step
        )
        logits = []
        for start, stop in self._pieces(tokens.shape[1], own.cache):
            new = None if counts is None else (counts - start).clamp(0, stop - start)
            read = self._reread if own.cache.free == 0 else self._read
            logits.append(read(tokens[:, start:stop], after, new))
        joined = logits[0] if len(logits) == 1 else torch.cat(logits, dim=1)
        return joined.to(torch.promote_types(joined.dtype, torch.float32)).log_softmax(-1), after

    def _pieces(self, N: int, cache: KeyValueCache) -> Iterator[tuple[int, int]]:
        """Cut a chunk into pieces, each no longer than the room that the cache then has, or one token."""
        start = 0
        while start < N:
            room = max(PIECE, cache.capacity) if cache.free is None else max(1, cache.free)
            stop = min(N, start + room)
            yield start, stop
            start = stop

    def _read(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> Tensor:
        """Logits (B, N, vocab) of a chunk for which the cache has room."""
        state.append_ids(tokens)
        if state.decode_step is not None and tokens.shape[1] == 1 and (state.cache.uniform or state.decode_step.ragged):
            logits = state.decode_step(tokens[:, 0], state.cache)[:, None]
        else:
            logits = self(Batch({"text": Stream(ids=tokens)}), cache=state.cache)
        state.cache.advance(tokens.shape[1], counts)
        return logits

    def _reread(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> Tensor:
        """Logits (B, 1, vocab) of one more token, by reading the last `context` tokens from the start."""
        lengths = state.shift_ids(tokens, counts)
        state.cache.reset()
        logits: Tensor = self(Batch({"text": Stream(ids=state.ids)}), cache=state.cache)
        state.cache.advance(state.ids.shape[1], lengths)
        return logits.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, self.vocab_size))


class GPTState:
    """The decoding state of a GPT.

    cache: keys and values. ids: (B, context), those of the tokens in the cache. lengths: (B,), tokens each row has been
    fed. decode_step: the fused step, with a copy of the weights made by `init_state`.
    """

    def __init__(self, cache: KeyValueCache, ids: Tensor, lengths: Tensor, decode_step: Step | None) -> None:
        self.cache, self.ids = cache, ids
        self.lengths, self.decode_step = lengths, decode_step
        # Feeding changes the cache in place, so that a state can be fed once.
        self.consumed = False

    def append_ids(self, tokens: Tensor) -> None:
        """Write a chunk's ids (B, N) behind those that each row has; a ring never needs them again."""
        if not self.ids.shape[1]:
            return
        first, N = self.cache.longest, tokens.shape[1]
        if self.cache.uniform:
            self.ids[:, first : first + N] = tokens
        else:
            self.ids.scatter_(1, self.cache.lengths[:, None] + torch.arange(N, device=tokens.device), tokens)

    def shift_ids(self, tokens: Tensor, counts: Tensor | None) -> Tensor:
        """Add one id to the rows that counts says, (B,) of 0 and 1, dropping the first of a row that is full.

        Returns how many ids each row then holds.
        """
        had, room = self.cache.lengths, self.ids.shape[1]
        wanted = had + (1 if counts is None else counts)
        dropped = (wanted - room).clamp(min=0)
        joined = torch.cat((self.ids, tokens), dim=1).scatter_(1, had[:, None], tokens)
        self.ids = joined.gather(1, dropped[:, None] + torch.arange(room, device=tokens.device))
        return wanted - dropped

    def select(self, rows: Tensor) -> GPTState:
        """An independent state of the given rows, which may repeat."""
        self.require_fresh()
        return GPTState(self.cache.select(rows), self.ids[rows], self.lengths[rows], self.decode_step)

    def repeat(self, n: int) -> GPTState:
        """An independent state in which every row stands n times."""
        return repeat_rows(self, n)

    def require_fresh(self) -> None:
        """Raises ValueError when this state has been fed, and so belongs to the state that came of it."""
        if self.consumed:
            raise ValueError("this state has been fed already: go on with the new one, or fork it before feeding")


def _checked(tokens: Tensor, state: State, counts: Tensor | None) -> GPTState:
    """The state, or ValueError where it or the tokens or the counts do not fit."""
    if not isinstance(state, GPTState):
        raise ValueError(f"a GPT wants a state made by its own init_state(), not {type(state).__name__}")
    state.require_fresh()
    rows = len(state.lengths)
    if tokens.dim() != 2 or len(tokens) != rows or not tokens.shape[1]:
        raise ValueError(f"a state of {rows} rows wants tokens ({rows}, N) with N ≥ 1, not {tuple(tokens.shape)}")
    N = tokens.shape[1]
    if counts is not None and (counts.shape != (rows,) or not bool(((counts >= 1) & (counts <= N)).all())):
        raise ValueError(f"counts must be {rows} numbers in 1 … {N}, not {counts.tolist()}")
    return state
