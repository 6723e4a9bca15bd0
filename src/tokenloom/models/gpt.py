"""GPT: a decoder-only transformer that predicts the next token.

Bishop & Bishop, section 12.3.1; Radford et al. 2019. The chapter's style and the modern one differ in their parts
alone: see `chapter_style` and `modern_style`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.initialise import (
    Table,
    constant,
    framework_linear,
    initialise,
    normal,
    normal_by_inputs,
)
from tokenloom.nn.masks import Causal, Mask, Padding, Segments, Window
from tokenloom.nn.parts import make_mlp, make_norm
from tokenloom.nn.positions import is_relative, make_positions
from tokenloom.nn.taps import Taps
from tokenloom.nn.transformer import Transformer, TransformerLayer


@dataclass(frozen=True)
class GPTConfig:
    """Sizes, and the parts by name.

    vocab: ids. context: tokens that a prediction is trained to see. width: D. depth: L. heads: H. kv_heads: H unless
    given. window: each token attends to so many tokens only (needs positions that are relative). positions, mlp,
    norm, head_norm: parts, as `nn` names them. start: "chapter" or "modern", the initialisation table.
    """

    vocab: int
    context: int
    width: int
    depth: int
    heads: int
    kv_heads: int | None = None
    window: int | None = None
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "rotary"})
    mlp: dict[str, Any] = field(default_factory=lambda: {"kind": "plain", "activation": "relu2", "bias": False})
    norm: str = "rms"
    head_norm: str | None = "rms"
    dropout: float = 0.0
    start: str = "modern"

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)


def chapter_style(vocab: int, context: int, width: int, depth: int, heads: int) -> GPTConfig:
    """Learned positions, LayerNorm, GELU; the draws of reference 3.4, digit for digit."""
    parts: dict[str, Any] = {
        "positions": {"kind": "learned"},
        "mlp": {"kind": "plain", "activation": "gelu", "bias": True},
    }
    return GPTConfig(vocab, context, width, depth, heads, **parts, norm="layer", head_norm=None, start="chapter")


def modern_style(vocab: int, context: int, width: int, depth: int, heads: int) -> GPTConfig:
    """Rotary positions, RMSNorm also on queries and keys, ReLU², output maps that start at zero."""
    return GPTConfig(vocab, context, width, depth, heads)


STYLES = {"chapter": chapter_style, "modern": modern_style}


def _table(config: GPTConfig) -> Table:
    """How each parameter starts. Rows that end in `?` serve parts that a config may leave out."""
    if config.start == "chapter":
        attention = normal_by_inputs()
        return [
            ("tokens.weight", normal(1.0)),
            ("positions.table*?", normal(0.02)),
            ("*.W_[qkvo].weight", attention),
            ("*norm*.weight?", constant(1.0)),
            ("*norm*.bias?", constant(0.0)),
            ("*.mlp.*", framework_linear),
            ("readout.*", framework_linear),
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
        ("readout.weight", normal_by_inputs(0.5)),
        ("readout.bias", constant(0.0)),
    ]


class GPT(nn.Module):
    """Token embedding + positions → causal transformer → linear readout. Predicts token n+1 at token n."""

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.tokens = nn.Embedding(config.vocab, D)
        self.positions = make_positions(config.positions, width=D, heads=config.heads, limit=config.context)
        if config.window is not None and not is_relative(self.positions):
            raise ValueError(f"a window needs relative positions, and {config.positions['kind']!r} ones are not")
        self.transformer = Transformer([self._layer() for _ in range(config.depth)], make_norm(config.norm, D))
        self.readout = nn.Linear(D, config.vocab)
        initialise(self, _table(config), torch.Generator().manual_seed(seed))

    def _layer(self) -> TransformerLayer:
        c = self.config
        head_norm = c.head_norm
        attention = MultiHeadAttention(
            c.width,
            c.heads,
            kv_heads=c.kv_heads,
            head_norm=None if head_norm is None else lambda width: make_norm(head_norm, width),
        )
        mlp = make_mlp(c.mlp, c.width)
        return TransformerLayer(attention, mlp, lambda: make_norm(c.norm, c.width), dropout=c.dropout)

    @property
    def vocab(self) -> int:
        """How many ids the model predicts over."""
        return self.config.vocab

    @property
    def context(self) -> int | None:
        """How many of the last tokens a prediction sees; a window mask lets each layer look one window further."""
        return None if self.config.window is not None else self.config.context

    def forward(self, batch: Batch, cache: KeyValueCache | None = None, taps: Taps | None = None) -> Tensor:
        """Logits (B, N, vocab) for the stream "text". With a cache, the stream is the next chunk of every row."""
        text = batch["text"]
        N = text.shape[1]
        if cache is None:
            positions = key_positions = text.positions_or_count()
            mask: Mask | None = self._mask(text)
        else:
            positions, key_positions, mask = cache.chunk(N)
        X: Tensor = self.positions.add(self.tokens(text.tokens), positions)
        if taps is not None:
            X = taps.see("embedded", X)
        placement = self.positions.placement(positions, key_positions)
        X = self.transformer(X, mask=mask, placement=placement, cache=cache, taps=taps)
        logits: Tensor = self.readout(X)
        return logits if taps is None else taps.see("logits", logits)

    def _mask(self, text: Stream) -> Mask:
        mask: Mask = Causal()
        if self.config.window is not None:
            mask = mask & Window(self.config.window)
        if text.segments is not None:
            mask = mask & Segments(text.segments, text.segments)
        if text.real is not None:
            mask = mask & Padding(text.real)
        return mask

    def start(self, batch: int) -> GPTState:
        """The state of rows that have read nothing."""
        c = self.config
        capacity = c.context if c.window is None else c.window
        shape = (batch, c.kv_heads or c.heads, capacity, c.width // c.heads)
        cache = KeyValueCache(c.depth, shape, self.tokens.weight.detach(), c.window)
        kept = torch.zeros(
            batch, 0 if c.window is not None else c.context, dtype=torch.int64, device=cache.lengths.device
        )
        return GPTState(cache, kept, cache.lengths)

    def step(self, tokens: Tensor, state: GPTState, counts: Tensor | None = None) -> tuple[Tensor, GPTState]:
        """Feed a chunk (B, N); log-probabilities (B, N, vocab) of each next token (see `StepModel`).

        Within the context every token is computed once. Past it, a model with a window mask goes on in its ring;
        any other reads its last `context` tokens anew at each token, which is the chapter's behaviour.
        """
        N = tokens.shape[1]
        if state.cache.room_for(N):
            return self._read(tokens, state, counts)
        results = []
        for n in range(N):
            here = None if counts is None else (counts > n).to(torch.int64)
            logits, state = self._reread(tokens[:, n : n + 1], state, here)
            results.append(logits)
        return torch.cat(results, dim=1), state

    def _read(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> tuple[Tensor, GPTState]:
        N = tokens.shape[1]
        logits = self(Batch({"text": Stream(ids=tokens)}), cache=state.cache)
        kept = state.kept
        if kept.shape[1]:
            place = state.cache.lengths[:, None] + torch.arange(N, device=kept.device)
            kept = kept.scatter(1, place, tokens)
        state.cache.advance(N, counts)
        fed = state.lengths + (N if counts is None else counts)
        return logits.float().log_softmax(-1) if logits.dtype != torch.float64 else logits.log_softmax(-1), GPTState(
            state.cache, kept, fed
        )

    def _reread(self, tokens: Tensor, state: GPTState, counts: Tensor | None) -> tuple[Tensor, GPTState]:
        """Feed one token to each row that `counts` says, by reading the last `context` tokens from the start."""
        if state.cache.room_for(1):
            return self._read(tokens, state, counts)
        C, had = self.config.context, state.cache.lengths
        new = torch.ones_like(had) if counts is None else counts
        first = (had + new - C).clamp(min=0)
        index = first[:, None] + torch.arange(C, device=tokens.device)
        extended = torch.cat((state.kept, tokens), dim=1)
        extended = extended.scatter(
            1, had[:, None], torch.where(new[:, None] > 0, tokens, extended.gather(1, had[:, None]))
        )
        window = extended.gather(1, index.clamp(max=C))
        lengths = had + new - first
        state.cache.reset()
        read, after = self._read(window, GPTState(state.cache, torch.zeros_like(state.kept), had * 0), lengths)
        last = read.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, read.shape[-1]))
        return last, GPTState(after.cache, after.kept, state.lengths + new)


class GPTState:
    """What a GPT keeps: the cache, the ids it holds (B, context), and how many tokens each row has been fed."""

    def __init__(self, cache: KeyValueCache, kept: Tensor, lengths: Tensor) -> None:
        self.cache, self.kept = cache, kept
        self.lengths = lengths

    def select(self, rows: Tensor) -> GPTState:
        """An independent state of the given rows, which may repeat."""
        return GPTState(self.cache.select(rows), self.kept[rows], self.lengths[rows])

    def fork(self, n: int) -> GPTState:
        """An independent state in which every row stands n times."""
        rows = torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(n)
        return self.select(rows)
