"""The one training loop, for every task: a generator of events, so that whoever drives it keeps control."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from tokenloom.data.samples import Samples
from tokenloom.models.batch import Batch
from tokenloom.training.batches import Batches, Moment, evaluation_batches, seed_everything, step_seed
from tokenloom.training.checkpoints import Checkpoints, load_weights, read_tensors, save_weights
from tokenloom.training.events import Evaluated, Event, Finished, Saved, Stepped
from tokenloom.training.losses import Terms, Totals
from tokenloom.training.machine import precision_context
from tokenloom.training.optimizers import load_state_tensors, make_optimizers, set_rates, state_tensors
from tokenloom.training.schedules import cosine, linear
from tokenloom.training.settings import ScheduleSettings, TrainingSettings


class Trainable(Protocol):
    """What the loop needs of a task."""

    def collate(self, samples: Any, moment: Moment) -> Batch:
        """Samples as a batch of tensors, with masks and targets."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Terms:
        """The terms of the loss, and metrics, as sums and counts."""
        ...

    def summarise(self, totals: dict[str, Totals]) -> dict[str, float]:
        """Metrics by name from the sums over a whole split; `loss` is what is minimised and compared."""
        ...


class NonFiniteLoss(ArithmeticError):
    """The loss or the gradient stopped being a number; the last good checkpoint is still there."""


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


def schedule_factor(settings: ScheduleSettings, step: int, steps: int) -> float:
    """The factor on every peak rate at a step."""
    warmup = min(settings.warmup or 0, steps)
    if settings.schedule == "cosine":
        return cosine(step, steps, warmup)
    return linear(step, steps, warmup, 0.8 if settings.decay_share is None else settings.decay_share)


def evaluate(
    task: Trainable, model: nn.Module, samples: Samples, *, batch: int = 64, context: Any = None
) -> dict[str, Totals]:
    """Every sample once, without dropout: sums and counts by term. Does not depend on the batch size."""
    device = next(model.parameters()).device
    totals: dict[str, Totals] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for part in evaluation_batches(samples, task.collate, batch):
            for name, term in task.loss(model, part.to(device)).items():
                totals.setdefault(name, Totals()).update(term)
    model.train(was_training)
    return totals


class Trainer:
    """Model, optimisers and place in the data: what one optimiser step needs, and what a checkpoint holds."""

    def __init__(
        self,
        task: Trainable,
        model: nn.Module,
        settings: TrainingSettings,
        batches: Callable[[int], list[Batch]],
    ) -> None:
        self.task, self.model, self.settings, self.batches = task, model, settings, batches
        self.device = next(model.parameters()).device
        self.optimizers = make_optimizers(model, settings.optimizer)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.forward: nn.Module = torch.compile(model) if settings.machine.compile else model  # type: ignore[assignment]
        self.progress = Progress()

    def step(self, step: int, steps: int) -> tuple[float, int, float, bool]:
        """One optimiser step: its loss, number of targets, gradient norm, and whether that was clipped.

        loss = Σ over all micro-batches of the counted targets' losses ÷ their number, term by term.
        """
        micro = self.batches(step)
        counts: dict[str, int] = {}
        for batch in micro:
            for name, count in batch.counts().items():
                counts[name] = counts.get(name, 0) + count
        if not any(counts.values()):
            raise NoTargets(f"step {step}: none of its samples has a target that counts")
        loss = 0.0
        for number, batch in enumerate(micro):
            seed_everything(step_seed(self.settings.seed, step, number))
            with precision_context(self.settings.machine, self.device):
                terms = self.task.loss(self.forward, batch.to(self.device))
                total = sum(
                    t.weight * t.sums.sum() / counts[name] for name, t in terms.items() if t.weight and counts.get(name)
                )
            assert isinstance(total, torch.Tensor)
            total.backward()  # type: ignore[no-untyped-call]
            loss += float(total.detach())
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"step {step}: the loss is {loss}; a lower --rate or --matrix-rate may help")
        norm, clipped = self._clip()
        if not math.isfinite(norm):
            raise NonFiniteLoss(f"step {step}: the gradient's norm is {norm}; a lower --rate may help")
        set_rates(self.optimizers, schedule_factor(self.settings.schedule, step, steps))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss, max(counts.values()), norm, clipped

    def _clip(self) -> tuple[float, bool]:
        limit = self.settings.optimizer.clip or 0.0
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        value = float(norm)
        return value, 0 < limit < value

    def save(self, checkpoints: Checkpoints, plan: str) -> Saved:
        """Write a checkpoint of everything that the next step depends on."""
        state = {"progress": vars(self.progress), "plan": plan}
        tensors = state_tensors(self.model, self.optimizers)
        path = checkpoints.save(
            self.progress.step, self.model, tensors, {**state, "best_step": self.progress.best_step}
        )
        return Saved(self.progress.step, path)

    def restore(self, checkpoints: Checkpoints, plan: str) -> list[str]:
        """Go on from the newest whole checkpoint; returns one line for each newer one that is damaged."""
        state, folder, damaged = checkpoints.newest_whole()
        if state["plan"] != plan:
            from tokenloom.errors import UserError

            raise UserError(
                f"{folder}: was trained on other data, or with another --batch or --seed; --overwrite starts anew"
            )
        load_weights(self.model, folder / "model.safetensors")
        load_state_tensors(self.model, self.optimizers, read_tensors(folder / "optimizer.safetensors"))
        self.progress = Progress(**state["progress"])
        return damaged


@dataclass(frozen=True)
class Run:
    """Where a training leaves what it makes: the checkpoints, and the weights of the best evaluation."""

    checkpoints: Checkpoints
    weights: Any


def fit(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: Batches,
    validation: Samples,
    *,
    run: Run | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train until the steps are done, the patience is over, or `stop()` says so; yields what happens.

    `settings.steps` and `evaluate_every` must be given. Raises NonFiniteLoss, and then keeps the last checkpoint.
    """
    assert settings.steps is not None
    steps, every = settings.steps, settings.evaluate_every or settings.steps
    trainer = Trainer(task, model, settings, batches)
    plan = batches.fingerprint()
    notes = trainer.restore(run.checkpoints, plan) if run is not None and resume else []
    progress = trainer.progress
    began, before = time.perf_counter(), progress.seconds
    model.train()
    reason = "steps"
    while progress.step < steps:
        loss, targets, norm, clipped = trainer.step(progress.step, steps)
        progress.step += 1
        progress.clipped += clipped
        progress.seconds = before + time.perf_counter() - began
        rate = schedule_factor(settings.schedule, progress.step - 1, steps)
        yield Stepped(progress.step, steps, loss, targets, rate, norm, clipped, progress.seconds)
        if progress.step % every == 0 or progress.step == steps:
            yield from _evaluated(trainer, validation, run)
            progress.seconds = before + time.perf_counter() - began
            if run is not None:
                yield trainer.save(run.checkpoints, plan)
        if settings.patience is not None and progress.stale >= settings.patience:
            reason = "patience"
            break
        if stop() and progress.step < steps:
            reason = "interrupt"
            if run is not None:
                yield trainer.save(run.checkpoints, plan)
                if progress.best_step < 0:
                    save_weights(model, run.weights)
            break
    yield Finished(progress.step, reason, progress.best_step, progress.best, progress.seconds, progress.clipped, notes)


def _evaluated(trainer: Trainer, validation: Samples, run: Run | None) -> Iterator[Event]:
    """Measure the whole validation part, and keep the weights if they are the best so far."""
    progress = trainer.progress
    with precision_context(trainer.settings.machine, trainer.device):
        metrics = trainer.task.summarise(evaluate(trainer.task, trainer.model, validation))
    if not math.isfinite(metrics["loss"]):
        raise NonFiniteLoss(f"step {progress.step}: the validation loss is {metrics['loss']}")
    best = not progress.best or metrics["loss"] < progress.best["loss"]
    progress.stale = 0 if best else progress.stale + 1
    if best:
        progress.best, progress.best_step = metrics, progress.step
        if run is not None:
            save_weights(trainer.model, run.weights)
    yield Evaluated(progress.step, metrics, best, progress.seconds)
