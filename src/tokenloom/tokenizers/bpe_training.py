"""How the merges of byte-pair encoding are learned.

The rule: count all pairs of neighboring tokens inside the chunks (overlapping ones too, so "aaa" holds (a, a)
twice), merge the most frequent pair everywhere from left to right, and repeat, until enough merges are made or no
pair occurs twice. Two rules say which of several equally frequent pairs goes first:

- "first": the pair met first in the text as it stands after the merges so far, by the place of its first token.
  Learnt here, with counts that are kept up to date instead of counted again.
- "id": the pair with the smallest ids, first token before second. Learnt by the package `tokenizers`, whose rule it
  is; but where a chunk is so long that its trainer would take time by the square of it, learned here.

No text of a token is ever made by two different merges. Let the same text become a token in two places: no merge
crossed its borders before, so its inside went through the same merges at the same steps in both. From this follow
that a merged pair never comes back, that counts only fall once a pair's newest token is made, that a pair's first
place only moves right, and that merging by rank equals applying the merges one after the other.
"""

import heapq
import json
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ties = Literal["first", "id"]
LEAST = 2
LONGEST_CHUNK = 4096
_GAP, _GONE = -1, -2


def train_merges(counts: Mapping[str, int], alphabet: Sequence[str], limit: int, ties: Ties) -> list[tuple[int, int]]:
    """At most `limit` merges as pairs of ids; those of the sorted alphabet come first, then one a merge.

    `counts` says how often each distinct chunk occurs, in order of first appearance.
    """
    if ties not in ("first", "id"):
        raise ValueError(f"ties must be 'first' or 'id', not {ties!r}")
    if limit == 0 or not counts:
        return []
    if ties == "id" and max(map(len, counts)) <= LONGEST_CHUNK:
        return _train_with_package(counts, alphabet, limit)
    return MergeCounter(counts, alphabet, limit, ties).merges(limit)


def _train_with_package(counts: Mapping[str, int], alphabet: Sequence[str], limit: int) -> list[tuple[int, int]]:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    trainer = BpeTrainer(
        vocab_size=len(alphabet) + limit,
        min_frequency=LEAST,
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    engine = Tokenizer(BPE())
    engine.train_from_iterator(chain.from_iterable(map(repeat, counts, counts.values())), trainer)
    merges = json.loads(engine.to_str())["model"]["merges"]
    ids = {letter: i for i, letter in enumerate(alphabet)}
    pairs = []
    for first, second in merges:
        pairs.append((ids[first], ids[second]))
        ids[first + second] = len(ids)
    return pairs


class MergeCounter:
    """The tokens of all distinct chunks in one row, with counts and places of all pairs.

    Places are positions in that row: a token stands at its first character, `_next` and `_last` lead to its
    neighbors, and gaps stand between chunks. A pair is one whole number, first id × base + second id. A merge visits
    the places of its pair only, so all merges together cost about as much as the row is long, times a small factor.
    """

    def __init__(self, counts: Mapping[str, int], alphabet: Sequence[str], limit: int, ties: Ties) -> None:
        row, weights = _lay_out(counts, alphabet)
        self._letters = len(alphabet)
        self._base = len(alphabet) + limit
        self._first_met = ties == "first"
        self._tokens = array("i", row.tobytes())
        self._weights = array("q", weights.tobytes())
        self._next = array("i", np.arange(1, len(row) + 1, dtype=np.int32).tobytes())
        self._last = array("i", np.arange(-1, len(row) - 1, dtype=np.int32).tobytes())
        self._counts: dict[int, int] = {}
        self._places: dict[int, array[int]] = {}
        self._skipped: dict[int, int] = {}
        self._count_pairs(row, weights)

    def merges(self, limit: int) -> list[tuple[int, int]]:
        """Make up to `limit` merges and return their pairs of ids."""
        queue = [(-count, self._tie(pair), pair) for pair, count in self._counts.items() if count >= LEAST]
        heapq.heapify(queue)
        done: list[tuple[int, int]] = []
        while len(done) < limit:
            pair = self._pop(queue)
            if pair is None:
                break
            for fresh in self._merge(pair, self._letters + len(done)):
                if self._counts.get(fresh, 0) >= LEAST:
                    heapq.heappush(queue, (-self._counts[fresh], self._tie(fresh), fresh))
            done.append(divmod(pair, self._base))
        return done

    def _pop(self, queue: list[tuple[int, int, int]]) -> int | None:
        """The pair to merge next. An entry may promise too much, never too little: then it goes back corrected."""
        while queue:
            entry = heapq.heappop(queue)
            count = self._counts.get(entry[2], 0)
            if count < LEAST:
                continue
            true = (-count, self._tie(entry[2]), entry[2])
            if true == entry:
                return entry[2]
            heapq.heappush(queue, true)
        return None

    def _tie(self, pair: int) -> int:
        """What decides among pairs of one count: the first place where the pair still stands, or its ids."""
        if not self._first_met:
            return pair
        a, b = divmod(pair, self._base)
        tokens, follow, places = self._tokens, self._next, self._places[pair]
        i = self._skipped.get(pair, 0)
        while tokens[places[i]] != a or tokens[follow[places[i]]] != b:
            i += 1
        self._skipped[pair] = i
        return places[i]

    def _merge(self, pair: int, new: int) -> set[int]:
        """Replace the pair everywhere by the token `new`; returns the pairs that hold the new token."""
        base, tokens, follow, last = self._base, self._tokens, self._next, self._last
        a, b = divmod(pair, base)
        fresh: set[int] = set()
        for place in self._places.pop(pair):
            second = follow[place]
            if tokens[place] != a or tokens[second] != b:
                continue
            before, after, weight = last[place], follow[second], self._weights[place]
            left, right = tokens[before], tokens[after]
            if left != _GAP:
                self._drop(left * base + a, weight)
                self._add(left * base + new, weight, before)
                fresh.add(left * base + new)
            if right != _GAP:
                self._drop(b * base + right, weight)
                self._add(new * base + right, weight, place)
                fresh.add(new * base + right)
            tokens[place], tokens[second] = new, _GONE
            follow[place], last[after] = after, place
        self._counts.pop(pair, None)
        self._skipped.pop(pair, None)
        return fresh

    def _drop(self, pair: int, weight: int) -> None:
        left = self._counts.get(pair, 0) - weight
        if left > 0:
            self._counts[pair] = left
        else:
            self._counts.pop(pair, None)
            self._places.pop(pair, None)
            self._skipped.pop(pair, None)

    def _add(self, pair: int, weight: int, place: int) -> None:
        self._counts[pair] = self._counts.get(pair, 0) + weight
        self._places.setdefault(pair, array("i")).append(place)

    def _count_pairs(self, row: NDArray[np.int32], weights: NDArray[np.int64]) -> None:
        places = np.flatnonzero((row[:-1] >= 0) & (row[1:] >= 0)).astype(np.int32)
        pairs = row[places].astype(np.int64) * self._base + row[places + 1]
        order = np.argsort(pairs, kind="stable")
        places, pairs = places[order], pairs[order]
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))
        if not len(starts):
            return
        totals = np.add.reduceat(weights[places], starts)
        for pair, total, group in zip(
            pairs[starts].tolist(), totals.tolist(), np.split(places, starts[1:]), strict=True
        ):
            self._counts[pair] = total
            self._places[pair] = array("i", group.tobytes())


def _lay_out(counts: Mapping[str, int], alphabet: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """All distinct chunks as ids in one row with a gap before, between and after; and each place's chunk count."""
    lengths = np.fromiter(map(len, counts), dtype=np.int64, count=len(counts))
    codes = np.frombuffer("".join(counts).encode("utf-32-le"), dtype="<u4")
    letters = np.array([ord(letter) for letter in alphabet], dtype=np.uint32)
    places = np.arange(len(codes)) + np.repeat(np.arange(1, len(counts) + 1), lengths)
    row = np.full(len(codes) + len(counts) + 1, _GAP, dtype=np.int32)
    weights = np.zeros(len(row), dtype=np.int64)
    row[places] = np.searchsorted(letters, codes)
    weights[places] = np.repeat(np.fromiter(counts.values(), dtype=np.int64, count=len(counts)), lengths)
    return row, weights
