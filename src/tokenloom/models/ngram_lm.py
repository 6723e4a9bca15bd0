"""The n-gram model as a module: its tables are buffers, saved and loaded like weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.ngram import Ngram, NgramState
from tokenloom.models.ngram_smoothing import Level
from tokenloom.models.protocols import State
from tokenloom.nn.hooks import Hooks


class NgramModel(nn.Module):
    """An `Ngram` with `forward`, `init_state` and `step`. It computes on the CPU, on whatever device its buffers are.

    sizes: the number of n-grams of length 1, 2, … order. interpolated, separator: see `Ngram`.
    """

    def __init__(
        self, vocab_size: int, sizes: Sequence[int], *, interpolated: bool = True, separator: int | None = None
    ) -> None:
        super().__init__()
        self.vocab_size, self.order = vocab_size, len(sizes)
        self.interpolated, self.separator = interpolated, separator
        for m, (size, contexts) in enumerate(zip(sizes, [1, *sizes], strict=False), start=1):
            self.register_buffer(f"keys_{m}", torch.zeros(size, dtype=torch.int64))
            self.register_buffer(f"probs_{m}", torch.zeros(size, dtype=torch.float64))
            self.register_buffer(f"gamma_{m}", torch.zeros(contexts, dtype=torch.float64))

    @classmethod
    def of(cls, ngram: Ngram) -> Self:
        """Return the module of a fitted model, sharing its tables."""
        sizes = [len(level.keys) for level in ngram.levels]
        model = cls(ngram.vocab_size, sizes, interpolated=ngram.interpolated, separator=ngram.separator)
        for m, level in enumerate(ngram.levels, start=1):
            for name in ("keys", "probs", "gamma"):
                setattr(model, f"{name}_{m}", torch.from_numpy(getattr(level, name)))
        return model

    @property
    def ngram(self) -> Ngram:
        """Return the tables as an `Ngram`."""

        def table(name: str, m: int) -> Any:
            return self.get_buffer(f"{name}_{m}").cpu().numpy()

        levels = (Level(table("keys", m), table("probs", m), table("gamma", m)) for m in range(1, self.order + 1))
        return Ngram(self.vocab_size, self.order, tuple(levels), self.interpolated, self.separator)

    @property
    def context(self) -> int:
        """Return the number of tokens a prediction depends on."""
        return self.order - 1

    def forward(self, batch: Batch, cache: None = None, hooks: Hooks | None = None) -> Tensor:
        """Return log p (B, N, vocab) of the token after each token of the stream "text", in float64."""
        text = batch["text"]
        probs = self.ngram.distributions(text.tokens.cpu().numpy(), text.depths().cpu().numpy())
        return torch.from_numpy(probs).log_().to(text.tokens.device)

    def log_probs(self, batch: Batch, targets: Tensor) -> Tensor:
        """Return log p (B, N) of the targets, 0 where they are `IGNORE`, without the (B, N, vocab) table."""
        text, counted = batch["text"], targets != IGNORE
        ids, depths, wanted = (t.cpu().numpy() for t in (text.tokens, text.depths(), targets.masked_fill(~counted, 0)))
        return torch.from_numpy(self.ngram.log_probs_after(ids, depths, wanted)).to(targets.device) * counted

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> NgramState:
        """See `StepModel`."""
        return self.ngram.init_state(batch, rows)

    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, NgramState]:
        """See `StepModel`."""
        return self.ngram.step(tokens, state, counts)
