"""Trainings that must come before another one, each with a run folder beside the run that needs it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import UserError
from tokenloom.runs.events import PrerequisiteEvent
from tokenloom.runs.folder import load
from tokenloom.tasks.base import Prerequisite
from tokenloom.training.events import Event, Finished
from tokenloom.utils.names import with_article

if TYPE_CHECKING:
    from tokenloom.runs.session import TrainingSession


def prerequisite_folder(run: Path, name: str) -> Path:
    """Return the run folder of a prerequisite: `runs/x-NAME` for `runs/x`."""
    return run.with_name(f"{run.name}-{name}")


def train_prerequisites(
    session: TrainingSession, start: Callable[..., TrainingSession]
) -> Generator[Event, None, bool]:
    """Train or load, in order, what the task needs first, and hand it over. Return whether to continue.

    start: returns the session of a prerequisite. It has the machine settings and the seed of this session, and may
    replace an older run where this session may.
    """
    for one in session.task.prerequisites():
        if one.run is not None:
            one.use(_load(one, one.run))
        elif not (yield from _train(session, one, start)):
            return False
    return True


def _load(one: Prerequisite, run: str) -> Any:
    """Return the trained task of a run. Raise UserError for a run of another task."""
    trained = load(run)
    if trained.name != one.task:
        raise UserError(f"{run}: is {with_article(trained.name)} run, and {with_article(one.task)} run is needed")
    return trained


def _train(
    session: TrainingSession, one: Prerequisite, start: Callable[..., TrainingSession]
) -> Generator[Event, None, bool]:
    training = session.training
    shared: dict[str, Any] = {
        "out": None if session.folder is None else prerequisite_folder(session.folder.path, one.name),
        "overwrite": session.overwrite,
        "resume": False,
        "dry_run": session.dry_run,
        "stop": session.stop,
        "seed": training.seed,
        "device": training.device,
        "threads": training.threads,
        "parallel": training.parallel,
    }
    earlier = session.processes.run_on_all(
        lambda: start(session.processes, session.data, task=one.task, **shared, **one.settings)
    )
    out = None if earlier.folder is None else str(earlier.folder.path)
    yield PrerequisiteEvent(one.name, one.task, out)
    last: Event | None = None
    for last in earlier.events():
        yield last
    if isinstance(last, Finished) and last.reason == "interrupt":
        return False
    one.use(earlier.task)
    yield PrerequisiteEvent(one.name, one.task, out, over=True)
    return True
