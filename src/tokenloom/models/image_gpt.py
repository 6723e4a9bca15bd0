"""A decoder that paints: it predicts the cells of a grid one after the other, row by row, from the class onwards.

A cell is a palette color or a code. Chen et al. 2020, "Generative pretraining from pixels"; Bishop & Bishop, section
12.4.2. What is special to pictures stands in the embedding: where the next cell lies, and what lies above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.models.gpt import GPTConfig, backbone_init, head_init, make_layer
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import initialize, normal
from tokenloom.nn.masks import Causal, Mask
from tokenloom.nn.norms import make_norm
from tokenloom.nn.transformer import Transformer

# Cells above the one that is predicted next, as (rows up, columns to the right).
ABOVE = ((1, -1), (1, 0), (1, 1))


@dataclass(frozen=True)
class ImageGPTConfig:
    """Sizes. vocab: different cells. rows, columns: of the grid. classes: that can be asked for, beside none. width: D.
    depth: L. heads: H."""

    vocab_size: int
    rows: int
    columns: int
    classes: int = 0
    width: int = 64
    depth: int = 4
    heads: int = 4
    dropout: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)

    @property
    def cells(self) -> int:
        """Cells of a picture."""
        return self.rows * self.columns

    @property
    def nothing(self) -> int:
        """The id with which a picture of no stated class begins; class c has the id vocab + c."""
        return self.vocab_size + self.classes


class ImageGPT(nn.Module):
    """Class or cell + row and column of the next cell + the three cells above it → causal transformer → head.

    Reads the stream "cells": (B, N) ids, first that of the class, then those of the cells before the one predicted.
    """

    # What causality halves the pairs of, for who counts operations (`planning/estimate.py`).
    causal: ClassVar[tuple[str, ...]] = ("*",)

    def __init__(self, config: ImageGPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        gpt = GPTConfig(c.vocab_size, c.cells, c.width, c.depth, c.heads, positions={"kind": "none"}, dropout=c.dropout)
        self.tokens = nn.Embedding(c.nothing + 1, c.width)
        self.rows = nn.Embedding(c.rows, c.width)
        self.columns = nn.Embedding(c.columns, c.width)
        self.class_everywhere = nn.Embedding(c.classes + 1, c.width)
        # One more id: there is no such cell.
        self.above = nn.ModuleList([nn.Embedding(c.vocab_size + 1, c.width) for _ in ABOVE])
        self.transformer = Transformer([make_layer(gpt) for _ in range(c.depth)], make_norm(gpt.norm, c.width))
        self.lm_head = nn.Linear(c.width, c.vocab_size)
        own = [(f"{name}.weight", normal(0.5)) for name in ("rows", "columns", "class_everywhere", "above.*")]
        table = [*own, *(row for row in backbone_init(gpt) if not row[0].startswith("positions")), *head_init(gpt)]
        initialize(self, table, torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """How many ids the model predicts over."""
        return self.config.vocab_size

    # A picture ends before anything could be out of reach.
    context = None

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Logits (B, N, vocab). A picture stands alone in its row, from its class on."""
        cells = batch["cells"]
        places = torch.arange(cells.shape[1], device=cells.tokens.device)[None]
        return self._read(self._embedded(cells.tokens, cells.tokens, places), Causal(), None, hooks)

    def _read(self, X: Tensor, mask: Mask | None, cache: KeyValueCache | None, hooks: Hooks | None) -> Tensor:
        X = X if hooks is None else hooks.record("embed", X)
        X = self.transformer(X, mask=mask, cache=cache, hooks=hooks)
        logits: Tensor = self.lm_head(X)
        return logits if hooks is None else hooks.record("logits", logits)

    def _embedded(self, tokens: Tensor, known: Tensor, places: Tensor) -> Tensor:
        """tokens: (B, N) at places (B or 1, N) of a row; known: (B, M) all ids of the row so far, from its class on.

        The token at place p is the class or cell p − 1, and cell p is predicted there.
        """
        c = self.config
        rows, columns = places // c.columns, places % c.columns
        X: Tensor = self.tokens(tokens) + self.rows(rows) + self.columns(columns)
        # The class, so that it is nowhere far away.
        X = X + self.class_everywhere(known[:, :1] - c.vocab_size)
        for table, (up, right) in zip(self.above, ABOVE, strict=True):
            there = (rows >= up) & (columns + right >= 0) & (columns + right < c.columns)
            # Cell p − up·columns + right stands one place further in the row of ids, behind the class.
            at = (places - up * c.columns + right + 1).clamp(0, known.shape[1] - 1).expand(len(known), -1)
            X = X + table(torch.where(there, known.gather(1, at), c.vocab_size))
        return X

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> ImageState:
        """The state of rows that have read nothing, not even a class."""
        c = self.config
        like = self.lm_head.weight.detach()
        cache = KeyValueCache(c.depth, (batch, c.heads, c.cells, c.width // c.heads), like)
        return ImageState(cache, cache.lengths.new_zeros(batch, c.cells))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, ImageState]:
        """Feed a chunk (B, N); log-probabilities (B, N, vocab) of the next cell (see `StepModel`).

        Raises ValueError for a state of another model, and for more ids than a picture has.
        """
        if not isinstance(state, ImageState):
            raise ValueError(f"an image decoder wants a state made by its own init_state(), not {type(state).__name__}")
        cache, known = state.cache, state.known
        places, _, mask = cache.chunk(tokens.shape[1])
        if cache.uniform:
            known[:, cache.longest : cache.longest + tokens.shape[1]] = tokens
        else:
            # What pads a chunk may stand past the end.
            known = known.scatter(1, places.clamp(max=known.shape[1] - 1).expand_as(tokens), tokens)
        logits = self._read(self._embedded(tokens, known, places), mask, cache, None)
        cache.advance(tokens.shape[1], counts)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1), ImageState(cache, known)


class ImageState:
    """What a decoder keeps of each row: the cache, and the ids so far (B, cells), those past its length meaningless."""

    def __init__(self, cache: KeyValueCache, known: Tensor) -> None:
        self.cache, self.known = cache, known

    @property
    def lengths(self) -> Tensor:
        """(B,): how many ids each row has been fed."""
        return self.cache.lengths

    def select(self, rows: Tensor) -> ImageState:
        """An independent state of the given rows, which may repeat."""
        return ImageState(self.cache.select(rows), self.known[rows])

    def repeat(self, n: int) -> ImageState:
        """An independent state in which every row stands n times."""
        return repeat_rows(self, n)


class ClassifierFreeGuidance:
    """Two readings of one decoder in one: the class that is asked for pushed away from no class,

    log p ∝ log p(cell | none) + g (log p(cell | class) − log p(cell | none)).

    g = 1 is the decoder itself, and more is more of the class. Classifier-free guidance, Ho & Salimans 2022. A
    `StepModel` like the decoder; the decoder must have been trained with some classes left out.
    """

    context = None

    def __init__(self, model: ImageGPT, guidance: float) -> None:
        self.model, self.guidance = model, guidance
        self.vocab_size, self.device = model.vocab_size, model.lm_head.weight.device

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> GuidedState:
        """The state of rows that have read nothing."""
        return GuidedState(self.model.init_state(batch), self.model.init_state(batch))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, GuidedState]:
        """Feed a chunk: see `StepModel`."""
        assert isinstance(state, GuidedState)
        asked, after = self.model.step(tokens, state.asked, counts)
        free, beside = self.model.step(tokens.masked_fill(tokens >= self.vocab_size, self.nothing), state.free, counts)
        return torch.lerp(free, asked, self.guidance).log_softmax(-1), GuidedState(after, beside)

    @property
    def nothing(self) -> int:
        """The id of no class."""
        return self.model.config.nothing


class GuidedState:
    """The states of both readings."""

    def __init__(self, asked: ImageState, free: ImageState) -> None:
        self.asked, self.free = asked, free

    @property
    def lengths(self) -> Tensor:
        """(B,): how many ids each row has been fed."""
        return self.asked.lengths

    def select(self, rows: Tensor) -> GuidedState:
        """An independent state of the given rows, which may repeat."""
        return GuidedState(self.asked.select(rows), self.free.select(rows))

    def repeat(self, n: int) -> GuidedState:
        """An independent state in which every row stands n times."""
        return repeat_rows(self, n)
