"""The rows that read the chapter's GPT, in quick form against the bound written beside each."""

from typing import Any

import numpy as np
import pytest

from tokenloom.lab.kv_cache import multiplications
from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure
from tokenloom.lab.sampling import shares, words_of

MADE: dict[Any, Any] = {}


def quick(id: str) -> dict[str, Any]:
    """A row in quick form; the model is trained once for all of this file."""
    row = measure(experiments()[id], RunOptions(quick=True), MADE)
    assert row["quick"]
    assert row["passed"], [m for m in row["measurements"] if m["passed"] is False]
    return row


def found(row: dict[str, Any], start: str) -> str:
    """What was measured under a name that begins so."""
    return next(m["measured"] for m in row["measurements"] if m["name"].startswith(start))


def test_the_ladder(tinyshakespeare: str) -> None:
    """What is drawn is what was measured, and each counted rung is below the one before."""
    row = quick("3.5")
    unigram, bigram, gpt, longer = row["plots"][0]["lines"][0]["y"]
    assert row["plots"][0]["places"] == ["unigram", "bigram", "GPT", "order-6 n-gram"]
    assert [f"{unigram:.4f}", f"{bigram:.4f}"] == [found(row, "unigram"), found(row, "bigram")]
    assert unigram > bigram > longer
    assert unigram > gpt > longer, "a few steps are better than none, and no match for counting"


def test_a_person_writes_what_is_less_likely(tinyshakespeare: str) -> None:
    row = quick("3.9")
    beam, human = (line["y"] for line in row["plots"][0]["lines"])
    assert len(beam) == len(human) == 40
    assert np.log(beam).mean() > np.log(human).mean()


def test_four_ways_to_sample(tinyshakespeare: str) -> None:
    row = quick("3.6b")
    texts, curves = row["plots"]
    assert texts["text"].count("ROMEO:\n") == 4
    distinct, known = (line["y"] for line in curves["lines"])
    assert all(0 < share <= 1 for share in (*distinct, *known))
    assert known[0] > known[-1]


def test_shares_are_of_whole_words() -> None:
    assert words_of("O, that's it; tha", cut=True) == ["o", "that's", "it"]
    assert words_of("cut", cut=True) == []
    assert shares(["the the zzgh end", "the one"], {"the"}) == (pytest.approx((2 / 3 + 1) / 2), pytest.approx(3 / 4))


def test_its_own_text_leads_astray(tinyshakespeare: str) -> None:
    row = quick("3.6c")
    real, own, _ = (line["y"] for line in row["plots"][0]["lines"])
    assert real[0] == own[0], "without a prefix there is no difference"
    assert min(np.subtract(own, real)[1:]) > 0


def test_the_cache_writes_the_same_and_costs_less(tinyshakespeare: str) -> None:
    row = quick("3.11")
    assert found(row, "greedy") == found(row, "drawn") == "200 of 200"
    kept, anew = (line["y"] for line in row["plots"][0]["lines"])
    assert all(a < b / 10 for a, b in zip(kept, anew, strict=True))


def test_multiplications_are_counted() -> None:
    import torch

    a, Q = torch.ones(3, 4), torch.ones(1, 2, 5, 8)
    assert multiplications(lambda: a @ a.T) == 3 * 4 * 3
    attended = multiplications(lambda: torch.nn.functional.scaled_dot_product_attention(Q, Q, Q))
    assert attended == 2 * (5 * 8 * 5 + 5 * 5 * 8)


def test_two_classic_bugs(tinyshakespeare: str) -> None:
    row = quick("3.3")
    right, open_, same = (line["y"] for line in row["plots"][0]["lines"])
    assert len(right) == len(open_) == len(same)
    assert same[-1] < open_[-1]
