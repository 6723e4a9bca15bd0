"""A causal transformer over the tokens of an image: it predicts a grid of tokens in raster order, given a class.

A token is a palette color or a VQ code. The embedding of each position includes where the next token lies and the
tokens above it. Sources: Chen et al. 2020, "Generative pretraining from pixels"; Bishop & Bishop, section 12.4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.cache import Chunk, KeyValueCache
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import embedding_init, head_init, initialize, normal, transformer_init
from tokenloom.nn.masks import Causal
from tokenloom.nn.positions import make_positions
from tokenloom.nn.transformer import TransformerConfig, make_transformer

# Tokens above the one that is predicted next, as (rows up, columns to the right).
ABOVE = ((1, -1), (1, 0), (1, 1))


@dataclass(frozen=True)
class ImageGPTConfig(TransformerConfig):
    """Sizes, and the parts by name. vocab_size: of the image tokenizer. rows, columns: of the grid of tokens. classes:
    their number, 0 for an unconditional model. positions: besides the rows and columns, which are always embedded."""

    vocab_size: int
    rows: int
    columns: int
    classes: int = 0
    positions: dict[str, Any] = field(default_factory=lambda: {"kind": "none"}, kw_only=True)

    @property
    def num_tokens(self) -> int:
        """Tokens per image."""
        return self.rows * self.columns

    @property
    def null_class(self) -> int:
        """The first id of an image without a class. Class c has the id vocab_size + c."""
        return self.vocab_size + self.classes


class ImageGPT(nn.Module):
    """Class or token + row and column of the next token + three tokens above it + class → causal transformer → lm_head.

    Stream "tokens": (B, N) ids, first that of the class, then the tokens before the one predicted.
    """

    # Attentions that are causal, for counting FLOPs (`planning/costs.py`).
    causal: ClassVar[tuple[str, ...]] = ("*",)

    def __init__(self, config: ImageGPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = nn.Embedding(c.null_class + 1, c.width)
        self.rows = nn.Embedding(c.rows, c.width)
        self.columns = nn.Embedding(c.columns, c.width)
        self.class_everywhere = nn.Embedding(c.classes + 1, c.width)
        # One more id, for a token outside the grid.
        self.above = nn.ModuleList([nn.Embedding(c.vocab_size + 1, c.width) for _ in ABOVE])
        self.positions = make_positions(c.positions, width=c.width, heads=c.heads, limit=c.num_tokens)
        self.transformer = make_transformer(c)
        self.lm_head = nn.Linear(c.width, c.vocab_size)
        own = [(f"{name}.weight", normal(0.5)) for name in ("rows", "columns", "class_everywhere", "above.*")]
        table = [*own, *embedding_init(), *transformer_init(c.init), *head_init(c.init)]
        initialize(self, table, torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        return self.config.vocab_size

    # Every image fits into the context.
    context = None

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, N, vocab). Each row holds one image, beginning with its class."""
        ids = batch["tokens"].tokens
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        return self._transform(self._embed(ids, ids, positions), Chunk(positions, positions, Causal()), None, hooks)

    def _transform(self, X: Tensor, chunk: Chunk, cache: KeyValueCache | None, hooks: Hooks | None) -> Tensor:
        X = record(hooks, "embed", X)
        position_info = self.positions.position_info(chunk.positions, chunk.key_positions, X.dtype)
        X = self.transformer(X, mask=chunk.mask, position_info=position_info, cache=cache, hooks=hooks)
        return record(hooks, "logits", self.lm_head(X))  # (B, N, D) → (B, N, vocab)

    def _embed(self, ids: Tensor, history: Tensor, positions: Tensor) -> Tensor:
        """Embed ids (B, N) at positions (B or 1, N). history: (B, M), all ids of each row, beginning with the class.

        The id at position p is the class or token p − 1, and token p is predicted there.
        """
        c = self.config
        rows, columns = positions // c.columns, positions % c.columns
        X: Tensor = self.tokens(ids) + self.rows(rows) + self.columns(columns)  # (B, N, D)
        # Add the class at every position.
        X = X + self.class_everywhere(history[:, :1] - c.vocab_size)
        for table, (up, right) in zip(self.above, ABOVE, strict=True):
            inside = (rows >= up) & (columns + right >= 0) & (columns + right < c.columns)
            # Token p − up · columns + right is one index further in `history`, behind the class.
            index = (positions - up * c.columns + right + 1).clamp(0, history.shape[1] - 1).expand(len(history), -1)
            X = X + table(torch.where(inside, history.gather(1, index), c.vocab_size))
        return self.positions.add(X, positions)

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> ImageState:
        """Return the state of rows that have read nothing, not even a class."""
        c = self.config
        like = self.lm_head.weight.detach()
        cache = KeyValueCache(c.depth, (batch, c.kv_heads or c.heads, c.num_tokens, c.width // c.heads), like)
        return ImageState(cache, cache.lengths.new_zeros(batch, c.num_tokens))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, ImageState]:
        """Feed a chunk (B, N); return log-probabilities (B, N, vocab) of the next tokens and the state (`StepModel`).

        Raise ValueError for a state of another model, and for more ids than an image has.
        """
        if not isinstance(state, ImageState):
            raise ValueError(f"an image GPT needs a state made by its own init_state(), not {type(state).__name__}")
        cache, history = state.cache, state.history
        chunk = cache.chunk(tokens.shape[1])
        if cache.uniform:
            history[:, cache.longest : cache.longest + tokens.shape[1]] = tokens
        else:
            # Padding of a chunk may extend past the end.
            history = history.scatter(1, chunk.positions.clamp(max=history.shape[1] - 1).expand_as(tokens), tokens)
        logits = self._transform(self._embed(tokens, history, chunk.positions), chunk, cache, None)
        cache.advance(tokens.shape[1], counts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), ImageState(cache, history)


class ImageState:
    """Decoding state: the cache, and the ids read (B, tokens); those past a row's length are undefined."""

    def __init__(self, cache: KeyValueCache, history: Tensor) -> None:
        self.cache, self.history = cache, history

    @property
    def lengths(self) -> Tensor:
        """Number of ids that each row has read, (B,)."""
        return self.cache.lengths

    def select(self, rows: Tensor) -> ImageState:
        """Return an independent state of the given rows, which may repeat."""
        return ImageState(self.cache.select(rows), self.history[rows])

    def repeat(self, n: int) -> ImageState:
        """Return an independent state with every row n times."""
        return repeat_rows(self, n)


class ClassifierFreeGuidance:
    """A `StepModel` that combines the predictions with and without the class, by a guidance scale g:

    log p ∝ log p(token | no class) + g (log p(token | class) − log p(token | no class)).

    g = 1 is the model itself. The model must have been trained with condition dropout. Source: Ho & Salimans 2022.
    """

    context = None

    def __init__(self, model: ImageGPT, scale: float) -> None:
        self.model, self.scale = model, scale
        self.vocab_size, self.device = model.vocab_size, model.lm_head.weight.device

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> GuidedState:
        """Return the state of rows that have read nothing."""
        return GuidedState(self.model.init_state(batch), self.model.init_state(batch))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, GuidedState]:
        """Feed a chunk; return log-probabilities and the state (`StepModel`)."""
        assert isinstance(state, GuidedState)
        null_class = self.model.config.null_class
        conditional, after = self.model.step(tokens, state.conditional, counts)
        free, free_after = self.model.step(
            tokens.masked_fill(tokens >= self.vocab_size, null_class), state.unconditional, counts
        )
        return torch.lerp(free, conditional, self.scale).log_softmax(-1), GuidedState(after, free_after)


class GuidedState:
    """The decoding states with and without the class."""

    def __init__(self, conditional: ImageState, unconditional: ImageState) -> None:
        self.conditional, self.unconditional = conditional, unconditional

    @property
    def lengths(self) -> Tensor:
        """Number of ids that each row has read, (B,)."""
        return self.conditional.lengths

    def select(self, rows: Tensor) -> GuidedState:
        """Return an independent state of the given rows, which may repeat."""
        return GuidedState(self.conditional.select(rows), self.unconditional.select(rows))

    def repeat(self, n: int) -> GuidedState:
        """Return an independent state with every row n times."""
        return repeat_rows(self, n)
