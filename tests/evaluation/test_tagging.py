"""Windows over long sentences, counts, spans and the counting tagger, against numbers worked by hand and peers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from tokenloom.evaluation.baselines.count_tagger import CountTagger
from tokenloom.evaluation.classification import ClassScores
from tokenloom.evaluation.tagging import (
    TokenWindow,
    count_labels,
    encoded_window,
    label_parts,
    looks_like_spans,
    span_counts,
    spans,
    windows,
)
from tokenloom.models.batch import IGNORE


def test_a_sentence_that_fits_is_one_window() -> None:
    assert windows([2, 3, 1], 6) == [TokenWindow(0, 3, 0, 3)]


def test_long_sentences_are_cut_into_windows_that_overlap() -> None:
    assert windows([1] * 10, 8) == [TokenWindow(0, 8, 0, 7), TokenWindow(6, 10, 7, 10)]


@pytest.mark.parametrize("seed", range(20))
def test_every_word_is_labeled_once_in_a_window_that_it_fits(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths, room = random.integers(1, 6, size=int(random.integers(1, 60))).tolist(), int(random.integers(5, 25))
    found = windows(lengths, room)
    labeled = [word for w in found for word in range(w.first, w.last)]
    assert labeled == list(range(len(lengths)))
    for window in found:
        assert window.start <= window.first < window.last <= window.stop
        assert sum(lengths[window.start : window.stop]) <= room


def test_a_word_longer_than_the_room_is_refused() -> None:
    with pytest.raises(ValueError, match="word 1 has 9 subtokens"):
        windows([1, 9], 8)


def test_labels_stand_on_first_pieces_alone() -> None:
    words = [np.array([4, 5]), np.array([6]), np.array([7, 8, 9])]
    ids, targets = encoded_window(words, [1, 2, 3], TokenWindow(0, 3, 1, 3))
    assert ids.tolist() == [4, 5, 6, 7, 8, 9]
    assert targets.tolist() == [IGNORE, IGNORE, 2, 3, IGNORE, IGNORE]


def test_counts_give_the_scores_of_scikit_learn() -> None:
    random = torch.Generator().manual_seed(0)
    truth, predicted = (torch.randint(4, (6, 30), generator=random) for _ in range(2))
    truth[:, ::5] = IGNORE
    kept = truth != IGNORE
    p, r, f, s = precision_recall_fscore_support(truth[kept], predicted[kept], labels=range(4), zero_division=0)
    scores = ClassScores(*(count.sum(0).numpy() for count in count_labels(truth, predicted, 4)))
    np.testing.assert_allclose((scores.precision, scores.recall, scores.f1), (p, r, f))
    assert scores.actual.tolist() == s.tolist()


def test_spans_of_bio_labels() -> None:
    labels = ["B-PER", "I-PER", "O", "I-LOC", "I-PER", "B-PER", "B-PER", "I-PER"]
    assert spans(labels) == {(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "PER"), (5, 6, "PER"), (6, 8, "PER")}
    assert spans(["O", "O"]) == set()


def test_span_counts_by_hand() -> None:
    names = ["B-X", "I-X", "O"]
    truth = torch.tensor([[0, 1, IGNORE, 1, 2], [2, 0, 2, 2, 2]])
    predicted = torch.tensor([[0, 1, 2, 1, 2], [2, 0, 1, 2, 0]])
    assert [count.tolist() for count in span_counts(truth, predicted, names)] == [[1, 0], [1, 2], [1, 1]]


def test_what_labels_look_like() -> None:
    assert looks_like_spans(["B-PER", "I-PER", "O"])
    assert not looks_like_spans(["NOUN", "O"])
    assert not looks_like_spans(["O"])
    assert label_parts(["a|x", "b|x"]) == [(["a", "b"], [0, 1]), (["x"], [0, 0])]
    assert label_parts(["a|x", "b"]) == []
    assert label_parts(["a", "b"]) == []


def test_the_counting_tagger_by_hand() -> None:
    sentences = [(["a", "b"], [0, 1]), (["a", "c"], [1, 1])]
    prior = np.array([2, 4]) / 6
    word = (np.array([1, 1]) + prior) / 3
    pair = (np.array([1, 0]) + word) / 2
    triple = (np.array([1, 0]) + pair) / 2
    for contexts, expected in ((1, word), (2, pair), (3, triple)):
        tagger = CountTagger(2, contexts).fit(sentences)
        np.testing.assert_allclose(tagger.probabilities(["a", "b"])[0], expected)
        np.testing.assert_allclose(tagger.probabilities(["never"])[0], prior)
    np.testing.assert_allclose(CountTagger(2).fit(sentences).probabilities(["a", "z"])[0], word)
