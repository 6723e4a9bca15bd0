"""The settings of training, as typed dataclasses whose fields carry their own help text.

A field that is None is derived from the task's recipe; what was derived is printed, and kept in the run's config.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenloom.errors import UserError


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field with a help text, for the command line and the docs."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help, **more})
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimiser moves which parameters, and how fast."""

    optimizer: Literal["muon", "adamw"] | None = option(
        None, "muon: Muon for hidden matrices and AdamW for the rest; adamw: AdamW for everything"
    )
    rate: float | None = option(None, "peak learning rate of AdamW")
    matrix_rate: float | None = option(None, "peak learning rate of Muon")
    weight_decay: float | None = option(None, "decoupled weight decay")
    decay: Literal["matrices", "all"] = option("matrices", "which parameters decay: hidden matrices, or all")
    beta2: float | None = option(None, "AdamW's second beta")
    clip: float | None = option(None, "clip the gradient's norm at this; 0 does not clip")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rates rise and fall."""

    schedule: Literal["cosine", "linear"] | None = option(
        None, "after warm-up: cosine to zero, or constant and then linear to zero"
    )
    warmup: int | None = option(None, "steps over which the rates rise from zero")
    decay_share: float | None = option(None, "share of the steps that the linear schedule spends falling")


@dataclass(frozen=True)
class MachineSettings:
    """On what, and in which precision."""

    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps …")
    precision: Literal["float32", "bfloat16"] = option("float32", "bfloat16 computes products in half precision")
    compile: bool = option(False, "compile the model with torch.compile")
    threads: int | None = option(None, "CPU threads; timed for a moment and chosen when not given")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how much at a time, and what is kept."""

    steps: int | None = option(None, "optimiser steps")
    minutes: float | None = option(None, "train about this long: fixes the steps once, from the measured speed")
    batch: int | None = option(None, "samples a step, over all micro-batches")
    accumulate: int = option(1, "micro-batches that a step is split into, to save memory")
    seed: int = option(0, "seed of everything random")
    evaluate_every: int | None = option(None, "steps between evaluations of the whole validation part")
    keep: int = option(2, "how many of the last checkpoints to keep, beside the best")
    patience: int | None = option(None, "stop after this many evaluations without a new best")
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("batch", 1), ("accumulate", 1), ("keep", 1), ("evaluate_every", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {low}")
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise UserError(f"--minutes {self.minutes}: must be above 0")
        if self.steps is not None and self.minutes is not None:
            raise UserError("--steps and --minutes: give one of them, both say how long to train")
        for owner, names in ((self.optimizer, ("rate", "matrix_rate", "weight_decay", "clip")),):
            for name in names:
                value = getattr(owner, name)
                if value is not None and not 0 <= value < float("inf"):
                    raise UserError(f"--{name.replace('_', '-')} {value}: must be a number from 0 up")
        if self.machine.threads is not None and self.machine.threads < 1:
            raise UserError(f"--threads {self.machine.threads}: must be at least 1")

    def filled(self, recipe: dict[str, Any]) -> tuple[TrainingSettings, dict[str, Any]]:
        """These settings with every None that the recipe knows replaced, and what was taken from the recipe."""
        taken: dict[str, Any] = {}

        def fill(part: Any) -> Any:
            changes: dict[str, Any] = {}
            for f in dataclasses.fields(part):
                value = getattr(part, f.name)
                if dataclasses.is_dataclass(value):
                    changes[f.name] = fill(value)
                elif value is None and recipe.get(f.name) is not None:
                    changes[f.name] = taken[f.name] = recipe[f.name]
            return dataclasses.replace(part, **changes)

        return fill(self), taken


# What holds when neither the user nor the task's recipe says otherwise.
GENERAL_RECIPE: dict[str, Any] = {
    "batch": 32,
    "optimizer": "muon",
    "rate": 3e-3,
    "matrix_rate": 0.02,
    "weight_decay": 0.05,
    "beta2": 0.95,
    "clip": 1.0,
    "schedule": "linear",
    "decay_share": 0.8,
}
