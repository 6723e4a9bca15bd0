"""From data to a trained run: the way that every task goes, as a generator of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import UserError
from tokenloom.tasks.frame.base import Material, Task
from tokenloom.tasks.frame.flat import build, flatten, refuse_unknown
from tokenloom.tasks.frame.registry import find_task, guess_task
from tokenloom.tasks.frame.runs import RunFolder, task_of
from tokenloom.training.batches import Batches
from tokenloom.training.checkpoints import Checkpoints, load_weights
from tokenloom.training.estimate import Plan, make_plan
from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Planned, Prepared, Saved, Stepped
from tokenloom.training.loop import Run
from tokenloom.training.loop import fit as run_loop
from tokenloom.training.machine import choose_device
from tokenloom.training.settings import GENERAL_RECIPE, TrainingSettings

LOG_EVERY = 10


@dataclass
class Fitting:
    """A training on its way. Iterate over it for its events; `task` holds the model afterwards."""

    task: Task
    name: str
    data: str | None
    training: TrainingSettings
    folder: RunFolder | None
    resume: bool = False
    dry_run: bool = False
    stop: Callable[[], bool] = lambda: False
    guessed: str = ""

    def __iter__(self) -> Iterator[Event]:
        material = self.task.prepare(self.data)
        yield Prepared(material.lines, material.report)
        plan = self._plan(material)
        yield Planned(plan)
        if self.dry_run:
            return
        if self.folder is not None and not self.resume:
            self.folder.write_config(self.task, self.name, self.data, self.training)
        baseline = self.task.baseline(material)
        if baseline is not None:
            yield baseline
        yield from self._loop(material, baseline)

    def _plan(self, material: Material) -> Plan:
        """Build the model, fill in the settings, measure."""
        recipe = {**GENERAL_RECIPE, **self.task.recipe(material)}
        if self.training.minutes is not None:
            recipe.pop("steps", None)
            recipe.pop("minutes", None)
        elif self.training.steps is not None or "steps" in recipe:
            recipe.pop("minutes", None)
        self.training, taken = self.training.filled(recipe)
        self.task.model = self.task.build(self.training.seed).to(choose_device(self.training.machine.device))
        batches = self._batches(material)
        derived = {**self.task.derived(), **taken}
        plan = make_plan(self.task, self.task.model, self.training, batches, batches.steps_per_epoch, derived)
        self.training = plan.settings
        return plan

    def _batches(self, material: Material) -> Batches:
        t = self.training
        assert t.batch is not None
        size = min(t.batch, len(material.training))
        return Batches(material.training, self.task.collate, batch=size, seed=t.seed, accumulate=t.accumulate)

    def _loop(self, material: Material, baseline: Baseline | None) -> Iterator[Event]:
        folder, run = self.folder, None
        if folder is not None:
            run = Run(Checkpoints(folder.checkpoints, self.training.keep), folder.weights)
            if self.resume:
                state, _, _ = run.checkpoints.newest_whole()
                folder.truncate_metrics(state["step"])
            else:
                folder.metrics.write_text("", "utf-8")
        recent: list[float] = []
        events = run_loop(
            self.task,
            self.task.model,
            self.training,
            self._batches(material),
            material.validation,
            run=run,
            resume=self.resume,
            stop=self.stop,
        )
        for event in events:
            if folder is not None:
                self._log(folder, event, recent)
            if isinstance(event, Finished):
                self._finish(event, baseline)
            yield event

    def _log(self, folder: RunFolder, event: Event, recent: list[float]) -> None:
        if isinstance(event, Stepped):
            recent.append(event.loss)
            if event.step % LOG_EVERY == 0 or event.step == event.steps:
                loss = sum(recent) / len(recent)
                recent.clear()
                row = {"step": event.step, "loss": loss, "rate": event.rate, "norm": event.norm}
                folder.append_metrics({**row, "seconds": round(event.seconds, 3)})
        elif isinstance(event, Evaluated):
            row = {"step": event.step, **{f"validation_{k}": v for k, v in event.metrics.items()}}
            folder.append_metrics({**row, "seconds": round(event.seconds, 3)})

    def _finish(self, event: Finished, baseline: Baseline | None) -> None:
        """Give the task the weights of the best evaluation, and draw the curve."""
        self.task.model.eval()
        if self.folder is None:
            return
        if event.best_step >= 0 and self.folder.weights.is_file():
            load_weights(self.task.model, self.folder.weights)
        draw_curve(self.folder, baseline)


def draw_curve(folder: RunFolder, baseline: Baseline | None) -> None:
    """loss.png of a run, where matplotlib is installed."""
    from tokenloom.drawing.curves import draw_loss_curve

    rows = [{**row, "validation": row.get("validation_loss")} for row in folder.read_metrics()]
    try:
        draw_loss_curve(
            rows,
            folder.curve,
            title=folder.path.name,
            baseline=None if baseline is None else (baseline.name, baseline.value),
        )
    except UserError:
        return


def begin(
    data: str | Path | None,
    *,
    task: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Fitting:
    """Check everything that can be checked before the data are read, and return the training, not yet begun.

    settings: of the task and of training, by flat name. Raises UserError for a name that neither has.
    """
    folder = None if out is None else RunFolder(out)
    if resume:
        if folder is None:
            raise UserError("--resume: say which run with --out")
        return _resumed(folder, settings, stop)
    source = None if data is None else str(data)
    guessed = ""
    if task is None:
        if source is None:
            raise UserError("nothing to train on: give a file, a folder or a built-in data set")
        task, guessed = guess_task(source)
    cls = find_task(task)
    if source is None and cls.needs_data:
        raise UserError(f"{cls.name} needs data: a file, a folder or a built-in data set")
    refuse_unknown(settings, [cls.Settings, TrainingSettings])
    instance = cls(build(cls.Settings, settings))
    instance.source = source
    training = build(TrainingSettings, settings)
    choose_device(training.machine.device)
    if folder is not None and not dry_run:
        folder.claim(overwrite=overwrite, resume=False)
    return Fitting(
        instance, task, source, training, None if dry_run else folder, dry_run=dry_run, stop=stop, guessed=guessed
    )


def _resumed(folder: RunFolder, settings: dict[str, Any], stop: Callable[[], bool]) -> Fitting:
    """Go on with a run: its own settings hold, and none may be changed but how long it trains."""
    folder.claim(overwrite=False, resume=True)
    config = folder.read_config()
    changed = sorted(set(settings) - {"steps", "device", "threads"})
    if changed:
        raise UserError(f"--resume: goes on with the run's own settings; {changed[0]} cannot be changed")
    training = build(TrainingSettings, {**config["training"], **settings, "minutes": None})
    return Fitting(task_of(config, folder), config["task"], config["data"], training, folder, resume=True, stop=stop)


def fit(data: str | Path | None = None, **arguments: Any) -> Iterator[Event]:
    """Train, event by event: `for event in tokenloom.fit("text.txt", steps=500): …`. Arguments as for `train`."""
    yield from begin(data, **arguments)


def train(data: str | Path | None = None, **arguments: Any) -> Task:
    """Train on some data and return the trained task.

    data: a path or the name of a built-in data set. task: guessed from the data when not given. out: the run folder;
    None keeps nothing on disk. overwrite, resume: what to do when it is there. Everything else is a setting of the
    task or of training, as on the command line: `tokenloom.train("poems.txt", out="runs/poems", minutes=2)`.

    Raises UserError for what cannot be used, NonFiniteLoss when training breaks down.
    """
    fitting = begin(data, **arguments)
    for _ in fitting:
        pass
    return fitting.task


def summary(fitting: Fitting, events: list[Event], began: float) -> dict[str, Any]:
    """What `--json` prints of a training."""
    plan = next((e.plan for e in events if isinstance(e, Planned)), None)
    result: dict[str, Any] = {"task": fitting.name, "out": None if fitting.folder is None else str(fitting.folder.path)}
    if plan is not None:
        result |= {
            "parameters": plan.parameters,
            "flops_per_token": plan.flops_per_token,
            "memory_bytes": plan.memory.total,
            "steps": plan.steps,
            "tokens_per_second": plan.tokens_per_second,
            "settings": flatten(fitting.task.settings) | flatten(fitting.training),
        }
    for event in events:
        if isinstance(event, Baseline):
            result["baseline"] = {"name": event.name, "value": event.value, "unit": event.unit}
        elif isinstance(event, Finished):
            result |= {**event.best, "steps": event.step, "best_step": event.best_step, "reason": event.reason}
            result["training_seconds"] = event.seconds
        elif isinstance(event, Saved):
            result["checkpoint"] = str(event.path)
    result["seconds"] = time.perf_counter() - began
    return result
