"""Several processes: everything that distributes a model, its gradients and its checkpoints.

Loop, tasks and models only see a `ProcessGroup`. `SINGLE_PROCESS` does nothing; `join` returns the processes that
torchrun started. They divide the samples of each step and of each evaluation between them.

- `ddp`: every process has the whole model; gradients are summed after the backward pass.
- `fsdp`: parameters, gradients and optimizer state are sharded over the processes (`fully_shard`).

A new parallel mode is a branch in `DistributedGroup.wrap`, which also sets up activation checkpointing.
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

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.nn.transformer import TransformerLayer
from tokenloom.training.device import choose_device

T = TypeVar("T")
# Bytes of the first message of an exchange; nearly everything fits.
SHORT = 512
# Long, since one process may prepare the data while the others wait. The death of a process is noticed immediately.
TIMEOUT = timedelta(days=2)
_GROUPS = itertools.count()


class ProcessGroup:
    """A single process: every operation is trivial.

    rank, world_size: index of this process, and number of processes. local_rank, local_world_size: the same on this
    machine. scale: factor on the loss that makes gradients sums over the processes. sharded: whether parameters are.
    """

    rank, world_size, local_rank, local_world_size = 0, 1, 0, 1
    sharded = False
    scale = 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def all_gather_object(self, f: Callable[[], Any]) -> list[Any]:
        """Return the results of f in all processes, JSON values. A UserError in one is raised in all."""
        return [f()]

    def run_on_rank0(self, f: Callable[[], Any]) -> Any:
        """Run f in the main process only; return its result in all."""
        return self.all_gather_object(f if self.is_main else lambda: None)[0]

    def run_on_all(self, f: Callable[[], T]) -> T:
        """Run f in every process; return its own result. A UserError in one is raised in all, so that none waits."""
        results: list[T] = []
        self.all_gather_object(lambda: results.append(f()))
        return results[0]

    def in_turn(self, f: Callable[[], T]) -> T:
        """`run_on_all`, first in one process per machine, so that the others find its results in caches."""
        results: list[T] = []
        for now in (self.local_rank == 0, self.local_rank > 0):
            self.all_gather_object(lambda now=now: results.append(f()) if now else None)  # type: ignore[misc]
        return results[0]

    def device(self, name: str) -> torch.device:
        """Return the device of this process for a setting."""
        return choose_device(name)

    def wrap(self, model: nn.Module, activation_checkpointing: bool) -> None:
        """Prepare a model for training, in place."""
        if activation_checkpointing:
            checkpoint_activations(model)

    def all_reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over all processes, unless the backward pass has done so."""

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all processes, in place."""

    def all_gather_rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of all processes, concatenated by rank. tensor: (n, …), on the CPU; n may differ."""
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of the main process to all, in place."""

    def has_started(self, folder: Path) -> bool:
        """Return whether these processes had begun the run of this folder before torchrun restarted them."""
        return False

    def mark_started(self, folder: Path) -> None:
        """Record for a restart that the run of this folder has begun."""

    def shutdown(self) -> None:
        """Leave the group. No reference to a wrapped model or its optimizers may remain."""


SINGLE_PROCESS = ProcessGroup()


class DistributedGroup(ProcessGroup):
    """The processes that torchrun started. Control messages use gloo, also with GPUs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.rank, self.world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.local_rank = int(environment.get("LOCAL_RANK", self.rank))
        self.local_world_size = int(environment.get("LOCAL_WORLD_SIZE", self.world_size))
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._store = TCPStore(host, port, self.world_size, is_master=not agent and self.is_main, timeout=TIMEOUT)
        # The agent's store survives a killed process, with addresses that are no longer valid: neither a restart nor a
        # second training of this process may read them.
        attempt = f"tokenloom/try{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_GROUPS)}"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(attempt, self._store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=TIMEOUT,
        )

    def mode(self, parallel: str | None) -> DistributedGroup:
        """Set the parallel mode, ddp or fsdp; return the group."""
        self.sharded = parallel == "fsdp"
        # fully_shard averages gradients over the processes.
        self.scale = self.world_size if self.sharded else 1
        return self

    def all_gather_object(self, f: Callable[[], Any]) -> list[Any]:
        try:
            message = [f(), None]
        except UserError as error:
            message = [None, str(error)]
        received = [json.loads(raw) for raw in self._exchange(json.dumps(message, default=float).encode())]
        for refused in (why for _, why in received if why is not None):
            refusal = UserError(refused)
            refusal.told = not self.is_main
            raise refusal
        return [value for value, _ in received]

    def _exchange(self, raw: bytes) -> list[bytes]:
        """Return the bytes of every process: one short message, and a second one if that is not enough."""
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
                    f"{flag('device')} {name}: {self.local_world_size} processes on this machine with"
                    f" {torch.cuda.device_count()} GPUs; start fewer with torchrun --nproc-per-node, or use"
                    f" {flag('device')} cpu"
                )
            device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(device)
        elif device.type != "cpu" and self.local_world_size > 1:
            raise UserError(
                f"{flag('device')} {name}: one device for {self.local_world_size} processes; try cuda or cpu"
            )
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
        # FSDP warns of outputs that are views; the losses here do not write into them.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")

    def all_reduce_gradients(self, parameters: Iterable[Tensor]) -> None:
        if self.sharded:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for p in parameters:
            by_dtype.setdefault(p.dtype, []).append(p)
        for group in by_dtype.values():
            # Also sum in how many processes a parameter has a gradient: without any, its gradient stays None.
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
        # Collect garbage first: with gloo, destroying a group before the tensors sharded over it can abort.
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()


def join() -> ProcessGroup:
    """Return the processes that torchrun started, or `SINGLE_PROCESS`."""
    launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return DistributedGroup(os.environ) if launched else SINGLE_PROCESS


# Sharded tensors.


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor. All processes must call it."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the shard of this process of a tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of a whole tensor, on the device of a parameter and sharded like it, without communication.

    A tensor of another shape, such as a step counter, or one that is sharded already, is only copied.
    """
    if not hasattr(parameter, "placements") or hasattr(value, "placements") or value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    placed: Any = parameter
    return distribute_tensor(value.to(parameter.device), placed.device_mesh, placed.placements, src_data_rank=None)


# Sharded checkpoints: each process writes its own safetensors file.


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the shards of this process. All processes must call it. An OSError in one is raised in all."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise OSError("; ".join(f"process {rank}: {why}" for rank, (why, _) in error.failures.items())) from error


def read_shards(folder: Path, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the tensors of `write_shards`, written by any number of processes: whole, or sharded like a parameter.

    parameters: by name; a tensor such as `0/NAME/exp_avg` belongs to the parameter NAME. With sharded parameters, all
    processes must call it, and each reads its own shards.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        owner = (parameters or {}).get(name.split("/")[1] if "/" in name else name)
        size, dtype = stored.size, stored.properties.dtype  # type: ignore[union-attr]
        sharded = owner is not None and owner.shape == size
        tensors[name] = torch.empty_like(owner, dtype=dtype) if sharded else torch.empty(size, dtype=dtype)  # type: ignore[arg-type]
    alone = not any(hasattr(tensor, "placements") for tensor in tensors.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading with a single process is intended
        load(tensors, storage_reader=reader, no_dist=alone)
    return tensors


# Activation checkpointing.


def checkpoint_activations(model: nn.Module) -> None:
    """Make every transformer layer recompute its activations in the backward pass instead of storing them.

    Values and gradients do not change, also with dropout. Stored are the input of each layer and the activations of one
    layer, for a third more compute. Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for part in model.modules():
        if isinstance(part, TransformerLayer) and not isinstance(part.forward, functools.partial):
            # A partial of a bound method is copied with the layer, so that a copied model uses its own layers.
            part.forward = functools.partial(_recomputed, part.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Tensor], X: Tensor, **kwargs: Any) -> Tensor:
    if not torch.is_grad_enabled() or kwargs.get("hooks") is not None:
        return forward(X, **kwargs)
    Y: Tensor = checkpoint(forward, X, use_reentrant=False, **kwargs)
    return Y
