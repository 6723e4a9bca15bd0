"""The simple method to beat: logistic regression on TF-IDF weights of words, the usual first thing to try."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

_WORD = re.compile(r"\w\w+")
# The strength of the penalty is 1 / (2 C); larger C than the usual 1, since rows of length 1 have small weights.
_C = 10.0
_STEPS = 100


@dataclass(frozen=True)
class TfIdf:
    """x_w = count of w · (log((1 + n) / (1 + texts with w)) + 1), scaled to length 1: Salton & Buckley 1988, in the
    smoothed form that is in common use. Words: two letters or digits and more, in lower case."""

    places: dict[str, int]
    weights: NDArray[np.float64]

    @classmethod
    def learn(cls, texts: Sequence[str]) -> TfIdf:
        """The words of some texts, and how rare each is."""
        found = Counter(word for text in texts for word in set(_words(text)))
        counts = np.array([found[word] for word in sorted(found)], dtype=np.float64)
        places = {word: place for place, word in enumerate(sorted(found))}
        return cls(places, np.log((1 + len(texts)) / (1 + counts)) + 1)

    def rows(self, texts: Sequence[str]) -> Tensor:
        """A sparse matrix (texts, words), float64."""
        places: list[list[int]] = [[], []]
        values = []
        for number, text in enumerate(texts):
            counts = Counter(place for word in _words(text) if (place := self.places.get(word)) is not None)
            row = sorted(counts)
            x = np.array([counts[place] for place in row], dtype=np.float64) * self.weights[row]
            places[0] += [number] * len(row)
            places[1] += row
            values.append(x / max(np.sqrt((x * x).sum()), 1e-12))
        size = (len(texts), len(self.places))
        flat = torch.from_numpy(np.concatenate(values))
        at = torch.tensor(places, dtype=torch.int64)
        return torch.sparse_coo_tensor(at, flat, size, is_coalesced=True, check_invariants=False)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def logistic_regression(X: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """W (words, classes) and b (classes,) that minimize Σ cross-entropy + |W|² / 2C, by L-BFGS.

    X: (texts, words), sparse; y: (texts,) int64.
    """
    W = torch.zeros(X.shape[1], classes, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [W, b], max_iter=_STEPS, tolerance_grad=1e-6, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(X @ W + b, y) + (W * W).sum() / (2 * _C * len(y))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return W.detach(), b.detach()


def linear_accuracy(
    training: Sequence[str], labels: Sequence[int], validation: Sequence[str], truth: Sequence[int], classes: int
) -> float:
    """The share of validation texts that the simple method labels right."""
    weights = TfIdf.learn(training)
    W, b = logistic_regression(weights.rows(training), torch.tensor(labels), classes)
    predicted = (weights.rows(validation) @ W + b).argmax(1)
    return float((predicted == torch.tensor(truth)).double().mean())
