"""Commands that use a trained run: evaluate, inspect, and the actions of its task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.output import RunOptions, print_json
from tokenloom.cli.parameters import peek
from tokenloom.config import build, option
from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean, with_article
from tokenloom.utils.progress import reporting_progress

if TYPE_CHECKING:
    from tokenloom.tasks.base import Task

# Actions whose names begin with it are those of `tokenloom inspect`.
INSPECT = "inspect "


@dataclass(frozen=True)
class EvaluateOptions(RunOptions):
    """The options that `evaluate` has for every task."""

    data: str | None = option(None, "evaluate on all of these data instead")
    batch_size: int = option(64, "examples per batch; the result does not depend on it", low=1)


def option_classes(command: str, rest: list[str]) -> list[type]:
    """Return the settings classes of a command on a run: its own, and those of the task of the run.

    Without a run, those of the first task that has the action, or of all tasks that have options for evaluation. Raise
    UserError when the task of the run does not have the action.
    """
    from tokenloom.tasks.registry import all_tasks

    tasks = all_tasks()
    if command == "evaluate":
        theirs = [task.measuring for task in tasks if task.measuring is not None]
        words = peek(rest, [EvaluateOptions, *theirs])["arguments"]
        if words and (Path(words[0]) / "config.json").is_file():
            theirs = [cls for cls in [_task_of(words[0]).measuring] if cls is not None]
        return [EvaluateOptions, *theirs]
    inspecting = command == "inspect"
    able = [
        cls
        for task in tasks
        for name, cls in task.uses.items()
        if (name.startswith(INSPECT) if inspecting else name == command)
    ]
    words = peek(rest, [RunOptions, *able])["arguments"]
    if len(words) < 1 + inspecting:
        return [RunOptions, *([] if inspecting else able[:1])]
    return [RunOptions, _action_options(words[0], INSPECT + words[1] if inspecting else command)]


def _task_of(run: str) -> type[Task]:
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import find_task

    return find_task(RunFolder(run).read_config()["task"])


def _action_options(run: str, action: str) -> type:
    """Return the settings class of an action of a run. Raise UserError when its task does not have the action."""
    task = _task_of(run)
    if action not in task.uses:
        actions, hint = ", ".join(task.uses) or "only evaluate", did_you_mean(action, task.uses)
        raise UserError(f"{run}: {with_article(task.name)} run cannot {action}; it can {actions}{hint}")
    return task.uses[action]


def use_run(action: str, run: str, given: dict[str, Any]) -> None:
    """`tokenloom generate RUN …` and the other actions."""
    from tokenloom.runs.folder import load

    own = build(RunOptions, given)
    use_one_thread()
    task = load(run, device=own.device)
    options: Any = build(task.uses[action], given)
    began = time.perf_counter()
    with reporting_progress(_progress(own.quiet)):
        result = task.use(action, options, _silent if own.json else _write)
    if not own.quiet:
        for note in result.get("notes", []):
            print(f"note: {note}", file=sys.stderr)
    if own.json:
        print_json({**result, "run": run, "seconds": time.perf_counter() - began})


def inspect_run(run: str, what: str | None, given: dict[str, Any]) -> None:
    """`tokenloom inspect RUN attention|embeddings|neighbors|analogy …`."""
    if what is None:
        names = [name.removeprefix(INSPECT) for name in _task_of(run).uses if name.startswith(INSPECT)]
        raise UserError(f"{run}: say what to inspect: {', '.join(names) or 'its task has nothing to inspect'}")
    use_run(INSPECT + what, run, given)


def evaluate_run(run: str, given: dict[str, Any]) -> None:
    """`tokenloom evaluate RUN [--data …]`."""
    from tokenloom.runs.folder import load

    own = build(EvaluateOptions, given)
    use_one_thread()
    task = load(run, device=own.device)
    theirs = {name: value for name, value in given.items() if name not in EvaluateOptions.__dataclass_fields__}
    began = time.perf_counter()
    with reporting_progress(_progress(own.quiet)):
        metrics = task.evaluate(own.data, batch_size=own.batch_size, **theirs)
    seconds = time.perf_counter() - began
    if own.json:
        data = task.source if own.data is None else own.data
        print_json({**metrics, "data": data, "run": run, "seconds": seconds})
    else:
        print("\n".join(task.metric_lines(metrics)))


def _progress(quiet: bool) -> Callable[[str], None]:
    return _silent if quiet else lambda text: print(f"progress: {text}", file=sys.stderr)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _silent(text: str) -> None:
    pass


def use_one_thread() -> None:
    """Use one CPU thread: for small models, more threads cost more than they save."""
    import torch

    torch.set_num_threads(1)
