"""Stages: trainings that must come before another one, each a run of its own beside the run that needs it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.runs.events import PrerequisiteEvent
from tokenloom.tasks.base import Prerequisite
from tokenloom.training.events import Event, Finished

if TYPE_CHECKING:
    from tokenloom.runs.session import TrainingSession


def prerequisite_folder(run: Path, name: str) -> Path:
    """Where the run of a stage lies."""
    return run.with_name(f"{run.name}-{name}")


def train_prerequisites(
    fitting: TrainingSession, begin: Callable[..., TrainingSession]
) -> Generator[Event, None, bool]:
    """Train, in order, what the task of a training lists, and hand it over. Gives whether to go on.

    begin: makes the training of a stage, from its settings. Machine, seed and what may happen to an older run are those
    of the training itself.
    """
    for name, stage in fitting.task.prerequisites().items():
        if not (yield from _train_stage(fitting, name, stage, begin)):
            return False
    return True


def _train_stage(
    fitting: TrainingSession, name: str, stage: Prerequisite, begin: Callable[..., TrainingSession]
) -> Generator[Event, None, bool]:
    training = fitting.training
    same: dict[str, Any] = {
        "out": None if fitting.folder is None else prerequisite_folder(fitting.folder.path, name),
        "overwrite": fitting.overwrite,
        "resume": False,
        "dry_run": fitting.dry_run,
        "stop": fitting.stop,
        "seed": training.seed,
        "device": training.device,
        "threads": training.threads,
        "parallel": training.parallel,
    }
    earlier = fitting.processes.run_on_all(
        lambda: begin(fitting.processes, fitting.data, task=stage.task, **same, **stage.settings)
    )
    where = None if earlier.folder is None else str(earlier.folder.path)
    yield PrerequisiteEvent(name, stage.task, where)
    last: Event | None = None
    for last in earlier.events():
        yield last
    if isinstance(last, Finished) and last.reason == "interrupt":
        return False
    fitting.task.take_prerequisite(name, earlier.task)
    yield PrerequisiteEvent(name, stage.task, where, over=True)
    return True
