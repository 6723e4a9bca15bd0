"""From data to a trained run: the way that every task goes, as a generator of events."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenloom.config import build, fill, flatten, refuse_unknown
from tokenloom.errors import UserError
from tokenloom.planning.estimate import Plan, make_plan
from tokenloom.runs.counted import count, measure, refuse_idle
from tokenloom.runs.events import Counted, InitializedFrom, Planned, Prepared
from tokenloom.runs.folder import RunFolder, draw_curve, findable, task_of
from tokenloom.runs.initialization import freeze_backbone, initial_run, initialize_from
from tokenloom.runs.metrics_log import MetricsLogger
from tokenloom.runs.no_effect import refuse_without_effect
from tokenloom.runs.prerequisites import train_prerequisites
from tokenloom.tasks.base import PreparedData, Task
from tokenloom.tasks.registry import find_task, guess_task
from tokenloom.training.batches import Batches
from tokenloom.training.checkpoints import (
    Checkpoints,
    copy_tensors,
    load_weights,
    model_tensors,
    save_weights,
    whole_tensors,
)
from tokenloom.training.distributed import SINGLE_PROCESS, DistributedGroup, ProcessGroup, join
from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Saved
from tokenloom.training.loop import RunFiles
from tokenloom.training.loop import fit as run_loop
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

# What a run may change when it goes on: how long it trains, and on what.
FREE = ("steps", "device", "threads", "parallel", "activation_checkpointing", "save_every", "keep_checkpoints")


@dataclass
class TrainingSession:
    """A training on its way. Iterate over it for its events; `task` holds the model then and afterwards.

    While it goes on, the model is the one being trained; in the end it has the weights of the best evaluation. Whoever
    iterates may stop at any event, and keeps the model as it is. Of several processes, all see the same events, and the
    first writes the run.
    """

    task: Task
    name: str
    data: str | None
    training: TrainingSettings
    folder: RunFolder | None
    overwrite: bool = False
    resume: bool = False
    dry_run: bool = False
    stop: Callable[[], bool] = lambda: False
    guessed: str = ""
    processes: ProcessGroup = SINGLE_PROCESS
    origin: Task | None = None

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self.events()
        except (UserError, ArithmeticError) as error:
            # All processes have it, and leave together; what is in parts must have gone before.
            self._forget(error)
            self.processes.shutdown()
            raise
        self.processes.shutdown()

    def _forget(self, error: BaseException) -> None:
        """Let go of the model where it is in parts, also in the frames in which the error was raised."""
        if self.processes.sharded:
            self.task.forget()
            while error is not None:
                traceback.clear_frames(error.__traceback__)
                error = error.__cause__ or error.__context__  # type: ignore[assignment]

    def events(self) -> Iterator[Event]:
        """What happens, where whoever asks sees to the processes' leaving."""
        processes = self.processes
        if not (yield from train_prerequisites(self, _begin)):
            return
        material = processes.in_turn(lambda: self.task.prepare(self.data))
        yield Prepared(material.lines, material.report)
        counted = self._counted(material) if self.task.counted else None
        if counted is not None:
            yield counted
        else:
            self.training, taken = fill(self.training, {**DEFAULT_RECIPE, **self.task.recipe(material)})
            started = self._build()
            if not self.resume:
                refuse_without_effect(self.training, taken, self.task.model)
            if started is not None:
                yield started
            yield Planned(self._plan(material, taken))
        if self.dry_run:
            return
        try:
            if not self.resume:
                processes.run_on_rank0(self._begin_run)
            found = processes.run_on_rank0(lambda: (one := self.task.baseline(material)) and vars(one))
            baseline = Baseline(**found) if found else None
            if baseline is not None:
                yield baseline
            yield from self._loop(material, baseline) if counted is None else self._measured(material, counted)
        finally:
            # However it ended: a run that was to be replaced is back, unless there is something in its place.
            if self.folder is not None and processes.is_main:
                self.folder.restore_replaced()

    def _begin_run(self) -> None:
        if self.folder is not None:
            self.folder.make(overwrite=self.overwrite)
            self.processes.mark_started(self.folder.path)
            self.folder.write_config(self.task, self.name, self.data, self.training)

    def _counted(self, material: PreparedData) -> Counted:
        return count(self.task, material, self.processes.device(self.training.device), self.training.threads)

    def _measured(self, material: PreparedData, counted: Counted) -> Iterator[Event]:
        """What there is to a training without steps: the model is measured and kept."""
        metrics = measure(self.task, material)
        evaluated = Evaluated(0, metrics, True, counted.seconds)
        if self.folder is not None:
            save_weights(self.task.model, self.folder.weights)
            MetricsLogger(self.folder, self.training).write(evaluated)
            self.folder.drop_replaced()
        yield evaluated
        yield self._summed_up(Finished(0, "counted", 0, metrics, counted.seconds), material)

    def _summed_up(self, event: Finished, material: PreparedData) -> Finished:
        """The end of the training, with what else the task says of its model."""
        path = None if self.folder is None else self.folder.path
        found = self.processes.run_on_rank0(lambda: self.task.analyze(material, path)) if event.best else {}
        return replace(event, best={**event.best, **found})

    def _build(self) -> InitializedFrom | None:
        """The model, with the weights that it starts from; what it is told of them."""
        device = self.processes.run_on_all(lambda: self.processes.device(self.training.device))
        self.task.model = self.task.build(self.training.seed)
        started = None
        if self.origin is not None:
            assert self.training.init_from is not None
            started = initialize_from(self.task, self.origin, self.training.init_from)
            self.origin = None
        if self.training.freeze == "backbone":
            freeze_backbone(self.task)
        self.task.model.to(device)
        return started

    def _plan(self, material: PreparedData, taken: dict[str, Any]) -> Plan:
        """Fill in what is measured. taken: the settings that came from the recipe."""
        processes = self.processes
        batches = processes.run_on_all(lambda: self._batches(material))
        derived = {**self.task.derived(), **taken}
        # Measuring takes the forward third of the work of training.
        cost = len(material.validation.all()) / (3 * batches.batch_size)
        disk = None if self.folder is None else self.folder.disk
        plan = make_plan(
            self.task,
            self.task.model,
            self.training,
            batches,
            batches.steps_per_epoch,
            derived,
            cost,
            disk,
            processes,
        )
        # What was measured differs from process to process; what was decided must not.
        self.training = build(TrainingSettings, processes.run_on_rank0(lambda: flatten(plan.settings)))
        return replace(plan, settings=self.training, things=self.task.things)

    def _batches(self, material: PreparedData) -> Batches:
        t = self.training
        assert t.batch_size is not None
        size, share = min(t.batch_size, len(material.training)), (self.processes.rank, self.processes.world_size)
        if size < share[1]:
            raise UserError(
                f"--batch-size {t.batch_size}: {share[1]} processes need a sample each at a step, and there are {size}"
            )
        samples, collate = material.training, self.task.collate
        return Batches(samples, collate, batch_size=size, seed=t.seed, grad_accum=t.grad_accum, share=share)

    def _loop(self, material: PreparedData, baseline: Baseline | None) -> Iterator[Event]:
        folder, run = self.folder, None
        if folder is not None:
            run = RunFiles(Checkpoints(folder.checkpoints, self.training.keep_checkpoints), folder.weights)
        journal = None if folder is None else MetricsLogger(folder, self.training)
        best: dict[str, Tensor] = {}
        events = run_loop(
            self.task,
            self.task.model,
            self.training,
            self._batches(material),
            material.validation,
            run=run,
            resume=self.resume,
            stop=self.stop,
            processes=self.processes,
        )
        for event in events:
            if folder is not None and journal is not None and self.processes.is_main:
                journal.write(event)
                if isinstance(event, Saved):
                    folder.drop_replaced()
            elif folder is None and isinstance(event, Evaluated) and event.best:
                best = {name: tensor.clone() for name, tensor in whole_tensors(self.task.model).items()}
            if isinstance(event, Finished):
                self._finish(event, best, baseline)
                event = self._summed_up(event, material)
            yield event

    def _finish(self, event: Finished, best: dict[str, Tensor], baseline: Baseline | None) -> None:
        """Give the task the weights of the best evaluation, and draw the curve."""
        if self.processes.sharded:
            # A model in parts can only be used by all processes together; each gets a whole one.
            last = whole_tensors(self.task.model)
            self.task.model = self.task.build(self.training.seed).to(self.task.device)
            copy_tensors(self.task.model, last)
        if self.folder is not None:
            self.processes.run_on_rank0(lambda: self._finish_run(event, baseline))
            self.processes.broadcast(model_tensors(self.task.model).values())
        elif best:
            copy_tensors(self.task.model, best)
        self.task.model.eval()

    def _finish_run(self, event: Finished, baseline: Baseline | None) -> None:
        assert self.folder is not None
        if event.best_step >= 0:
            load_weights(self.task.model, self.folder.weights)
        draw_curve(self.folder, self.task.unit, baseline)


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
) -> TrainingSession:
    """Check everything that can be checked before the data are read, and return the training, not yet begun.

    Nothing is written before the data have been read and the model built. settings: of the task and of training, by
    flat name. Raises UserError for a name that neither has.
    """
    processes = join()
    again = {"overwrite": overwrite, "resume": resume}
    try:
        return processes.run_on_all(
            lambda: _begin(processes, data, task=task, out=out, dry_run=dry_run, stop=stop, **again, **settings)
        )
    except UserError:
        processes.shutdown()
        raise


def _begin(
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
        # These processes were killed and started again, with the words of the first time.
        resume, overwrite = bool(Checkpoints(folder.checkpoints).steps()), True
        if resume:
            task, settings, overwrite = None, {}, False
    if resume:
        if folder is None or overwrite:
            raise UserError("--resume: say which run with --out, and do not ask for --overwrite")
        return _resumed(processes, folder, source, task, settings, dry_run=dry_run, stop=stop)
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
    if instance.counted:
        refuse_idle(settings, processes)
    origin = initial_run(instance, training)
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
        overwrite=overwrite,
        dry_run=dry_run,
        stop=stop,
        guessed=guessed,
        processes=processes,
        origin=origin,
    )


def _in_mode(processes: ProcessGroup, training: TrainingSettings, source: str | None) -> ProcessGroup:
    """The processes as the settings want them. Raises UserError for a device or data that they cannot have."""
    processes.device(training.device)
    if not isinstance(processes, DistributedGroup):
        return processes
    if source == "-" and processes.world_size > 1:
        raise UserError("standard input cannot be read by several processes: give a file")
    return processes.mode(training.parallel)


def _resumed(
    processes: ProcessGroup,
    folder: RunFolder,
    data: str | None,
    task: str | None,
    settings: dict[str, Any],
    *,
    dry_run: bool,
    stop: Callable[[], bool],
) -> TrainingSession:
    """Go on with a run: its own settings hold, and none may be changed but how long it trains, on what machine, and
    how often it saves.

    data: the same data, when they lie elsewhere now; their content is held against the checkpoint.
    """
    if processes.is_main:
        folder.claim(overwrite=False, resume=True)
    config = folder.read_config()
    instance = task_of(config, folder)
    if instance.counted:
        raise UserError(
            f"--resume: {folder.path} was counted in one pass, and has nothing to go on with; --overwrite counts anew"
        )
    known = [type(instance).Settings, TrainingSettings]
    refuse_unknown(config["training"], [TrainingSettings], f"{folder.config_file}: ")
    refuse_unknown(settings, known)
    own = {**config["settings"], **config["training"], "task": config["task"]}
    for name, value in (settings if task is None else {**settings, "task": findable(task)}).items():
        if name == "minutes":
            raise UserError(f"--resume: the run's length is fixed at {own.get('steps')} steps; --steps changes it")
        if name not in FREE and value != own.get(name):
            raise UserError(f"--resume: {name} is {own.get(name)!r} in this run and cannot become {value!r}")
    training = build(TrainingSettings, {**config["training"], **settings})
    instance.source = config["data"] if data is None else data
    processes = _in_mode(processes, training, instance.source)
    return TrainingSession(
        instance,
        config["task"],
        instance.source,
        training,
        folder,
        resume=True,
        dry_run=dry_run,
        stop=stop,
        processes=processes,
    )


def fit(data: str | Path | None = None, **arguments: Any) -> TrainingSession:
    """Train, event by event: `for event in tokenloom.fit("text.txt", steps=500): …`. Arguments as for `train`.

    What is returned also holds the task, with its model: `fitting = tokenloom.fit(…)`, then `fitting.task`.
    """
    return begin(data, **arguments)


def train(data: str | Path | None = None, **arguments: Any) -> Task:
    """Train on some data and return the trained task, with the weights of the best evaluation.

    data: a path or the name of a built-in data set. task: guessed from the data when not given. out: the run folder;
    None keeps nothing on disk. overwrite, resume: what to do when it is there. Everything else is a setting of the
    task or of training, as on the command line: `tokenloom.train("poems.txt", out="runs/poems", minutes=2)`.

    Raises UserError for what cannot be used, NonFiniteLoss when training breaks down.
    """
    fitting = begin(data, **arguments)
    for _ in fitting:
        pass
    return fitting.task
