"""The baseline of token classification: a tagger by counts of words and their neighbors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# Weight of the smaller context's probabilities beside the counts of a larger one.
PRIOR = 1.0
_EDGE = ""  # Before the first word and after the last.


class CountTagger:
    """p(label | w_n and its neighbors), from counts of contexts, each smoothed by the next smaller one.

    p_k(l) = (n(c_k, l) + p_{k−1}(l)) / (n(c_k) + 1) for the contexts c_1 = (w_n), c_2 = (w_n, w_{n+1}) and
    c_3 = (w_{n−1}, w_n, w_{n+1}); p_0(l) = (n(l) + 1) / (n + labels).

    contexts: how many of the three are used; 1 is the most frequent label per word.
    """

    def __init__(self, labels: int, contexts: int = 3) -> None:
        if labels < 1 or contexts not in (1, 2, 3):
            raise ValueError(f"labels must be at least 1 and contexts 1, 2 or 3, not {labels} and {contexts}")
        self.contexts = contexts
        self._prior = np.ones(labels)
        self._counts: defaultdict[tuple[str, ...], Counter[int]] = defaultdict(Counter)

    def fit(self, sentences: Iterable[tuple[Sequence[str], Sequence[int]]]) -> CountTagger:
        """Count sentences: words, and their labels as indices."""
        for words, labels in sentences:
            for contexts, label in zip(self._contexts_of(words), labels, strict=True):
                self._prior[label] += 1
                for context in contexts:
                    self._counts[context][label] += 1
        return self

    def probabilities(self, words: Sequence[str]) -> NDArray[np.float64]:
        """Return the probabilities of the labels, (words, labels)."""
        rows = np.tile(self._prior / self._prior.sum(), (len(words), 1))
        for row, contexts in zip(rows, self._contexts_of(words), strict=True):
            for context in contexts:
                seen = self._counts.get(context)
                if seen is None:
                    break
                row *= PRIOR
                for label, n in seen.items():
                    row[label] += n
                row /= sum(seen.values()) + PRIOR
        return rows

    def _contexts_of(self, words: Sequence[str]) -> Iterable[list[tuple[str, ...]]]:
        padded = [_EDGE, *words, _EDGE]
        for n in range(1, len(padded) - 1):
            before, word, after = padded[n - 1 : n + 2]
            yield [(word,), (word, after), (before, word, after)][: self.contexts]
