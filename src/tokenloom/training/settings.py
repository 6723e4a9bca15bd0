"""The settings of training, as typed dataclasses whose fields carry their own help text.

A field that is None is derived from the task's recipe; what was derived is printed, and kept in the run's config.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenloom.config import Options, option
from tokenloom.errors import UserError


@dataclass(frozen=True)
class OptimizerSettings(Options):
    """Which optimizer moves which parameters, and how fast."""

    optimizer: Literal["muon", "adamw"] | None = option(
        None, "muon: Muon for hidden matrices and AdamW for the rest; adamw: AdamW for everything"
    )
    lr: float | None = option(None, "peak learning rate of AdamW")
    muon_lr: float | None = option(None, "peak learning rate of Muon")
    weight_decay: float | None = option(None, "decoupled weight decay")
    decay: Literal["matrices", "all"] | None = option(None, "which parameters decay: hidden matrices, or all")
    beta2: float | None = option(None, "AdamW's second beta")
    clip: float | None = option(None, "clip the gradient's norm at this; 0 does not clip")


@dataclass(frozen=True)
class ScheduleSettings(Options):
    """How the learning rates rise and fall."""

    schedule: Literal["cosine", "linear"] | None = option(
        None, "after warm-up: cosine to zero, or constant and then linear to zero"
    )
    warmup: int | None = option(None, "steps over which the rates rise from zero")
    decay_fraction: float | None = option(None, "share of the steps that the linear schedule spends falling")


@dataclass(frozen=True)
class MachineSettings(Options):
    """On what, and in which precision."""

    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps …")
    precision: Literal["float32", "bfloat16"] = option("float32", "bfloat16 computes products in half precision")
    compile: bool = option(False, "compile the model with torch.compile")
    threads: int | None = option(None, "CPU threads; timed for a moment and chosen when not given")
    parallel: Literal["data", "sharded"] | None = option(
        None, "under torchrun: every process has the whole model (data), or a part of each parameter [default: data]"
    )
    activation_checkpointing: bool = option(False, "compute activations twice instead of keeping them, to save memory")


@dataclass(frozen=True)
class TrainingSettings(Options):
    """How long, how much at a time, and what is kept."""

    steps: int | None = option(None, "optimizer steps", excludes="minutes")
    minutes: float | None = option(None, "train about this long: fixes the steps once, from the measured speed")
    batch: int | None = option(None, "samples a step, over all micro-batches")
    accumulate: int = option(1, "micro-batches that a step is split into, to save memory")
    seed: int = option(0, "seed of everything random")
    init: str | None = option(None, "start from the weights of this run: its body, and a readout of one's own")
    train: Literal["all", "head"] = option("all", "all: everything; head: the readout alone, on the body of --init")
    eval_every: int | None = option(None, "steps between evaluations of the whole validation part")
    save_every: int | None = option(
        None, "steps between checkpoints, beside those at evaluations; so many that saving costs little when not given"
    )
    keep: int = option(2, "how many of the last checkpoints to keep, beside the best")
    patience: int | None = option(None, "stop after this many evaluations without a new best")
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def check(self) -> None:
        values = {**vars(self), **vars(self.optimizer), **vars(self.schedule), **vars(self.machine)}
        for name, (low, high, how) in LIMITS.items():
            value = values[name]
            # Written so that a value that is not a number is refused too.
            if value is not None and not low <= value <= high:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be {how}")

    def filled(self, recipe: dict[str, Any]) -> tuple[TrainingSettings, dict[str, Any]]:
        """These settings with every None that the recipe knows replaced, and what was taken from the recipe.

        Given steps or minutes hold against both of the recipe's; of a recipe with both, the steps hold. Raises
        ValueError for a recipe with a name that no setting has.
        """
        taken: dict[str, Any] = {}
        known = {
            f.name for part in (self, self.optimizer, self.schedule, self.machine) for f in dataclasses.fields(part)
        }
        if unknown := sorted(set(recipe) - known):
            raise ValueError(f"the recipe names settings that training does not have: {', '.join(unknown)}")
        if self.steps is not None or self.minutes is not None:
            recipe = {**recipe, "steps": None, "minutes": None}
        elif recipe.get("steps") is not None:
            recipe = {**recipe, "minutes": None}

        for name in self._idle(recipe):
            recipe = {**recipe, name: None}

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

    def _idle(self, recipe: dict[str, Any]) -> list[str]:
        """Settings that mean nothing beside the others. Raises UserError when one of them was given."""
        idle = []
        for chooser, choice, name in (("optimizer", "adamw", "muon_lr"), ("schedule", "cosine", "decay_fraction")):
            part = getattr(self, chooser)
            if (getattr(part, chooser) or recipe.get(chooser)) == choice:
                idle.append(name)
                if getattr(part, name) is not None:
                    raise UserError(f"--{name.replace('_', '-')} has no effect with --{chooser} {choice}: leave it out")
        return idle


# What a number may be: from, to, and in words.
AT_LEAST_1 = (1, math.inf, "at least 1")
FROM_0 = (0, sys.float_info.max, "a number from 0 up")
LIMITS: dict[str, tuple[float, float, str]] = {
    **dict.fromkeys(("steps", "batch", "accumulate", "keep", "patience", "threads"), AT_LEAST_1),
    **dict.fromkeys(("eval_every", "save_every"), AT_LEAST_1),
    **dict.fromkeys(("lr", "muon_lr", "weight_decay", "clip", "warmup"), FROM_0),
    "beta2": (0, math.nextafter(1, 0), "from 0 up to, but not including, 1"),
    "decay_fraction": (0, 1, "from 0 to 1"),
    "seed": (0, 2**63 - 1, "from 0 to 2⁶³ − 1"),
    "minutes": (1e-6, 1e6, "above 0, and below a million"),
}

# What holds when neither the user nor the task's recipe says otherwise.
DEFAULT_RECIPE: dict[str, Any] = {
    "minutes": 5.0,
    "batch": 32,
    "optimizer": "muon",
    "lr": 3e-3,
    "muon_lr": 0.02,
    "weight_decay": 0.05,
    "decay": "matrices",
    "beta2": 0.95,
    "clip": 1.0,
    "schedule": "linear",
    "decay_fraction": 0.8,
}
