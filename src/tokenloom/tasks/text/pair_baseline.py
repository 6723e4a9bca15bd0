"""The lines to beat for pairs: what copying, always saying the same, and looking up the nearest source reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.pairs import Pair
from tokenloom.training.events import Baseline

# Cells of the tables of edit distances that are filled at most, for two seconds or so: fewer pairs are asked where they
# are long.
MOST_CELLS = 300_000_000
MOST_ASKED = 500


def edit_distances(text: str, others: NDArray[np.uint32], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Levenshtein's distance of a text from each of T others: the fewest characters to put in, take out or replace.

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
    """For each pair the target of the training pair whose source is nearest to its own; ties go to the first."""
    lengths = np.array([len(pair.source) for pair in training])
    codes = np.zeros((len(training), int(lengths.max())), dtype=np.uint32)
    for row, pair in enumerate(training):
        codes[row, : len(pair.source)] = np.frombuffer(pair.source.encode("utf-32-le"), "<u4")
    return [training[int(edit_distances(pair.source, codes, lengths).argmin())].target for pair in asked]


def pair_baseline(training: Sequence[Pair], validation: Sequence[Pair]) -> Baseline:
    """The share of validation pairs that the best of three simple methods gives exactly."""
    cells = len(training) * max(len(pair.source) for pair in training)
    mean = max(1.0, sum(len(pair.source) for pair in validation) / len(validation))
    # Evenly over the validation part, whose order may mean something.
    asked = validation[:: max(1, -(-len(validation) // max(1, min(MOST_ASKED, int(MOST_CELLS / cells / mean)))))]
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
    note = f"by edit distance, asked of {len(asked):,} pairs ({rest})"
    return Baseline(best, exact[best], "of the targets exactly", note, metric="exact")
