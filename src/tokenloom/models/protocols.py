"""What every model that predicts the next token offers, so that `generation/` and `evaluate` never ask which it is.

A recurrent network carries a hidden state, a transformer a key–value cache, an n-gram model its last tokens. All of
them answer the same question: given some more tokens, what are the log-probabilities of the next one?
"""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from tokenloom.nn.modules import device_of


class State(Protocol):
    """What a model remembers of the tokens it has been fed. A value: handed in, handed back."""

    @property
    def lengths(self) -> Tensor:
        """(B,) int64: how many tokens each row has been fed so far."""
        ...

    def select(self, rows: Tensor) -> Self:
        """A new, independent state holding the given rows (B',), in that order; a row may be taken more than once."""
        ...

    def repeat(self, n: int) -> Self:
        """A new, independent state in which every row stands n times in a row: a a b b for rows a b and n = 2."""
        ...


OneState = TypeVar("OneState", bound=State)


def repeat_rows(state: OneState, n: int) -> OneState:
    """What `repeat` gives for a state whose rows can be selected: every row n times in a row."""
    return state.select(torch.arange(len(state.lengths), device=state.lengths.device).repeat_interleave(n))


class StepModel(Protocol):
    """A model that can be fed token by token, or chunk by chunk."""

    @property
    def vocab_size(self) -> int:
        """How many ids the model predicts over."""
        ...

    @property
    def context(self) -> int | None:
        """How many of the last tokens a prediction can depend on; None means no limit."""
        ...

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> State:
        """The state of `batch` rows that have seen nothing yet.

        rows: for a model that was made for several things (sources to translate, pictures to describe), which of them
        each row is about; None means 0 … batch − 1. A model that is not conditioned looks at `batch` alone.
        """
        ...

    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, State]:
        """Feed a chunk of N >= 1 tokens to each of the B rows.

        tokens: (B, N) int64, padded on the right. counts: (B,) how many of them are real, at least 1 a row; None
        means all N. Returns log-probabilities (B, N, vocab) in float32 or wider, where [b, n] is the distribution
        of the token after tokens[b, n] and entries past counts[b] mean nothing; and the state after the chunk.
        The state that was handed in must not be used again (`repeat` it first).
        """
        ...


def feed_device(model: object) -> torch.device:
    """The device on which a model wants its tokens: its `device`, else that of its numbers, else the CPU."""
    device = getattr(model, "device", None)
    if isinstance(device, torch.device):
        return device
    if isinstance(model, torch.nn.Module):
        return device_of(model)
    return torch.device("cpu")
