"""Flags from settings dataclasses, and which dataclasses a command line asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.output import plain, whole_number
from tokenloom.errors import UserError
from tokenloom.utils.names import with_article

if TYPE_CHECKING:
    from tokenloom.tasks.base import Task

DEFAULT_TASK = "text-generation"
# Flags of the commands themselves that take no value.
SWITCHES = {"--overwrite", "--resume", "--dry-run", "--tensorboard", "--json", "--quiet", "-q", "--help", "-h"}


def parameters(cls: type) -> Iterator[inspect.Parameter]:
    """One parameter a setting, with a flag unless it is positional; None stands for "not given"."""
    from tokenloom.config import options

    for option in options(cls):
        shown = "" if option.default is None or option.default == [] else f" [default: {plain(option.default)}]"
        negative = None if option.type in (bool, bool | None) else ""
        converter = whole_number if option.type in (int, int | None) else None
        info = Parameter(help=option.help + shown, show_default=False, negative=negative, converter=converter)
        annotation: Any = Annotated.__class_getitem__((option.type | None, info))  # type: ignore[attr-defined]
        kind = inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(option.name, kind, default=None, annotation=annotation)


def value_of(flag: str, tokens: list[str]) -> str | None:
    """The value of a flag in a command line, before it is parsed."""
    for i, token in enumerate(tokens):
        if token == flag and i + 1 < len(tokens):
            return tokens[i + 1]
        if token.startswith(f"{flag}="):
            return token.split("=", 1)[1]
    return None


def first_word(tokens: list[str], classes: Iterable[type]) -> str | None:
    """The first token that is neither a flag nor the value of one. classes: whose switches may stand before it."""
    from tokenloom.config import options

    switches = set(SWITCHES)
    for option in (option for cls in classes for option in options(cls)):
        if option.type in (bool, bool | None):
            name = option.name.replace("_", "-")
            switches |= {f"--{name}", f"--no-{name}"}
    before = ""
    for token in tokens:
        value = before.startswith("-") and before != "-" and "=" not in before and before not in switches
        if not value and (token == "-" or not token.startswith("-")):
            return token
        before = "" if value else token
    return None


def _all_tasks() -> list[type[Task]]:
    from tokenloom.tasks.registry import find_task, task_names

    return [find_task(name) for name in task_names()]


def task_in(tokens: list[str]) -> type[Task]:
    """The task that a `train` command line is about: given, of the run it resumes, or guessed from the data."""
    from tokenloom.config import read_config
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import find_task, guess_task
    from tokenloom.training.settings import TrainingSettings

    given, config, out = (value_of(flag, tokens) for flag in ("--task", "--config", "--out"))
    if given is None and config is not None:
        given = read_config(config).get("task")
    if given is None and "--resume" in tokens and out is not None and RunFolder(out).config_file.is_file():
        given = RunFolder(out).read_config()["task"]
    if given is not None:
        return find_task(str(given))
    data = first_word(tokens, [TrainingSettings, *(task.Settings for task in _all_tasks())])
    return find_task(DEFAULT_TASK if data is None else guess_task(data)[0])


def task_of_run(tokens: list[str], verb: str) -> type[Task] | None:
    """The task of the run that a command uses. Raises UserError when it does not have that use.

    Without a run, the first task that has the use, if there is one.
    """
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import find_task

    able = [task for task in _all_tasks() if verb in task.uses]
    run = first_word(tokens, [task.uses[verb] for task in able])
    if run is None:
        return able[0] if able else None
    task = find_task(RunFolder(run).read_config()["task"])
    if verb not in task.uses:
        can = ", ".join(task.uses) or "only be evaluated"
        raise UserError(f"{run}: {with_article(task.name)} run cannot {verb}; it can {can}")
    return task


def is_verb(verb: str, tokens: list[str]) -> bool:
    """Whether a word is a use of some task, or of that of the run in a command line, which may be the user's own."""
    if any(verb in task.uses for task in _all_tasks()):
        return True
    try:
        return task_of_run(tokens, verb) is not None
    except UserError:
        return False


def tasks_with(flag: str) -> list[str]:
    """The tasks that have an option of that name."""
    from tokenloom.config import options

    name = flag.lstrip("-").removeprefix("no-").replace("-", "_")
    return [task.name for task in _all_tasks() if name in {option.name for option in options(task.Settings)}]


def task_measured(tokens: list[str]) -> list[type[Task]]:
    """The task of the run that is measured; without a run, all that have options for it."""
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import find_task

    able = [task for task in _all_tasks() if task.measuring is not None]
    run = first_word(tokens, [task.measuring for task in able if task.measuring is not None])
    if run is None or not (Path(run) / "config.json").is_file():
        return able
    return [find_task(RunFolder(run).read_config()["task"])]


def task_named(tokens: list[str]) -> type[Task] | None:
    """The task that `info NAME` is about, unless the name is that of a run folder."""
    from tokenloom.tasks.registry import find_task

    name = first_word(tokens, [task.Settings for task in _all_tasks()])
    if name is None or (Path(name) / "config.json").is_file():
        return None
    if Path(name).exists() and ":" not in name:
        raise UserError(f"{name}: not a run (it has no config.json)")
    if Path(name).parent != Path() and not name.rpartition(":")[0].endswith(".py"):
        raise UserError(f"{name}: there is no such run")
    return find_task(name)
