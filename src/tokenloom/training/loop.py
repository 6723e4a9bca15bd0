"""The training loop, for every task.

`fit` is the loop: step, evaluate, save. `Trainer.step` is one optimizer step. `evaluate` measures a split.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tokenloom.config import flag
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
from tokenloom.training.device import autocast
from tokenloom.training.distributed import SINGLE_PROCESS, ProcessGroup, full_tensor, local_tensor
from tokenloom.training.events import Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.training.losses import LossTerms, MetricSum
from tokenloom.training.metrics import Metric, compute_metrics
from tokenloom.training.optimizers import (
    check_groups,
    load_state_tensors,
    make_optimizers,
    set_learning_rates,
    state_tensors,
)
from tokenloom.training.schedules import lr_factor
from tokenloom.training.settings import TrainingSettings

ADVICE = f"a lower {flag('lr')} or {flag('muon_lr')} may help"


class Trainable(Protocol):
    """The part of a task that the loop uses."""

    def collate(self, samples: Any, context: BatchContext) -> Batch:
        """Return samples as a batch of tensors, with masks and targets."""
        ...

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """Return the terms of the loss, and of metrics, as sums and counts per sample."""
        ...

    @property
    def metrics(self) -> Sequence[Metric]:
        """The declared metrics; `loss` decides which weights are the best."""
        ...


class NonFiniteLoss(ArithmeticError):
    """The loss, the gradient or a weight is NaN or infinite. Such weights are never saved."""


class NoTargets(ArithmeticError):
    """A step or a split without counted targets."""


@dataclass(frozen=True)
class RunFiles:
    """Where training saves: checkpoints, and the weights of the best evaluation."""

    checkpoints: Checkpoints
    weights: Path


@dataclass
class Progress:
    """The state of a training that is not in tensors. best, best_step: metrics of the best evaluation, and its step."""

    step: int = 0
    seconds: float = 0.0
    clipped: int = 0
    best_step: int = -1
    best: dict[str, float] = field(default_factory=dict)
    evals_since_best: int = 0


def fit(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    validation: Samples,
    *,
    run: RunFiles | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Iterator[Event]:
    """Train, yielding events, until all steps are done, `patience` is exhausted, or `stop()` returns true.

    settings: `steps` must be set. batches: a `Batches`, or any function from a step to its micro-batches; resuming is
    exact if it is deterministic. run: where to save; None saves nothing. The model ends with the weights of the last
    step. The caller may stop iterating at any event. A checkpoint is written at each evaluation and every `save_every`
    steps, which has no influence on training. processes: those that train together, each with its own slice of each
    batch; all yield the same events.

    Raise NonFiniteLoss; existing checkpoints are kept. Raise NoTargets for a step or a validation split without
    targets, UserError for a checkpoint that belongs to another training.
    """
    if settings.steps is None or (resume and run is None):
        raise ValueError("fit needs settings.steps, and a run to resume")
    steps, eval_every, save_every = settings.steps, settings.eval_every or settings.steps, settings.save_every
    trainer = Trainer(task, model, settings, batches, processes)
    data = _data_fingerprints(batches, validation, processes)
    damaged: list[str] = []
    if run is not None and resume:
        damaged = trainer.restore(run, data)
        yield Resumed(trainer.progress.step, damaged)
    progress = trainer.progress
    start = time.perf_counter() - progress.seconds
    reason = "steps"
    model.train()
    while progress.step < steps:
        if settings.patience is not None and progress.evals_since_best >= settings.patience:
            reason = "patience"
            break

        result = trainer.step(progress.step, steps)
        progress.step += 1
        progress.clipped += result.clipped
        progress.seconds = time.perf_counter() - start
        yield StepFinished(progress.step, steps, *result, progress.seconds)

        evaluated = progress.step % eval_every == 0 or progress.step == steps
        if evaluated:
            yield trainer.evaluate(validation, run)
            progress.seconds = time.perf_counter() - start

        interrupted = any(processes.all_gather_object(lambda: progress.step < steps and stop()))
        save_due = save_every is not None and progress.step % save_every == 0
        if run is not None and (evaluated or save_due or interrupted):
            yield trainer.save(run, data)
        if interrupted:
            reason = "interrupt"
            break
    yield Finished(
        progress.step, reason, progress.best_step, progress.best, progress.seconds, progress.clipped, damaged
    )


class StepResult(NamedTuple):
    """The result of one optimizer step: see `StepFinished`."""

    loss: float
    num_targets: int
    grad_norm: float
    clipped: bool
    lr: float | None
    muon_lr: float | None


class Trainer:
    """A model with its optimizers and batches: one optimizer step, evaluation, and checkpoints of all of it."""

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

    def step(self, step: int, steps: int) -> StepResult:
        """Take one optimizer step.

        loss = Σ over all micro-batches of all processes of the counted targets' losses ÷ their number, for each term.
        """
        settings, processes = self.settings, self.processes
        # Read the whole step first: the number of counted targets divides the loss of every micro-batch.
        micro_batches: list[Batch] = []

        def read() -> dict[str, int]:
            micro_batches.extend(self.batches(step))
            return count_targets(micro_batches)

        num_targets = add_counts(processes.all_gather_object(read))
        if not any(num_targets.values()):
            raise NoTargets(f"step {step + 1}: none of its samples has a target that counts")

        loss = 0.0
        for i, batch in enumerate(micro_batches):
            seed_everything(step_seed(settings.seed, step, i * processes.world_size + processes.rank))
            with autocast(settings, self.device):
                part = _weighted(self.task.compute_loss(self.forward, batch.to(self.device)), num_targets)
            if part.requires_grad:
                (part * processes.scale).backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        loss = sum(processes.all_gather_object(lambda: loss))
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"step {step + 1}: the loss is {loss}; {ADVICE}")

        processes.all_reduce_gradients(self.parameters)
        total_norm = full_tensor(torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        grad_norm, grad_clip = float(total_norm), settings.grad_clip or 0.0
        if grad_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, grad_clip, total_norm)
        if not math.isfinite(grad_norm):
            raise NonFiniteLoss(f"step {step + 1}: the gradient norm is {grad_norm}; {ADVICE}")

        lr, muon_lr = set_learning_rates(self.optimizers, lr_factor(settings, step, steps))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        update_ema(self.model, processes.all_reduce)
        return StepResult(loss, max(num_targets.values()), grad_norm, 0 < grad_clip < grad_norm, lr, muon_lr)

    def evaluate(self, validation: Samples, run: RunFiles | None) -> Evaluated:
        """Evaluate the whole validation split, and save the weights if the loss is the lowest so far."""
        self.check()
        with autocast(self.settings, self.device):
            totals = evaluate(self.task, self.model, validation, processes=self.processes)
        metrics = self.processes.run_on_rank0(lambda: compute_metrics(self.task, totals))
        progress = self.progress
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(f"step {progress.step}: the validation loss is {metrics['loss']}; {ADVICE}")
        best = not progress.best or metrics["loss"] < progress.best["loss"]
        progress.evals_since_best = 0 if best else progress.evals_since_best + 1
        if best:
            progress.best, progress.best_step = metrics, progress.step
            if run is not None:
                save_weights(self.model, run.weights, self.processes)
        return Evaluated(progress.step, metrics, best, progress.seconds)

    def check(self) -> None:
        """Check, before evaluating or saving, that every parameter belongs to an optimizer and is finite.

        Raise ValueError for a parameter added to the model after its optimizers were made, NonFiniteLoss with the name
        of the first parameter that is not finite.
        """
        check_groups(self.model, self.optimizers)
        # Sharded parameters must be unwrapped by all processes together.
        named = [(name, local_tensor(parameter)) for name, parameter in self.model.named_parameters()]

        def first_non_finite() -> str | None:
            return next((name for name, part in named if not bool(torch.isfinite(part).all())), None)

        for name in filter(None, self.processes.all_gather_object(first_non_finite)):
            raise NonFiniteLoss(f"step {self.progress.step}: {name} is no longer finite; {ADVICE}")

    def save(self, run: RunFiles, data: dict[str, str]) -> Saved:
        """Write a checkpoint of all state that the next step depends on."""
        self.check()
        progress = self.progress
        state = {"progress": vars(progress), "data": data, "best_step": progress.best_step}
        tensors = state_tensors(self.model, self.optimizers)
        path = run.checkpoints.save(progress.step, self.model, tensors, state, self.processes)
        if progress.best_step < 0:
            # No evaluation yet: save the current weights, so that the run can be loaded.
            save_weights(self.model, run.weights, self.processes)
        return Saved(progress.step, path)

    def restore(self, run: RunFiles, data: dict[str, str]) -> list[str]:
        """Load the newest complete checkpoint; return a message for each newer one that is damaged.

        Raise UserError when it belongs to other data or to another model.
        """

        def newest() -> tuple[dict[str, Any], str, list[str]]:
            state, folder, damaged = run.checkpoints.newest_complete()
            return state, folder.name, damaged

        damaged: list[str]
        state, name, damaged = self.processes.run_on_rank0(newest)
        self.processes.run_on_all(lambda: self._load(state, run.checkpoints.folder / name, data))
        self.progress = Progress(**state["progress"])
        # The best weights may be those of an evaluation after this checkpoint: restore the best until here.
        best_step = self.progress.best_step
        self.processes.run_on_rank0(lambda: run.checkpoints.restore_weights(best_step, run.weights))
        return damaged

    def _load(self, state: dict[str, Any], folder: Path, data: dict[str, str]) -> None:
        changed = [name for name in data if state["data"].get(name) != data[name]]
        if changed:
            also = ", or the batch size or the seed," if changed[0] == "training" else ""
            raise UserError(
                f"{folder}: the {changed[0]} data{also} are not those it was trained with;"
                f" {flag('overwrite')} starts over"
            )
        weights, moments = read_checkpoint(state, folder, self.model)
        sharded = MODEL not in state["sha256"]
        load_strictly(self.model, weights, folder if sharded else folder / MODEL)
        try:
            load_state_tensors(self.model, self.optimizers, moments)
        except ValueError as error:
            raise UserError(f"{folder if sharded else folder / OPTIMIZER}: {error}") from error


def evaluate(
    task: Trainable,
    model: nn.Module,
    samples: Samples,
    *,
    batch_size: int = 64,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, MetricSum]:
    """Return sums and counts of each loss term over all samples, without dropout.

    The result depends neither on the batch size nor on the number of processes, which divide the samples between them.
    Raise NoTargets when no sample has a counted target.
    """
    device = device_of(model)
    totals: dict[str, MetricSum] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for keys in evaluation_keys(samples, batch_size, (processes.rank, processes.world_size)):
            # A process without samples left computes along with the others, and discards the result.
            used = keys if len(keys) else samples.all()[:1]
            context = BatchContext(0, -1, used)
            batch = processes.run_on_all(lambda k=used, c=context: task.collate(samples.take(k), c))  # type: ignore[misc]
            for name, term in task.compute_loss(model, batch.to(device)).items():
                total = totals.setdefault(name, MetricSum(term.weight))
                if len(keys):
                    total.update(term)
    for total in totals.values():
        total.share(processes.all_gather_rows)
    model.train(was_training)
    if not any(total.count for total in totals.values() if total.weight):
        raise NoTargets(f"none of the {len(samples.all()):,} samples to measure on has a target that counts")
    return totals


def _weighted(terms: LossTerms, num_targets: dict[str, int]) -> Tensor:
    """Return the share of a micro-batch in the loss of its step: Σ weight × sum ÷ the step's number of targets."""
    parts = []
    for name, term in terms.items():
        if term.weight and name not in num_targets:
            raise ValueError(f"the loss term {name!r} has no targets of that name, only {sorted(num_targets)}")
        if term.weight and num_targets[name]:
            parts.append(term.weight * term.sums.sum() / num_targets[name])
    if not parts:
        raise NoTargets("no term of the loss has a target that counts")
    return torch.stack(parts).sum()


def _data_fingerprints(batches: BatchSource, validation: Samples, processes: ProcessGroup) -> dict[str, str]:
    """Return hashes of the validation data, and of the training data with their order in batches.

    Raise UserError when they differ between processes.
    """
    fingerprints = {"validation": validation.fingerprint()}
    if isinstance(batches, Batches):
        fingerprints["training"] = batches.fingerprint()
    first = processes.run_on_rank0(lambda: fingerprints)

    def check() -> None:
        if fingerprints != first:
            raise UserError(f"process {processes.rank} has read other data than process 0: all need the same files")

    processes.run_on_all(check)
    return fingerprints
