"""Costs of a training that is about to begin: parameters, FLOPs and memory of its model, and measured speed."""

from __future__ import annotations

import copy
import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.nn.modules import count_parameters
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.planning.costs import Memory, flops_per_token
from tokenloom.training.batches import BatchSource, add_counts, count_targets
from tokenloom.training.checkpoints import Checkpoints, total_bytes
from tokenloom.training.device import autocast, cores, keep_freed_memory
from tokenloom.training.distributed import SINGLE_PROCESS, ProcessGroup
from tokenloom.training.loop import Trainable, Trainer
from tokenloom.training.optimizers import hidden_matrices
from tokenloom.training.settings import TrainingSettings


def measure_memory(task: Trainable, model: nn.Module, settings: TrainingSettings, batch: Batch) -> Memory:
    """Return the memory of a training: weights, gradients and optimizer state by size, activations by measurement.

    AdamW stores two tensors of a parameter's size, Muon one. Activations are the tensors saved for the backward pass of
    a micro-batch `batch`; with activation checkpointing, those of one recomputed layer are added.
    """
    model = copy.deepcopy(model)  # a forward pass may change buffers
    # Bytes by address of the storage, for each checkpointed layer and for all else.
    saved: dict[nn.Module | None, dict[int, int]] = {None: {}}
    current: list[nn.Module | None] = [None]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in weights and address not in saved[None]:
            saved[current[0]][address] = storage.nbytes()
        return tensor

    def enter(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        note(inputs[0])
        saved[layer], current[0] = {}, layer

    def leave(layer: nn.Module, inputs: object, output: object) -> None:
        current[0] = None

    if settings.activation_checkpointing:
        for layer in (part for part in model.modules() if isinstance(part, TransformerLayer)):
            layer.register_forward_pre_hook(enter)
            layer.register_forward_hook(leave)
    device = next(model.parameters()).device
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        autocast(settings, device),
    ):
        terms = task.compute_loss(model, batch.to(device))
    del terms  # keeps the saved tensors, and so their addresses, until here
    outside, *layers = [sum(sizes.values()) for sizes in saved.values()]
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = hidden_matrices(model) if settings.optimizer == "muon" else set()
    muon = total_bytes(p for name, p in model.named_parameters() if name in matrices)
    return Memory(
        weights=total_bytes(model.parameters()),
        gradients=total_bytes(trained),
        optimizer=muon + 2 * (total_bytes(trained) - muon),
        activations=outside + max(layers, default=0),
    )


def seconds_per_step(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    *,
    budget: float = 0.7,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> float:
    """Return the median time of a step on a copy of the model, over as many steps as fit in `budget` seconds.

    The first step, which allocates and compiles, is not counted.
    """
    # With learning rate 0 the work is the same, and the loss cannot become NaN.
    frozen = replace(settings, lr=0.0, muon_lr=None if settings.muon_lr is None else 0.0)
    trial = Trainer(task, copy.deepcopy(model).train(), frozen, batches, processes)

    def seconds(step: int) -> float:
        start = time.perf_counter()
        trial.step(step % 3, max(settings.steps or 0, 1000))
        if trial.device.type == "cuda":
            torch.cuda.synchronize(trial.device)
        return time.perf_counter() - start

    seconds(0)
    began = time.perf_counter()
    times = [seconds(1)]
    while len(times) < 49 and processes.run_on_rank0(lambda: time.perf_counter() - began < budget):
        times.append(seconds(len(times) + 1))
    return median(times)


def seconds_per_save(model: nn.Module, settings: TrainingSettings, folder: Path) -> float:
    """Return the time to write a checkpoint of a training, measured by writing one below a folder and removing it.

    Raise UserError when the disk is full.
    """
    muon = hidden_matrices(model) if settings.optimizer == "muon" else set()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    state = {f"{name}/{k}": p.detach().clone() for name, p in trained for k in range(1 if name in muon else 2)}
    with tempfile.TemporaryDirectory(prefix=".tokenloom-", dir=folder) as trial:
        began = time.perf_counter()
        Checkpoints(Path(trial)).save(0, model, state, {})
        return time.perf_counter() - began


def save_interval(step: float, save: float) -> int:
    """Return the steps between checkpoints: those of 30 seconds, or more to limit saving to 2 % of the time.

    step, save: seconds per step, and per checkpoint.
    """
    return max(1, math.ceil(max(30.0, save / 0.02) / step))


def choose_threads(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> tuple[TrainingSettings, float]:
    """Return settings with the number of threads, and the seconds per step.

    On a CPU, one thread and all cores are timed: on a busy machine more threads can be slower. The processes of a
    machine divide its cores, and the main process decides.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    given = settings.threads
    if on_cpu:
        keep_freed_memory()
    if given is not None:
        torch.set_num_threads(given)
    shared = max(1, cores() // processes.local_world_size)
    candidates = [given] if given is not None or not on_cpu else processes.run_on_rank0(lambda: sorted({1, shared}))
    timed: dict[int | None, float] = {}
    for threads in candidates:
        if threads is not None:
            torch.set_num_threads(threads)
        timed[threads] = seconds_per_step(task, model, settings, batches, processes=processes)
    threads = processes.run_on_rank0(lambda: min(timed, key=lambda t: timed[t]))
    if threads is not None:
        torch.set_num_threads(threads)
    return replace(settings, threads=threads), timed[threads]


@dataclass(frozen=True)
class Plan:
    """The settings and costs of a training. unit: the name of targets, in the plural."""

    parameters: int
    flops_per_token: int
    memory: Memory
    targets_per_step: int
    seconds_per_step: float
    settings: TrainingSettings
    derived: dict[str, object]
    steps_per_epoch: int
    device: str
    unit: str = "tokens"

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return self.settings.steps or 0

    @property
    def tokens_per_second(self) -> float:
        """Measured speed, in counted targets per second."""
        return self.targets_per_step / self.seconds_per_step

    @property
    def seconds(self) -> float:
        """Training time in seconds, without evaluations."""
        return self.steps * self.seconds_per_step


def evaluations(steps: int, cost: float) -> int:
    """Return the number of evaluations in a training: 20, or fewer to limit them to 15 % of the time, at least one.

    cost: of one evaluation, in steps.
    """
    return min(20, steps, max(1, int(0.15 * steps / cost) if cost else 20))


def make_plan(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    steps_per_epoch: int,
    derived: dict[str, object],
    evaluation: float = 0.0,
    folder: Path | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Plan:
    """Measure the costs of a training, and set what depends on them: threads, steps, and intervals.

    evaluation: cost of one evaluation, in steps (see `evaluations`). folder: for checkpoints, or another on the same
    disk; None without checkpoints.
    """
    probe = processes.run_on_all(lambda: batches(0))
    settings, seconds = choose_threads(task, model, settings, batches, processes)
    if settings.minutes is not None:
        # 6 % are left for saving and for slower steps.
        available = settings.minutes * 60 * 0.94 / seconds
        steps = max(1, int(available - evaluations(int(available), evaluation) * evaluation))
        settings = replace(settings, steps=steps, minutes=None)
    steps = settings.steps or 1
    if settings.eval_every is None:
        settings = replace(settings, eval_every=-(-steps // evaluations(steps, evaluation)))
    if settings.save_every is None and folder is not None:
        disk = folder
        every = save_interval(seconds, processes.run_on_rank0(lambda: seconds_per_save(model, settings, disk)))
        settings = replace(settings, save_every=min(every, settings.eval_every or every))
    if settings.warmup_steps is None:
        settings = replace(settings, warmup_steps=min(100, -(-steps // 20)))
    longest = max(stream.shape[1] for stream in probe[0].streams.values())
    memory = measure_memory(task, model, settings, probe[0])
    if processes.sharded:
        sharded = {
            name: -(-getattr(memory, name) // processes.world_size) for name in ("weights", "gradients", "optimizer")
        }
        memory = replace(memory, **sharded)
    return Plan(
        parameters=count_parameters(model),
        flops_per_token=flops_per_token(model, longest),
        memory=memory,
        targets_per_step=max(add_counts(processes.all_gather_object(lambda: count_targets(probe))).values(), default=0),
        seconds_per_step=seconds,
        settings=settings,
        derived=derived,
        steps_per_epoch=steps_per_epoch,
        device=str(next(model.parameters()).device),
    )
