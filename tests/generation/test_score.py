"""Scoring a given continuation equals feeding it token by token."""

import math
import random

import pytest
import torch
from decoding_fakes import BreakingModel, TableModel, one_by_one

from tokenloom.errors import UserError
from tokenloom.generation import NonFiniteLogits, Score, score, score_pairs


def random_pairs(vocab_size: int, count: int) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(1)

    def ids() -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(rng.randint(1, 12))]

    return [(ids(), ids()) for _ in range(count)]


@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize(("chunk", "batch"), [(1, 1), (2, 3), (5, 4), (512, 32)])
def test_score_is_one_by_one(memory: int, chunk: int, batch: int) -> None:
    model = TableModel.random(7, memory)
    pairs = random_pairs(7, 10)
    results = score_pairs(model, pairs, chunk=chunk, batch_size=batch)
    for (prompt, continuation), result in zip(pairs, results, strict=True):
        assert result.log_probs == pytest.approx(one_by_one(model, prompt, continuation), abs=1e-12)
        assert len(result.log_probs) == len(continuation)
        assert score(model, prompt, continuation, chunk=chunk).log_probs == pytest.approx(result.log_probs)


def test_texts_that_have_ended_leave_the_batch() -> None:
    model = TableModel.random(5)
    score_pairs(model, [([0], [1]), ([0, 1], [2] * 7)], chunk=3)
    assert model.calls == [(2, 3), (1, 3), (1, 2)]


def test_chunks_stay_within_the_context() -> None:
    model = TableModel.random(5)
    model.context = 2
    score(model, [0], [1, 2, 3, 4, 0])
    assert model.calls == [(1, 2), (1, 2), (1, 1)]


def test_total_and_average() -> None:
    result = Score((-1.0, -2.0, -0.5))
    assert result.total == -3.5
    assert result.average == pytest.approx(-3.5 / 3)


def test_an_impossible_token_scores_minus_infinity() -> None:
    model = TableModel(torch.tensor([[1.0, 0.0]] * 3).log())
    assert score(model, [0], [0, 1]).log_probs == (0.0, -math.inf)


def test_nothing_to_score_or_to_go_on_from_is_refused() -> None:
    model = TableModel.random(5)
    with pytest.raises(UserError, match="continuation is empty"):
        score(model, [1], [])
    with pytest.raises(UserError, match="prompt is empty"):
        score(model, [], [1])
    with pytest.raises(ValueError, match="chunk"):
        score(model, [1], [1], chunk=0)
    assert score_pairs(model, []) == []


@pytest.mark.parametrize(("value", "whole"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_broken_scores_stop_with_place_and_device(value: float, whole: bool) -> None:
    model = BreakingModel(TableModel.random(5).table, value, call=2, whole=whole)
    with pytest.raises(NonFiniteLogits, match=r"step 3 on cpu"):
        score(model, [0], [0, 0, 0, 0, 0], chunk=2)
