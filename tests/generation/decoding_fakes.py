"""Small models with known distributions, which also watch that the protocol is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FakeState:
    """The last tokens of each row (B, memory), −1 where there were none. Can be fed once only, as the protocol says."""

    def __init__(self, last: Tensor, lengths: Tensor) -> None:
        self.last, self.lengths, self.spent = last, lengths, False

    def select(self, rows: Tensor) -> FakeState:
        assert not self.spent
        return FakeState(self.last[rows].clone(), self.lengths[rows].clone())

    def repeat(self, n: int) -> FakeState:
        assert not self.spent
        return FakeState(self.last.repeat_interleave(n, 0), self.lengths.repeat_interleave(n, 0))


class TableModel:
    """The next token depends on the last `memory` tokens: one row of a table, found by a hash of them.

    `calls` holds the shape of every chunk fed.
    """

    def __init__(self, log_probs: Tensor, memory: int = 1, context: int | None = None) -> None:
        self.table, self.memory, self.context = log_probs, memory, context
        self.vocab_size = log_probs.shape[1]
        self.calls: list[tuple[int, ...]] = []

    @classmethod
    def random(cls, vocab_size: int, memory: int = 1, seed: int = 0, sharpness: float = 2.0) -> TableModel:
        rows = vocab_size + 1 if memory == 1 else 257
        logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return cls((sharpness * logits).log_softmax(-1), memory)

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> FakeState:
        return FakeState(torch.full((batch, self.memory), -1), torch.zeros(batch, dtype=torch.int64))

    def next(self, last: Tensor) -> Tensor:
        """(B, memory) → (B, vocab)."""
        number = torch.zeros(len(last), dtype=torch.int64)
        for column in last.T:
            number = (number * 31 + column + 1) % len(self.table)
        return self.table[number]

    def step(self, tokens: Tensor, state: FakeState, counts: Tensor | None = None) -> tuple[Tensor, FakeState]:
        assert not state.spent
        state.spent = True
        assert tokens.dtype == torch.int64
        assert len(tokens) == len(state.lengths) > 0
        assert not torch.is_grad_enabled()
        self.calls.append(tuple(tokens.shape))
        B, N = tokens.shape
        counts = torch.full((B,), N) if counts is None else counts
        assert bool(((counts >= 1) & (counts <= N)).all())
        last, results = state.last, []
        for n in range(N):
            moved = torch.cat((last[:, 1:], tokens[:, n : n + 1]), 1)
            last = torch.where((counts > n)[:, None], moved, last)
            results.append(torch.where((counts > n)[:, None], self.next(last), torch.nan))
        return torch.stack(results, 1), FakeState(last, state.lengths + counts)


class BreakingModel(TableModel):
    """Puts a value into the scores of one row after so many calls."""

    def __init__(self, log_probs: Tensor, value: float, call: int, row: int = 0, whole: bool = False) -> None:
        super().__init__(log_probs)
        self.value, self.call, self.row, self.whole = value, call, row, whole

    def step(self, tokens: Tensor, state: FakeState, counts: Tensor | None = None) -> tuple[Tensor, FakeState]:
        log_probs, state = super().step(tokens, state, counts)
        if len(self.calls) == self.call:
            log_probs[self.row, :, slice(None) if self.whole else 1] = self.value
        return log_probs, state


class ByteStream:
    """Ids are bytes of UTF-8; only whole characters come out."""

    def __init__(self) -> None:
        self.bytes = b""

    def push(self, token: int) -> str:
        self.bytes += bytes([token])
        for size in range(len(self.bytes), 0, -1):
            try:
                text = self.bytes[:size].decode()
            except UnicodeDecodeError:
                continue
            self.bytes = self.bytes[size:]
            return text
        return ""

    def finish(self) -> str:
        text, self.bytes = self.bytes.decode(errors="replace"), b""
        return text


class PieceStream:
    """Ids stand for pieces of text."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token: int) -> str:
        return self.pieces[token]

    def finish(self) -> str:
        return ""


def one_by_one(model: TableModel, prompt: list[int], continuation: list[int]) -> list[float]:
    """ln p of each token of the continuation, by the plain definition."""
    text, found = list(prompt), []
    for token in continuation:
        last = ([-1] * model.memory + text)[-model.memory :]
        found.append(float(model.next(torch.tensor([last]))[0, token]))
        text.append(token)
    return found
