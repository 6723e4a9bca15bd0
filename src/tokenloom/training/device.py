"""Device, dtype of products, CPU cores and memory allocation."""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext

import torch

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.training.settings import TrainingSettings


def choose_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA, else MPS, else the CPU. Raise UserError when it is not available."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"{flag('device')} {name}: unknown kind of device; try cpu, cuda or mps") from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise UserError(f"{flag('device')} {name}: not available on this machine")
    return device


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in the process instead of returning it to the system.

    Otherwise the activations of each step fault in new pages, which takes a tenth to a quarter of a CPU step. Does
    nothing with other C libraries.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for what, value in ((mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1), (top_pad, 64 << 20)):
        mallopt(what, value)


def autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which model and loss are computed: matrix products in bfloat16, or nothing changed."""
    if settings.dtype == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
