"""Flags from settings dataclasses, and which dataclasses a command line asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenloom.errors import UserError

if TYPE_CHECKING:
    from tokenloom.tasks.frame.base import Task

DEFAULT_TASK = "text-generation"


def parameters(cls: type) -> Iterator[inspect.Parameter]:
    """One parameter a setting, with a flag unless it is positional; None stands for "not given"."""
    from tokenloom.tasks.frame.flat import options

    for option in options(cls):
        shown = "" if option.default is None or option.default == [] else f" [default: {_shown(option.default)}]"
        negative = None if option.type in (bool, bool | None) else ""
        info = Parameter(help=option.help + shown, show_default=False, negative=negative)
        annotation: Any = Annotated.__class_getitem__((option.type | None, info))  # type: ignore[attr-defined]
        kind = inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(option.name, kind, default=None, annotation=annotation)


def _shown(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def value_of(flag: str, tokens: list[str]) -> str | None:
    """The value of a flag in a command line, before it is parsed."""
    for i, token in enumerate(tokens):
        if token == flag and i + 1 < len(tokens):
            return tokens[i + 1]
        if token.startswith(f"{flag}="):
            return token.split("=", 1)[1]
    return None


def first_word(tokens: list[str]) -> str | None:
    """The first token, when it is no flag."""
    return tokens[0] if tokens and (not tokens[0].startswith("-") or tokens[0] == "-") else None


def task_in(tokens: list[str]) -> type[Task]:
    """The task that a `train` command line is about: given, of the run it resumes, or guessed from the data."""
    from tokenloom.tasks.frame.flat import read_config
    from tokenloom.tasks.frame.registry import find_task, guess_task

    given = value_of("--task", tokens)
    config = value_of("--config", tokens)
    if given is None and config is not None:
        given = read_config(config).get("task")
    if given is not None:
        return find_task(given)
    data = first_word(tokens)
    return find_task(DEFAULT_TASK if data is None else guess_task(data)[0])


def task_of_run(tokens: list[str], verb: str) -> type[Task]:
    """The task of the run that a command uses. Raises UserError when it does not have that use."""
    from tokenloom.tasks.frame.registry import find_task, task_names
    from tokenloom.tasks.frame.runs import RunFolder

    run = first_word(tokens)
    if run is None:
        for name in task_names():
            if verb in find_task(name).uses:
                return find_task(name)
        raise UserError(f"{verb}: no built-in task can do this yet; give the run of a task that can")
    folder = RunFolder(run)
    if not folder.path.exists():
        raise UserError(f"{run}: there is no such run")
    task = find_task(folder.read_config()["task"])
    if verb not in task.uses:
        can = ", ".join(task.uses) or "only be evaluated"
        raise UserError(f"{run}: a {task.name} run cannot {verb}; it can {can}")
    return task


def task_named(tokens: list[str]) -> type[Task] | None:
    """The task that `info NAME` is about, unless the name is that of a run folder."""
    from tokenloom.tasks.frame.registry import find_task

    name = first_word(tokens)
    if name is None or (Path(name) / "config.json").is_file():
        return None
    if Path(name).exists():
        raise UserError(f"{name}: not a run (it has no config.json)")
    return find_task(name)
