"""Pictures as rows of ids: copies, and counts of neighboring cells, worked by hand."""

import math

import numpy as np
import pytest

from tokenloom.tasks._image_cells import CellSamples, histogram_nats, neighbor_nats, neighbors, varied


def test_neighbors_of_a_grid() -> None:
    ids = np.arange(6)[None]
    found = neighbors(ids, 2, 3, 9)[0].tolist()
    # 0 1 2
    # 3 4 5: left, upper left, upper, upper right.
    assert found == [[9, 9, 9, 9], [0, 9, 9, 9], [1, 9, 9, 9], [9, 9, 0, 1], [3, 0, 1, 2], [4, 1, 2, 9]]


def test_counts_by_hand() -> None:
    training, held = np.array([[0, 1]]), np.array([[0, 0]])
    assert histogram_nats(training, held, 2) == pytest.approx(math.log(2))
    # p₀ = 1/2. First cell: its neighbors are nothing, seen once with 0: p₂ = (1 + 1/2) / 2 = 3/4, p₄ = (1 + 3/4) / 2.
    # Second: after a left 0, seen once with 1: p₂ = (0 + 1/2) / 2 = 1/4, p₄ = (0 + 1/4) / 2 = 1/8.
    expected = -(math.log(7 / 8) + math.log(1 / 8)) / 2
    assert neighbor_nats(training, held, (1, 2), 2) == pytest.approx(expected)


def test_counts_give_probabilities() -> None:
    random = np.random.default_rng(0)
    training = random.integers(0, 3, (20, 12))
    held = np.repeat(random.integers(0, 3, (1, 12)), 3, 0)
    held[:, -1] = np.arange(3)
    nats = [12 * neighbor_nats(training, row[None], (3, 4), 3) for row in held]
    # The last cell is nobody's neighbor: whatever it is, the others have what they have, and its own sum up to one.
    assert sum(math.exp(-value) for value in nats) == pytest.approx(math.exp(-_without_last(training, held[0])))


def _without_last(training: np.ndarray, row: np.ndarray) -> float:
    """Nats of all cells but the last: those of the whole, less those of the last by hand."""
    p = (np.bincount(training.ravel(), minlength=3) + 1.0) / (training.size + 3)
    seen, asked = neighbors(training, 3, 4, 3), neighbors(row[None], 3, 4, 3)
    for chosen in ([0, 2], [0, 1, 2, 3]):
        same = (seen[:, :, chosen] == asked[0, -1, chosen]).all(-1)
        counts = np.bincount(training[same], minlength=3)
        p = (counts + p) / (counts.sum() + 1)
    return 12 * neighbor_nats(training, row[None], (3, 4), 3) + math.log(p[row[-1]])


def test_copies_are_slight_and_repeatable() -> None:
    pixels = np.zeros((3, 1, 20, 20), dtype=np.uint8)
    pixels[:, :, 6:14, 8:12] = 255
    again = varied(pixels, 1, 0)
    assert np.array_equal(varied(pixels, 1, 0), again)
    assert not np.array_equal(varied(pixels, 2, 0), again)
    assert not np.array_equal(again[0], again[1]), "each picture goes its own way"
    mass = again.sum((1, 2, 3)) / pixels.sum((1, 2, 3))
    assert ((mass > 0.6) & (mass < 1.4)).all()
    samples = CellSamples(pixels, np.array([0, 1, -1]), lambda p: p.reshape(len(p), -1)[:, :4].astype(np.int64), "x", 3)
    ids, labels = samples.take(np.array([2, 0]))
    assert ids.shape == (2, 3, 4)
    assert labels.tolist() == [-1, 0]
    assert samples.fingerprint() != CellSamples(pixels, samples.labels, samples.encode, "x", 2).fingerprint()
