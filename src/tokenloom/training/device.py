"""On what to train: the device, the precision and the number of threads, decided once at the edge."""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext

import torch

from tokenloom.errors import UserError
from tokenloom.training.settings import TrainingSettings


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" takes CUDA, then Apple's MPS, then the CPU. Refused when it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name}: no such kind of device; try cpu, cuda or mps") from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise UserError(f"--device {name}: not available on this machine")
    return device


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process keep the memory that a step frees for the next one, where the C library is glibc.

    By default it goes back to the system, and each step's activations fault in fresh pages: a tenth to a quarter of a
    step on a CPU.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for what, value in ((mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1), (top_pad, 64 << 20)):
        mallopt(what, value)


def autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """Where the model and its loss are computed: plain, or with products in bfloat16."""
    if settings.dtype == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
