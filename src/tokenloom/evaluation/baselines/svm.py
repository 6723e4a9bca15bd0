"""The simple method to beat on pictures: a support-vector machine with a radial kernel on their pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import avg_pool2d

# More pictures than this would take the kernel minutes: so many are learned from, taken evenly. Likewise values of a
# picture: pixels of larger ones than 32 × 32 in color are averaged over blocks.
MOST, MOST_VALUES = 5_000, 32 * 32 * 3
# What was found for pictures that were asked about before: an experiment over sizes of a model asks again and again.
Found = tuple[float, float, float] | None
_known: dict[bytes, Found] = {}


def block(shape: Sequence[int]) -> int:
    """Pixels along the side of the blocks over which pictures (…, C, H, W) are averaged; 1 for small ones."""
    C, H, W = shape[-3:]
    side = 1
    while side < max(H, W) and C * -(-H // side) * -(-W // side) > MOST_VALUES:
        side += 1
    return side


def values_of(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, values) in 0 … 1 of pictures (n, C, H, W), averaged over blocks where they are large."""
    side = block(pixels.shape)
    # One by one, so that no second copy of large pictures is made.
    averaged = (avg_pool2d(torch.from_numpy(one)[None].float(), side, ceil_mode=True) for one in pixels)
    values: NDArray[np.float32] = torch.cat([one.flatten(1) for one in averaged]).div_(255).numpy()
    return values


def why_no_machine() -> dict[str, str]:
    """What a report says where scikit-learn is not installed."""
    if find_spec("sklearn") is not None:
        return {}
    return {"baseline": "none: it needs scikit-learn (pip install 'tokenloom[digits]')"}


def support_vector_accuracy(
    training: NDArray[np.uint8], labels: NDArray[np.int64], held: NDArray[np.uint8], truth: NDArray[np.int64]
) -> Found:
    """(accuracy, C, γ scale) of scikit-learn's machine, both chosen on a fifth of the training pictures; None without
    scikit-learn, or where there are too few classes for it. γ = scale / (features · variance), scikit-learn's own
    unit. What a process has found once it does not fit again."""
    digest = hashlib.sha256()
    for part in (training, labels, held, truth):
        digest.update(repr((part.shape, part.dtype)).encode())
        digest.update(np.ascontiguousarray(part).data)
    key = digest.digest()
    if key not in _known:
        _known[key] = _fitted(training, labels, held, truth)
    return _known[key]


def _fitted(
    training: NDArray[np.uint8], labels: NDArray[np.int64], held: NDArray[np.uint8], truth: NDArray[np.int64]
) -> Found:
    try:
        from sklearn.svm import SVC
    except ImportError:
        return None
    if len(training) > MOST:
        chosen = np.linspace(0, len(training) - 1, MOST).astype(np.int64)
        training, labels = training[chosen], labels[chosen]
    X, Z = values_of(training), values_of(held)
    unit = 1.0 / (X.shape[1] * max(float(X.var()), 1e-9))
    order = np.random.Generator(np.random.Philox(0)).permutation(len(X))
    fifth = max(1, len(X) // 5)
    probe, rest = order[:fifth], order[fifth:]
    if len(np.unique(labels[rest])) < 2:
        return None
    best = (-1.0, 0.0, 0.0)
    for C in (3.0, 10.0):
        for scale in (1.0, 2.0):
            machine = SVC(C=C, gamma=scale * unit).fit(X[rest], labels[rest])
            best = max(best, (float(machine.score(X[probe], labels[probe])), C, scale))
    _, C, scale = best
    machine = SVC(C=C, gamma=scale * unit).fit(X, labels)
    return float((machine.predict(Z) == truth).mean()), C, scale
