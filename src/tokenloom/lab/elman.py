"""The Elman network of row 2.9, trained once per run; row 3.5 compares it with other models."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tokenloom.config import fill
from tokenloom.lab.corpus import WINDOW, ProtocolWindows, drawn_batches, prepared
from tokenloom.lab.experiment import ExperimentContext
from tokenloom.nn.modules import count_parameters
from tokenloom.training.events import Evaluated, StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

STEPS, QUICK_STEPS = 301, 101
ADAM = {
    "optimizer": "adamw",
    "lr": 3e-3,
    "weight_decay": 0.0,
    "weight_decay_on": "matrices",
    "beta2": 0.999,
    "grad_clip": 1.0,
}
CONSTANT = {"lr_schedule": "wsd", "warmup_steps": 0, "decay_fraction": 0.0, "steps": STEPS, "batch_size": 32}


@dataclass(frozen=True)
class TrainedElman:
    """The number of parameters, training loss and CPU seconds per step, and the final loss on the protocol windows."""

    parameters: int
    losses: list[float]
    seconds: list[float]
    validation: float


def reference_elman(ctx: ExperimentContext) -> TrainedElman:
    """Return M = 128 tanh units after 301 steps, 101 in quick form; trained once per run."""
    return ctx.cached(("elman", ctx.seed, ctx.default_seed, ctx.quick), lambda: _train(ctx))


def _train(ctx: ExperimentContext) -> TrainedElman:
    steps = QUICK_STEPS if ctx.quick else STEPS
    task, train, val = prepared(ctx, model="rnn", context=WINDOW, width=128, depth=1, burn_in=0)
    task.model = task.build_model(seed=ctx.seed)
    settings, _ = fill(TrainingSettings(eval_every=steps), {**ADAM, **CONSTANT})
    seed = 1 if ctx.default_seed else ctx.seed + 1
    batches = drawn_batches(task, train, torch.Generator().manual_seed(seed), 32)
    losses: list[float] = []
    seconds: list[float] = []
    validation = float("nan")
    began = time.process_time()
    for event in fit(task, task.model, settings, batches, ProtocolWindows(val.ids, WINDOW)):
        if isinstance(event, StepFinished):
            losses.append(event.loss)
            seconds.append(time.process_time() - began)
            ctx.report_progress(len(losses) / steps)
            began = time.process_time()
        elif isinstance(event, Evaluated) and event.step >= steps:
            validation = event.metrics["loss"]
            break
    return TrainedElman(count_parameters(task.model), losses, seconds, validation)
