"""The training session, from data to a trained run, for every task: a generator of events, read top to bottom."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokenloom.config import build, fill, flag, flatten, options, refuse_unknown
from tokenloom.errors import UserError
from tokenloom.nn.modules import count_saved_numbers, device_of
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.planning.estimate import Plan, make_plan
from tokenloom.plotting.heatmaps import draw_confusion
from tokenloom.runs.events import Fitted, Planned, Prepared, PrerequisiteEvent
from tokenloom.runs.folder import RunFolder, draw_curve, findable, load, task_of
from tokenloom.runs.initialization import Origin, freeze_backbone, load_origin
from tokenloom.tasks.base import PreparedData, Prerequisite, Task
from tokenloom.tasks.registry import find_task, guess_task
from tokenloom.training.batches import Batches
from tokenloom.training.checkpoints import (
    Checkpoints,
    copy_tensors,
    full_tensors,
    load_weights,
    model_tensors,
    save_weights,
    total_bytes,
)
from tokenloom.training.distributed import SINGLE_PROCESS, DistributedGroup, ProcessGroup, join
from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.training.loop import NonFiniteLoss, RunFiles, evaluate
from tokenloom.training.loop import fit as run_loop
from tokenloom.training.metrics import NUMBERS, compute_metrics, counted_unit, loss_metric
from tokenloom.training.optimizers import hidden_matrices
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings
from tokenloom.utils.names import with_article

# Settings that may change when a run is resumed: how long it trains, on which machine, and how often it saves.
FREE = ("steps", "device", "threads", "parallel", "activation_checkpointing", "save_every", "keep_checkpoints")
# Training settings that have an effect on a model that is fitted in one pass.
USED_BY_FIT = ("device", "threads")
# metrics.jsonl has the mean training loss of this many steps per line.
LOG_EVERY = 10


def train(data: str | Path | None = None, **arguments: Any) -> Task:
    """Train on data and return the trained task, with the weights of the best evaluation.

    Arguments as for `start_session`: `tokenloom.train("poems.txt", out="runs/poems", minutes=2)`. Raise UserError for
    what cannot be used, NonFiniteLoss when training diverges.
    """
    session = start_session(data, **arguments)
    for _ in session:
        pass
    return session.task


def start_session(
    data: str | Path | None = None,
    *,
    task: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> TrainingSession:
    """Check all that can be checked before the data are read, and return the session, to be iterated over.

        for event in tokenloom.start_session("text.txt", steps=500): …

    data: a path or the name of a built-in data set. task: guessed from the data when not given. out: the run folder;
    None saves nothing. overwrite, resume: what to do with a run that is there. dry_run: end before training. stop:
    called after each step; true ends the training with a checkpoint. settings: of the task and of training, by name.
    Nothing is written before the data are read and the model is built. Raise UserError.
    """
    processes = join()
    again = {"overwrite": overwrite, "resume": resume}
    try:
        return processes.run_on_all(
            lambda: _start(processes, data, task=task, out=out, dry_run=dry_run, stop=stop, **again, **settings)
        )
    except UserError:
        processes.shutdown()
        raise


def _start(
    processes: ProcessGroup,
    data: str | Path | None,
    *,
    task: str | None,
    out: str | Path | None,
    overwrite: bool,
    resume: bool,
    dry_run: bool,
    stop: Callable[[], bool],
    **settings: Any,
) -> TrainingSession:
    source = None if data is None else str(data)
    folder = None if out is None else RunFolder(out)
    if folder is not None and not resume and processes.has_started(folder.path):
        # torchrun killed the processes and started them again with the arguments of the first time.
        resume, overwrite = bool(Checkpoints(folder.checkpoints).steps()), True
        if resume:
            task, settings, overwrite = None, {}, False
    if resume:
        if folder is None or overwrite:
            raise UserError("--resume: say which run with --out, and do not ask for --overwrite")
        return _resume(processes, folder, source, task, settings, dry_run=dry_run, stop=stop)
    guessed = ""
    if task is None:
        if source is None:
            raise UserError("nothing to train on: give a file, a folder or a built-in data set")
        task, guessed = guess_task(source)
    cls = find_task(task)
    refuse_unknown(settings, [cls.Settings, TrainingSettings])
    instance = cls(build(cls.Settings, settings), source)
    training = build(TrainingSettings, settings)
    origin = load_origin(instance, training)
    processes = _in_mode(processes, training, source)
    if processes is SINGLE_PROCESS and training.parallel is not None:
        raise UserError(
            f"--parallel {training.parallel}: is for several processes, and this is one:"
            " torchrun --nproc-per-node=2 -m tokenloom train …"
        )
    if dry_run:
        folder = None
    if folder is not None and processes.is_main:
        folder.claim(overwrite=overwrite, resume=False)
    return TrainingSession(
        instance,
        task,
        source,
        training,
        folder,
        given=tuple(name for name, value in settings.items() if value is not None),
        overwrite=overwrite,
        dry_run=dry_run,
        stop=stop,
        guessed=guessed,
        processes=processes,
        origin=origin,
    )


def _resume(
    processes: ProcessGroup,
    folder: RunFolder,
    data: str | None,
    task: str | None,
    settings: dict[str, Any],
    *,
    dry_run: bool,
    stop: Callable[[], bool],
) -> TrainingSession:
    """Return a session that continues a run, with its settings; only those in `FREE` may change.

    data: the same data, when they have been moved; their content is compared with the checkpoint.
    """
    if processes.is_main:
        folder.claim(overwrite=False, resume=True)
    config = folder.read_config()
    instance = task_of(config, folder, data)
    refuse_unknown(config["training"], [TrainingSettings], f"{folder.config_file}: ")
    refuse_unknown(settings, [type(instance).Settings, TrainingSettings])
    own = {**config["settings"], **config["training"], "task": config["task"]}
    for name, value in (settings if task is None else {**settings, "task": findable(task)}).items():
        if name == "minutes":
            raise UserError(f"--resume: the run's length is fixed at {own.get('steps')} steps; --steps changes it")
        if name not in FREE and value != own.get(name):
            raise UserError(f"--resume: {name} is {own.get(name)!r} in this run and cannot become {value!r}")
    training = build(TrainingSettings, {**config["training"], **settings})
    source = config["data"] if data is None else data
    processes = _in_mode(processes, training, source)
    return TrainingSession(
        instance,
        config["task"],
        source,
        training,
        folder,
        resume=True,
        dry_run=dry_run,
        stop=stop,
        processes=processes,
    )


def _in_mode(processes: ProcessGroup, training: TrainingSettings, source: str | None) -> ProcessGroup:
    """Return the processes in the mode of the settings. Raise UserError for a device or data that they cannot use."""
    processes.device(training.device)
    if not isinstance(processes, DistributedGroup):
        return processes
    if source == "-" and processes.world_size > 1:
        raise UserError("standard input cannot be read by several processes: give a file")
    return processes.mode(training.parallel)


@dataclass
class TrainingSession:
    """A training in progress. Iterate over it for its events; `task` holds the model.

    During training the model is the one being trained; at the end it has the weights of the best evaluation. The
    iteration may be left at any event, and the model stays as it is. All processes get the same events, and the main
    one writes the run. given: names of the settings that were given. guessed: why the task was chosen.
    """

    task: Task
    name: str
    data: str | None
    training: TrainingSettings
    folder: RunFolder | None
    given: tuple[str, ...] = ()
    overwrite: bool = False
    resume: bool = False
    dry_run: bool = False
    stop: Callable[[], bool] = lambda: False
    guessed: str = ""
    processes: ProcessGroup = SINGLE_PROCESS
    origin: Origin | None = None

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self.events()
        except (UserError, ArithmeticError) as error:
            # Raised in all processes, which end together; a sharded model must be freed before.
            self._free_shards(error)
            self.processes.shutdown()
            raise
        self.processes.shutdown()

    def events(self) -> Iterator[Event]:
        """Yield the events, without shutting the processes down at the end."""
        if not (yield from train_prerequisites(self)):
            return
        prepared = self.processes.in_turn(lambda: self.task.load(self.data))
        if not len(prepared.train):
            raise UserError(f"{self.task.name} needs data to train on: a file, a folder or a built-in data set")
        yield Prepared(prepared.report.lines(), prepared.report.as_dict())
        fitted = None
        if prepared.fit is not None:
            fitted = self._fit(prepared, prepared.fit)
            yield fitted
        else:
            self.training, filled_in = fill(self.training, {**DEFAULT_RECIPE, **prepared.recipe})
            self._build_model()
            if not self.resume:
                refuse_without_effect(self.training, filled_in, self.task.model)
            if self.origin is not None:
                yield self.origin.event
                self.origin = None
            yield Planned(self._plan(prepared, {**prepared.auto_settings, **filled_in}))
        if self.dry_run:
            return
        try:
            if not self.resume:
                self.processes.run_on_rank0(lambda: self._make_folder(prepared.sequence_length))
            baseline = self._baseline(prepared)
            if baseline is not None:
                yield baseline
            if fitted is None:
                yield from self._train(prepared, baseline)
            else:
                yield from self._evaluate_fitted(prepared, fitted)
        finally:
            # A run that was to be replaced is restored, unless the new one has weights.
            if self.folder is not None and self.processes.is_main:
                self.folder.restore_replaced()

    # The model: built and planned, or fitted in one pass.

    def _build_model(self) -> None:
        device = self.processes.run_on_all(lambda: self.processes.device(self.training.device))
        self.task.model = self.task.build_model(self.training.seed)
        if self.origin is not None:
            self.origin.copy_into(self.task.model)
        if self.training.freeze == "backbone":
            freeze_backbone(self.task.model)
        self.task.model.to(device)

    def _plan(self, prepared: PreparedData, auto_settings: dict[str, Any]) -> Plan:
        """Measure the speed, and decide what depends on it."""
        processes = self.processes
        batches = processes.run_on_all(lambda: self._batches(prepared))
        plan = make_plan(
            self.task,
            self.task.model,
            self.training,
            batches,
            batches.steps_per_epoch,
            auto_settings,
            # An evaluation takes the forward third of the work of training.
            len(prepared.validation.all()) / (3 * batches.batch_size),
            None if self.folder is None else self.folder.disk,
            processes,
        )
        # Measurements differ between processes; decisions must not.
        self.training = build(TrainingSettings, processes.run_on_rank0(lambda: flatten(plan.settings)))
        return replace(plan, settings=self.training, unit=counted_unit(self.task))

    def _batches(self, prepared: PreparedData) -> Batches:
        t, world_size = self.training, self.processes.world_size
        assert t.batch_size is not None
        size = min(t.batch_size, len(prepared.train))
        if size < world_size:
            raise UserError(
                f"--batch-size {t.batch_size}: {world_size} processes need an example each per step, and there are"
                f" {size}"
            )
        return Batches(
            prepared.train,
            self.task.collate,
            batch_size=size,
            seed=t.seed,
            grad_accum=t.grad_accum,
            share=(self.processes.rank, world_size),
        )

    def _fit(self, prepared: PreparedData, fit: Callable[[], nn.Module]) -> Fitted:
        """Fit the model in one pass, without gradients."""
        if self.resume:
            raise UserError("--resume: the run was fitted in one pass, which cannot be resumed; --overwrite fits again")
        if self.processes.world_size > 1:
            raise UserError("a model that is fitted in one pass needs one process: start it without torchrun")
        for one in options(TrainingSettings):
            if one.name in self.given and one.name not in USED_BY_FIT:
                raise UserError(f"{flag(one.name)} has no effect on a model that is fitted in one pass: leave it out")
        began = time.perf_counter()
        if self.training.threads is not None:
            torch.set_num_threads(self.training.threads)
        model = fit()
        self.task.model = model.to(self.processes.device(self.training.device)).eval()
        size = total_bytes(model_tensors(model).values())
        auto_settings = dict(prepared.auto_settings)
        return Fitted(count_saved_numbers(model), size, auto_settings, time.perf_counter() - began)

    # The run.

    def _make_folder(self, sequence_length: int) -> None:
        if self.folder is not None:
            self.folder.make(overwrite=self.overwrite)
            self.processes.mark_started(self.folder.path)
            self.folder.write_config(self.task, self.name, self.data, self.training, sequence_length)

    def _baseline(self, prepared: PreparedData) -> Baseline | None:
        evaluate_baseline = prepared.baseline
        if evaluate_baseline is None:
            return None
        values = self.processes.run_on_rank0(lambda: (found := evaluate_baseline()) and vars(found))
        return Baseline(**values) if values else None

    def _train(self, prepared: PreparedData, baseline: Baseline | None) -> Iterator[Event]:
        """Train step by step; log, save and evaluate on the way."""
        folder, run, logger = self.folder, None, None
        if folder is not None:
            run = RunFiles(Checkpoints(folder.checkpoints, self.training.keep_checkpoints), folder.weights)
            logger = MetricsLogger(folder, self.training)
        best: dict[str, Tensor] = {}
        events = run_loop(
            self.task,
            self.task.model,
            self.training,
            self._batches(prepared),
            prepared.validation,
            run=run,
            resume=self.resume,
            stop=self.stop,
            processes=self.processes,
        )
        for event in events:
            if folder is not None and logger is not None and self.processes.is_main:
                logger.log(event)
                if isinstance(event, Saved):
                    folder.drop_replaced()
            elif folder is None and isinstance(event, Evaluated) and event.best:
                best = {name: tensor.clone() for name, tensor in full_tensors(self.task.model).items()}
            if isinstance(event, Finished):
                self._restore_best(event, best, baseline)
                event = self._with_final_metrics(event, prepared)
            yield event

    def _evaluate_fitted(self, prepared: PreparedData, fitted: Fitted) -> Iterator[Event]:
        """Evaluate and save a fitted model."""
        metrics = compute_metrics(self.task, evaluate(self.task, self.task.model, prepared.validation))
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(f"the validation loss of the fitted model is {metrics['loss']}")
        evaluated = Evaluated(0, metrics, True, fitted.seconds)
        if self.folder is not None:
            save_weights(self.task.model, self.folder.weights)
            MetricsLogger(self.folder, self.training).log(evaluated)
            self.folder.drop_replaced()
        yield evaluated
        yield self._with_final_metrics(Finished(0, "fitted", 0, metrics, fitted.seconds), prepared)

    def _restore_best(self, event: Finished, best: dict[str, Tensor], baseline: Baseline | None) -> None:
        """Load the weights of the best evaluation into the model, and draw the loss curve."""
        if self.processes.sharded:
            # A sharded model can only be used by all processes together; each gets a whole one.
            last = full_tensors(self.task.model)
            self.task.model = self.task.build_model(self.training.seed).to(device_of(self.task.model))
            copy_tensors(self.task.model, last)
        if self.folder is not None:
            folder = self.folder

            def load_best() -> None:
                if event.best_step >= 0:
                    load_weights(self.task.model, folder.weights)
                draw_curve(folder, loss_metric(self.task).unit, baseline)

            self.processes.run_on_rank0(load_best)
            self.processes.broadcast(model_tensors(self.task.model).values())
        elif best:
            copy_tensors(self.task.model, best)
        self.task.model.eval()

    def _with_final_metrics(self, event: Finished, prepared: PreparedData) -> Finished:
        """Return the event with the metrics that are computed once, with the best weights."""
        if not event.best:
            return event
        final = self.processes.run_on_rank0(lambda: self._final_metrics(prepared))
        return replace(event, best={**event.best, **final})

    def _final_metrics(self, prepared: PreparedData) -> dict[str, Any]:
        path = None if self.folder is None else self.folder.path
        found: dict[str, Any] = {}
        tables = [metric for metric in self.task.metrics if metric.kind not in NUMBERS]
        if tables:
            sums = evaluate(self.task, self.task.model, prepared.validation)
            metrics = compute_metrics(self.task, sums, tables=True)
            found = {metric.name: metrics[metric.name] for metric in tables if metric.name in metrics}
        for metric in tables:
            if metric.kind == "confusion" and metric.name in found and path is not None:
                draw_confusion_files(found[metric.name], path)
        return found if prepared.analyze is None else {**found, **prepared.analyze(path)}

    def _free_shards(self, error: BaseException) -> None:
        """Drop a sharded model, also from the frames in which the error was raised."""
        if self.processes.sharded:
            del self.task.model
            while error is not None:
                traceback.clear_frames(error.__traceback__)
                error = error.__cause__ or error.__context__  # type: ignore[assignment]


def train_prerequisites(session: TrainingSession) -> Generator[Event, None, bool]:
    """Train or load, in order, what the task of a session needs first, and pass it on. Return whether to continue."""
    for one in session.task.prerequisites():
        if one.run is None:
            if not (yield from _train_prerequisite(session, one)):
                return False
        else:
            trained = load(one.run)
            if trained.name != one.task:
                needed = with_article(one.task)
                raise UserError(f"{one.run}: is {with_article(trained.name)} run, and {needed} run is needed")
            one.use(trained)
    return True


def _train_prerequisite(session: TrainingSession, one: Prerequisite) -> Generator[Event, None, bool]:
    """Train in a session with the machine settings and the seed of this one; its run is `runs/x-NAME` for `runs/x`."""
    training, folder = session.training, session.folder
    earlier = session.processes.run_on_all(
        lambda: _start(
            session.processes,
            session.data,
            task=one.task,
            out=None if folder is None else folder.path.with_name(f"{folder.path.name}-{one.name}"),
            overwrite=session.overwrite,
            resume=False,
            dry_run=session.dry_run,
            stop=session.stop,
            seed=training.seed,
            device=training.device,
            threads=training.threads,
            parallel=training.parallel,
            **one.settings,
        )
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


def refuse_without_effect(training: TrainingSettings, filled_in: Collection[str], model: nn.Module) -> None:
    """Raise UserError for training settings that were given and have no effect on this model.

    filled_in: names of the settings that were not given. Muon updates the matrices of transformers, and activation
    checkpointing recomputes their layers; recurrent and convolutional networks have neither.
    """
    if training.optimizer == "muon" and not hidden_matrices(model):
        for name, value in (("optimizer", "muon"), ("muon_lr", training.muon_lr)):
            if value is not None and name not in filled_in:
                raise UserError(
                    f"{flag(name)} {value} has no effect here, where no matrix of a transformer is trained: leave it"
                    " out"
                )
    if training.activation_checkpointing and not any(isinstance(part, TransformerLayer) for part in model.modules()):
        raise UserError("--activation-checkpointing has no effect on a model without transformer layers: leave it out")


def draw_confusion_files(confusion: dict[str, Any], folder: Path) -> None:
    """Draw confusion.png and confusion-dark.png where matplotlib is installed."""
    try:
        for name, dark in (("confusion.png", False), ("confusion-dark.png", True)):
            draw_confusion(confusion["counts"], confusion["classes"], folder / name, title=folder.name, dark=dark)
    except UserError:
        return


class MetricsLogger:
    """Writes the evaluations of a training to metrics.jsonl, and the mean training loss of every few steps."""

    def __init__(self, folder: RunFolder, training: TrainingSettings) -> None:
        self.folder, self.training = folder, training
        self._recent: list[StepFinished] = []

    def log(self, event: Event) -> None:
        """Write what metrics.jsonl has of an event."""
        if isinstance(event, Resumed):
            self.folder.update_training(self.training)
            self.folder.truncate_metrics(event.step)
        elif isinstance(event, StepFinished):
            self._recent.append(event)
        elif isinstance(event, Evaluated):
            row = {"step": event.step, **{f"validation_{name}": value for name, value in event.metrics.items()}}
            self.folder.append_metrics({**row, "seconds": round(event.seconds, 3)})
        if self._recent and (self._recent[-1].step % LOG_EVERY == 0 or isinstance(event, Finished)):
            loss, last = sum(step.loss for step in self._recent) / len(self._recent), self._recent[-1]
            rates = {name: lr for name, lr in (("lr", last.lr), ("muon_lr", last.muon_lr)) if lr is not None}
            row = {"step": last.step, "loss": loss, **rates, "grad_norm": last.grad_norm}
            self.folder.append_metrics({**row, "seconds": round(last.seconds, 3)})
            self._recent.clear()


def summary(session: TrainingSession, events: list[Event], began: float) -> dict[str, Any]:
    """Return what `--json` prints of a training. began: `time.perf_counter()` at its start."""
    # Events of a prerequisite belong to its own run.
    last = max((index for index, event in enumerate(events) if isinstance(event, PrerequisiteEvent)), default=-1)
    out = None if session.folder is None else str(session.folder.path)
    settings, training = flatten(session.task.settings), flatten(session.training)
    result: dict[str, Any] = {"task": session.name, "out": out}
    for event in events[last + 1 :]:
        if isinstance(event, Planned):
            result |= {
                "parameters": event.plan.parameters,
                "flops_per_token": event.plan.flops_per_token,
                "memory_bytes": event.plan.memory.total,
                "steps": event.plan.steps,
                "tokens_per_second": event.plan.tokens_per_second,
                "settings": settings | training,
            }
        elif isinstance(event, Fitted):
            used = {name: training[name] for name in USED_BY_FIT}
            result |= {"saved_numbers": event.numbers, "memory_bytes": event.size, "settings": settings | used}
        elif isinstance(event, Baseline):
            result["baseline"] = {name: getattr(event, name) for name in ("name", "value", "unit", "metric")}
        elif isinstance(event, Finished):
            result |= {**event.best, "steps": event.step, "best_step": event.best_step, "reason": event.reason}
            result["training_seconds"] = event.seconds
        elif isinstance(event, Saved):
            result["checkpoint"] = str(event.path)
    result["seconds"] = time.perf_counter() - began
    return result
