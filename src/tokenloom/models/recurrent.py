"""Recurrent language models: embedding → recurrent layers → linear head. They predict token n+1 at token n.

The past is a state of fixed size, so that a text may be of any length. Bengio et al. 2003 and Mikolov et al. 2010 for
language models, `nn/recurrent.py` for the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.protocols import State, repeat_rows
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import InitTable, constant, framework_linear, initialize, normal, normal_by_inputs
from tokenloom.nn.recurrent import CELLS, Recurrent, initial_state, run_counted, run_segments


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes. cell: "rnn" (Elman), "lstm" or "gru". width: M, outputs of a layer. depth: L. context: tokens
    that gradients go back through. burn_in: tokens read before them without gradients. embedding_dim: features of
    a token, or None for one-hot."""

    cell: str
    vocab_size: int
    context: int
    width: int
    depth: int
    burn_in: int = 0
    dropout: float = 0.0
    embedding_dim: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the entries for config.json."""
        return asdict(self)


class RecurrentLM(nn.Module):
    """Recurrent layers over embedded tokens, with dropout before each layer and before the head."""

    def __init__(self, config: RecurrentConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = OneHot(c.vocab_size) if c.embedding_dim is None else nn.Embedding(c.vocab_size, c.embedding_dim)
        inputs = [c.embedding_dim or c.vocab_size, *[c.width] * (c.depth - 1)]
        self.layers = nn.ModuleList([CELLS[c.cell](size, c.width) for size in inputs])
        self.dropout = nn.Dropout(c.dropout)
        self.lm_head = nn.Linear(c.width, c.vocab_size)
        initialize(self, _table(c), torch.Generator().manual_seed(seed))

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        return self.config.vocab_size

    @property
    def context(self) -> None:
        """None: a prediction can depend on the whole past."""
        return None

    def forward(self, batch: Batch, cache: None = None, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, N, vocab) for the stream "text".

        The burn-in tokens of a stream "before" are read first, without gradients; its segments and those of the text
        have common numbers. Each document begins from a zero state.
        """
        text, before = batch["text"], batch.streams.get("before")
        starts = text.depths() == 0
        state = None
        if before is not None:
            known = before.shape[1]
            ids = torch.cat((before.tokens, text.tokens), 1)
            segments = None
            if before.segments is not None and text.segments is not None:
                segments = torch.cat((before.segments, text.segments), 1)
            starts = Stream(ids=ids, segments=segments).depths() == 0
            with torch.no_grad():
                _, state = self._read(before.tokens, None, starts[:, :known])
            starts = starts[:, known:]
        Y, _ = self._read(text.tokens, state, starts, hooks)
        logits: Tensor = self.lm_head(Y)
        return logits if hooks is None else hooks.record("logits", logits)

    def _read(
        self, ids: Tensor, state: list[Tensor] | None, starts: Tensor, hooks: Hooks | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        Y, after = self.dropout(self.tokens(ids)), []
        for number, layer in enumerate(self._stack()):
            old = initial_state(layer, Y) if state is None else state[number]
            Y, new = run_segments(layer, Y, old, starts)
            after.append(new)
            Y = self.dropout(Y if hooks is None else hooks.record(f"layers.{number}.out", Y))
        return Y, after

    def _stack(self) -> list[Recurrent]:
        return list(self.layers)  # type: ignore[arg-type]

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> RecurrentState:
        """Return the state of rows that have read nothing."""
        like = self.lm_head.weight.detach().new_zeros(batch, 1, 1)
        lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return RecurrentState([initial_state(layer, like) for layer in self._stack()], lengths)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, RecurrentState]:
        """Feed a chunk (B, N); return log-probabilities (B, N, vocab) of each next token, and the state (`StepModel`).

        Raises ValueError for a state of another model or another number of rows, and for counts outside 1 … N.
        """
        B, N = tokens.shape
        if not isinstance(state, RecurrentState) or len(state.lengths) != B:
            raise ValueError(f"{B} rows need a state of {B} rows made by this model's own init_state()")
        taken = torch.full_like(state.lengths, N) if counts is None else counts.to(state.lengths)
        if N < 1 or taken.shape != (B,) or not bool(((taken >= 1) & (taken <= N)).all()):
            raise ValueError(f"counts must be {B} numbers in 1 … {N}, not {taken.tolist()}")
        if bool((taken < N).any()):
            # Padding may be any id.
            tokens = tokens.masked_fill(torch.arange(N, device=tokens.device) >= taken[:, None], 0)
        Y, after = self.tokens(tokens), []
        for layer, old in zip(self._stack(), state.layers, strict=True):
            Y, new = run_counted(layer, Y, old, taken)
            after.append(new)
        logits = self.lm_head(Y)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits.log_softmax(-1), RecurrentState(after, state.lengths + taken)


class OneHot(nn.Module):
    """One-hot vectors: ids (…) → (…, size)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # An empty tensor that follows the dtype of the model.
        self.register_buffer("like", torch.zeros(0), persistent=False)
        self.size = size

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (…) int64 → (…, size)."""
        return F.one_hot(ids, self.size).to(self.get_buffer("like").dtype)


@dataclass(frozen=True)
class RecurrentState:
    """The states of the layers, (S, B, M), and the number of tokens each row has been fed, (B,). Immutable."""

    layers: list[Tensor]
    lengths: Tensor

    def select(self, rows: Tensor) -> RecurrentState:
        """Return a state of the given rows, which may repeat."""
        return RecurrentState([layer[:, rows] for layer in self.layers], self.lengths[rows])

    def repeat(self, n: int) -> RecurrentState:
        """Return a state with every row n times."""
        return repeat_rows(self, n)


def _table(config: RecurrentConfig) -> InitTable:
    """The textbook's initialization for the Elman cell, torch's for the others, with the biases of gates that keep the
    state at 1 (Jozefowicz et al. 2015, "An empirical exploration of recurrent network architectures")."""
    # One-hot inputs have a single nonzero entry, whatever their number: they count as a hundred.
    first = normal_by_inputs(0.1 * config.vocab_size**0.5) if config.embedding_dim is None else normal_by_inputs()
    return [
        ("tokens.weight?", normal(1.0)),
        ("layers.0.W_zx.weight?", first),
        ("*.W_z[xz].weight?", normal_by_inputs()),
        ("*.W_zz.bias?", constant(0.0)),
        ("layers.0.cell.weight_ih_*?", _wide if config.embedding_dim is None else _by_width),
        ("*.cell.weight_*?", _by_width),
        ("*.cell.bias_ih_*?", _keep_gate_open),
        ("*.cell.bias_hh_*?", constant(0.0)),
        ("lm_head.weight", normal_by_inputs() if config.cell == "rnn" else framework_linear),
        ("lm_head.bias", constant(0.0)),
    ]


def _by_width(parameter: Tensor, owner: nn.Module, generator: torch.Generator) -> None:
    """Uniform in ±1/√M, as torch's cells are."""
    assert isinstance(owner, nn.RNNBase)
    bound = owner.hidden_size**-0.5
    parameter.uniform_(-bound, bound, generator=generator)


def _wide(parameter: Tensor, owner: nn.Module, generator: torch.Generator) -> None:
    """Uniform in ±1: a one-hot input selects one row, which must be as large as a whole sum would be."""
    parameter.uniform_(-1.0, 1.0, generator=generator)


def _keep_gate_open(parameter: Tensor, owner: nn.Module, generator: torch.Generator) -> None:
    """0, and 1 for the gate that keeps the state: the second of both LSTM and GRU."""
    assert isinstance(owner, nn.RNNBase)
    parameter.zero_()
    parameter[owner.hidden_size : 2 * owner.hidden_size] = 1.0
