"""Starting from another run: its body with its weights, and a readout of one's own."""

from __future__ import annotations

from tokenloom.errors import UserError
from tokenloom.runs.events import InitializedFrom
from tokenloom.runs.folder import load
from tokenloom.tasks.base import Task
from tokenloom.training.checkpoints import model_tensors
from tokenloom.training.settings import TrainingSettings


def initial_run(task: Task, training: TrainingSettings) -> Task | None:
    """The run that `--init-from` names, which the task takes over what belongs to the body from; None without one.

    Raises UserError when there is no such run, when its body is another, and for `--freeze backbone` without it.
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
    task.adopt_config(origin)
    return origin


def initialize_from(task: Task, origin: Task, run: str) -> InitializedFrom:
    """Copy the weights of another run into the fresh model of a task.

    The readout comes along where both read the same from it; else it starts fresh. Raises UserError with the first
    tensor of the body that one has and the other has not, or has in another shape.
    """
    own, there = model_tensors(task.model), model_tensors(origin.model)
    other = {name: task.adapt_tensor(name, value, origin) for name, value in there.items()}
    same_head = task.output_meaning() is not None and task.output_meaning() == origin.output_meaning()
    fresh: list[str] = []
    for name in [*own, *(name for name in other if name not in own)]:
        if name.startswith(task.head) and not same_head:
            fresh += [name] * (name in own)
            continue
        mine, theirs = (tuple(side[name].shape) if name in side else None for side in (own, other))
        if mine != theirs:
            ours, of_run = (f"shape {shape}" if shape is not None else "no such tensor" for shape in (mine, theirs))
            raise UserError(f"--init-from {run}: the bodies differ: {name} has {of_run} there, and {ours} here")
        own[name].copy_(other[name])
    return InitializedFrom(run, len(own) - len(fresh), fresh)


def freeze_backbone(task: Task) -> None:
    """Let nothing be trained but the head."""
    for name, parameter in task.model.named_parameters():
        parameter.requires_grad_(name.startswith(task.head))
