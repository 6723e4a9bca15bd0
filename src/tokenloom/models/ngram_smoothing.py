"""N-gram counts and smoothing.

With c(h w) the count of the context h followed by w, c(h) = Σ_w c(h w) and h′ the context without its oldest token:

    interpolated Kneser–Ney   p(w | h) = max(c(h w) − D(c), 0) / c(h) + γ(h) p(w | h′),
                              γ(h) = Σ_w min(D(c), c(h w)) / c(h)
    add-k                     p(w | h) = (c(h w) + k) / (c(h) + k · vocab)
    Jelinek–Mercer            p(w | h) = λ(h) c(h w) / c(h) + (1 − λ(h)) p(w | h′)

In Kneser–Ney, c counts occurrences at the longest context alone. At all shorter ones c(h w) is the number of
*different* tokens seen just before h w (a continuation count): "Francisco" is frequent, but only after "San", so it
is unlikely elsewhere. Interpolation ends in the uniform distribution over the vocabulary, so that no token
has probability zero. For an unseen context the shorter one is used; add-k is then uniform.

Sources: Kneser and Ney 1995, "Improved backing-off for m-gram language modeling"; Chen and Goodman 1999, "An empirical
study of smoothing techniques for language modeling" (interpolation, the discounts, λ by how often a context was seen);
Jelinek and Mercer 1980, "Interpolated estimation of Markov source parameters from sparse data".

Storage: all n-grams of length m are numbered 0, 1, 2, … in sorted order, and one of length m is found by the
key (number of its first m − 1 tokens) · vocab + last token. Numbers are ranks, not hashes, so there are no
collisions. A context's successors are adjacent in the sorted keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Jelinek–Mercer: the last tenth of the text is held out for the weights; one weight for each power of two of c(h).
HELD_OUT_FRACTION = 0.1
BUCKETS = 24
ROUNDS = 30
# A weight of 1 would give unseen tokens probability 0.
MAX_WEIGHT = 0.999


@dataclass(frozen=True)
class Level:
    """All n-grams of one length m with their predictions.

    keys: (n-grams,) sorted; key = (number of the first m − 1 tokens among the n-grams of length m − 1) ·
    vocab + last token. probs: (n-grams,) smoothed probability of the last token after the others.
    gamma: (contexts,) the weight of the next shorter context, 1 for a context without successors. discounts: of
    Kneser–Ney, for counts of one, of two, and of three or more.
    """

    keys: Integers
    probs: Floats
    gamma: Floats
    discounts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Grams:
    """The n-grams of one length m with their counts, each at least 1.

    suffixes: (n-grams,) the number of each without its first token, among those of length m − 1. contexts: how many
    n-grams there are of length m − 1.
    """

    keys: Integers
    counts: Integers
    suffixes: Integers
    contexts: int

    def totals(self, vocab_size: int) -> Floats:
        """Return c(h), (contexts,): how often each context had a successor."""
        return np.bincount(self.keys // vocab_size, weights=self.counts, minlength=self.contexts).astype(np.float64)


class Smoothing(Protocol):
    """How counts become probabilities."""

    # Whether shorter n-grams use continuation counts, and whether shorter contexts are interpolated.
    continuation: ClassVar[bool]
    interpolated: ClassVar[bool]

    def level(self, m: int, grams: Grams, lower: Floats, vocab_size: int) -> Level:
        """Return the n-grams of length m. lower: the smoothed probabilities of the same without their first token."""
        ...


@dataclass(frozen=True)
class KneserNey:
    """modified: three discounts per level (for counts of one, of two, and above) instead of one."""

    modified: bool = False
    continuation: ClassVar[bool] = True
    interpolated: ClassVar[bool] = True

    def level(self, m: int, grams: Grams, lower: Floats, vocab_size: int) -> Level:
        counts, owners = grams.counts, grams.keys // vocab_size
        discounts = _discounts(counts, self.modified)
        taken = np.array(discounts)[np.minimum(counts, 3) - 1]
        totals = grams.totals(vocab_size)
        freed = np.bincount(owners, weights=taken, minlength=grams.contexts)
        gamma: Floats = np.divide(freed, totals, out=np.ones(grams.contexts), where=totals > 0)
        probs = (counts - taken) / totals[owners] + gamma[owners] * lower
        return Level(grams.keys, probs, gamma, discounts)


@dataclass(frozen=True)
class AddK:
    """k: added to each count, above 0; 1 is Laplace smoothing."""

    k: float = 1.0
    continuation: ClassVar[bool] = False
    interpolated: ClassVar[bool] = False

    def level(self, m: int, grams: Grams, lower: Floats, vocab_size: int) -> Level:
        owners = grams.keys // vocab_size
        mass = self.k * vocab_size
        totals = grams.totals(vocab_size) + mass
        return Level(grams.keys, (grams.counts + self.k) / totals[owners], mass / totals)


@dataclass(frozen=True)
class JelinekMercer:
    """weights: λ for each length, by ⌊log₂ c(h)⌋. See `em_weights`."""

    weights: tuple[tuple[float, ...], ...]
    continuation: ClassVar[bool] = False
    interpolated: ClassVar[bool] = True

    def level(self, m: int, grams: Grams, lower: Floats, vocab_size: int) -> Level:
        owners = grams.keys // vocab_size
        totals = grams.totals(vocab_size)
        share = self.shares(m, totals)
        probs = share[owners] * grams.counts / totals[owners] + (1 - share[owners]) * lower
        return Level(grams.keys, probs, 1 - share)

    def shares(self, m: int, totals: Floats) -> Floats:
        """Return λ of contexts of length m − 1 with these totals; 0 without successors."""
        shares: Floats = np.where(totals > 0, np.array(self.weights[m - 1])[_bucket(totals)], 0.0)
        return shares


@dataclass(frozen=True)
class Relative:
    """Relative frequencies c(h w) / c(h), with c(h) in place of γ, for fitting Jelinek–Mercer."""

    continuation: ClassVar[bool] = False
    interpolated: ClassVar[bool] = True

    def level(self, m: int, grams: Grams, lower: Floats, vocab_size: int) -> Level:
        owners = grams.keys // vocab_size
        totals = grams.totals(vocab_size)
        return Level(grams.keys, grams.counts / totals[owners], totals)


def _bucket(totals: Floats) -> Integers:
    """Return ⌊log₂ c⌋, and 0 for 0."""
    buckets: Integers = np.minimum(np.log2(np.maximum(totals, 1)).astype(np.int64), BUCKETS - 1)
    return buckets


def em_weights(relative: Floats, totals: Floats, lower: Floats) -> tuple[float, ...]:
    """Return λ for each bucket of c(h), by expectation maximization: λ ← mean of λ r / (λ r + (1 − λ) lower).

    relative, totals, lower: (tokens,) c(h w) / c(h), c(h) > 0 and p(w | h′) of held-out tokens. An empty bucket takes
    the weight of the one below.
    """
    buckets = _bucket(totals)
    number = np.bincount(buckets, minlength=BUCKETS)
    weights = np.full(BUCKETS, 0.5)
    for _ in range(ROUNDS):
        share = weights[buckets] * relative
        share /= share + (1 - weights[buckets]) * lower
        found = np.bincount(buckets, weights=share, minlength=BUCKETS)
        weights = np.minimum(np.divide(found, number, out=weights.copy(), where=number > 0), MAX_WEIGHT)
    for bucket in range(1, BUCKETS):
        if not number[bucket]:
            weights[bucket] = weights[bucket - 1]
    return tuple(weights.tolist())


def smoothed_levels(
    parts: Sequence[NDArray[Any]], vocab_size: int, order: int, smoothing: Smoothing, separator: int | None = None
) -> Iterator[Level]:
    """Count the parts and yield the smoothed levels. See `Ngram.fit`."""
    tokens = np.concatenate(parts)
    available = np.concatenate([context_lengths(part, separator) for part in parts])
    probs = np.array([1.0 / vocab_size])
    for m, grams in enumerate(_counted(tokens, available, vocab_size, order, smoothing.continuation), start=1):
        level = smoothing.level(m, grams, probs[grams.suffixes], vocab_size)
        yield level
        probs = level.probs


def context_lengths(ids: NDArray[Any], separator: int | None) -> NDArray[np.int32]:
    """Return for each token the number of context tokens before it in its document, (N,).

    separator: an id between documents; it is predicted by the document before it and is context of the one after it.
    """
    index = np.arange(len(ids), dtype=np.int32)
    if separator is None:
        return index
    first = np.maximum.accumulate(np.where(ids == separator, index, 0))
    available: NDArray[np.int32] = index - np.concatenate([first[:1], first[:-1]]) if len(ids) else index
    return available


def _counted(
    tokens: NDArray[Any], available: NDArray[Any], vocab_size: int, order: int, continuation: bool
) -> Iterator[Grams]:
    """Yield the n-grams of length 1 … order. Continuation counts need the next longer n-grams."""
    # At each position: the number of the n-gram of length m − 1 that ends here, or at the token before.
    here = before = np.zeros(len(tokens), dtype=np.int64)
    grams = Grams(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    for m in range(1, order + 1):
        at = np.flatnonzero(available >= m - 1)
        longer, inverse = np.unique(before[at] * vocab_size + tokens[at], return_inverse=True)
        # An n-gram's suffix is the same at each occurrence, so any of them may write it.
        shorter = np.zeros(len(longer), dtype=np.int64)
        shorter[inverse] = here[at]
        if m > 1:
            if continuation:
                counts = np.bincount(shorter, minlength=len(grams.keys))
                counts[np.unique(here[available == m - 2])] += 1  # n-grams at the start of a document
                grams = Grams(grams.keys, counts, grams.suffixes, grams.contexts)
            yield grams
        grams = Grams(longer, np.bincount(inverse, minlength=len(longer)), shorter, len(grams.keys))
        here = np.full(len(tokens), -1, dtype=np.int64)
        here[at] = inverse
        before = shift_right(here)
    yield grams


def checked(ids: NDArray[Any], vocab_size: int) -> Integers:
    """Return the ids as int64. Raises ValueError for ids outside the vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"ids must be a 1-D integer array, not {ids.ndim}-D {ids.dtype}")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(f"ids must lie in 0 … {vocab_size - 1}, not {ids.min()} … {ids.max()}")
    return ids.astype(np.int64, copy=False)


def shift_right(numbers: Integers) -> Integers:
    """Return the values shifted by one token; −1 at the first."""
    shifted = np.empty_like(numbers)
    shifted[:1] = -1
    shifted[1:] = numbers[:-1]
    return shifted


def lookup(keys: Integers, wanted: Integers) -> Integers:
    """Return the index of each wanted key in the sorted keys, −1 where it is missing."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.searchsorted(keys, wanted)
    places[places == len(keys)] = 0
    places[keys[places] != wanted] = -1
    return places


def _discounts(counts: Integers, modified: bool) -> tuple[float, float, float]:
    """Return the discounts of counts of one, two, and three or more, from how many n-grams occurred once, twice, …

    n_c is the number of n-grams with count c. One discount: D = n₁ / (n₁ + 2 n₂). Modified (Chen and Goodman
    1999): D_c = c − (c + 1) · D · n_{c+1} / n_c for counts c = 1, 2, and 3 or more. A small or odd text may
    leave an estimate without data or not above 0; then D serves for all three, or 0.5 where D itself fails.
    So every context gives the shorter one some weight, and no discount exceeds its count.
    """
    n1, n2, n3, n4 = (int(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    one = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if modified and n1 and n2 and n3 and n4:
        first, second, third = 1 - 2 * one * n2 / n1, 2 - 3 * one * n3 / n2, 3 - 4 * one * n4 / n3
        if min(first, second, third) > 0:
            return first, second, third
    return one, one, one
