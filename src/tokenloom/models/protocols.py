"""The protocol of models that predict the next token, for `generation/` and `evaluation/`.

The decoding state of a recurrent network is its hidden state, of a transformer the key–value cache, of an n-gram model
the last tokens. All return the log-probabilities of the next token after a chunk of tokens.
"""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from tokenloom.nn.modules import device_of


class State(Protocol):
    """The decoding state: what a model stores of the tokens that it has been fed."""

    @property
    def lengths(self) -> Tensor:
        """Number of tokens that each row has been fed, (B,) int64."""
        ...

    def select(self, rows: Tensor) -> Self:
        """A new, independent state holding the given rows (B',), in that order; a row may be taken more than once."""
        ...

    def repeat(self, n: int) -> Self:
        """Return a new, independent state with every row n times: a a b b for rows a b and n = 2."""
        ...


OneState = TypeVar("OneState", bound=State)


def repeat_rows(state: OneState, n: int) -> OneState:
    """Implement `repeat` by `select`."""
    return state.select(torch.arange(len(state.lengths), device=state.lengths.device).repeat_interleave(n))


class StepModel(Protocol):
    """A model that is fed token by token, or chunk by chunk."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model predicts."""
        ...

    @property
    def context(self) -> int | None:
        """Number of last tokens that a prediction can depend on; None = no limit."""
        ...

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> State:
        """Return the state of `batch` rows that have read nothing.

        rows: for a model conditioned on several inputs (sources to translate), the index of each row's input; None = 0
        … batch − 1. A model without conditions ignores it.
        """
        ...

    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, State]:
        """Feed a chunk of N >= 1 tokens to each of the B rows.

        tokens: (B, N) int64, padded on the right. counts: (B,), how many of them are real, at least 1 per row; None =
        all N. Returns log-probabilities (B, N, vocab) in float32 or wider, where [b, n] is the distribution of the
        token after tokens[b, n] and entries past counts[b] are undefined; and the state after the chunk. The given
        state must not be used again (`repeat` it first).
        """
        ...


def feed_device(model: object) -> torch.device:
    """Return the device for a model's tokens: its `device`, else that of its parameters, else the CPU."""
    device = getattr(model, "device", None)
    if isinstance(device, torch.device):
        return device
    if isinstance(model, torch.nn.Module):
        return device_of(model)
    return torch.device("cpu")
