"""An n-gram model: predicts a token from the n − 1 tokens before it, by counts. Formulas: `ngram_smoothing.py`.

Each n-gram has its smoothed probability, each context γ, the weight of the next shorter one; a lookup goes from short
to long contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.models.ngram_smoothing import (
    HELD_OUT_FRACTION,
    Floats,
    Integers,
    JelinekMercer,
    KneserNey,
    Level,
    Relative,
    Smoothing,
    checked,
    context_lengths,
    em_weights,
    lookup,
    shift_right,
    smoothed_levels,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tokenloom.models.protocols import State


@dataclass(frozen=True)
class NgramState:
    """The last tokens of each row; immutable.

    tail: (B, order − 1) int64, oldest first, −1 where a row has been fed fewer tokens than that.
    lengths: (B,) int64, how many tokens each row has been fed.
    """

    tail: Tensor
    lengths: Tensor

    def select(self, rows: Tensor) -> NgramState:
        """Return a new state of the given rows (B′,); a row may be repeated."""
        return NgramState(self.tail[rows], self.lengths[rows])

    def repeat(self, n: int) -> NgramState:
        """Return a new state with each row repeated n times."""
        return NgramState(self.tail.repeat_interleave(n, 0), self.lengths.repeat_interleave(n, 0))


@dataclass(frozen=True)
class Ngram:
    """An n-gram model that scores text (`log_probs`) and is sampled like any other model (`init_state`, `step`).

    Use `fit`. levels[m − 1]: the n-grams of length m, for m = 1 … order. interpolated: whether shorter contexts are
    interpolated; otherwise the remaining probability is uniform. separator: an id between documents.
    """

    vocab_size: int
    order: int
    levels: tuple[Level, ...]
    interpolated: bool = True
    separator: int | None = None

    @classmethod
    def fit(
        cls,
        parts: Sequence[NDArray[Any]],
        vocab_size: int,
        order: int = 6,
        smoothing: Smoothing | None = None,
        *,
        separator: int | None = None,
    ) -> Self:
        """Count the parts and smooth the counts, by default by interpolated Kneser–Ney with one discount per level.

        parts: independent documents, each a 1-D integer array of ids in 0 … vocab − 1; no n-gram crosses
        from one into the next, and the start of a document counts as one more possible left neighbor of
        what stands there. The modified discounts are worth 0.035 nats on tinyshakespeare. Takes about `order` sorts of
        the whole text. Raises ValueError for ids out of range, for no ids at all, and for an order or a vocabulary
        below 1.
        """
        if order < 1 or vocab_size < 1:
            raise ValueError(f"order and vocab must be at least 1, not {order} and {vocab_size}")
        arrays = [checked(part, vocab_size) for part in parts]
        if not sum(map(len, arrays)):
            raise ValueError("an n-gram model needs at least one token to count")
        smoothing = KneserNey() if smoothing is None else smoothing
        levels = tuple(smoothed_levels(arrays, vocab_size, order, smoothing, separator))
        return cls(vocab_size, order, levels, smoothing.interpolated, separator)

    @property
    def context(self) -> int:
        """Return the number of tokens a prediction depends on: order − 1."""
        return self.order - 1

    def log_probs(self, ids: NDArray[Any], windows: int | None = None) -> Floats:
        """Return the log-probability of every token given up to order − 1 tokens before it.

        ids: (N,) one running text, or (B, N) rows that each stand alone. windows: split a running text into
        windows of that many tokens without context before them (the last one may be shorter). Returns float64 in the
        shape of ids. Raises ValueError for ids out of range and for windows below 1.
        """
        ids = np.asarray(ids)
        if windows is not None and (windows < 1 or ids.ndim != 1):
            raise ValueError(f"windows must be at least 1 and cut a 1-D text, not {windows} and {ids.ndim}-D")
        if ids.ndim not in (1, 2):
            raise ValueError(f"ids must be (N,) or (B, N), not {ids.ndim}-D")
        tokens = checked(ids.reshape(-1), self.vocab_size)
        length = windows or max(ids.shape[-1], 1)
        cuts = np.arange(length, len(tokens), length)
        available = np.concatenate([context_lengths(part, self.separator) for part in np.split(tokens, cuts)])
        depth = np.where(tokens == self.separator, 0, available)
        probs = np.full(len(tokens), 1.0 / self.vocab_size)
        for size, (level, contexts) in enumerate(self._climb(tokens, depth)):
            contexts = shift_right(contexts) if size else contexts
            contexts[available < size] = -1
            self._refine(probs, level, contexts, available >= size, tokens)
        return np.asarray(np.log(probs, out=probs).reshape(ids.shape))

    def log_probs_after(self, ids: NDArray[Any], depth: NDArray[Any], targets: NDArray[Any]) -> Floats:
        """Return the log-probability (B, N) of a target after each token of some rows.

        ids, targets: (B, N). depth: (B, N) the number of tokens of its document before each token in its row;
        negative for padding.
        """
        tokens, wanted = checked(ids.reshape(-1), self.vocab_size), checked(targets.reshape(-1), self.vocab_size)
        known = depth.reshape(-1)
        probs = np.full(len(tokens), 1.0 / self.vocab_size)
        for size, (level, contexts) in enumerate(self._climb(tokens, known)):
            self._refine(probs, level, contexts, known + 1 >= size, wanted)
        return np.asarray(np.log(probs, out=probs).reshape(ids.shape))

    def _refine(
        self, probs: Floats, level: Level, contexts: Integers, asked: NDArray[np.bool_], targets: Integers
    ) -> None:
        """Refine the probabilities of targets in place by one level. contexts: their numbers, −1 where never seen.
        asked: where there are enough tokens for a context of this length."""
        if not self.interpolated:
            probs[asked] = 1.0 / self.vocab_size
        known = np.flatnonzero(contexts >= 0)
        probs[known] *= level.gamma[contexts[known]]
        found = lookup(level.keys, contexts[known] * self.vocab_size + targets[known])
        probs[known[found >= 0]] = level.probs[found[found >= 0]]

    def init_state(self, batch: int, rows: Sequence[int] | None = None) -> NgramState:
        """Return the state of `batch` rows without tokens."""
        import torch

        tail = torch.full((batch, self.order - 1), -1, dtype=torch.int64)
        return NgramState(tail, torch.zeros(batch, dtype=torch.int64))

    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, NgramState]:
        """Feed N tokens to each row as `StepModel.step`; the log-probabilities (B, N, vocab) are float64.

        The given state is not changed. Raises ValueError for ids out of range, for counts outside
        1 … N, and for a state of another kind or another number of rows.
        """
        import torch

        batch, n = tokens.shape
        taken = torch.full((batch,), n) if counts is None else counts.to("cpu", torch.int64)
        if not isinstance(state, NgramState) or state.tail.shape != (batch, self.context):
            raise ValueError(f"step needs a state of {batch} rows made by init_state() of an order-{self.order} model")
        if n < 1 or taken.shape != (batch,) or not bool(((taken >= 1) & (taken <= n)).all()):
            raise ValueError(f"counts must be {batch} numbers in 1 … {n}, not {taken.tolist()}")
        # Padding past counts may be any value, so it is overwritten with a valid id.
        fresh = tokens.cpu().masked_fill(torch.arange(n) >= taken[:, None], 0)
        joined = torch.cat([state.tail, fresh], 1)
        tail = joined.gather(1, taken[:, None] + torch.arange(self.context))
        # The start of a row's tokens, or its last separator.
        index = np.broadcast_to(np.arange(joined.shape[1]), joined.shape)
        begin = (state.tail < 0).sum(1, keepdim=True).numpy()
        depth = index - np.maximum.accumulate(np.where(joined.numpy() == self.separator, index, begin), axis=1)
        probs = self.distributions(joined.numpy(), depth)[:, -n:]
        return torch.from_numpy(np.log(probs, out=probs)).to(tokens.device), NgramState(tail, state.lengths + taken)

    def distributions(self, ids: Integers, depth: NDArray[Any]) -> Floats:
        """Return the distribution of the token after each token, (B, N, vocab); see `log_probs_after`."""
        known = depth.reshape(-1)
        tokens = ids.reshape(-1)
        checked(tokens[known >= 0], self.vocab_size)
        probs = np.full((len(tokens), self.vocab_size), 1.0 / self.vocab_size)
        for size, (level, contexts) in enumerate(self._climb(tokens, known)):
            if not self.interpolated:
                probs[known + 1 >= size] = 1.0 / self.vocab_size
            _spread(probs, level, contexts, self.vocab_size)
        return probs.reshape(*ids.shape, self.vocab_size)

    def _climb(self, tokens: Integers, depth: NDArray[Any]) -> Iterator[tuple[Level, Integers]]:
        """Yield for each level the number of the context that ends at each token, −1 where it is unseen or too short.

        depth: see `log_probs_after`.
        """
        contexts = np.zeros(len(tokens), dtype=np.int64)
        for m, level in enumerate(self.levels, start=1):
            yield level, contexts.copy()
            before = shift_right(contexts) if m > 1 else contexts
            asked = np.flatnonzero((before >= 0) & (depth >= m - 1))
            contexts = np.full(len(tokens), -1, dtype=np.int64)
            if m < self.order:
                contexts[asked] = lookup(level.keys, before[asked] * self.vocab_size + tokens[asked])


def fit_jelinek_mercer(
    parts: Sequence[NDArray[Any]], vocab_size: int, order: int, separator: int | None = None
) -> JelinekMercer:
    """Fit weights on the last tenth of the parts with counts of the rest, from short n-grams to long ones."""
    tokens = np.concatenate([checked(part, vocab_size) for part in parts])
    ends = np.cumsum([len(part) for part in parts])
    cut = min(max(1, round(len(tokens) * (1 - HELD_OUT_FRACTION))), len(tokens) - 1)
    kept = [part for part in np.split(tokens[:cut], ends[ends < cut]) if len(part)]
    held = [part for part in np.split(tokens[cut:], ends[ends > cut] - cut) if len(part)]
    raw = Ngram.fit(kept, vocab_size, order, Relative(), separator=separator)
    text = np.concatenate(held)
    available = np.concatenate([context_lengths(part, separator) for part in held])
    depth = np.where(text == separator, 0, available)
    probs = np.full(len(text), 1.0 / vocab_size)
    weights = []
    for size, (level, contexts) in enumerate(raw._climb(text, depth)):
        contexts = shift_right(contexts) if size else contexts
        contexts[available < size] = -1
        known = np.flatnonzero(contexts >= 0)
        known = known[level.gamma[contexts[known]] > 0]
        totals = level.gamma[contexts[known]]
        found = lookup(level.keys, contexts[known] * vocab_size + text[known])
        relative = np.where(found >= 0, level.probs[found], 0.0)
        weights.append(em_weights(relative, totals, probs[known]))
        share = JelinekMercer(tuple(weights)).shares(size + 1, totals)
        probs[known] = share * relative + (1 - share) * probs[known]
    return JelinekMercer(tuple(weights))


def _spread(probs: Floats, level: Level, contexts: Integers, vocab_size: int) -> None:
    """Refine distributions (rows, vocab) in place by one level, except rows with context −1."""
    rows = np.flatnonzero(contexts >= 0)
    contexts = contexts[rows]
    shares = np.ones(len(probs))
    shares[rows] = level.gamma[contexts]
    probs *= shares[:, None]  # in place: the table may be large
    first = np.searchsorted(level.keys, contexts * vocab_size)
    sizes = np.searchsorted(level.keys, (contexts + 1) * vocab_size) - first
    # Successors of one context are adjacent: first, first + 1, … for every row, concatenated.
    steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    entries = np.repeat(first, sizes) + steps
    probs[np.repeat(rows, sizes), level.keys[entries] % vocab_size] = level.probs[entries]
