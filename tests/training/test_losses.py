"""Losses are sums and counts; their interval is held against a bootstrap."""

import math

import numpy as np
import pytest
import torch

from tokenloom.models.batch import IGNORE
from tokenloom.training.losses import LossTerm, MetricSum, cross_entropy_term


def by_hand(scores: list[float], target: int) -> float:
    """−log softmax(scores)[target], in Python's own arithmetic."""
    highest = max(scores)
    return highest + math.log(sum(math.exp(s - highest) for s in scores)) - scores[target]


def test_sums_and_counts_for_each_sample() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([[1, IGNORE, 2, 0], [IGNORE] * 4, [4, 4, 4, 4]])
    term = cross_entropy_term(logits, targets)
    assert term.counts.tolist() == [3, 0, 4]
    for b in range(3):
        expected = sum(by_hand(logits[b, n].tolist(), int(t)) for n, t in enumerate(targets[b]) if t != IGNORE)
        assert term.sums[b].item() == pytest.approx(expected, abs=1e-12)
    assert term.sums.dtype == torch.float64, "what came in double stays double"


def test_one_target_a_sample_and_several_codes_a_step() -> None:
    generator = torch.Generator().manual_seed(1)
    flat = torch.randn(6, 5, generator=generator)
    targets = torch.tensor([0, 1, IGNORE, 3, 4, 2])
    single = cross_entropy_term(flat, targets)
    assert single.counts.tolist() == [1, 1, 0, 1, 1, 1]
    assert single.sums[2] == 0
    codes = cross_entropy_term(flat.view(1, 3, 2, 5), targets.view(1, 3, 2))
    assert codes.counts.tolist() == [5]
    assert codes.sums.item() == pytest.approx(single.sums.sum().item(), rel=1e-6)


def test_targets_may_lie_in_memory_as_they_like() -> None:
    logits = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(2))
    targets = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(3)).T
    assert not targets.is_contiguous()
    term = cross_entropy_term(logits.transpose(0, 1).contiguous().transpose(0, 1), targets)
    plain = cross_entropy_term(logits, targets.contiguous())
    assert torch.equal(term.sums, plain.sums)
    assert torch.equal(term.counts, plain.counts)


def test_half_precision_is_summed_in_single() -> None:
    logits = torch.zeros(1, 2000, 8, dtype=torch.bfloat16)
    term = cross_entropy_term(logits, torch.zeros(1, 2000, dtype=torch.int64))
    assert term.sums.item() == pytest.approx(2000 * math.log(8), rel=1e-5)


def test_a_sample_without_targets_has_a_gradient_of_zero() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(4)).requires_grad_()
    targets = torch.tensor([[IGNORE] * 3, [1, 2, 3]])
    cross_entropy_term(logits, targets).sums.sum().backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad[0], torch.zeros(3, 5))
    assert logits.grad[1].abs().sum() > 0


def test_totals_divide_once() -> None:
    totals = MetricSum()
    totals.update(LossTerm(torch.tensor([6.0, 0.0]), torch.tensor([3, 0])))
    totals.update(LossTerm(torch.tensor([2.0]), torch.tensor([5])))
    assert (totals.total, totals.count, totals.value) == (8.0, 8.0, 1.0)
    sums, counts = totals.samples
    assert sums.tolist() == [6, 0, 2]
    assert counts.tolist() == [3, 0, 5]


def test_small_numbers_are_not_lost_in_a_large_sum() -> None:
    """A float32 sum would stay at 2²⁴."""
    totals = MetricSum()
    totals.update(LossTerm(torch.tensor([2.0**24]), torch.tensor([1])))
    for _ in range(10):
        totals.update(LossTerm(torch.tensor([1.0]), torch.tensor([0])))
    assert totals.total == 2**24 + 10


@pytest.mark.parametrize("terms", [[], [LossTerm(torch.zeros(3), torch.zeros(3, dtype=torch.int64))]])
def test_zero_targets_have_no_value(terms: list[LossTerm]) -> None:
    totals = MetricSum()
    for term in terms:
        totals.update(term)
    assert totals.count == 0
    assert math.isnan(totals.value), "not a loss of 0"
    assert math.isnan(totals.interval())


def test_one_sample_has_no_interval() -> None:
    totals = MetricSum()
    totals.update(LossTerm(torch.tensor([6.0]), torch.tensor([3])))
    assert totals.value == 2
    assert math.isnan(totals.interval())


def test_the_interval_is_that_of_a_bootstrap() -> None:
    """Samples of very unequal size, whose mean loss depends on the size, drawn again 4,000 times."""
    random = np.random.default_rng(5)
    counts = random.integers(1, 40, size=400)
    sums = counts * (2 + 0.02 * counts) + np.sqrt(counts) * random.normal(size=400)
    totals = MetricSum()
    totals.update(LossTerm(torch.from_numpy(sums), torch.from_numpy(counts)))
    drawn = random.integers(400, size=(4000, 400))
    values = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(values, [0.025, 0.975])
    assert totals.interval() == pytest.approx((high - low) / 2, rel=0.06)
    assert totals.value == pytest.approx(sums.sum() / counts.sum(), rel=1e-12)
