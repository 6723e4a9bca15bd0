"""Images as rows of ids: augmented copies, and counts given neighboring tokens, worked by hand."""

import math

import numpy as np
import pytest

from tokenloom.evaluation.baselines.grid_counts import neighbor_nats, neighbors, unigram_nats
from tokenloom.tasks._image_tokens import TokenizedImages, augmented_copy


def test_neighbors_of_a_grid() -> None:
    ids = np.arange(6)[None]
    found = neighbors(ids, 2, 3, 9)[0].tolist()
    # 0 1 2
    # 3 4 5: left, upper left, upper, upper right.
    assert found == [[9, 9, 9, 9], [0, 9, 9, 9], [1, 9, 9, 9], [9, 9, 0, 1], [3, 0, 1, 2], [4, 1, 2, 9]]


def test_counts_by_hand() -> None:
    train, val = np.array([[0, 1]]), np.array([[0, 0]])
    assert unigram_nats(train, val, 2) == pytest.approx(math.log(2))
    # p₀ = 1/2. First token: its neighbors are nothing, seen once with 0: p₂ = (1 + 1/2) / 2 = 3/4, p₄ = (1 + 3/4) / 2.
    # Second: after a left 0, seen once with 1: p₂ = (0 + 1/2) / 2 = 1/4, p₄ = (0 + 1/4) / 2 = 1/8.
    expected = -(math.log(7 / 8) + math.log(1 / 8)) / 2
    assert neighbor_nats(train, val, (1, 2), 2) == pytest.approx(expected)


def test_counts_give_probabilities() -> None:
    random = np.random.default_rng(0)
    train = random.integers(0, 3, (20, 12))
    val = np.repeat(random.integers(0, 3, (1, 12)), 3, 0)
    val[:, -1] = np.arange(3)
    nats = [12 * neighbor_nats(train, row[None], (3, 4), 3) for row in val]
    # The last token is nobody's neighbor: whatever it is, the others have what they have, and its own sum up to one.
    assert sum(math.exp(-value) for value in nats) == pytest.approx(math.exp(-_without_last(train, val[0])))


def _without_last(train: np.ndarray, row: np.ndarray) -> float:
    """Nats of all tokens but the last: those of the whole, less those of the last by hand."""
    p = (np.bincount(train.ravel(), minlength=3) + 1.0) / (train.size + 3)
    train_context, val_context = neighbors(train, 3, 4, 3), neighbors(row[None], 3, 4, 3)
    for chosen in ([0, 2], [0, 1, 2, 3]):
        same = (train_context[:, :, chosen] == val_context[0, -1, chosen]).all(-1)
        counts = np.bincount(train[same], minlength=3)
        p = (counts + p) / (counts.sum() + 1)
    return 12 * neighbor_nats(train, row[None], (3, 4), 3) + math.log(p[row[-1]])


def test_copies_are_slight_and_repeatable() -> None:
    pixels = np.zeros((3, 1, 20, 20), dtype=np.uint8)
    pixels[:, :, 6:14, 8:12] = 255
    again = augmented_copy(pixels, 1, 0)
    assert np.array_equal(augmented_copy(pixels, 1, 0), again)
    assert not np.array_equal(augmented_copy(pixels, 2, 0), again)
    assert not np.array_equal(again[0], again[1]), "each image has its own random numbers"
    mass = again.sum((1, 2, 3)) / pixels.sum((1, 2, 3))
    assert ((mass > 0.6) & (mass < 1.4)).all()
    samples = TokenizedImages(
        pixels, np.array([0, 1, -1]), lambda p: p.reshape(len(p), -1)[:, :4].astype(np.int64), "x", 3
    )
    ids, labels = samples.take(np.array([2, 0]))
    assert ids.shape == (2, 3, 4)
    assert labels.tolist() == [-1, 0]
    assert samples.fingerprint() != TokenizedImages(pixels, samples.labels, samples.encode, "x", 2).fingerprint()
