"""Baselines of translation: copying, the most frequent target, and the target of the nearest source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.pairs import Pair
from tokenloom.training.events import Baseline

# Validation pairs used, and sources per pair to which the edit distance is computed.
MAX_PAIRS, CANDIDATES = 300, 50


def edit_distances(text: str, others: NDArray[np.uint32], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the Levenshtein distance of a text from each of T others.

    others: (T, M) code points, padded with 0. lengths: (T,). The recursion d[i, j] = min(d[i−1, j] + 1, d[i, j−1] + 1,
    d[i−1, j−1] + [differ]) goes row by row for all others at once; the middle term is a running minimum of d[i, k] − k.
    """
    T, M = others.shape
    steps = np.arange(M + 1, dtype=np.int32)
    row = np.broadcast_to(steps, (T, M + 1)).copy()
    for i, code in enumerate(map(ord, text), start=1):
        new = np.empty_like(row)
        new[:, 0] = i
        np.minimum(row[:, 1:] + 1, row[:, :-1] + (others != code), out=new[:, 1:])
        row = np.minimum.accumulate(new - steps, axis=1) + steps
    found: NDArray[np.int64] = row[np.arange(T), lengths].astype(np.int64)
    return found


def nearest_targets(asked: Sequence[Pair], training: Sequence[Pair]) -> list[str]:
    """Return for each pair the target of the training pair with the nearest source; ties go to the first.

    Edit distances are computed to the sources with the most similar character counts, whose difference is a lower bound
    of the distance.
    """
    places = {character: i for i, character in enumerate(sorted(set().union(*(p.source for p in [*training, *asked]))))}

    def counts(text: str) -> NDArray[np.int64]:
        return np.bincount([places[character] for character in text], minlength=len(places))

    held = np.stack([counts(pair.source) for pair in training]).astype(np.int16)
    targets = []
    for pair in asked:
        more = held - counts(pair.source).astype(np.int16)
        least = np.maximum(np.maximum(more, 0).sum(1), np.maximum(-more, 0).sum(1))
        chosen = np.sort(np.argsort(least, kind="stable")[:CANDIDATES])
        sources = [training[int(i)].source for i in chosen]
        lengths = np.array([len(source) for source in sources])
        codes = np.zeros((len(sources), int(lengths.max())), dtype=np.uint32)
        for row, source in enumerate(sources):
            codes[row, : len(source)] = np.frombuffer(source.encode("utf-32-le"), "<u4")
        targets.append(training[int(chosen[edit_distances(pair.source, codes, lengths).argmin()])].target)
    return targets


def pair_baseline(training: Sequence[Pair], validation: Sequence[Pair]) -> Baseline:
    """Return the exact-match rate of the best of three simple methods."""
    # Evenly spaced, since the order may have a meaning.
    asked = validation[:: -(-len(validation) // MAX_PAIRS)]
    common = Counter(pair.target for pair in training).most_common(1)[0][0]
    answers = {
        "the target of the nearest training source": nearest_targets(asked, training),
        "copying the source": [pair.source for pair in asked],
        "the most frequent target": [common] * len(asked),
    }
    exact = {
        name: sum(text == pair.target for text, pair in zip(texts, asked, strict=True)) / len(asked)
        for name, texts in answers.items()
    }
    best = max(exact, key=lambda name: exact[name])
    rest = ", ".join(f"{name} {value:.3f}" for name, value in exact.items() if name != best)
    note = f"by edit distance, on {len(asked):,} pairs ({rest})"
    return Baseline(best, exact[best], "of the targets exactly", note, metric="exact_match")
