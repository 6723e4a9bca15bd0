"""Byte-pair encoding in plain Python: the chapter's rule (reference 2.2), done as it is said.

Chunks are one optional whitespace character and the non-space run after it, or one whitespace character. All pairs
inside the chunks are counted in a dictionary, the most frequent one is merged everywhere, and they are counted anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

CHUNKS = re.compile(r"\s?\S+|\s")
Pair = tuple[str, str]


def merged(tokens: list[str], pair: Pair) -> list[str]:
    """The tokens with the pair joined wherever it stands, from left to right."""
    result: list[str] = []
    place = 0
    while place < len(tokens):
        if place + 1 < len(tokens) and tokens[place] == pair[0] and tokens[place + 1] == pair[1]:
            result.append(pair[0] + pair[1])
            place += 2
        else:
            result.append(tokens[place])
            place += 1
    return result


def train(chunks: Iterable[tuple[str, int]], merges: int) -> list[Pair]:
    """The merges, in order; of pairs equally frequent the one met first. chunks: each with how often it counts."""
    words = [(list(chunk), times) for chunk, times in chunks]
    learned: list[Pair] = []
    for _ in range(merges):
        counts: dict[Pair, int] = {}
        for tokens, times in words:
            for pair in pairwise(tokens):
                counts[pair] = counts.get(pair, 0) + times
        if not counts:
            break
        best = max(counts, key=counts.__getitem__)
        learned.append(best)
        words = [(merged(tokens, best), times) for tokens, times in words]
    return learned


class PlainEncoder:
    """Text → ids by the merges; the alphabet comes first."""

    def __init__(self, alphabet: Iterable[str], merges: list[Pair]) -> None:
        tokens = [*sorted(alphabet), *(a + b for a, b in merges)]
        self.ids = {token: number for number, token in enumerate(tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.merges = merges

    def encode_as_learnt(self, text: str) -> list[int]:
        """Merge after merge over the whole text, as a textbook says it; no merge reaches over the end of a chunk, since
        every chunk but the first begins with whitespace and no second token of a merge does."""
        tokens = list(text)
        for pair in self.merges:
            tokens = merged(tokens, pair)
        return [self.ids[token] for token in tokens]

    def encode(self, text: str) -> list[int]:
        """Chunk by chunk: as long as there is a pair that was merged, merge the one that was learned first."""
        ids: list[int] = []
        for chunk in CHUNKS.findall(text):
            tokens = list(chunk)
            while len(tokens) > 1:
                best = min(pairwise(tokens), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
                if best not in self.ranks:
                    break
                tokens = merged(tokens, best)
            ids += [self.ids[token] for token in tokens]
        return ids
