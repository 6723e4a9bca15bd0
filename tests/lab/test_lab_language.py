"""Rows that use the chapter's GPT, in quick form with coarse bounds."""

from typing import Any

import numpy as np
import pytest

from tokenloom.lab.kv_cache import multiplications
from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure
from tokenloom.lab.sampling import word_fractions, words_of

CACHE: dict[Any, Any] = {}


def quick(id: str) -> dict[str, Any]:
    """Return a row in quick form; the model is trained once for this file."""
    row = measure(experiments()[id], RunOptions(quick=True), CACHE)
    assert row["quick"]
    assert row["passed"], [m for m in row["measurements"] if m["passed"] is False]
    return row


def found(row: dict[str, Any], start: str) -> str:
    """Return the value measured under a name that begins with `start`."""
    return next(m["measured"] for m in row["measurements"] if m["name"].startswith(start))


def test_comparison_of_models(tinyshakespeare: str) -> None:
    """The plot has the measured values, and each n-gram is better than the one before."""
    row = quick("3.5")
    unigram, bigram, gpt, kneser_ney = row["plots"][0]["lines"][0]["y"]
    assert row["plots"][0]["x_labels"] == ["unigram", "bigram", "GPT", "order-6 n-gram"]
    assert [f"{unigram:.4f}", f"{bigram:.4f}"] == [found(row, "unigram"), found(row, "bigram")]
    assert unigram > bigram > kneser_ney
    assert unigram > gpt > kneser_ney, "a few steps are better than the unigram, but not than the n-gram"


def test_human_text_is_less_probable_than_beam_search(tinyshakespeare: str) -> None:
    row = quick("3.9")
    beam, human = (line["y"] for line in row["plots"][0]["lines"])
    assert len(beam) == len(human) == 40
    assert np.log(beam).mean() > np.log(human).mean()


def test_four_sampling_methods(tinyshakespeare: str) -> None:
    row = quick("3.6b")
    texts, curves = row["plots"]
    assert texts["text"].count("ROMEO:\n") == 4
    distinct, known = (line["y"] for line in curves["lines"])
    assert all(0 < value <= 1 for value in (*distinct, *known))
    assert known[0] > known[-1]


def test_word_fractions_count_whole_words() -> None:
    assert words_of("O, that's it; tha", drop_last=True) == ["o", "that's", "it"]
    assert words_of("cut", drop_last=True) == []
    assert word_fractions(["the the zzgh end", "the one"], {"the"}) == pytest.approx(((2 / 3 + 1) / 2, 3 / 4))


def test_own_samples_as_context_raise_the_loss(tinyshakespeare: str) -> None:
    row = quick("3.6c")
    real, own, _ = (line["y"] for line in row["plots"][0]["lines"])
    assert real[0] == own[0], "without a prefix there is no difference"
    assert min(np.subtract(own, real)[1:]) > 0


def test_the_cache_gives_the_same_tokens_at_less_cost(tinyshakespeare: str) -> None:
    row = quick("3.11")
    assert found(row, "greedy") == found(row, "sampled") == "200 of 200"
    cached, uncached = (line["y"] for line in row["plots"][0]["lines"])
    assert all(a < b / 10 for a, b in zip(cached, uncached, strict=True))


def test_multiplications_are_counted() -> None:
    import torch

    a, Q = torch.ones(3, 4), torch.ones(1, 2, 5, 8)
    assert multiplications(lambda: a @ a.T) == 3 * 4 * 3
    attended = multiplications(lambda: torch.nn.functional.scaled_dot_product_attention(Q, Q, Q))
    assert attended == 2 * (5 * 8 * 5 + 5 * 5 * 8)


def test_two_classic_bugs(tinyshakespeare: str) -> None:
    row = quick("3.3")
    correct, unmasked, unshifted = (line["y"] for line in row["plots"][0]["lines"])
    assert len(correct) == len(unmasked) == len(unshifted)
    assert unshifted[-1] < unmasked[-1]
