import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from tokenloom.evaluation.baselines.linear import TfIdf, logistic_regression
from tokenloom.evaluation.classification import ByClass, calibration_error, confusion, reliability, wilson

WORDS = [f"word{n}" for n in range(16)]


def sample() -> tuple[list[str], list[int]]:
    random = np.random.default_rng(2)
    labels = random.integers(0, 3, 150)
    texts = [" ".join(random.choice(WORDS[4 * y : 4 * y + 8], random.integers(3, 12))) for y in labels]
    return texts, labels.tolist()


def test_confusion_and_scores_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    truth, guess = random.integers(0, 5, 200), random.integers(0, 4, 200)
    matrix = confusion(truth, guess, 6)
    assert np.array_equal(matrix, confusion_matrix(truth, guess, labels=range(6)))
    mine = ByClass.of(matrix)
    peer = precision_recall_fscore_support(truth, guess, labels=range(6), zero_division=0)
    for own, other in zip((mine.precision, mine.recall, mine.f1, mine.there), peer, strict=True):
        assert np.allclose(own, other)
    macro = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[2]
    assert mine.macro_f1 == pytest.approx(macro), "the sixth class is neither there nor predicted"


def test_the_interval_of_a_share_by_hand() -> None:
    """8 of 10: center (0.8 + 3.8416/20) / 1.38416 = 0.71674, half 1.96 √(0.016 + 3.8416/400) / 1.38416 = 0.22656."""
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.49018, abs=1e-4)
    assert high == pytest.approx(0.94330, abs=1e-4)
    assert wilson(10, 10)[1] == 1.0


def test_calibration_by_hand() -> None:
    rows = reliability(np.array([0.55, 0.58, 0.95, 1.0]), np.array([True, False, True, True]))
    assert [(row["from"], row["n"], row["right"]) for row in rows] == [(0.5, 2, 0.5), (0.9, 2, 1.0)]
    assert rows[0]["probability"] == pytest.approx(0.565)
    assert calibration_error(rows) == pytest.approx(0.5 * 0.065 + 0.5 * 0.025)


def test_weights_of_words_are_those_of_scikit_learn() -> None:
    texts, _ = sample()
    texts += ["Word1, WORD1 and a word2!", ""]
    peer = TfidfVectorizer().fit(texts[:100])
    mine = TfIdf.learn(texts[:100]).rows(texts).to_dense().numpy()
    assert np.allclose(mine, peer.transform(texts).toarray(), atol=1e-12)


def test_the_logistic_regression_is_that_of_scikit_learn() -> None:
    texts, labels = sample()
    rows = TfIdf.learn(texts).rows(texts)
    W, b = logistic_regression(rows, torch.tensor(labels), 3)
    peer = LogisticRegression(C=10.0, tol=1e-8, max_iter=2000).fit(rows.to_dense().numpy(), labels)
    own = (rows @ W + b).softmax(1).numpy()
    assert np.abs(own - peer.predict_proba(rows.to_dense().numpy())).max() < 1e-3


def test_a_class_that_is_predicted_and_never_there_counts_in_the_mean() -> None:
    truth, guess = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    peer = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[2]
    assert ByClass.of(confusion(truth, guess, 4)).macro_f1 == pytest.approx(peer) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert np.isnan(ByClass.of(np.zeros((3, 3), dtype=np.int64)).macro_f1)
