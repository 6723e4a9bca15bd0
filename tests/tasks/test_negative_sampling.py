"""Random draws of word2vec training, and Spearman PMI: numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from tokenloom.evaluation.word_similarity import cooccurrences, rank_correlation, spearman_pmi
from tokenloom.models.batch import IGNORE
from tokenloom.models.word_vectors import BLOCK
from tokenloom.tasks._negative_sampling import SHARED, NegativeSampling, keep_probability, negative_distribution
from tokenloom.training.batches import BatchContext
from tokenloom.training.losses import negative_sampling_term


def context(*keys: int, step: int = 0) -> BatchContext:
    return BatchContext(7, step, np.array(keys))


def test_frequent_words_are_seen_less_often() -> None:
    """Shares 0.9, 0.09 and 0.01 at t = 0.01: √(1/90) + 1/90, 1/3 + 1/9, and 1 for √1 + 1."""
    keep = keep_probability([90, 9, 1], 0.01)
    np.testing.assert_allclose(keep, [math.sqrt(1 / 90) + 1 / 90, 1 / 3 + 1 / 9, 1.0], rtol=1e-12)
    assert keep_probability([90, 1], 0).tolist() == [1, 1]


def test_negatives_are_drawn_by_counts_to_three_quarters() -> None:
    """16 and 1: 16^0.75 = 8, so 8/9 and 1/9; and 200,000 sampling come near."""
    np.testing.assert_allclose(negative_distribution([16, 1]), [8 / 9, 1 / 9], rtol=1e-12)
    sampling = NegativeSampling("skip-gram", 2, np.ones(2), negative_distribution([16, 1]))
    drawn = sampling.batch(np.zeros((200, 5), np.int64), context(*range(200)))["negatives"].tokens
    assert drawn.shape == (200, SHARED)
    assert float((drawn == 0).double().mean()) == pytest.approx(8 / 9, abs=0.02)


def test_a_window_is_as_far_as_it_was_drawn_and_all_are_as_likely() -> None:
    sampling = NegativeSampling("skip-gram", 3, np.ones(1), np.ones(1))
    asked = sampling.batch(np.zeros((40, 300), np.int64), context(*range(40))).targets["loss"] != IGNORE
    middle = asked[:, 3:297]
    # −3 −2 −1 1 2 3: symmetric, and whoever sees further sees what is nearer.
    assert torch.equal(middle, middle.flip(-1))
    assert middle[..., 2].all()
    assert not (middle[..., 0] & ~middle[..., 1]).any()
    shares = middle.double().mean((0, 1))[:3].tolist()
    assert shares == pytest.approx([1 / 3, 2 / 3, 1], abs=0.02)


def test_words_that_are_left_out_close_the_gap_but_documents_stay_apart() -> None:
    """Word 1 is never kept; −1 ends a document."""
    sampling = NegativeSampling("skip-gram", 1, np.array([1.0, 0.0, 1.0]), np.full(3, 1 / 3))
    batch = sampling.batch(np.array([[0, 1, 2, -1, 2, 1], [1, 1, 1, 1, 1, 0]]), context(0, 1))
    real = batch["words"].real
    assert real is not None
    assert real.shape == (2, BLOCK), "rows are filled up to whole blocks"
    assert real[:, :4].tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch["words"].tokens[real].tolist() == [0, 2, 2, 0]
    targets = batch.targets["loss"]
    assert targets[0, :3].tolist() == [[IGNORE, 2], [0, IGNORE], [IGNORE, IGNORE]]
    assert (targets[0, 3:] == IGNORE).all()
    assert (targets[1] == IGNORE).all()
    cbow = NegativeSampling("cbow", 1, sampling.keep, sampling.negative).batch(
        np.array([[0, 1, 2, -1, 2, 1]]), context(0)
    )
    assert cbow.targets["loss"][0, :3, 0].tolist() == [0, 2, IGNORE]


def test_nothing_is_left_of_rows_of_words_that_are_not_kept() -> None:
    batch = NegativeSampling("cbow", 2, np.zeros(1), np.ones(1)).batch(np.zeros((2, 5), np.int64), context(0, 1))
    assert batch.counts() == {"loss": 0}


def test_sampling_belong_to_seed_step_and_sample() -> None:
    sampling = NegativeSampling("skip-gram", 4, np.full(9, 0.7), np.full(9, 1 / 9))
    rows = np.arange(120).reshape(3, 40) % 9
    together = sampling.batch(rows, context(5, 6, 7))
    alone = sampling.batch(rows[1:2], context(6))
    n = int(alone["words"].tokens.shape[1])
    assert torch.equal(together["words"].tokens[1:2, :n], alone["words"].tokens)
    assert torch.equal(together.targets["loss"][1:2, :n], alone.targets["loss"])
    assert torch.equal(together["negatives"].tokens[1:2], alone["negatives"].tokens)
    later = sampling.batch(rows[1:2], context(6, step=1))
    assert not torch.equal(later["negatives"].tokens, alone["negatives"].tokens)


def test_the_loss_of_two_pairs_by_hand() -> None:
    """σ(0) = ½ and σ(log 3) = ¾. One place asks for two pairs (logits 0 and log 3), the other for none; of three
    negatives a pair, four shared logits 0, 0, log 3, log 3: −log σ(−0) = log 2, −log σ(−log 3) = log 4."""
    positive = torch.tensor([[[0.0, math.log(3)], [5.0, 5.0]]], dtype=torch.float64)
    negative = torch.tensor([[[0.0, 0.0, math.log(3), math.log(3)], [9.0] * 4]], dtype=torch.float64)
    asked = torch.tensor([[[True, True], [False, False]]])
    term = negative_sampling_term(positive, negative, asked, 3)
    expected = math.log(2) + math.log(4 / 3) + 2 * 3 * (math.log(2) + math.log(4)) / 2
    assert float(term.sums) == pytest.approx(expected, abs=1e-12)
    assert term.counts.tolist() == [2]


def test_meetings_are_counted_within_the_window_and_the_document() -> None:
    """0 1 0 | 1: at distance 1 0–1 and 1–0, at distance 2 0–0; nothing across the border."""
    counts = cooccurrences(np.array([0, 1, 0, -1, 1, -1]), 2, 2)
    assert counts.tolist() == [[2, 2], [2, 0]]


def test_rank_correlation_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    a, b = random.integers(0, 9, 200).astype(float), random.normal(size=200)
    assert rank_correlation(a, a + b) == pytest.approx(stats.spearmanr(a, a + b).statistic, abs=1e-12)
    assert math.isnan(rank_correlation(np.ones(3), b[:3]))


def test_vectors_that_know_which_words_meet_agree_and_others_do_not() -> None:
    """Words 0 1 and 2 3 are met together, never across."""
    ids = np.array([0, 1] * 50 + [-1] + [2, 3] * 50 + [-1])
    knowing = np.array([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    rho, pairs = spearman_pmi(knowing, ids, 1)
    assert pairs == 6
    assert rho > 0.8
    assert spearman_pmi(knowing[[0, 2, 1, 3]], ids, 1)[0] < 0
    assert math.isnan(spearman_pmi(knowing, ids[:4], 1)[0]), "too little text says nothing"
