"""The row on reversing digits."""

import numpy as np

from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure


def test_reversal_reproduces_the_published_values() -> None:
    row = measure(experiments()["3.14"], RunOptions())
    assert row["passed"], row["measurements"]
    # Its tables have 11 and 2 · 10 rows, of 32; 3 attentions, 2 MLPs, 6 norms, and a head of 10.
    count = 32 * 31 + 3 * 4 * 32**2 + 2 * (2 * 4 * 32**2 + 5 * 32) + 6 * 64 + 330
    assert row["measurements"][0]["measured"] == f"{count:,}"
    weights = np.array(row["plots"][0]["panels"][0]["values"])
    assert np.allclose(weights.sum(1), 1, atol=1e-5)
    assert weights.argmax(1).tolist() == list(range(9, -1, -1)), "the anti-diagonal"
    assert len(row["plots"][1]["lines"][0]["y"]) == 301


def test_reversal_in_quick_form() -> None:
    row = measure(experiments()["3.14"], RunOptions(quick=True))
    assert row["quick"]
    assert row["passed"], row["measurements"]
