"""An n-gram model with interpolated Kneser–Ney smoothing: the line that a neural model has to beat.

Order n predicts a token w from the n − 1 tokens before it. With c(h w) the count of the context h followed
by w and h′ the context without its oldest token,

    p(w | h) = max(c(h w) − D(c), 0) / c(h ·) + γ(h) · p(w | h′),
    γ(h)     = Σ_w min(D(c), c(h w)) / c(h ·).

At the longest context c counts occurrences. At all shorter ones c(h w) is the number of *different* tokens
seen just before h w (a continuation count): "Francisco" is frequent, but only after "San", so it should
seldom be guessed elsewhere. The recursion ends in the uniform distribution over the vocabulary, so no token
has probability zero. Where a context was never seen, the shorter one speaks for it.

Sources: Kneser and Ney 1995, "Improved backing-off for m-gram language modeling"; Chen and Goodman 1999, "An
empirical study of smoothing techniques for language modeling" (interpolation, the discounts).

How it is stored. All n-grams of length m are numbered 0, 1, 2, … in sorted order, and one of length m is
found by the key (number of its first m − 1 tokens) · vocab + last token. Numbers are ranks, not hashes, so
that two n-grams cannot meet. A context's successors are neighbours in the sorted keys. Each n-gram keeps
its finished, interpolated probability, each context its γ; a lookup climbs from short to long and keeps the
longest match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from tokenloom.models.protocols import State

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """All n-grams of one length m and what they predict.

    keys: (n-grams,) sorted; key = (number of the first m − 1 tokens among the n-grams of length m − 1) ·
    vocab + last token. probs: (n-grams,) interpolated probability of the last token after the others.
    gamma: (contexts,) the share that a context of length m − 1 leaves to the next shorter one, 1 for a
    context that nothing followed. discounts: what is taken off a count of one, of two, and of three or
    more.
    """

    keys: Integers
    probs: Floats
    gamma: Floats
    discounts: tuple[float, float, float]


@dataclass(frozen=True)
class NgramState:
    """The last tokens of each row: a value, never changed in place.

    tail: (B, order − 1) int64, oldest first, −1 where a row has been fed fewer tokens than that.
    lengths: (B,) int64, how many tokens each row has been fed.
    """

    tail: Tensor
    lengths: Tensor

    def select(self, rows: Tensor) -> NgramState:
        """A new state of the given rows (B′,), in that order; a row may be taken more than once."""
        return NgramState(self.tail[rows], self.lengths[rows])

    def fork(self, n: int) -> NgramState:
        """A new state in which every row stands n times in a row."""
        return NgramState(self.tail.repeat_interleave(n, 0), self.lengths.repeat_interleave(n, 0))


@dataclass(frozen=True)
class KneserNey:
    """An n-gram model that scores text (`log_probs`) and is sampled like any other model (`start`, `step`).

    Make one with `fit`. levels[m − 1] holds the n-grams of length m, for m = 1 … order.
    """

    vocab: int
    order: int
    levels: tuple[Level, ...]

    @classmethod
    def fit(cls, parts: Sequence[NDArray[Any]], vocab: int, order: int = 6, *, modified: bool = False) -> Self:
        """Count the parts and smooth the counts.

        parts: independent documents, each a 1-D integer array of ids in 0 … vocab − 1; no n-gram crosses
        from one into the next, and the start of a document counts as one more possible left neighbour of
        what stands there. modified: three discounts a level (for counts of one, of two, and above) in place
        of one; on tinyshakespeare that is worth 0.035 nats. Takes about `order` sorts of the whole text.
        Raises ValueError for ids out of range, for no ids at all, and for an order or a vocabulary below 1.
        """
        if order < 1 or vocab < 1:
            raise ValueError(f"order and vocab must be at least 1, not {order} and {vocab}")
        arrays = [_checked(part, vocab) for part in parts]
        if not sum(map(len, arrays)):
            raise ValueError("an n-gram model needs at least one token to count")
        tokens = np.concatenate(arrays)
        room = np.concatenate([np.arange(len(array)) for array in arrays])
        return cls(vocab, order, tuple(_levels(tokens, room, vocab, order, modified)))

    @property
    def context(self) -> int:
        """How many of the last tokens a prediction depends on: order − 1."""
        return self.order - 1

    def log_probs(self, ids: NDArray[Any], windows: int | None = None) -> Floats:
        """Log-probability in nats of every token given the tokens before it, at most order − 1 of them.

        ids: (N,) one running text, or (B, N) rows that each stand alone. windows: cut a running text into
        windows of that many tokens that know nothing of what stands before them (the last one may be
        shorter). Returns float64 in the shape of ids. Raises ValueError for ids out of range and for
        windows below 1.
        """
        ids = np.asarray(ids)
        if windows is not None and (windows < 1 or ids.ndim != 1):
            raise ValueError(f"windows must be at least 1 and cut a 1-D text, not {windows} and {ids.ndim}-D")
        if ids.ndim not in (1, 2):
            raise ValueError(f"ids must be (N,) or (B, N), not {ids.ndim}-D")
        tokens = _checked(ids.reshape(-1), self.vocab)
        length = windows or max(ids.shape[-1], 1)
        room = np.arange(len(tokens), dtype=np.int64) % length
        probs = np.full(len(tokens), 1.0 / self.vocab)
        for level, contexts, found in self._climb(tokens, room):
            known = contexts >= 0
            probs[known] *= level.gamma[contexts[known]]
            hit = found >= 0
            probs[hit] = level.probs[found[hit]]
        np.log(probs, out=probs)
        return probs.reshape(ids.shape)

    def start(self, batch: int, rows: Sequence[int] | None = None) -> NgramState:
        """The state of `batch` rows that have seen nothing yet."""
        import torch

        tail = torch.full((batch, self.order - 1), -1, dtype=torch.int64)
        return NgramState(tail, torch.zeros(batch, dtype=torch.int64))

    def step(self, tokens: Tensor, state: State, counts: Tensor | None = None) -> tuple[Tensor, NgramState]:
        """Feed N tokens to each row, as `StepModel.step` says; the log-probabilities (B, N, vocab) are float64.

        The state handed in is left as it was. Raises ValueError for ids out of range, for counts outside
        1 … N, and for a state of another kind or another number of rows.
        """
        import torch

        batch, n = tokens.shape
        taken = torch.full((batch,), n) if counts is None else counts.to("cpu", torch.int64)
        if not isinstance(state, NgramState) or state.tail.shape != (batch, self.context):
            raise ValueError(f"step needs a state of {batch} rows made by start() of an order-{self.order} model")
        if n < 1 or taken.shape != (batch,) or not bool(((taken >= 1) & (taken <= n)).all()):
            raise ValueError(f"counts must be {batch} numbers in 1 … {n}, not {taken.tolist()}")
        # What stands past counts means nothing and may be any filler, so it is overwritten with a valid id.
        fresh = tokens.cpu().masked_fill(torch.arange(n) >= taken[:, None], 0)
        joined = torch.cat([state.tail, fresh], 1)
        tail = joined.gather(1, taken[:, None] + torch.arange(self.context))
        probs = self._next(joined.numpy(), state.tail.numpy())
        logs = torch.from_numpy(np.log(probs, out=probs)).reshape(batch, n, self.vocab)
        return logs.to(tokens.device), NgramState(tail, state.lengths + taken)

    def _next(self, joined: Integers, tail: Integers) -> Floats:
        """Distributions (B · N, vocab) of the token after each of the last N columns of joined (B, order − 1 + N)."""
        batch, width = joined.shape
        unknown = (tail < 0).sum(1)
        room = (np.arange(width) - unknown[:, None]).reshape(-1)
        fed = np.zeros((batch, width), dtype=bool)
        fed[:, tail.shape[1] :] = True
        rows = np.flatnonzero(fed)
        _checked(joined.reshape(-1)[rows], self.vocab)
        probs = np.full((len(rows), self.vocab), 1.0 / self.vocab)
        _spread(probs, self.levels[0], np.zeros(len(rows), dtype=np.int64), self.vocab)
        climb = self._climb(joined.reshape(-1), room)
        for level, (_, _, found) in zip(self.levels[1:], climb, strict=False):
            _spread(probs, level, found[rows], self.vocab)
        return probs

    def _climb(self, tokens: Integers, room: NDArray[Any]) -> Iterator[tuple[Level, Integers, Integers]]:
        """For each level, at each token: the number of the context before it and of the n-gram ending in it.

        A number is −1 where there is none: not enough tokens before, or never seen.
        room: (tokens,) how many known tokens stand before this one in its own row; negative where the token
        itself is unknown.
        """
        contexts = np.where(room >= 0, 0, -1)
        for m, level in enumerate(self.levels, start=1):
            contexts[room < m - 1] = -1
            found = np.full(len(tokens), -1, dtype=np.int64)
            asked = np.flatnonzero(contexts >= 0)
            found[asked] = _lookup(level.keys, contexts[asked] * self.vocab + tokens[asked])
            yield level, contexts, found
            contexts = _shifted(found)


def _checked(ids: NDArray[Any], vocab: int) -> Integers:
    """The ids as int64, or ValueError where they are no ids of this vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"ids must be a 1-D integer array, not {ids.ndim}-D {ids.dtype}")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ValueError(f"ids must lie in 0 … {vocab - 1}, not {ids.min()} … {ids.max()}")
    return ids.astype(np.int64, copy=False)


def _shifted(numbers: Integers) -> Integers:
    """What stood at the token before; −1 at the first."""
    shifted = np.empty_like(numbers)
    shifted[:1] = -1
    shifted[1:] = numbers[:-1]
    return shifted


def _lookup(keys: Integers, wanted: Integers) -> Integers:
    """Where each wanted key stands in the sorted keys, −1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.searchsorted(keys, wanted)
    places[places == len(keys)] = 0
    places[keys[places] != wanted] = -1
    return places


def _spread(probs: Floats, level: Level, contexts: Integers, vocab: int) -> None:
    """Refine distributions (rows, vocab) in place by one level; rows whose context is −1 stay as they are."""
    rows = np.flatnonzero(contexts >= 0)
    contexts = contexts[rows]
    shares = np.ones(len(probs))
    shares[rows] = level.gamma[contexts]
    probs *= shares[:, None]  # in place: the table may be large
    first = np.searchsorted(level.keys, contexts * vocab)
    sizes = np.searchsorted(level.keys, (contexts + 1) * vocab) - first
    # Successors of one context are neighbours: list first, first + 1, … for every row, end to end.
    steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    entries = np.repeat(first, sizes) + steps
    probs[np.repeat(rows, sizes), level.keys[entries] % vocab] = level.probs[entries]


def _levels(tokens: Integers, room: NDArray[Any], vocab: int, order: int, modified: bool) -> Iterator[Level]:
    """Count level after level; a level is finished once the next longer n-grams have told its continuation counts."""
    # At each position: the number of the n-gram of length m − 1 that ends here, or at the token before.
    here = before = np.zeros(len(tokens), dtype=np.int64)
    keys: Integers = np.zeros(1, dtype=np.int64)
    probs = np.array([1.0 / vocab])
    suffixes: Integers = np.zeros(1, dtype=np.int64)
    contexts = 0
    for m in range(1, order + 1):
        at = np.flatnonzero(room >= m - 1)
        longer, inverse = np.unique(before[at] * vocab + tokens[at], return_inverse=True)
        # An n-gram without its first token is the same at each of its places, so any of them may write it.
        shorter = np.zeros(len(longer), dtype=np.int64)
        shorter[inverse] = here[at]
        if m > 1:
            counts = np.bincount(shorter, minlength=len(keys))
            counts[np.unique(here[room == m - 2])] += 1  # what stands at the start of a document
            level = _smoothed(keys, counts, probs[suffixes], contexts, vocab, modified)
            yield level
            probs = level.probs
        contexts = len(keys)
        keys, suffixes = longer, shorter
        here = np.full(len(tokens), -1, dtype=np.int64)
        here[at] = inverse
        before = _shifted(here)
    counts = np.bincount(inverse, minlength=len(keys))
    yield _smoothed(keys, counts, probs[suffixes], contexts, vocab, modified)


def _smoothed(keys: Integers, counts: Integers, lower: Floats, contexts: int, vocab: int, modified: bool) -> Level:
    """Turn the counts of one level into probabilities.

    lower: the finished probabilities of the same n-grams without their first token. contexts: how many
    n-grams there are of length m − 1. Every count is at least 1.
    """
    discounts = _discounts(counts, modified)
    taken = np.array(discounts)[np.minimum(counts, 3) - 1]
    owners = keys // vocab
    totals = np.bincount(owners, weights=counts, minlength=contexts)
    freed = np.bincount(owners, weights=taken, minlength=contexts)
    gamma = np.divide(freed, totals, out=np.ones(contexts), where=totals > 0)
    probs = (counts - taken) / totals[owners] + gamma[owners] * lower
    return Level(keys, probs, gamma, discounts)


def _discounts(counts: Integers, modified: bool) -> tuple[float, float, float]:
    """What to take off counts of one, two, and three or more, from how many n-grams occurred once, twice, …

    n_c is the number of n-grams with count c. One discount: D = n₁ / (n₁ + 2 n₂). Modified (Chen and Goodman
    1999): D_c = c − (c + 1) · D · n_{c+1} / n_c for counts c = 1, 2, and 3 or more. A small or odd text may
    leave an estimate without data or not above 0; then D serves for all three, or 0.5 where D itself fails.
    So every context leaves something to the shorter one, and no discount exceeds its count.
    """
    n1, n2, n3, n4 = (int(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    one = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if modified and n1 and n2 and n3 and n4:
        first, second, third = 1 - 2 * one * n2 / n1, 2 - 3 * one * n3 / n2, 3 - 4 * one * n4 / n3
        if min(first, second, third) > 0:
            return first, second, third
    return one, one, one
