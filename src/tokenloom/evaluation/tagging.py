"""Token classification: windows over long sentences, counts for precision and recall, spans of BIO labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenloom.models.batch import IGNORE


@dataclass(frozen=True)
class TokenWindow:
    """Words start … stop − 1 form a window; those from `first` to `last` − 1 are labeled in it."""

    start: int
    stop: int
    first: int
    last: int


def windows(lengths: Sequence[int], max_length: int) -> list[TokenWindow]:
    """Split a sentence, given the subtokens per word, into windows of at most `max_length` subtokens.

    Neighboring windows overlap by up to a quarter of that; each word is labeled in the window where it is farther from
    the edge. Raises ValueError for a longer word.
    """
    found: list[TokenWindow] = []
    start = first = 0
    while True:
        stop, used = start, 0
        while stop < len(lengths) and used + lengths[stop] <= max_length:
            used, stop = used + lengths[stop], stop + 1
        if stop == start:
            raise ValueError(f"word {start} has {lengths[start]} subtokens, more than {max_length}")
        if stop == len(lengths):
            return [*found, TokenWindow(start, stop, first, stop)]
        after, overlap = stop, 0
        while after > start + 1 and overlap + lengths[after - 1] <= max_length // 4:
            after, overlap = after - 1, overlap + lengths[after - 1]
        border = (after + stop + 1) // 2
        found.append(TokenWindow(start, stop, first, border))
        start, first = after, border


def count_labels(truth: Tensor, predicted: Tensor, labels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the correct, predicted and actual counts per row and label: (B, labels) each.

    truth, predicted: (B, N) int64; where truth is `IGNORE`, nothing counts.
    """
    counted = truth != IGNORE

    def count(values: Tensor, where: Tensor) -> Tensor:
        none = torch.zeros(len(values), labels, dtype=torch.int64, device=values.device)
        return none.scatter_add_(1, values.clamp(min=0), where.long())

    return count(truth, counted & (truth == predicted)), count(predicted, counted), count(truth, counted)


def label_parts(labels: Sequence[str]) -> list[tuple[list[str], list[int]]]:
    """Return for each part of labels joined by "|", such as features, its values and their index per label."""
    split = [label.split("|") for label in labels]
    count = len(split[0])
    if count == 1 or any(len(parts) != count for parts in split):
        return []
    found = []
    for place in range(count):
        values = sorted({parts[place] for parts in split})
        found.append((values, [values.index(parts[place]) for parts in split]))
    return found


def looks_like_spans(labels: Sequence[str]) -> bool:
    """Return whether labels are BIO: "O", and others that begin with B- or I-."""
    others = [label for label in labels if label != "O"]
    return "O" in labels and bool(others) and all(label[:2] in ("B-", "I-") and len(label) > 2 for label in others)


def spans(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return (start, stop, type) of every span of BIO labels; an isolated I- begins a span, as in conlleval."""
    found: set[tuple[int, int, str]] = set()
    start, kind = 0, ""
    for n, label in enumerate([*labels, "O"]):
        begins, now = label[:1], label[2:]
        if kind and (begins != "I" or now != kind):
            found.add((start, n, kind))
            kind = ""
        if begins in "BI" and not kind:
            start, kind = n, now
    return found


def span_counts(truth: Tensor, predicted: Tensor, labels: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the correct, predicted and actual spans per row: (B,) each. Arguments as for `count_labels`."""
    rows: list[tuple[int, int, int]] = []
    for actual, guess in zip(truth.tolist(), predicted.tolist(), strict=True):
        kept = [n for n, label in enumerate(actual) if label != IGNORE]
        there, found = (spans([labels[row[n]] for n in kept]) for row in (actual, guess))
        rows.append((len(there & found), len(found), len(there)))
    right, found_counts, there_counts = torch.tensor(rows, device=truth.device).unbind(1)
    return right, found_counts, there_counts


Encoded = tuple[NDArray[np.int64], NDArray[np.int64]]


def encoded_window(words: Sequence[NDArray[np.int64]], labels: Sequence[int] | None, window: TokenWindow) -> Encoded:
    """Return the subtokens of a window, and targets: labels at the first subtoken of each labeled word."""
    pieces = words[window.start : window.stop]
    targets = np.full(sum(map(len, pieces)), IGNORE, np.int64)
    firsts = np.cumsum([0, *map(len, pieces)])[:-1]
    if labels is not None:
        inside = slice(window.first - window.start, window.last - window.start)
        targets[firsts[inside]] = labels[window.first : window.last]
    return np.concatenate(pieces), targets
