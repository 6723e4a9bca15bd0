"""The transformer encoder–decoder: a source is read as a whole, and a target is predicted token by token, each layer of
the decoder looking at the encoder's output.

Vaswani et al. 2017, "Attention is all you need"; Bishop & Bishop, section 12.3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import Table, constant, framework_linear, initialize, normal, normal_by_inputs
from tokenloom.nn.masks import Causal, Mask, Padding
from tokenloom.nn.mlp import make_mlp
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import is_relative, make_positions
from tokenloom.nn.transformer import Transformer, TransformerLayer


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Sizes, and the parts by name.

    source_vocab, target_vocab: ids of each side; the decoder is fed one more, `start`, which is never predicted.
    source_limit, target_limit: tokens of each side at most. width: D. depth: L, of the encoder and of the decoder.
    heads: H. shared: both sides have one vocabulary and one table of embeddings. positions: of self-attention;
    cross-attention has none. memory_norm: whether the encoder ends with a norm. start: the initialization table.
    """

    source_vocab: int
    target_vocab: int
    source_limit: int
    target_limit: int
    width: int
    depth: int
    heads: int
    shared: bool = False
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "rotary"})
    mlp: dict[str, Any] = field(default_factory=lambda: {"kind": "plain", "activation": "relu2", "bias": False})
    norm: str = "rms"
    qk_norm: str | None = "rms"
    memory_norm: bool = True
    dropout: float = 0.0
    start: str = "modern"

    def __post_init__(self) -> None:
        if self.shared and self.source_vocab != self.target_vocab:
            raise ValueError(f"a shared vocabulary of {self.source_vocab} and of {self.target_vocab} ids at once")

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)


# What a style changes of the config above: see `PRESETS` of `models/gpt.py`. The chapter's draws are those of
# reference 3.14, digit for digit.
PRESETS: dict[str, dict[str, Any]] = {
    "modern": {},
    "classic": {
        "positions": {"kind": "learned"},
        "mlp": {"kind": "plain", "activation": "gelu", "bias": True},
        "norm": "layer",
        "qk_norm": None,
        "memory_norm": False,
        "start": "chapter",
    },
}


def _table(config: EncoderDecoderConfig) -> Table:
    """How each parameter starts. Rows that end in `?` serve parts that a config may leave out."""
    common: Table = [
        ("*tokens.weight", normal(1.0)),
        ("*positions.table?", normal(0.1)),
        ("*norm*.weight?", constant(1.0)),
        ("*norm*.bias?", constant(0.0)),
    ]
    if config.start == "chapter":
        rest: Table = [
            ("*.W_[qkvo].weight", normal_by_inputs()),
            ("*.mlp.*", framework_linear),
            ("lm_head.*", framework_linear),
        ]
        return [*common, *rest]
    rest = [
        ("*.W_[qkv].weight", normal_by_inputs()),
        ("*.mlp.W_in.weight", normal_by_inputs()),
        ("*.mlp.W_gate.weight?", normal_by_inputs()),
        # Every sub-layer starts as the identity: its last map adds nothing yet.
        ("*.W_o.weight", constant(0.0)),
        ("*.mlp.W_out.weight", constant(0.0)),
        ("*.mlp.*.bias?", constant(0.0)),
        ("lm_head.weight", normal_by_inputs(0.5)),
        ("lm_head.bias", constant(0.0)),
    ]
    return [*common, *rest]


class EncoderDecoder(nn.Module):
    """Source tokens → encoder; start and target tokens → causal decoder that looks at it → linear head.

    Reads the streams "source" and "target"; the target's begins with the id `start` = target_vocab. Predicts at each
    token of the target the next one.
    """

    # What causality halves the pairs of, for who counts operations (`planning/estimate.py`).
    causal: ClassVar[tuple[str, ...]] = ("decoder.*.attention",)

    def __init__(self, config: EncoderDecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = nn.Embedding(c.target_vocab + 1 if c.shared else c.source_vocab, c.width)
        self.target_tokens = None if c.shared else nn.Embedding(c.target_vocab + 1, c.width)
        sizes = {"width": c.width, "heads": c.heads}
        self.source_positions = make_positions(c.positions, limit=c.source_limit, **sizes)
        self.target_positions = make_positions(c.positions, limit=c.target_limit, **sizes)
        end = make_norm(c.norm, c.width) if c.memory_norm else None
        self.encoder = Transformer([self._layer(cross=False) for _ in range(c.depth)], end)
        self.decoder = Transformer([self._layer(cross=True) for _ in range(c.depth)], make_norm(c.norm, c.width))
        self.lm_head = nn.Linear(c.width, c.target_vocab)
        initialize(self, _table(c), torch.Generator().manual_seed(seed))

    def _layer(self, *, cross: bool) -> TransformerLayer:
        c = self.config
        qk_norm = c.qk_norm

        def attention() -> MultiHeadAttention:
            norm = None if qk_norm is None else lambda width: make_norm(qk_norm, width)
            return MultiHeadAttention(c.width, c.heads, qk_norm=norm)

        return TransformerLayer(
            attention(),
            make_mlp(c.mlp, c.width),
            lambda: make_norm(c.norm, c.width),
            cross=attention() if cross else None,
            dropout=c.dropout,
        )

    @property
    def vocab_size(self) -> int:
        """How many ids the model predicts over."""
        return self.config.target_vocab

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Logits (B, N, vocab) for the stream "target". Taps: of the stacks, under `encoder.` and `decoder.`; the
        alignment is `decoder.layers.*.cross.pattern` (B, H, N, M)."""
        memory, memory_mask = self.encode(batch["source"], hooks)
        target = batch["target"]
        mask: Mask = Causal() if target.real is None else Causal() & Padding(target.real)
        positions = target.positions_or_count(relative=is_relative(self.target_positions))
        X = self._embedded(target, positions)
        position_info = self.target_positions.position_info(positions, positions, X.dtype)
        inner = None if hooks is None else hooks.scope("decoder")
        X = self.decoder(X, mask=mask, position_info=position_info, memory=memory, memory_mask=memory_mask, hooks=inner)
        logits: Tensor = self.lm_head(X)
        return logits if hooks is None else hooks.record("logits", logits)

    def encode(self, source: Stream, hooks: Hooks | None = None) -> tuple[Tensor, Mask | None]:
        """What the decoder looks at, (B, M, D), and which of it is real."""
        mask = None if source.real is None else Padding(source.real)
        positions = source.positions_or_count(relative=is_relative(self.source_positions))
        X = self.source_positions.add(self.tokens(source.tokens), positions)
        position_info = self.source_positions.position_info(positions, positions, X.dtype)
        memory: Tensor = self.encoder(
            X, mask=mask, position_info=position_info, hooks=None if hooks is None else hooks.scope("encoder")
        )
        return memory, mask

    def _embedded(self, target: Stream, positions: Tensor) -> Tensor:
        table = self.tokens if self.target_tokens is None else self.target_tokens
        return self.target_positions.add(table(target.tokens), positions)

    def read(self, tokens: Tensor, state: TranslationState) -> Tensor:
        """Logits (B, N, vocab) of a chunk (B, N) of every row, whose cache then needs to be advanced."""
        positions, key_positions, mask = state.cache.chunk(tokens.shape[1])
        X = self._embedded(Stream(ids=tokens), positions)
        position_info = self.target_positions.position_info(positions, key_positions, X.dtype)
        memory_mask = None if state.real is None else Padding(state.real)
        X = self.decoder(
            X, mask=mask, position_info=position_info, memory=state.memory, memory_mask=memory_mask, cache=state.cache
        )
        logits: Tensor = self.lm_head(X)
        return logits

    def decoder_of(self, batch: Batch) -> Translator:
        """The model as something that is fed step by step, for the sources of a batch."""
        return Translator(self, batch["source"])


class TranslationState:
    """What a decoder keeps of each row: the cache of its tokens; what it looks at, (B, M, D), until the cache has read
    it; and which of that is real, (B, M)."""

    def __init__(self, cache: KeyValueCache, memory: Tensor | None, real: Tensor | None) -> None:
        self.cache, self.memory, self.real = cache, memory, real

    @property
    def lengths(self) -> Tensor:
        """(B,): how many tokens each row has been fed."""
        return self.cache.lengths

    def select(self, rows: Tensor) -> TranslationState:
        """An independent state of the given rows, which may repeat."""
        memory, real = (None if one is None else one[rows] for one in (self.memory, self.real))
        return TranslationState(self.cache.select(rows), memory, real)

    def repeat(self, n: int) -> TranslationState:
        """An independent state in which every row stands n times."""
        return repeat_rows(self, n)


class Translator:
    """An encoder–decoder as a `StepModel` for some sources, which are read once."""

    # Every token so far can matter, and a row has no more of them than the model's limit.
    context = None

    @torch.no_grad()
    def __init__(self, model: EncoderDecoder, source: Stream) -> None:
        self.model, self.vocab_size = model, model.vocab_size
        self.device = model.lm_head.weight.device
        self._memory, _ = model.encode(source.to(self.device))
        self._real = None if source.real is None else source.real.to(self.device)

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> TranslationState:
        """The state of rows that have read nothing; `rows` says which source each is about."""
        index = torch.tensor(range(batch) if rows is None else rows, dtype=torch.int64, device=self.device)
        c = self.model.config
        shape = (batch, c.heads, c.target_limit, c.width // c.heads)
        cache = KeyValueCache(c.depth, shape, self._memory)
        return TranslationState(cache, self._memory[index], None if self._real is None else self._real[index])

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, TranslationState]:
        """Feed a chunk (B, N): see `StepModel`. Raises ValueError for more tokens than the model's limit."""
        if not isinstance(state, TranslationState):
            raise ValueError(f"a translator wants a state made by its own init_state(), not {type(state).__name__}")
        logits = self.model.read(tokens, state)
        state.cache.advance(tokens.shape[1], counts)
        after = TranslationState(state.cache, None, state.real)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), after
