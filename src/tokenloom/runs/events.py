"""Events of a training session before and around the training loop. Those of the loop are in `training/events.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenloom.planning.estimate import Plan
from tokenloom.training.events import Event


@dataclass(frozen=True)
class Prepared(Event):
    """The data are read, checked and split. lines: the data report as text. report: the same as data."""

    lines: list[str]
    report: dict[str, Any]


@dataclass(frozen=True)
class PrerequisiteEvent(Event):
    """A prerequisite training begins; the events until the one with `over` are its own. out: its run folder."""

    name: str
    task: str
    out: str | None
    over: bool = False


@dataclass(frozen=True)
class InitializedFrom(Event):
    """The model has weights of another run. taken: number of tensors. fresh: names of those initialized at random."""

    run: str
    taken: int
    fresh: list[str]


@dataclass(frozen=True)
class Planned(Event):
    """The model is built and its costs are measured; training has not begun."""

    plan: Plan


@dataclass(frozen=True)
class Fitted(Event):
    """A model is fitted in one pass, without gradients. numbers, size: the numbers it saves, and their bytes."""

    numbers: int
    size: int
    auto_settings: dict[str, Any]
    seconds: float
