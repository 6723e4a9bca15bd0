"""What the tests of trainings share."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kit import own_task

from tokenloom.tasks.base import Task
from tokenloom.training.events import Event, StepFinished

OWN = f"{own_task.__file__}:Sums"
TINY = {"context": 12, "width": 16, "depth": 1, "heads": 2, "threads": 1, "batch_size": 8}
VERSE = "the moon is up and the tide is low\nthe boat is out and the wind is slow\n"


def after(steps: int) -> Callable[[], bool]:
    """Asks for a stop after so many steps."""
    asked = itertools.count(1)
    return lambda: next(asked) >= steps


def stepped(events: list[Event]) -> list[tuple[Any, ...]]:
    """All that a step tells, but for the time."""
    steps = [e for e in events if isinstance(e, StepFinished)]
    return [(e.step, e.loss, e.num_targets, e.lr, e.muon_lr, e.grad_norm, e.clipped) for e in steps]


def weights(task: Task) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in task.model.parameters()]).clone()


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
