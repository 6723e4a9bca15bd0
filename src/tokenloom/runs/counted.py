"""Models that are counted in one pass, and not trained in steps: what that takes of the way from data to a run."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from tokenloom.config import options
from tokenloom.errors import UserError
from tokenloom.nn.modules import count_saved_numbers
from tokenloom.runs.events import Counted
from tokenloom.tasks.base import PreparedData, Task
from tokenloom.training.checkpoints import model_tensors, total_bytes
from tokenloom.training.distributed import ProcessGroup
from tokenloom.training.loop import NonFiniteLoss, evaluate
from tokenloom.training.settings import TrainingSettings

# What counting takes of the settings of training.
USED = ("device", "threads")


def refuse_idle(settings: dict[str, Any], processes: ProcessGroup) -> None:
    """Raise UserError for settings of training that do nothing to a counted model, and for several processes."""
    if processes.world_size > 1:
        raise UserError("a counted model is made in one pass by one process: start it without torchrun")
    for one in options(TrainingSettings):
        if settings.get(one.name) is not None and one.name not in USED:
            flag = f"--{one.name.replace('_', '-')}"
            raise UserError(f"{flag} has no effect on a model that is counted, not trained in steps: leave it out")


def count(task: Task, material: PreparedData, device: torch.device, threads: int | None) -> Counted:
    """Have the task count its model, and give it that."""
    began = time.perf_counter()
    if threads is not None:
        torch.set_num_threads(threads)
    model = task.count(material)
    if model is None:
        raise ValueError(f"{type(task).__name__} says that its model is counted, and counts none")
    task.model = model.to(device).eval()
    size = total_bytes(model_tensors(model).values())
    return Counted(count_saved_numbers(model), size, task.derived(), time.perf_counter() - began)


def measure(task: Task, material: PreparedData) -> dict[str, float]:
    """The metrics of a counted model on the whole validation part. Raises NonFiniteLoss before such a one is kept."""
    metrics = task.metrics(evaluate(task, task.model, material.validation))
    if not math.isfinite(metrics["loss"]):
        raise NonFiniteLoss(f"the validation loss of what was counted is {metrics['loss']}")
    return metrics
