"""What a training will cost, before it starts: parameters, FLOPs, memory, and this machine's speed from a few steps."""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.modules import count_parameters
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.training.batches import BatchSource, add_counts, count_targets
from tokenloom.training.checkpoints import Checkpoints, total_bytes
from tokenloom.training.device import autocast, cores, keep_freed_memory
from tokenloom.training.distributed import SINGLE_PROCESS, ProcessGroup
from tokenloom.training.loop import Trainable, Trainer
from tokenloom.training.optimizers import hidden_matrices
from tokenloom.training.settings import TrainingSettings

# Products of a weight with what comes in.
MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


def flops_per_token(model: nn.Module, tokens: int) -> int:
    """Floating-point operations to train one token: 6 × (numbers in linear maps) + 12 × L × D × tokens.

    A product costs 2 operations a number forward and 4 backward. Attention's two products cost 2 × 2 × D a pair
    forward, three times that with backward; where it is causal, half of the pairs are left, and 6 × L × D × tokens. A
    model names such attention in `causal`, by patterns (`decoder.*.attention`); an encoder has none. After Kaplan et
    al. 2020, section 2.1. tokens: the length of a sequence. Products alone are counted, not norms, activations and the
    optimizer.

    A map is applied to each token, unless the model's `places` says, by the map's name, to how many places of a whole
    sample it is, which are then shared out over the tokens. A convolution makes 2 × (outputs) × (kernel area) ×
    (channels in) operations forward: 2 a number at each place where its kernel lies; a transposed one at each place
    that it reads.
    """
    places: Mapping[str, int] = getattr(model, "places", {})
    maps = [(name, part) for name, part in model.named_modules() if isinstance(part, MAPS)]
    linear = sum(part.weight.numel() for name, part in maps if name not in places)
    shared = sum(part.weight.numel() * places[name] for name, part in maps if name in places)
    cells = [part for part in model.modules() if isinstance(part, nn.RNNBase)]
    linear += sum(p.numel() for cell in cells for name, p in cell.named_parameters() if name.startswith("weight"))
    causal: Sequence[str] = getattr(model, "causal", ())
    pairs = 0
    for name, part in model.named_modules():
        if isinstance(part, MultiHeadAttention):
            halved = any(fnmatchcase(name, pattern) for pattern in causal)
            pairs += (6 if halved else 12) * part.heads * part.head_dim
    return 6 * linear + round(6 * shared / tokens) + pairs * tokens


@dataclass(frozen=True)
class Memory:
    """Bytes that a training needs on the device of a process, by what they hold.

    Left out: what the framework itself takes, work space that lives for less than a step, and AdamW's step counters (4
    bytes a parameter tensor).
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.optimizer + self.activations


def measure_memory(task: Trainable, model: nn.Module, settings: TrainingSettings, batch: Batch) -> Memory:
    """Weights, gradients and optimizer state by their sizes; activations as the tensors saved for backward.

    AdamW keeps two tensors of a parameter's size, Muon one. batch: a micro-batch. With activation checkpointing, what
    one layer saves while it goes backward comes on top.
    """
    model = copy.deepcopy(model)  # a model may keep count of its batches
    saved: dict[nn.Module | None, dict[int, int]] = {None: {}}
    inside: list[nn.Module | None] = [None]
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        at = storage.data_ptr()
        if at not in own and at not in saved[None]:
            saved[inside[0]][at] = storage.nbytes()
        return tensor

    def enter(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        note(inputs[0])
        saved[layer], inside[0] = {}, layer

    def leave(layer: nn.Module, inputs: object, output: object) -> None:
        inside[0] = None

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
    del terms  # only now may what was saved be freed, and its addresses be used again
    kept = list(saved.values())
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = hidden_matrices(model) if settings.optimizer == "muon" else set()
    one = total_bytes(p for name, p in model.named_parameters() if name in matrices)
    return Memory(
        weights=total_bytes(model.parameters()),
        gradients=total_bytes(trained),
        optimizer=one + 2 * (total_bytes(trained) - one),
        activations=sum(kept[0].values()) + max((sum(one.values()) for one in kept[1:]), default=0),
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
    """The time of one step, measured on a copy of the model: the median of as many as fit in `budget` seconds.

    The first, in which all is made that later ones find, does not count.
    """
    # At rate 0 the work is the same, and no rate that the user chose can break the measurement.
    still = replace(settings, lr=0.0, muon_lr=None if settings.muon_lr is None else 0.0)
    trial = Trainer(task, copy.deepcopy(model).train(), still, batches, processes)

    def seconds(step: int) -> float:
        start = time.perf_counter()
        trial.step(step % 3, max(settings.steps or 0, 1000))
        if trial.device.type == "cuda":
            torch.cuda.synchronize(trial.device)
        return time.perf_counter() - start

    seconds(0)  # It may have compiled kernels, which is no part of the budget.
    began = time.perf_counter()
    times = [seconds(1)]
    while len(times) < 49 and processes.run_on_rank0(lambda: time.perf_counter() - began < budget):
        times.append(seconds(len(times) + 1))
    return median(times)


def seconds_per_save(model: nn.Module, settings: TrainingSettings, folder: Path) -> float:
    """The time to write one checkpoint of a training, measured by writing one into a folder of that disk, and removed.

    Raises UserError when there is no room for it.
    """
    muon = hidden_matrices(model) if settings.optimizer == "muon" else set()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    state = {f"{name}/{k}": p.detach().clone() for name, p in trained for k in range(1 if name in muon else 2)}
    with tempfile.TemporaryDirectory(prefix=".tokenloom-", dir=folder) as trial:
        began = time.perf_counter()
        Checkpoints(Path(trial)).save(0, model, state, {})
        return time.perf_counter() - began


def save_interval(step: float, save: float) -> int:
    """Steps between checkpoints: half a minute of them, or as many as keep saving at 2 % of the time.

    step, save: the seconds that one takes. What a kill costs is at most the steps since the last checkpoint.
    """
    return max(1, math.ceil(max(30.0, save / 0.02) / step))


def choose_threads(
    task: Trainable,
    model: nn.Module,
    settings: TrainingSettings,
    batches: BatchSource,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> tuple[TrainingSettings, float]:
    """Settings with the number of threads decided, and seconds a step.

    On a CPU, one thread and all cores are each timed for a moment: on a busy machine more threads can be slower. The
    processes of one machine share its cores, and the first decides.
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
    """What a training is going to be. unit: what targets are, in the plural."""

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
        """Counted targets a second, as measured."""
        return self.targets_per_step / self.seconds_per_step

    @property
    def seconds(self) -> float:
        """To finish, without evaluations."""
        return self.steps * self.seconds_per_step


def evaluations(steps: int, cost: float) -> int:
    """How often to measure the validation part in a training of some steps: 20 times, or less where that would take
    more than 15 % of the time, but once at least. cost: of one evaluation, in steps."""
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
    """Measure, and fix what the measurement decides: threads, and steps when minutes were given.

    evaluation: what measuring the validation part once costs, in steps (see `evaluations`). folder: where checkpoints
    are going to be written, or a folder on that disk; None when there will be none.
    """
    probe = processes.run_on_all(lambda: batches(0))
    settings, seconds = choose_threads(task, model, settings, batches, processes)
    if settings.minutes is not None:
        # A little is kept back for saving, and for steps that are slower than the fastest.
        room = settings.minutes * 60 * 0.94 / seconds
        steps = max(1, int(room - evaluations(int(room), evaluation) * evaluation))
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
        parts = {
            name: -(-getattr(memory, name) // processes.world_size) for name in ("weights", "gradients", "optimizer")
        }
        memory = replace(memory, **parts)
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
