"""What the loop tells whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.planning.estimate import Plan


@dataclass(frozen=True)
class Event:
    """Something happened."""


@dataclass(frozen=True)
class Prepared(Event):
    """The data are read, checked and split. report: lines to show, and the same as data."""

    lines: list[str]
    report: dict[str, Any]


@dataclass(frozen=True)
class PrerequisiteEvent(Event):
    """A training that must come before begins: the events that follow are its own, until `over`. out: its run."""

    name: str
    task: str
    out: str | None
    over: bool = False


@dataclass(frozen=True)
class InitializedFrom(Event):
    """The model has the weights of another run. taken: how many tensors; fresh: those that start anew, by name."""

    run: str
    taken: int
    fresh: list[str]


@dataclass(frozen=True)
class Planned(Event):
    """The model is built and measured; nothing is trained yet."""

    plan: Plan


@dataclass(frozen=True)
class Counted(Event):
    """The model is counted, which took so many seconds. numbers, size: what it keeps, and in how many bytes."""

    numbers: int
    size: int
    derived: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Baseline(Event):
    """What a simple method reaches on the same validation data.

    unit: in which `value` is given. metric: which of the run's metrics it is held against, in the same unit; of `loss`
    less is better, and of any other more.
    """

    name: str
    value: float
    unit: str
    note: str = ""
    metric: str = "loss"

    def beaten(self, metrics: Mapping[str, float]) -> bool | None:
        """Whether a run with these metrics is better; None when it lacks this one."""
        found = metrics.get(self.metric)
        if found is None:
            return None
        return found < self.value if self.metric == "loss" else found > self.value


@dataclass(frozen=True)
class Resumed(Event):
    """Training goes on from the checkpoint of a step. damaged: a line on each newer checkpoint that is not whole."""

    step: int
    damaged: list[str]


@dataclass(frozen=True)
class StepFinished(Event):
    """One optimizer step is done.

    step: how many are done, of `steps`. loss: over all counted targets of the step. targets: how many they were. rate:
    the factor on the peak rates. norm: of the gradient, before clipping. seconds: of training, all sittings together.
    """

    step: int
    steps: int
    loss: float
    targets: int
    lr: float
    norm: float
    clipped: bool
    seconds: float


@dataclass(frozen=True)
class Evaluated(Event):
    """The whole validation part was measured after a step."""

    step: int
    metrics: dict[str, float]
    best: bool
    seconds: float


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is on disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class Finished(Event):
    """Training is over. reason: "steps", "patience" or "interrupt"; "counted" for a model that took no steps.

    best: the metrics of the best evaluation, after `best_step` steps; empty and −1 if there was none. seconds: all
    sittings together. clipped: in how many steps the gradient was clipped. notes: what else there is to say.
    """

    step: int
    reason: str
    best_step: int
    best: dict[str, float]
    seconds: float
    clipped: int = 0
    notes: list[str] = field(default_factory=list)
