"""Which tasks there are. A module of `tokenloom.tasks` is a task; so is a class in a file of the user's own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

from tokenloom.config import Options, options
from tokenloom.errors import UserError
from tokenloom.tasks.base import Task
from tokenloom.training.settings import TrainingSettings
from tokenloom.utils.imports import import_file
from tokenloom.utils.names import did_you_mean

# Modules of `tokenloom.tasks` that hold what all tasks share.
NOT_TASKS = {"base", "registry"}


def task_names() -> list[str]:
    """The built-in tasks: `text_generation.py` is `text-generation`."""
    import tokenloom.tasks

    modules = (module.name for module in pkgutil.iter_modules(tokenloom.tasks.__path__))
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_") and name not in NOT_TASKS)


def all_tasks() -> list[type[Task]]:
    """Return the built-in tasks."""
    return [find_task(name) for name in task_names()]


def find_task(name: str) -> type[Task]:
    """The task of that name, or the class `Name` of the file in `path/to/file.py:Name`.

    Raises UserError when there is none, naming the nearest.
    """
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), class_name)
    if name not in task_names():
        raise UserError(
            f"no task {name!r}{did_you_mean(name, task_names()) or '.'} There are {', '.join(task_names())};"
            " a task of your own is ./file.py:ClassName"
        )
    module = importlib.import_module(f"tokenloom.tasks.{name.replace('-', '_')}")
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
    """What a task lacks of the contract, as the end of a sentence."""
    for attribute in ("name", "summary", "Settings"):
        if not hasattr(task, attribute):
            return f"sets no `{attribute}`"
    if inspect.isabstract(task):
        return f"does not fill in {', '.join(sorted(task.__abstractmethods__))}"
    if not (isinstance(task.Settings, type) and issubclass(task.Settings, Options)):
        return "has `Settings` that do not inherit from tokenloom.config.Options"
    both = {option.name for option in options(task.Settings)} & {option.name for option in options(TrainingSettings)}
    if both:
        return f"has settings that training has already: {', '.join(sorted(both))}"
    return None


def guess_task(data: str) -> tuple[str, str]:
    """The task that the data look like, and why. Raises UserError when none accepts them, or several do."""
    tasks = {name: find_task(name) for name in task_names()}
    for fallback in (False, True):
        found = {
            name: why
            for name, task in tasks.items()
            if task.fallback is fallback and (why := task.accepts(data)) is not None
        }
        if len(found) > 1:
            raise UserError(f"{data}: may be for {' or '.join(found)}; say which with --task")
        if found:
            return next(iter(found.items()))
    raise UserError(f"{data}: no task recognizes these data; say which with --task ({', '.join(task_names())})")
