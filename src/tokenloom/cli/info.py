"""`tokenloom info` and `tokenloom tasks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenloom.cli.output import JsonOptions, plain, print_json, quantity
from tokenloom.cli.parameters import peek
from tokenloom.config import build
from tokenloom.errors import UserError

COLUMN = 24


def option_classes(rest: list[str]) -> list[type]:
    """Return the settings classes of `info NAME`: with those of the task, unless the name is that of a run folder.

    Raise UserError for a name that is neither.
    """
    from tokenloom.tasks.registry import all_tasks, find_task

    words = peek(rest, [JsonOptions, *(task.Settings for task in all_tasks())])["arguments"] if rest else []
    if not words or (Path(words[0]) / "config.json").is_file():
        return [JsonOptions]
    name = words[0]
    if Path(name).exists() and ":" not in name:
        raise UserError(f"{name}: not a run (it has no config.json)")
    if Path(name).parent != Path() and not name.rpartition(":")[0].endswith(".py"):
        raise UserError(f"{name}: there is no such run")
    return [JsonOptions, find_task(name).Settings]


def show_info(name: str, given: dict[str, Any]) -> None:
    """`tokenloom info RUN`, or `tokenloom info TASK --size …` without data."""
    result = _run_info(name) if (Path(name) / "config.json").is_file() else _task_info(name, given)
    if build(JsonOptions, given).json:
        print_json(result)
        return
    of = result.pop("of_steps", None)
    for key, value in result.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for inner, shown in value.items():
                if shown is not None:
                    print(f"  {_label(inner, COLUMN - 2)}{plain(shown)}")
        else:
            print(_label(key, COLUMN) + _with_unit(key, value) + (f" of {plain(of)}" if key == "steps" else ""))


def _label(key: str, width: int) -> str:
    return f"{key.replace('_', ' ') + ':':<{width}}"


def _with_unit(key: str, value: Any) -> str:
    if key.endswith("_bytes"):
        return quantity(value, "B")
    return quantity(value) if key == "flops_per_token" else plain(value)


def _run_info(run: str) -> dict[str, Any]:
    from tokenloom.nn.modules import count_parameters, count_saved_numbers
    from tokenloom.planning.costs import flops_per_token
    from tokenloom.runs.folder import RunFolder, load

    folder = RunFolder(run)
    config = folder.read_config()
    task = load(run)
    rows = folder.read_metrics()
    evaluated = [row for row in rows if "validation_loss" in row]
    best = min(evaluated, key=lambda row: row["validation_loss"], default={})
    sizes = {"saved_numbers": count_saved_numbers(task.model)}
    if parameters := count_parameters(task.model):
        flops = flops_per_token(task.model, config["sequence_length"])
        sizes = {"parameters": parameters, "flops_per_token": flops}
    return {
        "run": run,
        "task": config["task"],
        "data": config["data"],
        "steps": max((row["step"] for row in rows), default=0),
        "of_steps": config["training"].get("steps"),
        **sizes,
        "best": {k.removeprefix("validation_"): v for k, v in best.items()},
        "model": config["model"],
        "settings": config["settings"],
        "training": config["training"],
        "tokenloom": config["tokenloom"],
    }


def _task_info(name: str, given: dict[str, Any]) -> dict[str, Any]:
    from tokenloom.nn.modules import count_parameters
    from tokenloom.planning.costs import flops_per_token
    from tokenloom.tasks.base import summary_of
    from tokenloom.tasks.registry import find_task
    from tokenloom.training.checkpoints import total_bytes

    cls = find_task(name)
    task = cls(build(cls.Settings, given))
    prepared = task.load(None)
    model = task.build_model(seed=0)
    return {
        "task": name,
        "summary": summary_of(cls),
        "parameters": count_parameters(model),
        "weight_bytes": total_bytes(model.parameters()),
        "flops_per_token": flops_per_token(model, prepared.sequence_length),
        "model": task.model_config,
    }


def show_tasks(given: dict[str, Any]) -> None:
    """`tokenloom tasks`."""
    from tokenloom.tasks.base import actions_of, models_of, summary_of
    from tokenloom.tasks.registry import all_tasks

    tasks = all_tasks()
    if build(JsonOptions, given).json:
        print_json(
            {
                task.name: {
                    "summary": summary_of(task),
                    "models": list(models_of(task)),
                    "actions": list(actions_of(task)),
                }
                for task in tasks
            }
        )
        return
    for task in tasks:
        print(f"{task.name}: {summary_of(task)}")
        models = models_of(task)
        width = max(map(len, models), default=0)
        for model, text in models.items():
            print(f"  {model:<{width}}  {text}")
