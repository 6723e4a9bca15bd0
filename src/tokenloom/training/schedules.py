"""Learning-rate schedules: the factor on the peak rate at each step."""

from __future__ import annotations

import math


def cosine(step: int, steps: int, warmup_steps: int) -> float:
    """(s + 1) / W while s < W, then ½ (1 + cos π t) with t = (s − W) / (steps − W); W: warmup_steps.

    Source: Loshchilov & Hutter 2017, "SGDR".
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def wsd(step: int, steps: int, warmup_steps: int, decay_fraction: float) -> float:
    """Warm-up as above, then 1, then linearly to zero over the last `decay_fraction` of all steps.

    Source: Hägele et al. 2024, "Scaling laws and compute-optimal training beyond fixed training durations".
    """
    rising = (step + 1) / warmup_steps if step < warmup_steps else 1.0
    falling = (steps - step) / max(1.0, decay_fraction * steps)
    return min(rising, falling, 1.0)
