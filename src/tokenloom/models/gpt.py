"""GPT: a decoder-only transformer that predicts the next token.

Bishop & Bishop, section 12.3.1; Radford et al. 2019. The presets "classic" and "modern" differ only in their parts: see
`TransformerConfig.presets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.fused_decode import DecodeStep, fused_decode_step
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import embedding_init, head_init, initialize, transformer_init
from tokenloom.nn.masks import Causal, Mask, Padding, Segments, SlidingWindow
from tokenloom.nn.positions import make_positions
from tokenloom.nn.transformer import TransformerConfig, make_transformer

# A sliding-window cache reads a long chunk in pieces of this many tokens, or of its window if that is longer: the mask
# of a piece has its length times the keys it can see, that of the whole chunk its length squared.
PIECE = 256


@dataclass(frozen=True)
class GPTConfig(TransformerConfig):
    """Sizes, and the parts by name.

    vocab_size: ids. context: tokens that a prediction is trained to see. sliding_window: each token attends to this
    many tokens only (needs relative positions).
    """

    vocab_size: int
    context: int
    sliding_window: int | None = None


class GPT(nn.Module):
    """Token embedding + positions → causal transformer → linear head. Predicts token n+1 at token n."""

    # Attentions that are causal, for counting FLOPs (`planning/costs.py`).
    causal: ClassVar[tuple[str, ...]] = ("*",)

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.tokens = nn.Embedding(config.vocab_size, D)
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=config.context)
        if config.sliding_window is not None and not self.positions.relative:
            raise ValueError(
                f"a sliding window needs relative positions, and {config.positions['kind']!r} ones are not"
            )
        self.transformer = make_transformer(config)
        self.lm_head = nn.Linear(D, config.vocab_size)
        table = [*embedding_init(), *transformer_init(config.init), *head_init(config.init)]
        initialize(self, table, torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        return self.config.vocab_size

    @property
    def context(self) -> int | None:
        """Number of last tokens that a prediction sees; None with a sliding window, which each layer extends."""
        return None if self.config.sliding_window is not None else self.config.context

    def forward(self, batch: Batch, cache: KeyValueCache | None = None, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, N, vocab) for the stream "text".

        With a cache, the stream is the next chunk of every row, and the cache gives its positions. Raises ValueError
        for a chunk with padding, positions or segments of its own.
        """
        text = batch["text"]
        if cache is None:
            positions = key_positions = text.positions_or_count(relative=self.positions.relative)
            mask: Mask | None = self._mask(text)
        else:
            if not (text.real is None and text.positions is None and text.segments is None):
                raise ValueError("a chunk with a cache has neither padding nor positions nor segments of its own")
            positions, key_positions, mask = cache.chunk(text.shape[1])
        X = self.positions.add(self.tokens(text.tokens), positions)  # (B, N) → (B, N, D)
        X = record(hooks, "embed", X)
        position_info = self.positions.position_info(positions, key_positions, X.dtype)
        X = self.transformer(X, mask=mask, position_info=position_info, cache=cache, hooks=hooks)
        return record(hooks, "logits", self.lm_head(X))  # (B, N, D) → (B, N, vocab)

    def _mask(self, text: Stream) -> Mask:
        mask: Mask = Causal()
        if self.config.sliding_window is not None:
            mask = mask & SlidingWindow(self.config.sliding_window)
        if text.segments is not None:
            mask = mask & Segments(text.segments, text.segments)
        if text.real is not None:
            mask = mask & Padding(text.real)
        return mask

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> GPTState:
        """Return the state of rows that have read nothing."""
        c = self.config
        capacity = c.context if c.sliding_window is None else c.sliding_window
        shape = (batch, c.kv_heads or c.heads, capacity, c.width // c.heads)
        cache = KeyValueCache(c.depth, shape, self.tokens.weight.detach(), c.sliding_window)
        ids = cache.lengths.new_zeros(batch, 0 if c.sliding_window is not None else c.context)
        decode_step = None
        if c.sliding_window is None:
            decode_step = fused_decode_step(self.tokens, self.positions, self.transformer, self.lm_head, c.context)
        return GPTState(cache, ids, cache.lengths, decode_step)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, GPTState]:
        """Feed a chunk (B, N); return log-probabilities (B, N, vocab) of each next token, and the state (`StepModel`).

        Within the context every token is computed once. Past it, a model with a sliding window overwrites the oldest
        keys in its cache; any other reads its last `context` tokens again at each token, as the textbook does.

        Raises ValueError for a state of another model or one that has been fed already, and for tokens or counts that
        do not fit it.
        """
        own = _check_step(tokens, state, counts)
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
        """Cut a chunk into pieces that each fit into the cache, or into single tokens once it is full."""
        start = 0
        while start < N:
            length = max(PIECE, cache.capacity) if cache.free is None else max(1, cache.free)
            stop = min(N, start + length)
            yield start, stop
            start = stop

    def _read(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> Tensor:
        """Return logits (B, N, vocab) of a chunk that fits into the cache."""
        state.append_ids(tokens)
        if state.decode_step is not None and tokens.shape[1] == 1 and (state.cache.uniform or state.decode_step.ragged):
            logits = state.decode_step(tokens[:, 0], state.cache)[:, None]
        else:
            logits = self(Batch({"text": Stream(ids=tokens)}), cache=state.cache)
        state.cache.advance(tokens.shape[1], counts)
        return logits

    def _reread(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> Tensor:
        """Return logits (B, 1, vocab) of one more token (B, 1), by reading the last `context` tokens again."""
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

    def __init__(self, cache: KeyValueCache, ids: Tensor, lengths: Tensor, decode_step: DecodeStep | None) -> None:
        self.cache, self.ids = cache, ids
        self.lengths, self.decode_step = lengths, decode_step
        # Feeding changes the cache in place, so a state can be fed only once.
        self.consumed = False

    def append_ids(self, tokens: Tensor) -> None:
        """Write a chunk's ids (B, N) behind those of each row; a sliding window never reads them again."""
        if not self.ids.shape[1]:
            return
        first, N = self.cache.longest, tokens.shape[1]
        if self.cache.uniform:
            self.ids[:, first : first + N] = tokens
        else:
            self.ids.scatter_(1, self.cache.lengths[:, None] + torch.arange(N, device=tokens.device), tokens)

    def shift_ids(self, tokens: Tensor, counts: Tensor | None) -> Tensor:
        """Append one id (B, 1) to the rows where counts (B,) is 1, dropping the first id of a row that is full.

        Returns the number of ids of each row, (B,).
        """
        lengths, capacity = self.cache.lengths, self.ids.shape[1]
        wanted = lengths + (1 if counts is None else counts)
        dropped = (wanted - capacity).clamp(min=0)
        joined = torch.cat((self.ids, tokens), dim=1).scatter_(1, lengths[:, None], tokens)  # (B, context + 1)
        self.ids = joined.gather(1, dropped[:, None] + torch.arange(capacity, device=tokens.device))
        return wanted - dropped

    def select(self, rows: Tensor) -> GPTState:
        """Return an independent state of the given rows, which may repeat."""
        self.require_fresh()
        return GPTState(self.cache.select(rows), self.ids[rows], self.lengths[rows], self.decode_step)

    def repeat(self, n: int) -> GPTState:
        """Return an independent state with every row n times: a a b b for rows a b and n = 2."""
        return repeat_rows(self, n)

    def require_fresh(self) -> None:
        """Raise ValueError when this state has been fed already: its cache belongs to the state that was returned."""
        if self.consumed:
            raise ValueError(
                "this state has been fed already: continue with the new one, or `repeat` it before feeding"
            )


def _check_step(tokens: Tensor, state: State, counts: Tensor | None) -> GPTState:
    """Return the state. Raise ValueError where it, the tokens or the counts do not fit."""
    if not isinstance(state, GPTState):
        raise ValueError(f"a GPT needs a state made by its own init_state(), not {type(state).__name__}")
    state.require_fresh()
    rows = len(state.lengths)
    if tokens.dim() != 2 or len(tokens) != rows or not tokens.shape[1]:
        raise ValueError(f"a state of {rows} rows needs tokens ({rows}, N) with N ≥ 1, not {tuple(tokens.shape)}")
    N = tokens.shape[1]
    if counts is not None and (counts.shape != (rows,) or not bool(((counts >= 1) & (counts <= N)).all())):
        raise ValueError(f"counts must be {rows} numbers in 1 … {N}, not {counts.tolist()}")
    return state
