"""Checkpoints: written atomically, without pickle, verified by hashes.

A checkpoint is a folder `step-00000500` with `model.safetensors`, `optimizer.safetensors` and `state.json`, which
contains the SHA-256 of the other files and of itself. It is written under a hidden name, synced to disk, and renamed: a
kill at any instant leaves either the whole folder or none.

With sharded parameters each process writes one file (`shard-00001-….safetensors`) instead of the two. Any number of
processes, in any parallel mode, reads either form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.training.distributed import (
    SINGLE_PROCESS,
    ProcessGroup,
    full_tensor,
    read_shards,
    shard_like,
    write_shards,
)
from tokenloom.utils.files import atomic_path, file_sha256, sha256, sync, write_bytes, write_json

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model to save: each parameter once, and the persistent buffers."""
    persistent = set(model.state_dict())
    named = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n in persistent}}
    return {name: tensor.detach() for name, tensor in named.items()}


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(0o644)  # safetensors makes files readable by their owner only


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise a UserError for a disk that is full or not available."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be written ({error}); earlier checkpoints are complete") from error


def full_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return `model_tensors`, unsharded. All processes must call it."""
    return {name: full_tensor(tensor) for name, tensor in model_tensors(model).items()}


def save_weights(model: nn.Module, path: Path, processes: ProcessGroup = SINGLE_PROCESS) -> None:
    """Write the unsharded weights of a model as a safetensors file, atomically. Raise UserError if that fails."""
    tensors = full_tensors(model)
    processes.run_on_rank0(lambda: _save_tensors(tensors, path))


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    with _disk_errors(path), atomic_path(path) as beside:
        _write_tensors(tensors, beside)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raise UserError when it is missing or damaged."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; the run is incomplete") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error})") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model, strictly (see `load_strictly`)."""
    load_strictly(model, read_tensors(path), path)


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load tensors, read from `path`, into a model. Raise UserError for the first missing, extra or misshaped one."""
    own = model_tensors(model)
    for name in [*own, *tensors]:
        if name not in tensors:
            raise UserError(f"{path}: lacks {name}, which the model needs")
        if name not in own:
            raise UserError(f"{path}: has {name}, which the model does not have")
        if own[name].shape != tensors[name].shape:
            in_file, needed = tuple(tensors[name].shape), tuple(own[name].shape)
            raise UserError(f"{path}: {name} has shape {in_file}, the model needs {needed}")
    copy_tensors(model, tensors)


def copy_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors, named as by `model_tensors`, into a model."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            tensor.copy_(shard_like(tensors[name], tensor))


def read_checkpoint(
    state: dict[str, Any], folder: Path, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of the model and of the optimizers in a checkpoint, whole or sharded like the model.

    With a sharded model all processes must call it. Raise UserError when a file is missing or damaged.
    """
    if MODEL in state["sha256"]:
        return read_tensors(folder / MODEL), read_tensors(folder / OPTIMIZER)
    tensors = read_shards(folder, model_tensors(model))
    return {k: v for k, v in tensors.items() if "/" not in k}, {k: v for k, v in tensors.items() if "/" in k}


class Checkpoints:
    """The checkpoints of a run: the last `keep`, and the best.

    Hidden folders contain incomplete checkpoints (`.step-….part`), and those being replaced (`.step-….old`).
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: dict[str, Tensor],
        state: dict[str, Any],
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> Path:
        """Write the checkpoint of a step, then remove those that are neither recent nor the best.

        state: JSON values; `best_step`, if present, is the step of the best checkpoint. Checkpoints of later steps,
        which remain after resuming from an earlier one, are removed. Raise UserError when it cannot be written.
        """
        final = self.path(step)
        part = _hidden(final, "part")
        files = {MODEL: model_tensors(model), OPTIMIZER: optimizer}

        def begin() -> None:
            with _disk_errors(final):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._recover()
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                for name, tensors in {} if processes.sharded else files.items():
                    _write_tensors(tensors, part / name)
                    sync(part / name)

        def finish() -> None:
            with _disk_errors(final):
                self._write_state(part, {**state, "step": step})
                if final.exists():
                    final.replace(_hidden(final, "old"))
                part.replace(final)
                sync(self.folder)
                self._remove_old(step, state.get("best_step"))

        processes.run_on_rank0(begin)
        if processes.sharded:
            self._write_shards(part, {**files[MODEL], **files[OPTIMIZER]}, processes)
        processes.run_on_rank0(finish)
        return final

    def _write_shards(self, folder: Path, tensors: dict[str, Tensor], processes: ProcessGroup) -> None:
        """Write the file of each process; check that the main process sees all of them."""

        def write() -> list[str]:
            with _disk_errors(folder):
                write_shards(folder, tensors)
            return []

        processes.all_gather_object(write)
        seen = processes.all_gather_object(lambda: sorted(path.name for path in folder.iterdir()))

        def check() -> None:
            if any(names != seen[0] for names in seen):
                raise UserError(
                    f"{self.folder}: not the same folder for all processes; with {flag('parallel')} fsdp each writes"
                    f" its shards there; use an {flag('out')} that all machines share, or {flag('parallel')} ddp"
                )
            with _disk_errors(folder):
                for name in seen[0]:
                    sync(folder / name)

        processes.run_on_rank0(check)

    def _write_state(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the last file of a checkpoint, with the hashes of the others."""
        names = sorted(path.name for path in folder.iterdir())
        described = {**state, "sha256": {name: file_sha256(folder / name) for name in names}}
        write_json(folder / STATE, {**described, "own_sha256": _state_hash(described)})

    def _recover(self) -> None:
        """Finish or undo a replacement that was interrupted."""
        for old in self.folder.glob(".step-*.old"):
            final = old.with_name(old.name[1 : -len(".old")])
            if final.exists():
                shutil.rmtree(old)
            else:
                old.replace(final)

    def _remove_old(self, newest: int, best_step: int | None) -> None:
        for left in [*self.folder.glob(".step-*.part"), *self.folder.glob(".step-*.old")]:
            shutil.rmtree(left)
        steps = self.steps()
        recent = [step for step in steps if step <= newest][-self.keep :]
        for step in steps:
            if step not in recent and step != best_step:
                # Renamed first, so that a kill leaves no incomplete checkpoint.
                hidden = _hidden(self.path(step), "part")
                self.path(step).replace(hidden)
                shutil.rmtree(hidden)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        return sorted(int(path.name[5:]) for path in self.folder.glob("step-*") if path.name[5:].isdecimal())

    def read(self, step: int) -> tuple[dict[str, Any], Path]:
        """Return the state and the folder of a checkpoint, after verifying the hashes of its files.

        Raise UserError for the first file that is missing, truncated or altered.
        """
        folder = self.path(step)
        file = folder / STATE
        try:
            state: dict[str, Any] = json.loads(file.read_text("utf-8"))
            own, hashes = state.pop("own_sha256"), state["sha256"].items()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{file}: damaged ({type(error).__name__}: {error})") from error
        if own != _state_hash(state):
            raise UserError(f"{file}: altered since it was saved; an earlier checkpoint may be complete")
        for name, expected in hashes:
            path = folder / name
            if not path.is_file() or file_sha256(path) != expected:
                raise UserError(f"{path}: cut or altered since it was saved; an earlier checkpoint may be complete")
        return state, folder

    def newest_complete(self) -> tuple[dict[str, Any], Path, list[str]]:
        """Return state and folder of the newest complete checkpoint, and a message for each newer one that is damaged.

        Raise UserError when there is none.
        """
        self._recover()
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                state, folder = self.read(step)
            except UserError as error:
                damaged.append(str(error))
                continue
            return state, folder, damaged
        raise UserError(
            damaged[0]
            if damaged
            else f"{self.folder}: has no checkpoint to resume from; {flag('overwrite')} starts over"
        )

    def restore_weights(self, step: int, path: Path) -> None:
        """Write the weights of a checkpoint to a file. Does nothing when that checkpoint is missing or damaged."""
        try:
            state, folder = self.read(step)
        except UserError:
            return
        if MODEL not in state["sha256"]:
            _save_tensors({k: v for k, v in read_shards(folder).items() if "/" not in k}, path)
        elif not path.is_file() or file_sha256(path) != state["sha256"][MODEL]:
            write_bytes(path, (folder / MODEL).read_bytes())


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")


def _state_hash(state: dict[str, Any]) -> str:
    return sha256(json.dumps(state, sort_keys=True))


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
