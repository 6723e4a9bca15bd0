"""Byte-pair encoding in its simplest form, and the reference that `tokenizers/bpe.py` is tested against.

Training: start with single characters as tokens. Count all pairs of neighboring tokens, merge the most frequent
pair into a new token everywhere, and repeat (Sennrich, Haddow & Birch 2016).

    >>> train([("low", 5), ("lower", 2), ("slow", 3)], alphabet="elorsw", num_merges=3)   # lo, low, slow
    [(1, 2), (6, 5), (4, 7)]

Encoding: split a chunk into characters, then repeatedly apply the merge that was learned first.

    >>> encode("lowers", {char: i for i, char in enumerate("elorsw")}, {(1, 2): 0, (6, 5): 1, (4, 7): 2})   # low e r s
    [7, 0, 3, 4]
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

Pair = tuple[int, int]
Ties = Literal["first", "id"]


def merge(tokens: list[int], pair: Pair, new: int) -> list[int]:
    """Replace each occurrence of a pair of neighbors by the token `new`, from left to right."""
    merged: list[int] = []
    for token in tokens:
        if token == pair[1] and merged and merged[-1] == pair[0]:
            merged[-1] = new
        else:
            merged.append(token)
    return merged


def train(
    counts: Iterable[tuple[str, int]], alphabet: Sequence[str], num_merges: int, ties: Ties = "first"
) -> list[Pair]:
    """Learn merges of pairs of ids; merge m makes the token len(alphabet) + m.

    counts: chunks of text with how often each occurs, in order of first appearance; no merge crosses a chunk's border.
    Overlapping pairs are all counted: "aaa" holds (a, a) twice. Of pairs equally frequent, ties="first" takes the one
    that comes first in the chunks, "id" the smallest pair of ids. Ends early when no pair occurs twice.
    """
    ids = {char: i for i, char in enumerate(alphabet)}
    chunks = [([ids[char] for char in chunk], count) for chunk, count in counts]
    merges: list[Pair] = []
    for new in range(len(alphabet), len(alphabet) + num_merges):
        frequency: dict[Pair, int] = {}
        for tokens, count in chunks:
            for pair in pairwise(tokens):
                frequency[pair] = frequency.get(pair, 0) + count
        most = max(frequency.values(), default=0)
        if most < 2:
            break
        tied = (pair for pair, count in frequency.items() if count == most)  # in order of first appearance
        best = next(tied) if ties == "first" else min(tied)
        chunks = [(merge(tokens, best, new), count) for tokens, count in chunks]
        merges.append(best)
    return merges


def encode(chunk: str, ids: Mapping[str, int], ranks: Mapping[Pair, int]) -> list[int]:
    """Return the ids of one chunk. ids: of single characters. ranks: the merges by the order of training."""
    tokens = [ids[char] for char in chunk]
    while len(tokens) > 1:
        best = min(pairwise(tokens), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        tokens = merge(tokens, best, len(ids) + ranks[best])
    return tokens
