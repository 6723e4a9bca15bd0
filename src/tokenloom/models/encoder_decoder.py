"""Transformer encoder–decoder: the source is encoded, and the target is predicted token by token, each layer of the
decoder attending to the encoder's output.

Vaswani et al. 2017, "Attention is all you need"; Bishop & Bishop, section 12.3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import embedding_init, head_init, initialize, transformer_init
from tokenloom.nn.masks import Causal, Mask, Padding
from tokenloom.nn.positions import make_positions
from tokenloom.nn.transformer import TransformerConfig, make_transformer


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """Sizes, and the parts by name.

    source_vocab_size, target_vocab_size: ids of each side; the decoder reads one more, target_vocab_size, which begins
    each target and is never predicted. source_context, target_context: tokens of each side at most. depth: L, of the
    encoder and of the decoder. shared_vocab: both sides have one vocabulary and one table of embeddings. positions: of
    self-attention; cross-attention has none. encoder_norm: whether the encoder ends with a norm.
    """

    source_vocab_size: int
    target_vocab_size: int
    source_context: int
    target_context: int
    shared_vocab: bool = False
    encoder_norm: bool = True

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "modern": {},
        "classic": {**TransformerConfig.presets["classic"], "encoder_norm": False},
    }

    def __post_init__(self) -> None:
        if self.shared_vocab and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            raise ValueError(f"a shared vocabulary needs the same size on both sides, not {sizes}")


class EncoderDecoder(nn.Module):
    """Source tokens → encoder; start and target tokens → causal decoder with cross-attention → linear head.

    Reads the streams "source" and "target"; the target begins with the id target_vocab_size. Predicts at each token of
    the target the next one.
    """

    # Attentions that are causal, for counting FLOPs (`planning/costs.py`).
    causal: ClassVar[tuple[str, ...]] = ("decoder.*.attention",)

    def __init__(self, config: EncoderDecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = nn.Embedding(c.target_vocab_size + 1 if c.shared_vocab else c.source_vocab_size, c.width)
        self.target_tokens = None if c.shared_vocab else nn.Embedding(c.target_vocab_size + 1, c.width)
        self.source_positions = make_positions(c.positions, width=c.width, heads=c.heads, limit=c.source_context)
        self.target_positions = make_positions(c.positions, width=c.width, heads=c.heads, limit=c.target_context)
        self.encoder = make_transformer(c, final_norm=c.encoder_norm)
        self.decoder = make_transformer(c, cross=True)
        self.lm_head = nn.Linear(c.width, c.target_vocab_size)
        table = [*embedding_init(0.1), *transformer_init(c.init), *head_init(c.init)]
        initialize(self, table, torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        return self.config.target_vocab_size

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, N, vocab) for the stream "target".

        Hooks: those of the stacks under `encoder.` and `decoder.`; the alignment of source and target is
        `decoder.layers.*.cross.pattern` (B, H, N, M).
        """
        memory, memory_mask = self.encode(batch["source"], hooks)
        target = batch["target"]
        mask: Mask = Causal() if target.real is None else Causal() & Padding(target.real)
        positions = target.positions_or_count(relative=self.target_positions.relative)
        X = self._embed(target, positions)  # (B, N) → (B, N, D)
        position_info = self.target_positions.position_info(positions, positions, X.dtype)
        inner = None if hooks is None else hooks.scope("decoder")
        X = self.decoder(X, mask=mask, position_info=position_info, memory=memory, memory_mask=memory_mask, hooks=inner)
        return record(hooks, "logits", self.lm_head(X))  # (B, N, D) → (B, N, vocab)

    def encode(self, source: Stream, hooks: Hooks | None = None) -> tuple[Tensor, Mask | None]:
        """Return the encoder's output (B, M, D) and its mask."""
        mask = None if source.real is None else Padding(source.real)
        positions = source.positions_or_count(relative=self.source_positions.relative)
        X = self.source_positions.add(self.tokens(source.tokens), positions)
        position_info = self.source_positions.position_info(positions, positions, X.dtype)
        memory: Tensor = self.encoder(
            X, mask=mask, position_info=position_info, hooks=None if hooks is None else hooks.scope("encoder")
        )
        return memory, mask

    def _embed(self, target: Stream, positions: Tensor) -> Tensor:
        table = self.tokens if self.target_tokens is None else self.target_tokens
        return self.target_positions.add(table(target.tokens), positions)

    def read(self, tokens: Tensor, state: TranslationState) -> Tensor:
        """Return logits (B, N, vocab) of a chunk (B, N); the caller advances the cache."""
        positions, key_positions, mask = state.cache.chunk(tokens.shape[1])
        X = self._embed(Stream(ids=tokens), positions)
        position_info = self.target_positions.position_info(positions, key_positions, X.dtype)
        memory_mask = None if state.real is None else Padding(state.real)
        X = self.decoder(
            X, mask=mask, position_info=position_info, memory=state.memory, memory_mask=memory_mask, cache=state.cache
        )
        logits: Tensor = self.lm_head(X)
        return logits

    def decoder_of(self, batch: Batch) -> Translator:
        """Return a `StepModel` for the sources of a batch."""
        return Translator(self, batch["source"])


class TranslationState:
    """The decoding state: the cache; the encoder's output (B, M, D), until the cache has its keys and values; and which
    of its tokens are real, (B, M)."""

    def __init__(self, cache: KeyValueCache, memory: Tensor | None, real: Tensor | None) -> None:
        self.cache, self.memory, self.real = cache, memory, real

    @property
    def lengths(self) -> Tensor:
        """Number of tokens that each row has been fed, (B,)."""
        return self.cache.lengths

    def select(self, rows: Tensor) -> TranslationState:
        """Return an independent state of the given rows, which may repeat."""
        memory, real = (None if one is None else one[rows] for one in (self.memory, self.real))
        return TranslationState(self.cache.select(rows), memory, real)

    def repeat(self, n: int) -> TranslationState:
        """Return an independent state with every row n times."""
        return repeat_rows(self, n)


class Translator:
    """An encoder–decoder as a `StepModel` for given sources, which are encoded once."""

    # A prediction sees all tokens of its row, of which there are at most `target_context`.
    context = None

    @torch.no_grad()
    def __init__(self, model: EncoderDecoder, source: Stream) -> None:
        self.model, self.vocab_size = model, model.vocab_size
        self.device = model.lm_head.weight.device
        self._memory, _ = model.encode(source.to(self.device))
        self._real = None if source.real is None else source.real.to(self.device)

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> TranslationState:
        """Return the state of rows that have read nothing. rows: the index of each row's source."""
        index = torch.tensor(range(batch) if rows is None else rows, dtype=torch.int64, device=self.device)
        c = self.model.config
        shape = (batch, c.heads, c.target_context, c.width // c.heads)
        cache = KeyValueCache(c.depth, shape, self._memory)
        return TranslationState(cache, self._memory[index], None if self._real is None else self._real[index])

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, TranslationState]:
        """Feed a chunk (B, N): see `StepModel`. Raises ValueError for more tokens than `target_context`."""
        if not isinstance(state, TranslationState):
            raise ValueError(f"a translator needs a state made by its own init_state(), not {type(state).__name__}")
        logits = self.model.read(tokens, state)
        state.cache.advance(tokens.shape[1], counts)
        after = TranslationState(state.cache, None, state.real)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), after
