"""More than one process: the one file in which a model, its gradients and its checkpoints are spread over several.

The loop, the tasks and the models know a `ProcessGroup` alone. `SINGLE_PROCESS` is one process, for which all of it does nothing;
`join` gives what torchrun started. With several, each step and each evaluation is shared out by samples, and

- `ddp`: every process has the whole model; gradients are added up after the backward pass.
- `fsdp`: every process has a part of each parameter, of its gradient and of its optimizer state (`fully_shard`).

Activation checkpointing is put around the layers here too. A new parallel mode is one more branch in `DistributedGroup.wrap`.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.utils.checkpoint import checkpoint

from tokenloom.errors import UserError
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.training.device import choose_device

T = TypeVar("T")
# What fits into the first message of an exchange; nearly everything does.
SHORT = 512
# Long, since one process may prepare the data while the others wait. That one has died is noticed at once.
PATIENCE = timedelta(days=2)
_GROUPS = itertools.count()


class ProcessGroup:
    """One process: there is nothing to share out, to add up, or to wait for.

    rank: which one this is, of `world`. local_rank, local_world_size: the same on this machine. scale: what the loss must be
    multiplied with, so that gradients are sums over the processes. sharded: whether parameters are in parts.
    """

    rank, world_size, local_rank, local_world_size = 0, 1, 0, 1
    sharded = False
    scale = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def all_gather_object(self, f: Callable[[], Any]) -> list[Any]:
        """What f gives in each process, to all of them: anything that JSON knows. A UserError in one is one in all."""
        return [f()]

    def run_on_rank0(self, f: Callable[[], Any]) -> Any:
        """What f gives in the first process, to all of them; the others do not run it."""
        return self.all_gather_object(f if self.is_main else lambda: None)[0]

    def run_on_all(self, f: Callable[[], T]) -> T:
        """f in every process; a UserError in one is one in all, so that none is left waiting."""
        made: list[T] = []
        self.all_gather_object(lambda: made.append(f()))
        return made[0]

    def in_turn(self, f: Callable[[], T]) -> T:
        """`together`, but first in one process of each machine, so that the others find in its caches what it made."""
        made: list[T] = []
        for now in (self.local_rank == 0, self.local_rank > 0):
            self.all_gather_object(lambda now=now: made.append(f()) if now else None)  # type: ignore[misc]
        return made[0]

    def device(self, name: str) -> torch.device:
        """The device of this process, from the setting."""
        return choose_device(name)

    def wrap(self, model: nn.Module, activation_checkpointing: bool) -> None:
        """Prepare a model for training, in place. checkpointing: see `keep_layer_inputs_only`."""
        if activation_checkpointing:
            keep_layer_inputs_only(model)

    def all_reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Make every gradient the sum over all processes, where that has not happened in the backward pass."""

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Make each tensor, in place, the sum over all processes."""

    def all_gather_rows(self, tensor: Tensor) -> Tensor:
        """The rows of all processes, one after the other: tensors (n, …) on the CPU, of any n."""
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the values that the first one has."""

    def has_started(self, folder: Path) -> bool:
        """Whether these processes, before they were killed and restarted, had begun the run of this folder."""
        return False

    def mark_started(self, folder: Path) -> None:
        """Remember that for a restart."""

    def shutdown(self) -> None:
        """All are done. Nothing may hold a wrapped model or its optimizer any more."""


SINGLE_PROCESS = ProcessGroup()


class DistributedGroup(ProcessGroup):
    """The processes that torchrun started, each with this value. Control goes through gloo, also beside GPUs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.rank, self.world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.local_rank = int(environment.get("LOCAL_RANK", self.rank))
        self.local_world_size = int(environment.get("LOCAL_WORLD_SIZE", self.world_size))
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._store = TCPStore(host, port, self.world_size, is_master=not agent and self.is_main, timeout=PATIENCE)
        # The agent's store outlives a killed process, with addresses at which nobody listens any more: a restart must
        # not read them, and neither must a second training of the same process.
        attempt = f"tokenloom/try{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_GROUPS)}"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(attempt, self._store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=PATIENCE,
        )

    def mode(self, parallel: str | None) -> DistributedGroup:
        """The same processes, in the mode that the settings ask for."""
        self.sharded = parallel == "fsdp"
        # fully_shard gives the mean over the processes.
        self.scale = self.world_size if self.sharded else 1
        return self

    def all_gather_object(self, f: Callable[[], Any]) -> list[Any]:
        try:
            said = [f(), None]
        except UserError as error:
            said = [None, str(error)]
        heard = [json.loads(raw) for raw in self._exchange(json.dumps(said, default=float).encode())]
        for refused in (why for _, why in heard if why is not None):
            refusal = UserError(refused)
            refusal.told = not self.is_main
            raise refusal
        return [value for value, _ in heard]

    def _exchange(self, raw: bytes) -> list[bytes]:
        """What each process gives, to all: one short message, and a second one where that is not enough."""
        head = torch.frombuffer(bytearray(len(raw).to_bytes(8, "little") + raw[:SHORT].ljust(SHORT)), dtype=torch.uint8)
        heads = [torch.empty_like(head) for _ in range(self.world_size)]
        dist.all_gather(heads, head)
        lengths = [int.from_bytes(bytes(one[:8].tolist()), "little") for one in heads]
        longest = max(lengths)
        if longest <= SHORT:
            bodies = [one[8:] for one in heads]
        else:
            body = torch.frombuffer(bytearray(raw.ljust(longest)), dtype=torch.uint8)
            bodies = [torch.empty_like(body) for _ in range(self.world_size)]
            dist.all_gather(bodies, body)
        return [one[:length].numpy().tobytes() for one, length in zip(bodies, lengths, strict=True)]

    def device(self, name: str) -> torch.device:
        device = choose_device(name)
        if device.type == "mps" and name == "auto":
            return torch.device("cpu")
        if str(device) == "cuda":
            if self.local_world_size > torch.cuda.device_count():
                raise UserError(
                    f"--device {name}: {self.local_world_size} processes on this machine, and {torch.cuda.device_count()}"
                    " GPUs; torchrun --nproc-per-node starts fewer, --device cpu does without"
                )
            device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(device)
        elif device.type != "cpu" and self.local_world_size > 1:
            raise UserError(f"--device {name}: is one device for {self.local_world_size} processes; try cuda or cpu")
        return device

    def wrap(self, model: nn.Module, activation_checkpointing: bool) -> None:
        super().wrap(model, activation_checkpointing)
        self.broadcast([*model.parameters(), *model.buffers()])
        if not self.sharded:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(next(model.parameters()).device.type, (self.world_size,))
        layers = [part for part in model.modules() if isinstance(part, TransformerLayer) and part is not model]
        for part in (*layers, model):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        # It warns of outputs that are views, which the losses here do not write into.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")

    def all_reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        if self.sharded:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for p in parameters:
            kinds.setdefault(p.dtype, []).append(p)
        for group in kinds.values():
            # The last numbers say in how many processes a parameter has a gradient: without one, it is not to move.
            has = torch.tensor([p.grad is not None for p in group]).to(group[0])
            parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in group]
            flat = torch.cat([*parts, has])
            dist.all_reduce(flat)
            *sums, has = torch.split(flat, [*(p.numel() for p in group), len(group)])
            for p, total, count in zip(group, sums, has.tolist(), strict=True):
                p.grad = total.view_as(p) if count else None

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor.detach())

    def all_gather_rows(self, tensor: Tensor) -> Tensor:
        raw = self._exchange(tensor.contiguous().numpy().tobytes())
        parts = [torch.frombuffer(bytearray(one), dtype=tensor.dtype) for one in raw if one]
        return torch.cat([tensor.new_zeros(0), *parts]).reshape(-1, *tensor.shape[1:])

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)

    def has_started(self, folder: Path) -> bool:
        return bool(self._store.check([f"tokenloom/began/{folder.absolute()}"]))

    def mark_started(self, folder: Path) -> None:
        self._store.set(f"tokenloom/began/{folder.absolute()}", "yes")

    def shutdown(self) -> None:
        # In this order: with gloo, a group that goes before what is sharded over it can abort the process.
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()


def join() -> ProcessGroup:
    """The processes that torchrun started, or this one alone."""
    launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return DistributedGroup(os.environ) if launched else SINGLE_PROCESS


# Tensors of which each process has a part.


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, in each process; all must ask for it together."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def own_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """A copy of a whole tensor on the device of a parameter, and in parts where the parameter is: no communication.

    What has another shape than the parameter, such as a counter of steps, or is in parts already, is only copied.
    """
    if not hasattr(parameter, "placements") or hasattr(value, "placements") or value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    placed: Any = parameter
    return distribute_tensor(value.to(parameter.device), placed.device_mesh, placed.placements, src_data_rank=None)


# Checkpoints in parts: each process writes a safetensors file of its own.


def write_parts(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Each process writes what it has of some tensors; all must do so together. Raises OSError in all, if in one."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise OSError("; ".join(f"process {rank}: {why}" for rank, (why, _) in error.failures.items())) from error


def read_parts(folder: Path, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What `write_parts` wrote, in any number of processes, whole; or each as the parameter of that name is.

    parameters: by name. A name such as `0/NAME/exp_avg` belongs to the parameter NAME. Where parameters are in parts,
    all processes must read together, and each reads its own part alone.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        owner = (parameters or {}).get(name.split("/")[1] if "/" in name else name)
        size, dtype = stored.size, stored.properties.dtype  # type: ignore[union-attr]
        in_parts = owner is not None and owner.shape == size
        tensors[name] = torch.empty_like(owner, dtype=dtype) if in_parts else torch.empty(size, dtype=dtype)  # type: ignore[arg-type]
    alone = not any(hasattr(tensor, "placements") for tensor in tensors.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a single process reads is meant
        load(tensors, storage_reader=reader, no_dist=alone)
    return tensors


# Activation checkpointing.


def keep_layer_inputs_only(model: nn.Module) -> None:
    """Make every transformer layer compute its activations anew in the backward pass, instead of keeping them.

    Values and gradients stay the same, also with dropout; memory falls from all activations to a layer's input each and
    one layer's activations, for a third more work. Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for part in model.modules():
        if isinstance(part, TransformerLayer) and not isinstance(part.forward, functools.partial):
            # A partial of a bound method: a copy of the model then computes with the copy's own layer.
            part.forward = functools.partial(_computed_twice, part.forward)  # type: ignore[method-assign]


def _computed_twice(forward: Callable[..., Tensor], X: Tensor, **more: Any) -> Tensor:
    if not torch.is_grad_enabled() or more.get("taps") is not None:
        return forward(X, **more)
    Y: Tensor = checkpoint(forward, X, use_reentrant=False, **more)
    return Y
