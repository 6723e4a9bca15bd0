"""Learning-rate schedules: the factor that every peak learning rate is multiplied with at each step."""

from __future__ import annotations

import math

from tokenloom.training.settings import TrainingSettings


def lr_factor(settings: TrainingSettings, step: int, steps: int) -> float:
    """Return the factor at a step, counted from 0, of a training of `steps` steps."""
    warmup_steps = min(settings.warmup_steps or 0, steps)
    if settings.lr_schedule == "cosine":
        return cosine(step, steps, warmup_steps)
    return wsd(step, steps, warmup_steps, 0.8 if settings.decay_fraction is None else settings.decay_fraction)


def cosine(step: int, steps: int, warmup_steps: int) -> float:
    """Return (s + 1) / W for s < W, then ½ (1 + cos π t) with t = (s − W) / (steps − W); s: step, W: warmup_steps.

    Source: Loshchilov & Hutter 2017, "SGDR".
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def wsd(step: int, steps: int, warmup_steps: int, decay_fraction: float) -> float:
    """Return the factor of warmup–stable–decay: warmup as in `cosine`, then 1, then linear to zero.

    decay_fraction: of all steps, in the final decay. Source: Hägele et al. 2024, "Scaling laws and compute-optimal
    training beyond fixed training durations".
    """
    warmup_factor = (step + 1) / warmup_steps if step < warmup_steps else 1.0
    decay_factor = (steps - step) / max(1.0, decay_fraction * steps)
    return min(warmup_factor, decay_factor, 1.0)
