"""Checkpoints: all-or-nothing, without pickle, refused by name when cut or altered.

A checkpoint is a folder `step-00000500` with `model.safetensors`, `optimizer.safetensors` and `state.json`, which
lists the sha256 of the others and of itself. It is written under a hidden name, synced, and renamed into its place: a
kill at any instant leaves either the whole folder or none.

Processes that have each a part of every tensor write a file each (`shard-00001-….safetensors`) in the place of the two;
any number of processes, in any mode, reads either form.
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

from tokenloom.errors import UserError
from tokenloom.training.distributed import SINGLE_PROCESS, ProcessGroup, like, read_shards, whole, write_shards
from tokenloom.utils.files import atomic_path, file_sha256, sha256, sync, write_bytes, write_json

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that makes the model: each parameter once, and the buffers it keeps."""
    kept = set(model.state_dict())
    named = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n in kept}}
    return {name: tensor.detach() for name, tensor in named.items()}


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(0o644)  # The library lets only the owner read what it writes; a run may be shared.


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A disk that is full, or gone, is not the program's fault: say so in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be written ({error}); what was saved before is whole") from error


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`model_tensors`, each as a whole, where several processes have parts of them; all must ask together."""
    return {name: whole(tensor) for name, tensor in model_tensors(model).items()}


def save_weights(model: nn.Module, path: Path, processes: ProcessGroup = SINGLE_PROCESS) -> None:
    """The model's weights, whole, as one safetensors file, atomically. Raises UserError when it cannot be written."""
    tensors = whole_tensors(model)
    processes.run_on_rank0(lambda: _save_tensors(tensors, path))


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    with _writing(path), atomic_path(path) as beside:
        _write_tensors(tensors, beside)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises UserError, naming the file, when it is missing or damaged."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; the run is incomplete") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error})") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into a model, strictly: see `load_strictly`."""
    load_strictly(model, read_tensors(path), path)


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Every tensor of a file has its place in the model, with its shape, and none is missing.

    Raises UserError naming the first difference.
    """
    own = model_tensors(model)
    for name in [*own, *tensors]:
        if name not in tensors:
            raise UserError(f"{path}: lacks {name}, which the model needs")
        if name not in own:
            raise UserError(f"{path}: has {name}, which the model does not have")
        if own[name].shape != tensors[name].shape:
            theirs, ours = tuple(tensors[name].shape), tuple(own[name].shape)
            raise UserError(f"{path}: {name} has shape {theirs}, the model needs {ours}")
    copy_tensors(model, tensors)


def copy_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `model_tensors`: copy every one into its place."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            tensor.copy_(like(tensors[name], tensor))


def read_checkpoint(
    state: dict[str, Any], folder: Path, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the model and of the optimizer in a checkpoint of either form.

    Where the model is in parts, they may be too, and then all processes must ask together. Raises UserError.
    """
    if MODEL in state["sha256"]:
        return read_tensors(folder / MODEL), read_tensors(folder / OPTIMIZER)
    tensors = read_shards(folder, model_tensors(model))
    return {k: v for k, v in tensors.items() if "/" not in k}, {k: v for k, v in tensors.items() if "/" in k}


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best.

    Hidden folders hold what is half-written (`.step-….part`), or what is just being replaced (`.step-….old`).
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
        """Write the checkpoint of a step, then remove those that are neither recent nor best.

        `state["best_step"]`, if there is one, is the step of the best. Checkpoints of later steps, left over from
        before training went back to an earlier one, are removed. Raises UserError when it cannot be written.
        """
        final = self.path(step)
        beside = _hidden(final, "part")
        files = {MODEL: model_tensors(model), OPTIMIZER: optimizer}

        def begin() -> None:
            with _writing(final):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._put_back()
                shutil.rmtree(beside, ignore_errors=True)
                beside.mkdir()
                for name, tensors in {} if processes.sharded else files.items():
                    _write_tensors(tensors, beside / name)
                    sync(beside / name)

        def finish() -> None:
            with _writing(final):
                self._describe(beside, {**state, "step": step})
                if final.exists():
                    final.replace(_hidden(final, "old"))
                beside.replace(final)
                sync(self.folder)
                self._tidy(step, state.get("best_step"))

        processes.run_on_rank0(begin)
        if processes.sharded:
            self._write_shards(beside, {**files[MODEL], **files[OPTIMIZER]}, processes)
        processes.run_on_rank0(finish)
        return final

    def _write_shards(self, folder: Path, tensors: dict[str, Tensor], processes: ProcessGroup) -> None:
        """Every process writes its own file; all of them must then be there for the first."""

        def write() -> list[str]:
            with _writing(folder):
                write_shards(folder, tensors)
            return []

        processes.all_gather_object(write)
        seen = processes.all_gather_object(lambda: sorted(path.name for path in folder.iterdir()))

        def check() -> None:
            if any(names != seen[0] for names in seen):
                raise UserError(
                    f"{self.folder}: is not the same folder for all processes, and with --parallel fsdp each writes"
                    " its part there; give an --out that all machines share, or --parallel ddp"
                )
            with _writing(folder):
                for name in seen[0]:
                    sync(folder / name)

        processes.run_on_rank0(check)

    def _describe(self, folder: Path, state: dict[str, Any]) -> None:
        """The last file of a checkpoint, with the hashes of the others."""
        names = sorted(path.name for path in folder.iterdir())
        described = {**state, "sha256": {name: file_sha256(folder / name) for name in names}}
        write_json(folder / STATE, {**described, "own_sha256": _state_hash(described)})

    def _put_back(self) -> None:
        """Finish or undo a replacement that a kill cut short."""
        for old in self.folder.glob(".step-*.old"):
            final = old.with_name(old.name[1 : -len(".old")])
            if final.exists():
                shutil.rmtree(old)
            else:
                old.replace(final)

    def _tidy(self, newest: int, best_step: int | None) -> None:
        for left in [*self.folder.glob(".step-*.part"), *self.folder.glob(".step-*.old")]:
            shutil.rmtree(left)
        steps = self.steps()
        recent = [step for step in steps if step <= newest][-self.keep :]
        for step in steps:
            if step not in recent and step != best_step:
                # Hidden first, so that a kill leaves no half of a checkpoint under its name.
                hidden = _hidden(self.path(step), "part")
                self.path(step).replace(hidden)
                shutil.rmtree(hidden)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return sorted(int(path.name[5:]) for path in self.folder.glob("step-*") if path.name[5:].isdecimal())

    def read(self, step: int) -> tuple[dict[str, Any], Path]:
        """The state of a checkpoint, after its files have been held against their hashes.

        Raises UserError naming the first file that is missing, cut or altered.
        """
        folder = self.path(step)
        file = folder / STATE
        try:
            state: dict[str, Any] = json.loads(file.read_text("utf-8"))
            own, hashes = state.pop("own_sha256"), state["sha256"].items()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{file}: damaged ({type(error).__name__}: {error})") from error
        if own != _state_hash(state):
            raise UserError(f"{file}: altered since it was saved; an earlier checkpoint may be whole")
        for name, expected in hashes:
            path = folder / name
            if not path.is_file() or file_sha256(path) != expected:
                raise UserError(f"{path}: cut or altered since it was saved; an earlier checkpoint may be whole")
        return state, folder

    def newest_complete(self) -> tuple[dict[str, Any], Path, list[str]]:
        """The newest checkpoint that is whole, and one line for each newer one that is not.

        Raises UserError when there is none.
        """
        self._put_back()
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                state, folder = self.read(step)
            except UserError as error:
                damaged.append(str(error))
                continue
            return state, folder, damaged
        raise UserError(
            damaged[0] if damaged else f"{self.folder}: holds no checkpoint to go on from; --overwrite starts anew"
        )

    def restore_weights(self, step: int, path: Path) -> None:
        """Make a file hold the weights of a checkpoint again. Without effect when that checkpoint is not whole."""
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
    """Bytes that some tensors hold."""
    return sum(t.numel() * t.element_size() for t in tensors)
