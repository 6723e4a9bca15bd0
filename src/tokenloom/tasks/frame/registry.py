"""Which tasks there are. A module of `tokenloom.tasks` is a task; so is a class in a file of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path

from tokenloom.errors import UserError
from tokenloom.tasks.frame.base import Task
from tokenloom.tasks.frame.flat import nearest


def task_names() -> list[str]:
    """The built-in tasks: `text_generation.py` is `text-generation`."""
    import tokenloom.tasks

    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(tokenloom.tasks.__path__) if not m.ispkg)


def find_task(name: str) -> type[Task]:
    """The task of that name, or the class `Name` of the file in `path/to/file.py:Name`.

    Raises UserError when there is none, naming the nearest.
    """
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), class_name)
    if name not in task_names():
        raise UserError(
            f"no task {name!r}{nearest(name, task_names())} There are {', '.join(task_names())};"
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
    return found[0]


def _from_file(path: Path, class_name: str) -> type[Task]:
    if not path.is_file():
        raise UserError(f"--task {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--task {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"--task {path}: cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Task)):
        tasks = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Task) and v is not Task]
        raise UserError(f"--task {path}:{class_name}: no Task of that name in the file{nearest(class_name, tasks)}")
    return found


def guess_task(data: str) -> tuple[str, str]:
    """The task that the data look like, and why. Raises UserError when none accepts them."""
    for name in task_names():
        why = find_task(name).accepts(data)
        if why is not None:
            return name, why
    raise UserError(f"{data}: no task recognises these data; say which with --task ({', '.join(task_names())})")
