"""The simple method to beat on pictures: a support-vector machine with a radial kernel on their pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# More pictures than this would take the kernel minutes: so many are learnt from, taken evenly.
MOST = 5_000


def support_vector_accuracy(
    training: NDArray[np.uint8], labels: NDArray[np.int64], held: NDArray[np.uint8], truth: NDArray[np.int64]
) -> tuple[float, float, float] | None:
    """(accuracy, C, γ scale) of scikit-learn's machine, both chosen on a fifth of the training pictures; None without
    scikit-learn, or where there are too few classes for it. Pixels are taken as 0 … 1 and γ = scale / (features ·
    variance), scikit-learn's own unit."""
    try:
        from sklearn.svm import SVC
    except ImportError:
        return None
    if len(training) > MOST:
        chosen = np.linspace(0, len(training) - 1, MOST).astype(np.int64)
        training, labels = training[chosen], labels[chosen]
    X, Z = (pixels.reshape(len(pixels), -1).astype(np.float32) / 255 for pixels in (training, held))
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
