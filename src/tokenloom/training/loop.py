"""The one training loop, for every task: a generator of events, so that whoever drives it keeps control."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.nn.modules import device_of
from tokenloom.nn.vector_quantizer import update_ema
from tokenloom.training.batches import (
    BatchContext,
    Batches,
    BatchSource,
    add_counts,
    count_targets,
    evaluation_keys,
    seed_everything,
    step_seed,
)
from tokenloom.training.checkpoints import MODEL, OPTIMIZER, Checkpoints, load_strictly, read_checkpoint, save_weights
from tokenloom.training.device import precision_context
from tokenloom.training.distributed import SINGLE_PROCESS, ProcessGroup, own_part, whole
from tokenloom.training.events import Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.training.losses import LossTerms, MetricSum
from tokenloom.training.optimizers import (
    check_groups,
    load_state_tensors,
    make_optimizers,
    set_learning_rates,
    state_tensors,
)
from tokenloom.training.schedules import cosine, wsd
from tokenloom.training.settings import TrainingSettings


class Trainable(Protocol):
    """What the loop needs of a task."""

    def collate(self, samples: Any, moment: BatchContext) -> Batch:
        """Samples as a batch of tensors, with masks and targets."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """The terms of the loss, and metrics, as sums and counts."""
        ...

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        """Metrics by name from the sums over a whole split; `loss` is what is minimized and compared."""
        ...


class NonFiniteLoss(ArithmeticError):
    """The loss, the gradient or the weights stopped being numbers. Nothing of them was saved."""


class NoTargets(ArithmeticError):
    """A step or a split in which nothing is counted."""


@dataclass
class Progress:
    """Where a training stands: all of the state that is not in tensors."""

    step: int = 0
    seconds: float = 0.0
    clipped: int = 0
    best_step: int = -1
    best: dict[str, float] = field(default_factory=dict)
    stale: int = 0


def schedule_factor(settings: TrainingSettings, step: int, steps: int) -> float:
    """The factor on every peak rate at a step."""
    warmup_steps = min(settings.warmup_steps or 0, steps)
    if settings.lr_schedule == "cosine":
        return cosine(step, steps, warmup_steps)
    return wsd(step, steps, warmup_steps, 0.8 if settings.decay_fraction is None else settings.decay_fraction)


def evaluate(
    task: Trainable,
    model: nn.Module,
    samples: Samples,
    *,
    batch_size: int = 64,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, MetricSum]:
    """Every sample once, without dropout: sums and counts by term. Does not depend on the batch size, nor on how many
    processes share the samples out.

    Raises NoTargets when there is nothing in the samples to measure.
    """
    device = device_of(model)
    totals: dict[str, MetricSum] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for keys in evaluation_keys(samples, batch_size, (processes.rank, processes.world_size)):
            # A process that has none left goes through the model with the others, and drops the result.
            taken = keys if len(keys) else samples.all()[:1]
            context = BatchContext(0, -1, taken)
            part = processes.run_on_all(lambda k=taken, c=context: task.collate(samples.take(k), c))  # type: ignore[misc]
            for name, term in task.loss(model, part.to(device)).items():
                total = totals.setdefault(name, MetricSum(term.weight))
                if len(keys):
                    total.update(term)
    for total in totals.values():
        total.share(processes.all_gather_rows)
    model.train(was_training)
    if not any(total.count for total in totals.values() if total.weight):
        raise NoTargets(f"none of the {len(samples.all()):,} samples to measure on has a target that counts")
    return totals


class Trainer:
    """Model, optimizers and place in the data: what one optimizer step needs, and what a checkpoint holds."""

    def __init__(
        self,
        task: Trainable,
        model: nn.Module,
        settings: TrainingSettings,
        batches: BatchSource,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.task, self.model, self.settings, self.batches, self.processes = task, model, settings, batches, processes
        self.device = next(model.parameters()).device
        processes.wrap(model, settings.activation_checkpointing)
        self.optimizers = make_optimizers(model, settings)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("nothing to train: no parameter of the model requires a gradient")
        self.forward: nn.Module = torch.compile(model) if settings.compile else model  # type: ignore[assignment]
        self.progress = Progress()

    def step(self, step: int, steps: int) -> tuple[float, int, float, bool]:
        """One optimizer step: its loss, number of targets, gradient norm, and whether that was clipped.

        loss = Σ over all micro-batches, in all processes, of the counted targets' losses ÷ their number, term by term.
        """
        processes = self.processes
        micro: list[Batch] = []

        def read() -> dict[str, int]:
            micro.extend(self.batches(step))
            return count_targets(micro)

        counts = add_counts(processes.all_gather_object(read))
        if not any(counts.values()):
            raise NoTargets(f"step {step + 1}: none of its samples has a target that counts")
        loss = 0.0
        for number, batch in enumerate(micro):
            seed_everything(step_seed(self.settings.seed, step, number * processes.world_size + processes.rank))
            with precision_context(self.settings, self.device):
                part = _weighted(self.task.loss(self.forward, batch.to(self.device)), counts)
            if part.requires_grad:
                (part * processes.scale).backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        loss = sum(processes.all_gather_object(lambda: loss))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"step {step + 1}: the loss is {loss}; a lower --lr or --muon-lr may help")
        processes.all_reduce_gradients(self.parameters)
        norm, clipped = self._clip()
        if not math.isfinite(norm):
            raise NonFiniteLoss(
                f"step {step + 1}: the norm of the gradient is {norm}; a lower --lr or --muon-lr may help"
            )
        set_learning_rates(self.optimizers, schedule_factor(self.settings, step, steps))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        update_ema(self.model, processes.all_reduce)
        return loss, max(counts.values()), norm, clipped

    def _clip(self) -> tuple[float, bool]:
        limit = self.settings.grad_clip or 0.0
        norm = whole(torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        value = float(norm)
        return value, 0 < limit < value

    def check(self) -> None:
        """What must hold before weights are measured and kept: all of them are trained, and all are numbers.

        Raises ValueError for a parameter that came to the model after its optimizers; NonFiniteLoss naming the first
        parameter that is not finite.
        """
        check_groups(self.model, self.optimizers)
        named = [(name, own_part(parameter)) for name, parameter in self.model.named_parameters()]

        def broken() -> str | None:
            return next((name for name, part in named if not bool(torch.isfinite(part).all())), None)

        for name in filter(None, self.processes.all_gather_object(broken)):
            raise NonFiniteLoss(
                f"step {self.progress.step}: {name} is no longer finite; a lower --lr or --muon-lr may help"
            )

    def save(self, checkpoints: Checkpoints, plan: dict[str, str]) -> Saved:
        """Write a checkpoint of everything that the next step depends on."""
        progress = self.progress
        state = {"progress": vars(progress), "plan": plan, "best_step": progress.best_step}
        tensors = state_tensors(self.model, self.optimizers)
        return Saved(progress.step, checkpoints.save(progress.step, self.model, tensors, state, self.processes))

    def restore(self, checkpoints: Checkpoints, plan: dict[str, str]) -> Resumed:
        """Go on from the newest whole checkpoint. Raises UserError when it came from other data or another model."""

        def newest() -> tuple[dict[str, Any], str, list[str]]:
            state, folder, damaged = checkpoints.newest_complete()
            return state, folder.name, damaged

        state, name, damaged = self.processes.run_on_rank0(newest)
        folder = checkpoints.folder / name
        self.processes.run_on_all(lambda: self._load(state, folder, plan))
        self.progress = Progress(**state["progress"])
        return Resumed(self.progress.step, damaged)

    def _load(self, state: dict[str, Any], folder: Path, plan: dict[str, str]) -> None:
        changed = [name for name in plan if state["plan"].get(name) != plan[name]]
        if changed:
            also = ", or the batch or the seed," if changed[0] == "training" else ""
            raise UserError(
                f"{folder}: the {changed[0]} data{also} are not those it was trained with; --overwrite starts anew"
            )
        weights, moments = read_checkpoint(state, folder, self.model)
        in_parts = MODEL not in state["sha256"]
        load_strictly(self.model, weights, folder if in_parts else folder / MODEL)
        try:
            load_state_tensors(self.model, self.optimizers, moments)
        except ValueError as error:
            raise UserError(f"{folder if in_parts else folder / OPTIMIZER}: {error}") from error


def _weighted(terms: LossTerms, counts: dict[str, int]) -> Tensor:
    """What a micro-batch adds to the loss of its step: Σ weight × sum ÷ the step's count of that term's targets."""
    parts = []
    for name, term in terms.items():
        if term.weight and name not in counts:
            raise ValueError(f"the loss term {name!r} has no targets of that name, only {sorted(counts)}")
        if term.weight and counts[name]:
            parts.append(term.weight * term.sums.sum() / counts[name])
    if not parts:
        raise NoTargets("no term of the loss has a target that counts")
    return torch.stack(parts).sum()


@dataclass(frozen=True)
class Run:
    """Where a training leaves what it makes: the checkpoints, and the weights of the best evaluation."""

    checkpoints: Checkpoints
    weights: Path


def fit(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    validation: Samples,
    *,
    run: Run | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Iterator[Event]:
    """Train until the steps are done, the patience is over, or `stop()` says so; yields what happens.

    settings: `steps` must be given. batches: a `Batches`, or any function from a step to its micro-batches, which must
    give the same ones each time for resuming to be exact. run: where to save; nothing is kept without it. The model is
    left as the last step made it. Whoever iterates may stop at any event. A checkpoint is written at each evaluation,
    and every `settings.save_every` steps besides; when it is written makes no difference to what is trained.
    processes: those that train together, each with its own slices of the batches; all see the same events.

    Raises NonFiniteLoss, and then keeps the checkpoints that there are; NoTargets for a step or a validation part
    without targets; UserError for a checkpoint that does not belong to this training.
    """
    if settings.steps is None or (resume and run is None):
        raise ValueError("fit needs settings.steps, and a run to resume")
    steps, every = settings.steps, settings.eval_every or settings.steps
    trainer = Trainer(task, model, settings, batches, processes)
    plan = _data_plan(batches, validation, processes)
    resumed = Resumed(0, [])
    if run is not None and resume:
        resumed = trainer.restore(run.checkpoints, plan)
        # The run may have gone further than this checkpoint, and found other weights to be the best.
        checkpoints, weights, best_step = run.checkpoints, run.weights, trainer.progress.best_step
        processes.run_on_rank0(lambda: checkpoints.restore_weights(best_step, weights))
        yield resumed
    progress = trainer.progress
    began = time.perf_counter() - progress.seconds
    reason = "steps"
    model.train()
    while progress.step < steps:
        if settings.patience is not None and progress.stale >= settings.patience:
            reason = "patience"
            break
        loss, targets, norm, clipped = trainer.step(progress.step, steps)
        lr = schedule_factor(settings, progress.step, steps)
        progress.step += 1
        progress.clipped += clipped
        progress.seconds = time.perf_counter() - began
        yield StepFinished(progress.step, steps, loss, targets, lr, norm, clipped, progress.seconds)
        evaluated = progress.step % every == 0 or progress.step == steps
        if evaluated:
            yield _evaluated(trainer, validation, run)
            progress.seconds = time.perf_counter() - began
        interrupted = any(processes.all_gather_object(lambda: progress.step < steps and stop()))
        due = settings.save_every is not None and progress.step % settings.save_every == 0
        if run is not None and (evaluated or due or interrupted):
            yield _saved(trainer, run, plan)
        if interrupted:
            reason = "interrupt"
            break
    best, notes = progress.best, resumed.damaged
    yield Finished(progress.step, reason, progress.best_step, best, progress.seconds, progress.clipped, notes)


def _data_plan(batches: BatchSource, validation: Samples, processes: ProcessGroup) -> dict[str, str]:
    """Hashes of the data, and of the plan by which steps take them. Raises UserError when processes differ in them."""
    plan = {"validation": validation.fingerprint()}
    if isinstance(batches, Batches):
        plan["training"] = batches.fingerprint()
    first = processes.run_on_rank0(lambda: plan)

    def check() -> None:
        if plan != first:
            raise UserError(f"process {processes.rank} has read other data than process 0: all need the same files")

    processes.run_on_all(check)
    return plan


def _evaluated(trainer: Trainer, validation: Samples, run: Run | None) -> Evaluated:
    """Measure the whole validation part, and keep the weights if they are the best so far."""
    progress = trainer.progress
    trainer.check()
    processes = trainer.processes
    with precision_context(trainer.settings, trainer.device):
        totals = evaluate(trainer.task, trainer.model, validation, processes=processes)
    metrics = processes.run_on_rank0(lambda: trainer.task.metrics(totals))
    if not math.isfinite(metrics["loss"]):
        found = metrics["loss"]
        raise NonFiniteLoss(f"step {progress.step}: the validation loss is {found}; a lower --lr or --muon-lr may help")
    best = not progress.best or metrics["loss"] < progress.best["loss"]
    progress.stale = 0 if best else progress.stale + 1
    if best:
        progress.best, progress.best_step = metrics, progress.step
        if run is not None:
            save_weights(trainer.model, run.weights, processes)
    return Evaluated(progress.step, metrics, best, progress.seconds)


def _saved(trainer: Trainer, run: Run, plan: dict[str, str]) -> Saved:
    """A checkpoint; and until there has been an evaluation, the weights as they are, so that the run can be used."""
    trainer.check()
    saved = trainer.save(run.checkpoints, plan)
    if trainer.progress.best_step < 0:
        save_weights(trainer.model, run.weights, trainer.processes)
    return saved
