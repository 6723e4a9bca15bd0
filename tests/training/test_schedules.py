"""Learning rates over the steps, worked by hand."""

import math
from typing import Any

import pytest

from tokenloom.training.schedules import cosine, lr_factor, wsd
from tokenloom.training.settings import TrainingSettings


def schedule(name: Any, warmup_steps: int | None, decay_fraction: float) -> TrainingSettings:
    return TrainingSettings(
        lr_schedule=name, warmup_steps=warmup_steps, decay_fraction=decay_fraction if name == "wsd" else None
    )


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.01), (49, 0.5), (99, 1.0), (100, 1.0), (300, (2 + math.sqrt(2)) / 4), (500, 0.5), (900, 0.0)],
)
def test_the_chapters_schedule(step: int, factor: float) -> None:
    """(s + 1) / 100 for s < 100, then the cosine of (s − 100) / 800: reference 3.4, whose peak rate is 6e-3."""
    settings = TrainingSettings(lr_schedule="cosine", warmup_steps=100)
    assert lr_factor(settings, step, 900) == pytest.approx(factor, abs=1e-12)


def test_the_chapters_last_step_still_learns() -> None:
    assert cosine(899, 900, 100) == pytest.approx((math.pi / 800) ** 2 / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.2), (3, 0.8), (4, 1.0), (9, 1.0), (49, 1.0), (60, 1.0), (70, 0.75), (80, 0.5), (99, 0.025)],
)
def test_constant_and_then_linear(step: int, factor: float) -> None:
    """100 steps: 5 to rise, and the last 40 to fall."""
    settings = TrainingSettings(lr_schedule="wsd", warmup_steps=5, decay_fraction=0.4)
    assert lr_factor(settings, step, 100) == pytest.approx(factor, abs=1e-12)


def test_falling_from_the_start() -> None:
    assert [wsd(s, 4, 0, 1.0) for s in range(4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("name", ["cosine", "wsd"])
def test_no_warm_up_begins_at_the_peak(name: str) -> None:
    for warmup_steps in (0, None):
        settings = schedule(name, warmup_steps, 0.5)
        assert lr_factor(settings, 0, 10) == 1.0


@pytest.mark.parametrize("name", ["cosine", "wsd"])
@pytest.mark.parametrize("warmup_steps", [10, 11, 1000])
def test_a_warm_up_as_long_as_the_training_only_rises(name: str, warmup_steps: int) -> None:
    """A warm-up that was given for a longer training reaches its peak in this one."""
    settings = schedule(name, warmup_steps, 0.0)
    factors = [lr_factor(settings, s, 10) for s in range(10)]
    assert factors == pytest.approx([(s + 1) / 10 for s in range(10)])


@pytest.mark.parametrize("name", ["cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 49, 50])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_every_step_learns_and_none_above_the_peak(name: str, steps: int, warmup_steps: int, share: float) -> None:
    settings = schedule(name, warmup_steps, share)
    factors = [lr_factor(settings, s, steps) for s in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1]), "rises"
    assert factors[peak:] == sorted(factors[peak:], reverse=True), "and then never again"
