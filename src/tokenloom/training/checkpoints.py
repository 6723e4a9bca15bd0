"""Checkpoints: all-or-nothing, without pickle, refused by name when cut or altered.

A checkpoint is a folder `step-00000500` with `model.safetensors`, `optimizer.safetensors` and `state.json`, which
lists the sha256 of the others. It is written beside its place under another name, synced, and renamed: a kill at any
instant leaves either the whole folder or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tokenloom.errors import UserError

STATE = "state.json"


def sha256(path: Path) -> str:
    """The hash of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content in one instant: write beside it, sync, rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that makes the model: each parameter once, and the buffers it keeps."""
    kept = set(model.state_dict())
    named = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n in kept}}
    return {name: tensor.detach().contiguous() for name, tensor in named.items()}


def save_weights(model: nn.Module, path: Path) -> None:
    """The model's weights as one safetensors file, atomically."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    save_file(model_tensors(model), beside)
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises UserError, naming the file, when it is missing or damaged."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; the run is incomplete") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error})") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Strictly: every tensor of the file has its place in the model, with its shape, and none is missing.

    Raises UserError naming the first difference.
    """
    tensors = read_tensors(path)
    own = model_tensors(model)
    for name in [*own, *tensors]:
        if name not in tensors:
            raise UserError(f"{path}: lacks {name}, which the model needs")
        if name not in own:
            raise UserError(f"{path}: has {name}, which the model does not have")
        if own[name].shape != tensors[name].shape:
            theirs, ours = tuple(tensors[name].shape), tuple(own[name].shape)
            raise UserError(f"{path}: {name} has shape {theirs}, the model needs {ours}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, model: nn.Module, optimizer: dict[str, Tensor], state: dict[str, Any]) -> Path:
        """Write the checkpoint of a step, then remove those that are neither recent nor best."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"step-{step:08d}"
        beside = self.folder / f".{final.name}.{os.getpid()}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        files = {"model.safetensors": model_tensors(model), "optimizer.safetensors": optimizer}
        for name, tensors in files.items():
            save_file(tensors, beside / name)
            _sync(beside / name)
        hashes = {name: sha256(beside / name) for name in files}
        write_json(beside / STATE, {**state, "step": step, "sha256": hashes})
        if final.exists():
            shutil.rmtree(final)
        beside.replace(final)
        _sync(self.folder)
        self._tidy(state.get("best_step"))
        return final

    def _tidy(self, best_step: int | None) -> None:
        for left in self.folder.glob(".step-*.part"):
            shutil.rmtree(left, ignore_errors=True)
        steps = self.steps()
        for step in steps[: -self.keep]:
            if step != best_step:
                shutil.rmtree(self.path(step))

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that have a whole checkpoint, in order."""
        return sorted(int(p.name[5:]) for p in self.folder.glob("step-*") if (p / STATE).is_file())

    def read(self, step: int) -> tuple[dict[str, Any], Path]:
        """The state of a checkpoint, after its files have been held against their hashes."""
        folder = self.path(step)
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / STATE}: damaged ({error})") from error
        for name, expected in state["sha256"].items():
            path = folder / name
            if not path.is_file() or sha256(path) != expected:
                raise UserError(f"{path}: cut or altered since it was saved; an earlier checkpoint may be whole")
        return state, folder

    def newest_whole(self) -> tuple[dict[str, Any], Path, list[str]]:
        """The newest checkpoint that is whole, and one line for each newer one that is not."""
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                state, folder = self.read(step)
            except UserError as error:
                damaged.append(str(error))
                continue
            return state, folder, damaged
        raise UserError(damaged[0] if damaged else f"{self.folder}: holds no checkpoint to resume from")


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that some tensors hold."""
    return sum(t.numel() * t.element_size() for t in tensors)
