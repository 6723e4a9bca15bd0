import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix as sklearn_matrix
from sklearn.metrics import precision_recall_fscore_support

from tokenloom.evaluation.baselines import linear
from tokenloom.evaluation.baselines.linear import linear_accuracy
from tokenloom.evaluation.classification import ClassScores, confusion_matrix, ece, reliability, wilson_interval

WORDS = [f"word{n}" for n in range(16)]


def sample() -> tuple[list[str], list[int]]:
    random = np.random.default_rng(2)
    labels = random.integers(0, 3, 150)
    texts = [" ".join(random.choice(WORDS[4 * y : 4 * y + 8], random.integers(3, 12))) for y in labels]
    return texts, labels.tolist()


def test_confusion_and_scores_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    truth, guess = random.integers(0, 5, 200), random.integers(0, 4, 200)
    matrix = confusion_matrix(truth, guess, 6)
    assert np.array_equal(matrix, sklearn_matrix(truth, guess, labels=range(6)))
    mine = ClassScores.of(matrix)
    peer = precision_recall_fscore_support(truth, guess, labels=range(6), zero_division=0)
    for own, other in zip((mine.precision, mine.recall, mine.f1, mine.actual), peer, strict=True):
        assert np.allclose(own, other)
    macro = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[2]
    assert mine.macro_f1 == pytest.approx(macro), "the sixth class is neither there nor predicted"


def test_the_interval_of_a_share_by_hand() -> None:
    """8 of 10: center (0.8 + 3.8416/20) / 1.38416 = 0.71674, half 1.96 √(0.016 + 3.8416/400) / 1.38416 = 0.22656."""
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.49018, abs=1e-4)
    assert high == pytest.approx(0.94330, abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0


def test_calibration_by_hand() -> None:
    rows = reliability(np.array([0.55, 0.58, 0.95, 1.0]), np.array([True, False, True, True]))
    assert [(row["from"], row["n"], row["accuracy"]) for row in rows] == [(0.5, 2, 0.5), (0.9, 2, 1.0)]
    assert rows[0]["probability"] == pytest.approx(0.565)
    assert ece(rows) == pytest.approx(0.5 * 0.065 + 0.5 * 0.025)


def test_the_baseline_learns_words() -> None:
    texts, labels = sample()
    accuracy = linear_accuracy(texts[:100], labels[:100], texts[100:], labels[100:])
    X = TfidfVectorizer().fit(texts[:100])
    peer = LogisticRegression(C=10.0, tol=1e-8, max_iter=2000).fit(X.transform(texts[:100]), labels[:100])
    assert accuracy == peer.score(X.transform(texts[100:]), labels[100:]) > 0.6
    assert linear_accuracy(texts[:100], labels[:100], texts[100:], [-1] * 50) == 0


def test_two_classes_have_the_penalty_of_two_columns_of_weights() -> None:
    """Softmax regression W minimizes Σ cross-entropy + |W|² / 2C, of which scikit-learn has the difference w alone."""
    texts, labels = sample()
    labels = [min(label, 1) for label in labels]
    vectorizer = TfidfVectorizer().fit(texts[:100])
    X, y = torch.from_numpy(vectorizer.transform(texts[:100]).toarray()), torch.tensor(labels[:100])
    W, b = torch.zeros(X.shape[1], 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([W.requires_grad_(), b.requires_grad_()], max_iter=500, tolerance_grad=1e-9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(X @ W + b, y, reduction="sum") + W.square().sum() / (2 * linear.C)
        loss.backward()
        return loss

    optimizer.step(closure)
    logits = torch.from_numpy(vectorizer.transform(texts[100:]).toarray()) @ W + b
    expected = (logits.argmax(1) == torch.tensor(labels[100:])).double().mean().item()
    assert linear_accuracy(texts[:100], labels[:100], texts[100:], labels[100:]) == expected


def test_texts_without_words_get_the_most_frequent_class() -> None:
    assert linear_accuracy(["1", "2", "!"], [0, 1, 1], ["?", "x"], [1, 0]) == 0.5


def test_a_class_that_is_predicted_and_never_there_counts_in_the_mean() -> None:
    truth, guess = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    peer = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[2]
    assert (
        ClassScores.of(confusion_matrix(truth, guess, 4)).macro_f1
        == pytest.approx(peer)
        == pytest.approx((2 / 3 + 1 + 0) / 3)
    )
    assert np.isnan(ClassScores.of(np.zeros((3, 3), dtype=np.int64)).macro_f1)
