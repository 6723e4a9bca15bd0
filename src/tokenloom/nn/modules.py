"""Facts about any module: its device and its size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a module's first parameter, else of its first buffer, else the CPU."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Set a module to evaluation mode, without dropout, and back to its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)


def count_parameters(model: nn.Module, *, trained_only: bool = False) -> int:
    """Return the number of parameters; a tensor shared by several modules counts once."""
    parameters = {id(p): p for p in model.parameters() if p.requires_grad or not trained_only}
    return sum(p.numel() for p in parameters.values())


def count_saved_numbers(model: nn.Module) -> int:
    """Return how many numbers a saved module holds: parameters and persistent buffers, shared tensors once."""
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values() if tensor.numel()}
    return sum(sizes.values())
