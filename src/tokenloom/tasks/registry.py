"""Find tasks: a module of `tokenloom.tasks`, or a class in a file of the user's own."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenloom.config import Options, options
from tokenloom.errors import UserError
from tokenloom.tasks import task_names
from tokenloom.tasks.base import Match, Task
from tokenloom.training.settings import TrainingSettings
from tokenloom.utils.imports import import_file
from tokenloom.utils.names import did_you_mean


def all_tasks() -> list[type[Task]]:
    """Return the built-in tasks."""
    return [find_task(name) for name in task_names()]


def find_task(name: str) -> type[Task]:
    """Return the task of that name, or the class `Name` of the file in `path/to/file.py:Name`.

    Raise UserError when there is none, naming the nearest.
    """
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), class_name)
    if name not in task_names():
        raise UserError(
            f"no task {name!r}{did_you_mean(name, task_names()) or '.'} There are {', '.join(task_names())};"
            " a task of your own is ./file.py:ClassName"
        )
    module = _module(name)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value.__dict__.get("name") == name
    ]
    if len(found) != 1:
        raise ValueError(f"{module.__name__} must define exactly one Task with name = {name!r}")
    if fault := _fault(found[0]):
        raise ValueError(f"{module.__name__}: {found[0].__name__} {fault}")
    return found[0]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tokenloom.tasks.{name.replace('-', '_')}")


def _from_file(path: Path, class_name: str) -> type[Task]:
    module = import_file(path, f"--task {path}")
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Task)):
        tasks = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Task) and v is not Task]
        raise UserError(
            f"--task {path}:{class_name}: no Task of that name in the file{did_you_mean(class_name, tasks)}"
        )
    if fault := _fault(found):
        raise UserError(f"--task {path}:{class_name} {fault}")
    return found


def _fault(task: type[Task]) -> str | None:
    """Return what a task lacks of the contract, as the end of a sentence; None when nothing."""
    for attribute in ("name", "Settings"):
        if not hasattr(task, attribute):
            return f"sets no `{attribute}`"
    if inspect.isabstract(task):
        return f"does not define {', '.join(sorted(task.__abstractmethods__))}"
    settings: Any = task.Settings
    if not (isinstance(settings, type) and issubclass(settings, Options)):
        return "has `Settings` that do not inherit from tokenloom.config.Options"
    both = {option.name for option in options(task.Settings)} & {option.name for option in options(TrainingSettings)}
    if both:
        return f"has settings that training has already: {', '.join(sorted(both))}"
    return None


def guess_task(source: str) -> tuple[str, str]:
    """Return the task whose data these look like, and why. Raise UserError when there is none, or more than one.

    A module of a task may have a function `recognize(source)`, which returns a `Match` or None.
    """
    matches: dict[str, Match] = {}
    for name in task_names():
        recognize = getattr(_module(name), "recognize", None)
        match = None if recognize is None else recognize(source)
        if match is not None:
            matches[name] = match
    for fallback in (False, True):
        found = {name: match.reason for name, match in matches.items() if match.fallback is fallback}
        if len(found) > 1:
            raise UserError(f"{source}: may be for {' or '.join(found)}; say which with --task")
        if found:
            return next(iter(found.items()))
    raise UserError(f"{source}: no task recognizes these data; say which with --task ({', '.join(task_names())})")
