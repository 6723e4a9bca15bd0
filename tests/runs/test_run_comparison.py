"""Runs compared in pairs: the bootstrap against its definition, and what cannot be compared is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.own_task import write_sums
from kit.session_helpers import OWN, VERSE

import tokenloom
from tokenloom.errors import UserError
from tokenloom.evaluation.comparison import PerSampleLoss, paired_bootstrap
from tokenloom.runs.comparison import compare

TINY = {"width": 16, "context": 12, "steps": 6, "threads": 1, "batch_size": 8}


def measured(sums: np.ndarray, counts: np.ndarray) -> PerSampleLoss:
    return PerSampleLoss(torch.from_numpy(sums), torch.from_numpy(counts), "loss", "same")


def test_the_interval_of_a_paired_difference_is_that_of_its_mean() -> None:
    """With equal counts the difference is a mean, of which the interval is known."""
    random = np.random.default_rng(0)
    hard = random.normal(10, 5, 400)  # which samples are hard is the same for both, and must not widen the interval
    difference = random.normal(0.05, 0.5, 400)
    a, b = measured(hard + difference, np.ones(400)), measured(hard, np.ones(400))
    low, high, wins = paired_bootstrap(a, b)
    middle, half = difference.mean(), 1.96 * difference.std() / 20
    assert low == pytest.approx(middle - half, abs=0.1 * half)
    assert high == pytest.approx(middle + half, abs=0.1 * half)
    # A wins where the mean of a resample is below 0: the normal distribution says how often.
    expected = 0.5 * (1 - torch.erf(torch.tensor(middle / (half / 1.96) / 2**0.5)).item())
    assert wins == pytest.approx(expected, abs=0.03)


def test_samples_count_by_what_they_hold() -> None:
    a = measured(np.array([1.0, 30.0]), np.array([1.0, 10.0]))
    b = measured(np.array([2.0, 20.0]), np.array([1.0, 10.0]))
    assert (a.value, b.value) == (31 / 11, 2.0)
    low, high, wins = paired_bootstrap(a, b)
    # Four equally likely draws: the first twice (−1), the second twice (1), one of each (9/11) with twice the chance.
    assert (low, high) == (-1.0, 1.0)
    assert wins == pytest.approx(0.25, abs=0.02)


def test_a_run_ties_with_itself() -> None:
    a = measured(np.arange(1.0, 9.0), np.ones(8))
    assert paired_bootstrap(a, a) == (0.0, 0.0, 0.5)


def test_runs_of_any_task_are_compared_on_their_validation_samples(sums: str, tmp_path: Path) -> None:
    short, long, other = (str(tmp_path / name) for name in ("short", "long", "other"))
    for out, steps in ((short, 1), (long, 60)):
        tokenloom.train(sums, task=OWN, steps=steps, threads=1, out=out)
    (pair,) = compare([long, short])
    assert (pair.a, pair.b, pair.samples, pair.unit) == (long, short, 12, "nats/digit")
    assert pair.value_a == pytest.approx(tokenloom.load(long).evaluate()["loss"], rel=1e-6)
    assert pair.difference == pair.value_a - pair.value_b
    assert pair.low <= pair.difference <= pair.high
    assert (pair.wins > 0.5) == (pair.difference < 0)
    assert 0 < pair.wins < 1
    tokenloom.train(write_sums(tmp_path / "other.txt", offset=1), task=OWN, steps=1, threads=1, out=other)
    with pytest.raises(UserError, match=r"short and .*other have different validation data"):
        compare([short, other])
    with pytest.raises(UserError, match="digit-sums runs are evaluated in one way only"):
        compare([short, long], "sliding")


def test_text_models_of_any_kind_and_tokenizer_are_compared_in_bits_per_byte(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n * 7 % 101} {VERSE}" for n in range(160)), "utf-8")
    ngram, lstm, pieces = (str(tmp_path / name) for name in ("ngram", "lstm", "pieces"))
    tasks: dict[str, Any] = {
        ngram: tokenloom.train(path, out=ngram, model="ngram", ngram_order=4, threads=1),
        lstm: tokenloom.train(path, out=lstm, model="lstm", **{k: v for k, v in TINY.items() if k != "heads"}),
        pieces: tokenloom.train(path, out=pieces, model="bigram", tokenizer="byte-bpe", vocab_size=280, threads=1),
    }
    pairs = compare([ngram, lstm, pieces])
    assert [(pair.a, pair.b) for pair in pairs] == [(ngram, lstm), (ngram, pieces), (lstm, pieces)]
    assert pairs[0].unit == "bits/byte"
    for run, pair in ((ngram, pairs[0]), (lstm, pairs[2]), (pieces, pairs[1])):
        value = pair.value_b if run is pieces else pair.value_a
        assert value == pytest.approx(tasks[run].evaluate(context="sliding")["bits_per_byte"], rel=1e-6)
    assert (pairs[0].wins, pairs[0].high < 0) == (1.0, True)
    (pair,) = compare([ngram, lstm], "12")
    assert pair.value_b == pytest.approx(tasks[lstm].evaluate(context=12)["bits_per_byte"], rel=1e-6)
    with pytest.raises(UserError, match="different validation data"):
        compare([ngram, pieces], "12")


def test_runs_of_different_tasks_are_refused(sums: str, text: str, tmp_path: Path) -> None:
    digits, words = str(tmp_path / "a"), str(tmp_path / "b")
    tokenloom.train(sums, task=OWN, steps=1, threads=1, out=digits)
    tokenloom.train(text, model="unigram", threads=1, out=words)
    with pytest.raises(UserError, match=r"a is a digit-sums run and .*b a text-generation run"):
        compare([digits, words])
