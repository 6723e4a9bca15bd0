"""Beam search against enumeration of everything, greedy choice, and reference 3.8."""

import itertools
import math

import pytest
import torch
from decoding_fakes import BreakingModel, TableModel, one_by_one

from tokenloom.errors import UserError
from tokenloom.generation import (
    BeamOptions,
    Hypothesis,
    NonFiniteLogits,
    Request,
    Sampling,
    beam_search,
    generate_all,
    score,
)

A, B, START = 0, 1, 2


def chapter_example() -> TableModel:
    """Rows: before anything, after a, after b, after the start token."""
    return TableModel(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log())


def greedy(model: TableModel, prompt: list[int], n: int, end: tuple[int, ...] = ()) -> tuple[tuple[int, ...], float]:
    [[result]] = generate_all(model, [Request(prompt, n, Sampling(0), end=end)])
    return result.ids, sum(result.log_probs)


def test_reference_3_8() -> None:
    model = chapter_example()
    ids, log_prob = greedy(model, [START], 2)
    assert ids == (A, A)
    assert math.exp(log_prob) == pytest.approx(0.30)
    [[best, second]] = beam_search(model, [[START]], BeamOptions(2, 2, n_best=2))
    assert best.ids == (B, A)
    assert math.exp(best.log_prob) == pytest.approx(0.36)
    assert second.ids == (A, A)
    [[narrow]] = beam_search(model, [[START]], BeamOptions(1, 2))
    assert narrow.ids == (A, A)


def everything(model: TableModel, prompt: list[int], n: int, end: int | None, alpha: float) -> list[Hypothesis]:
    """All hypotheses of at most n tokens, best first."""
    found = []
    for length in range(1, n + 1):
        for ids in itertools.product(range(model.vocab_size), repeat=length):
            closed = ids[-1] == end
            if end in ids[:-1] or not (closed or length == n):
                continue
            log_prob = sum(one_by_one(model, prompt, list(ids)))
            text = ids[:-1] if closed else ids
            found.append(Hypothesis(text, end if closed else None, log_prob, length, log_prob / length**alpha))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("end", [None, 2])
def test_a_wide_beam_finds_the_best_of_all(alpha: float, end: int | None) -> None:
    for seed in range(12):
        model = TableModel.random(3, memory=1 + 2 * (seed % 2), seed=seed)
        truth = everything(model, [0, 1], 4, end, alpha)
        options = BeamOptions(27, 4, () if end is None else (end,), alpha, n_best=5)
        [found] = beam_search(model, [[0, 1]], options)
        # By score: two texts of the same transitions in another order tie.
        assert [ours.score for ours in found] == pytest.approx([best.score for best in truth[:5]])
        known = {(best.ids, best.end): best for best in truth}
        assert len({ours.ids for ours in found}) == 5
        for ours in found:
            best = known[ours.ids, ours.end]
            assert (ours.length, ours.log_prob) == (best.length, pytest.approx(best.log_prob))


@pytest.mark.parametrize("memory", [1, 3])
def test_width_one_is_greedy(memory: int) -> None:
    for seed in range(15):
        model = TableModel.random(6, memory, seed, sharpness=0.5)
        ids, log_prob = greedy(model, [seed % 6, 3], 9, end=(5,))
        [[found]] = beam_search(model, [[seed % 6, 3]], BeamOptions(1, 9, (5,)))
        assert found.ids == ids
        ended = found.end is not None
        assert found.length == len(ids) + ended
        if not ended:
            assert found.log_prob == pytest.approx(log_prob)


def test_width_one_is_greedy_at_ties_too() -> None:
    model = TableModel(torch.full((5, 4), 0.25, dtype=torch.float64).log())
    [[found]] = beam_search(model, [[3]], BeamOptions(1, 6))
    assert found.ids == greedy(model, [3], 6)[0] == (0,) * 6


def test_the_score_is_the_score_of_the_text_returned() -> None:
    for seed in range(8):
        model = TableModel.random(8, 3, seed, sharpness=1)
        for hypothesis in beam_search(model, [[1, 2, 3]], BeamOptions(4, 10, (0, 7), 0.8, n_best=4))[0]:
            ids = list(hypothesis.ids) + ([] if hypothesis.end is None else [hypothesis.end])
            assert not {0, 7} & set(hypothesis.ids)
            assert hypothesis.length == len(ids)
            assert hypothesis.log_prob == pytest.approx(score(model, [1, 2, 3], ids).total)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / len(ids) ** 0.8)


def test_prompts_together_as_alone() -> None:
    model = TableModel.random(9, 3, sharpness=1)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 0, 1], [2], [*range(8), 1, 1, 1, 1]]
    options = BeamOptions(5, 12, (0,), 0.6, n_best=3)
    together = beam_search(model, prompts, options)
    assert together == [beam_search(model, [prompt], options)[0] for prompt in prompts]
    assert len({hypotheses[0].length for hypotheses in together}) > 1, "they should end at different lengths"
    assert model.calls[0] == (4, 12), "one reading of all prompts"
    for hypotheses in together:
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_ties_are_the_same_together_and_alone() -> None:
    model = TableModel(torch.full((7, 6), 1 / 6, dtype=torch.float64).log())
    options = BeamOptions(3, 3, (4,), n_best=3)
    assert beam_search(model, [[1], [2, 3]], options) == [beam_search(model, [p], options)[0] for p in ([1], [2, 3])]


def test_a_finished_beam_competes_and_a_long_one_can_still_win() -> None:
    """Ending at once has p = 0.4; a, then b for certain, then the end for certain has 0.6 for three tokens."""
    a, b, end = 0, 1, 2
    table = torch.tensor([[0.6, 0, 0.4], [0, 1, 0], [0, 0, 1], [0.6, 0, 0.4]], dtype=torch.float64).log()
    model = TableModel(table)
    [[best, second]] = beam_search(model, [[end]], BeamOptions(2, 5, (end,), 1.0, n_best=2))
    assert (best.ids, best.end) == ((a, b), end)
    assert best.score == pytest.approx(math.log(0.6) / 3)
    assert (second.ids, second.end) == ((), end)
    assert second.score == pytest.approx(math.log(0.4))


def test_the_short_finished_beam_wins_over_unfinished_ones_at_the_limit() -> None:
    table = torch.tensor([[0.45, 0.1, 0.45]] * 4, dtype=torch.float64).log()
    [[best]] = beam_search(TableModel(table), [[0]], BeamOptions(3, 6, (2,), 0.0))
    assert (best.ids, best.end, best.length) == ((), 2, 1)


def test_it_stops_when_nothing_unfinished_can_win_and_not_before() -> None:
    # The end is near certain: what is left in the beam can not catch up, even at the limit.
    table = torch.tensor([[1e-9, 1e-9, 1 - 2e-9]] * 4, dtype=torch.float64).log()
    model = TableModel(table)
    beam_search(model, [[0]], BeamOptions(2, 50, (2,), 1.0))
    assert len(model.calls) == 1
    # Half the mass ends: the beam goes on for as long as its bound, ln p / 50, is the better one.
    model = TableModel(torch.tensor([[0.5, 0, 0.5]] * 4, dtype=torch.float64).log())
    beam_search(model, [[0]], BeamOptions(2, 50, (2,), 1.0))
    assert len(model.calls) == 50
    # Without normalization the first end can not be beaten.
    model.calls.clear()
    beam_search(model, [[0]], BeamOptions(2, 50, (2,), 0.0))
    assert len(model.calls) == 1


def test_prompts_that_are_done_leave_the_batch() -> None:
    table = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1], [0.5, 0.5, 0]], dtype=torch.float64).log()
    model = TableModel(table)
    results = beam_search(model, [[0], [1]], BeamOptions(1, 4, (2,)))
    assert [hypotheses[0].ids for hypotheses in results] == [(0, 0, 0, 0), ()]
    assert model.calls == [(2, 1), (1, 1), (1, 1), (1, 1)]


def test_width_above_the_vocabulary_and_few_possible_texts() -> None:
    table = torch.tensor([[1, 0.0]] * 3, dtype=torch.float64).log()
    [found] = beam_search(TableModel(table), [[0]], BeamOptions(10, 3, n_best=10))
    assert [hypothesis.ids for hypothesis in found] == [(0, 0, 0)]


def test_no_new_tokens_and_no_prompts() -> None:
    model = TableModel.random(4)
    assert beam_search(model, [[1]], BeamOptions(3, 0)) == [[Hypothesis((), None, 0.0, 0, 0.0)]]
    assert beam_search(model, [], BeamOptions(3, 5)) == []
    assert model.calls == []


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"num_beams": 0}, "--num-beams"),
        ({"max_new_tokens": -1}, "--max-new-tokens"),
        ({"n_best": 4}, "--num-beams"),
        ({"n_best": 0}, "--num-beams"),
        ({"length_penalty": -0.5}, "--length-penalty"),
        ({"length_penalty": math.nan}, "--length-penalty"),
        ({"length_penalty": math.inf}, "--length-penalty"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        BeamOptions(**{"num_beams": 3, "max_new_tokens": 5, **options})  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UserError, match="prompt 2 is empty"):
        beam_search(TableModel.random(4), [[1], []], BeamOptions(2, 3))


@pytest.mark.parametrize(("value", "whole"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_broken_scores_stop_with_step_and_device(value: float, whole: bool) -> None:
    model = BreakingModel(TableModel.random(5).table, value, call=3, row=1, whole=whole)
    with pytest.raises(NonFiniteLogits, match="step 3 on cpu"):
        beam_search(model, [[0]], BeamOptions(2, 6))
