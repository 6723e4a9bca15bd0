"""Initialization from another run: its backbone with its weights, and a new head."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from tokenloom.errors import UserError
from tokenloom.runs.events import InitializedFrom
from tokenloom.runs.folder import load
from tokenloom.tasks.base import Initialization, Task
from tokenloom.training.checkpoints import model_tensors
from tokenloom.training.settings import TrainingSettings

# Names of the parameters of a head begin with it; all others are the backbone.
HEAD = "head."


@dataclass
class Origin:
    """The run that a model is initialized from, and how its weights are copied."""

    run: str
    task: Task
    how: Initialization
    event: InitializedFrom = field(init=False)

    def copy_into(self, model: nn.Module) -> None:
        """Copy the weights, and leave in `event` which tensors were copied.

        The head is copied where its outputs mean the same in both runs. Raise UserError with the first tensor of the
        backbone that one model lacks or has in another shape.
        """
        own = model_tensors(model)
        other = {name: self.how.adapt(name, tensor) for name, tensor in model_tensors(self.task.model).items()}
        same_head = self.how.same_head()
        fresh: list[str] = []
        for name in [*own, *(name for name in other if name not in own)]:
            if name.startswith(HEAD) and not same_head:
                fresh += [name] * (name in own)
                continue
            ours, theirs = (tuple(side[name].shape) if name in side else None for side in (own, other))
            if ours != theirs:
                here, there = ("no such tensor" if shape is None else f"shape {shape}" for shape in (ours, theirs))
                raise UserError(
                    f"--init-from {self.run}: the backbones differ: {name} has {there} there, and {here} here"
                )
            own[name].copy_(other[name])
        self.event = InitializedFrom(self.run, len(own) - len(fresh), fresh)


def load_origin(task: Task, training: TrainingSettings) -> Origin | None:
    """Load the run of `--init-from`, and have the task take over its tokenizer and sizes; None when not given.

    Raise UserError when there is no such run, when the backbones differ, and for `--freeze backbone` without it.
    """
    if training.init_from is None:
        if training.freeze == "backbone":
            raise UserError(
                "--freeze backbone: the backbone would have random weights; give a run to take it from with --init-from"
            )
        return None
    try:
        origin = load(training.init_from)
    except UserError as error:
        raise UserError(f"--init-from {error}") from error
    return Origin(training.init_from, origin, task.init_from(origin))


def freeze_backbone(model: nn.Module) -> None:
    """Train nothing but the head."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(HEAD))
