"""Stages: trainings that must come before another one, each a run of its own beside the run that needs it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.tasks.base import Stage
from tokenloom.training.events import Event, Finished, Staged

if TYPE_CHECKING:
    from tokenloom.runs.session import Fitting


def stage_folder(run: Path, name: str) -> Path:
    """Where the run of a stage lies."""
    return run.with_name(f"{run.name}-{name}")


def train_stages(fitting: Fitting, begin: Callable[..., Fitting]) -> Generator[Event, None, bool]:
    """Train, in order, what the task of a training lists, and hand it over. Gives whether to go on.

    begin: makes the training of a stage, from its settings. Machine, seed and what may happen to an older run are those
    of the training itself.
    """
    for name, stage in fitting.task.stages().items():
        if not (yield from _train_stage(fitting, name, stage, begin)):
            return False
    return True


def _train_stage(
    fitting: Fitting, name: str, stage: Stage, begin: Callable[..., Fitting]
) -> Generator[Event, None, bool]:
    training, machine = fitting.training, fitting.training.machine
    same: dict[str, Any] = {
        "out": None if fitting.folder is None else stage_folder(fitting.folder.path, name),
        "overwrite": fitting.overwrite,
        "resume": False,
        "dry_run": fitting.dry_run,
        "stop": fitting.stop,
        "seed": training.seed,
        "device": machine.device,
        "threads": machine.threads,
        "parallel": machine.parallel,
    }
    earlier = fitting.processes.together(
        lambda: begin(fitting.processes, fitting.data, task=stage.task, **same, **stage.settings)
    )
    where = None if earlier.folder is None else str(earlier.folder.path)
    yield Staged(name, stage.task, where)
    last: Event | None = None
    for last in earlier.events():
        yield last
    if isinstance(last, Finished) and last.reason == "interrupt":
        return False
    fitting.task.take_stage(name, earlier.task)
    yield Staged(name, stage.task, where, over=True)
    return True
