"""What a training will cost, before it starts: parameters, FLOPs, memory, and this machine's speed from a few steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.parts import count_parameters
from tokenloom.training.checkpoints import total_bytes
from tokenloom.training.loop import Trainable, Trainer
from tokenloom.training.machine import cores
from tokenloom.training.optimizers import hidden_matrices
from tokenloom.training.settings import TrainingSettings


def flops_per_token(model: nn.Module, tokens: int) -> int:
    """Floating-point operations to train one token: 6 × (numbers in linear maps) + 6 × L × D × tokens.

    A product costs 2 operations a number forward and 4 backward. Attention's two products cost 2 × 2 × D a pair
    forward, three times that with backward, and causality halves the pairs. After Kaplan et al. 2020, section 2.1.
    tokens: the length of a sequence.
    """
    linear = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    widths = sum(part.heads * part.head_width for part in model.modules() if isinstance(part, MultiHeadAttention))
    return 6 * linear + 6 * widths * tokens


@dataclass(frozen=True)
class Memory:
    """Bytes that a training needs on its device, by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.optimizer + self.activations


def measure_memory(task: Trainable, model: nn.Module, settings: TrainingSettings, batch: Batch) -> Memory:
    """Weights, gradients and optimiser state by their sizes; activations as the tensors saved for backward."""
    saved: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = next(model.parameters()).device
    terms = {}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        terms = task.loss(model, batch.to(device))
    del terms
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = hidden_matrices(model) if settings.optimizer.optimizer == "muon" else set()
    one = total_bytes(p for name, p in model.named_parameters() if name in matrices)
    return Memory(
        weights=total_bytes(model.parameters()),
        gradients=total_bytes(trained),
        optimizer=one + 2 * (total_bytes(trained) - one),
        activations=sum(saved.values()),
    )


def seconds_per_step(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: Callable[[int], list[Batch]],
    *,
    budget: float = 1.5,
) -> float:
    """The time of one step, measured on a copy of the model: the fastest of as many as fit in `budget` seconds."""
    trial = Trainer(task, copy.deepcopy(model).train(), settings, batches)
    best = float("inf")
    began = time.perf_counter()
    step = 0
    while step < 3 or (time.perf_counter() - began < budget and step < 50):
        start = time.perf_counter()
        trial.step(step % 3, max(settings.steps or 0, 1000))
        if trial.device.type == "cuda":
            torch.cuda.synchronize(trial.device)
        if step:
            best = min(best, time.perf_counter() - start)
        step += 1
    return best


def choose_threads(
    task: Trainable, model: nn.Module, settings: TrainingSettings, batches: Callable[[int], list[Batch]]
) -> tuple[TrainingSettings, float]:
    """Settings with the number of threads decided, and seconds a step.

    On a CPU, one thread and all cores are each timed for a moment: on a busy machine more threads can be slower.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    given = settings.machine.threads
    if given is not None:
        torch.set_num_threads(given)
    candidates = [given] if given is not None or not on_cpu else sorted({1, cores()})
    timed: dict[int | None, float] = {}
    for threads in candidates:
        if threads is not None:
            torch.set_num_threads(threads)
        timed[threads] = seconds_per_step(task, model, settings, batches)
    threads = min(timed, key=lambda t: timed[t])
    if threads is not None:
        torch.set_num_threads(threads)
    return replace(settings, machine=replace(settings.machine, threads=threads)), timed[threads]


@dataclass(frozen=True)
class Plan:
    """What a training is going to be."""

    parameters: int
    flops_per_token: int
    memory: Memory
    targets_per_step: int
    seconds_per_step: float
    settings: TrainingSettings
    derived: dict[str, object]
    steps_per_epoch: int
    device: str

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return self.settings.steps or 0

    @property
    def tokens_per_second(self) -> float:
        """Counted targets a second, as measured."""
        return self.targets_per_step / self.seconds_per_step

    @property
    def seconds(self) -> float:
        """To finish, without evaluations."""
        return self.steps * self.seconds_per_step


def make_plan(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: Callable[[int], list[Batch]],
    steps_per_epoch: int,
    derived: dict[str, object],
) -> Plan:
    """Measure, and fix what the measurement decides: threads, and steps when minutes were given."""
    probe = batches(0)
    settings, seconds = choose_threads(task, model, settings, batches)
    if settings.minutes is not None:
        # A little is kept back for evaluations and for saving.
        steps = max(1, int(settings.minutes * 60 * 0.94 / seconds))
        settings = replace(settings, steps=steps, minutes=None)
    steps = settings.steps or 1
    if settings.evaluate_every is None:
        settings = replace(settings, evaluate_every=max(1, -(-steps // 10)))
    if settings.schedule.warmup is None:
        settings = replace(settings, schedule=replace(settings.schedule, warmup=min(100, -(-steps // 20))))
    longest = max(stream.shape[1] for stream in probe[0].streams.values())
    return Plan(
        parameters=count_parameters(model),
        flops_per_token=flops_per_token(model, longest),
        memory=measure_memory(task, model, settings, probe[0]),
        targets_per_step=sum(sum(batch.counts().values()) for batch in probe),
        seconds_per_step=seconds,
        settings=settings,
        derived=derived,
        steps_per_epoch=steps_per_epoch,
        device=str(next(model.parameters()).device),
    )
