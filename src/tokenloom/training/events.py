"""Events of the training loop, and of the baseline measured before it.

Other events of a session are in `runs/events.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """The base of all events."""


@dataclass(frozen=True)
class Baseline(Event):
    """The result of a simple method on the same validation data.

    unit: of `value`. metric: the metric of the run to compare it with, in the same unit; lower is better for `loss`,
    higher for all others.
    """

    name: str
    value: float
    unit: str
    note: str = ""
    metric: str = "loss"

    def beaten(self, metrics: Mapping[str, float]) -> bool | None:
        """Return whether a run with these metrics is better; None when they lack the baseline's metric."""
        value = metrics.get(self.metric)
        if value is None:
            return None
        return value < self.value if self.metric == "loss" else value > self.value


@dataclass(frozen=True)
class Resumed(Event):
    """Training continues from the checkpoint of a step. damaged: a message per newer, damaged checkpoint."""

    step: int
    damaged: list[str]


@dataclass(frozen=True)
class StepFinished(Event):
    """An optimizer step is done.

    step: number of steps done, of `steps`. loss: mean over the `num_targets` counted targets of the step.
    grad_norm: before clipping. lr, muon_lr: the learning rates of AdamW and of Muon in this step; None where the model
    has no parameters for that optimizer. seconds: training time since step 0, including earlier sessions.
    """

    step: int
    steps: int
    loss: float
    num_targets: int
    grad_norm: float
    clipped: bool
    lr: float | None
    muon_lr: float | None
    seconds: float


@dataclass(frozen=True)
class Evaluated(Event):
    """The whole validation split was evaluated after a step. best: whether the loss is the lowest up to here."""

    step: int
    metrics: dict[str, float]
    best: bool
    seconds: float


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was written."""

    step: int
    path: Path


@dataclass(frozen=True)
class Finished(Event):
    """Training is over. reason: "steps", "patience" or "interrupt"; "fitted" for a model that is fitted in one pass.

    best: metrics of the best evaluation, after `best_step` steps; empty and −1 if there was none. clipped: number of
    steps with a clipped gradient. notes: messages about damaged checkpoints. seconds: as in `StepFinished`.
    """

    step: int
    reason: str
    best_step: int
    best: dict[str, float]
    seconds: float
    clipped: int = 0
    notes: list[str] = field(default_factory=list)
