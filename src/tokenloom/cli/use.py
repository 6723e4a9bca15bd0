"""Commands that use a trained run: evaluate, inspect, and the actions of its task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenloom.cli.output import RunOptions, print_json
from tokenloom.cli.parameters import peek
from tokenloom.config import build, options
from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean, with_article
from tokenloom.utils.progress import reporting_progress

if TYPE_CHECKING:
    from tokenloom.tasks.base import Action, Task

# Actions whose names begin with it are those of `tokenloom inspect`.
INSPECT = "inspect "


def option_classes(command: str, rest: list[str]) -> list[type]:
    """Return the settings classes of a command on a run: its own, and those of the action of the run's task.

    Without a run, the largest of the tasks that have the action. Raise UserError when the task of the run does not have
    it.
    """
    from tokenloom.tasks.base import actions_of
    from tokenloom.tasks.registry import all_tasks

    inspecting = command == "inspect"
    able = [
        action.options
        for task in all_tasks()
        for name, action in actions_of(task).items()
        if (name.startswith(INSPECT) if inspecting else name == command)
    ]
    words = peek(rest, [RunOptions, *able])["arguments"]
    if len(words) >= 1 + inspecting:
        return [RunOptions, _action_of(words[0], INSPECT + words[1] if inspecting else command).options]
    return [RunOptions] if inspecting or not able else [RunOptions, max(able, key=lambda cls: len(list(options(cls))))]


def _task_of(run: str) -> type[Task]:
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import find_task

    return find_task(RunFolder(run).read_config()["task"])


def _action_of(run: str, name: str) -> Action:
    """Return an action of a run. Raise UserError when its task does not have the action."""
    from tokenloom.tasks.base import actions_of

    task = _task_of(run)
    actions = actions_of(task)
    if name not in actions:
        can, hint = ", ".join(actions), did_you_mean(name, actions)
        raise UserError(f"{run}: {with_article(task.name)} run cannot {name}; it can {can}{hint}")
    return actions[name]


def use_run(name: str, run: str, given: dict[str, Any]) -> None:
    """`tokenloom evaluate RUN …`, `tokenloom generate RUN …` and the other actions."""
    from tokenloom.runs.folder import load

    own, action = build(RunOptions, given), _action_of(run, name)
    chosen: Any = build(action.options, given)
    use_one_thread()
    task = load(run, device=own.device)
    began = time.perf_counter()
    with reporting_progress(_progress(own.quiet)):
        result = action.run(task, chosen, _silent if own.json else _write)
    if not own.quiet:
        for note in result.get("notes", []):
            print(f"note: {note}", file=sys.stderr)
    seconds = time.perf_counter() - began
    if name == "evaluate":
        _show_metrics(task, result, {"data": chosen.data, "run": run, "seconds": seconds}, as_json=own.json)
    elif own.json:
        print_json({**result, "run": run, "seconds": seconds})


def _show_metrics(task: Task, metrics: dict[str, Any], about: dict[str, Any], *, as_json: bool) -> None:
    from tokenloom.cli.metrics import metric_lines
    from tokenloom.runs.folder import RunFolder

    if as_json:
        data = RunFolder(about["run"]).read_config()["data"] if about["data"] is None else about["data"]
        print_json({**metrics, **about, "data": data})
    else:
        print("\n".join(metric_lines(task.metrics, metrics)))


def inspect_run(run: str, what: str | None, given: dict[str, Any]) -> None:
    """`tokenloom inspect RUN attention|embeddings|neighbors|analogy …`."""
    from tokenloom.tasks.base import actions_of

    if what is None:
        names = [name.removeprefix(INSPECT) for name in actions_of(_task_of(run)) if name.startswith(INSPECT)]
        raise UserError(f"{run}: say what to inspect: {', '.join(names) or 'its task has nothing to inspect'}")
    use_run(INSPECT + what, run, given)


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
