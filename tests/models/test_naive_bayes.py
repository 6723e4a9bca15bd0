import math

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import MultinomialNB

from tokenloom.models.batch import Batch, Stream, pad
from tokenloom.models.naive_bayes import NaiveBayes


def batch_of(rows: list[np.ndarray]) -> Batch:
    ids, real = pad([torch.from_numpy(row) for row in rows])
    return Batch({"text": Stream(ids=ids, real=real)})


def test_two_classes_by_hand() -> None:
    """Manning, Raghavan & Schütze 2008, example 13.1: three documents on China, one not; the fifth is on China."""
    chinese, beijing, shanghai, macao, tokyo, japan = range(6)
    rows = [[chinese, beijing, chinese], [chinese, chinese, shanghai], [chinese, macao], [tokyo, japan, chinese]]
    arrays = [np.array(row) for row in rows]
    model = NaiveBayes.count(arrays, [1, 1, 1, 0], vocab_size=6, outputs=2, alpha=1.0)
    scores = model(batch_of([np.array([chinese, chinese, chinese, tokyo, japan])]))[0]
    assert float(scores[1]) == pytest.approx(math.log(3 / 4 * (3 / 7) ** 3 * (1 / 14) ** 2), abs=1e-12)
    assert float(scores[0]) == pytest.approx(math.log(1 / 4 * (2 / 9) ** 3 * (2 / 9) ** 2), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 1.0, 3.5])
def test_predictions_are_those_of_scikit_learn_on_the_same_counts(alpha: float) -> None:
    random = np.random.default_rng(5)
    labels = random.integers(0, 4, 300)
    means = random.dirichlet(np.full(50, 0.3), 4)
    rows = [random.choice(50, size=random.integers(1, 30), p=means[label]) for label in labels]
    counts = np.stack([np.bincount(row, minlength=50) for row in rows])
    seen = counts[:200].sum(0) > 0
    model = NaiveBayes.count(rows[:200], labels[:200].tolist(), vocab_size=50, outputs=4, alpha=alpha)
    peer = MultinomialNB(alpha=alpha).fit(counts[:200][:, seen], labels[:200])
    own = model(batch_of(rows[200:]))
    assert np.array_equal(own.argmax(1).numpy(), peer.predict(counts[200:][:, seen]))
    expected = peer.predict_joint_log_proba(counts[200:][:, seen])
    assert np.abs(own.numpy() - expected).max() < 1e-9


def test_ids_that_do_not_count_change_nothing() -> None:
    rows, labels = [np.array([0, 1, 1]), np.array([2, 0, 2])], [0, 1]
    with_blanks = [np.array([3, 0, 3, 1, 1, 3]), np.array([2, 3, 0, 2])]
    plain = NaiveBayes.count(rows, labels, vocab_size=4, outputs=2, alpha=1.0)
    other = NaiveBayes.count(with_blanks, labels, vocab_size=4, outputs=2, alpha=1.0, without=[3])
    asked = [np.array([0, 1]), np.array([1, 2, 2])]
    asked_with_blanks = [np.array([0, 3, 1]), np.array([1, 2, 3, 2])]
    assert torch.equal(plain(batch_of(asked)), other(batch_of(asked_with_blanks)))


def test_a_class_without_texts_is_refused() -> None:
    with pytest.raises(ValueError, match="class 1 has no texts"):
        NaiveBayes.count([np.array([0])], [0], vocab_size=1, outputs=2, alpha=1.0)
