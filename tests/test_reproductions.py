"""Figures that take minutes: run them with pytest -m slow."""

from statistics import mean

import pytest

import tokenloom
from tokenloom.runs.session import start_session
from tokenloom.training.events import Baseline, Finished

pytestmark = pytest.mark.slow


def test_four_layers_of_128_in_2000_steps(tinyshakespeare: str) -> None:
    """2,000 × 12 × 64 training targets, at most 0.85 M parameters: the mean of three seeds is at most 1.60 nats on the
    full validation part, in separate windows of 64."""
    losses = []
    for seed in (1, 2, 3):
        run = tokenloom.train("tinyshakespeare", context=64, batch_size=12, steps=2000, seed=seed)
        assert sum(p.numel() for p in run.model.parameters()) <= 850_000
        measured = run.evaluate()
        assert measured["context"] == 64
        assert measured["num_targets"] == 111_539
        losses.append(measured["loss"])
    assert mean(losses) <= 1.60, losses


def test_the_default_recipe_beats_the_ngram(tinyshakespeare: str) -> None:
    """Eight minutes of the default recipe are better than the n-gram of order 6 with sliding context, and than 1.50."""
    events = list(start_session("tinyshakespeare", minutes=8))
    baseline = next(event for event in events if isinstance(event, Baseline))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert baseline.value == pytest.approx(1.555, abs=0.01)
    assert finished.best["loss"] <= 1.50 < baseline.value
