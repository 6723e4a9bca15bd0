"""The settings of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tokenloom.config import Options, option

SAVING, MACHINE = "Evaluation and saving", "Machine"


@dataclass(frozen=True)
class TrainingSettings(Options):
    """How to train. A value of None is taken from the task's recipe, or derived by `planning.estimate.make_plan`."""

    group: ClassVar[str] = "Optimization"

    steps: int | None = option(None, "optimizer steps", low=1, excludes="minutes")
    minutes: float | None = option(
        None, "approximate training time; sets the number of steps from the measured speed", above=0, high=1_000_000
    )
    batch_size: int | None = option(None, "samples per step, over all micro-batches and processes", low=1)
    grad_accum: int = option(1, "micro-batches per step (gradient accumulation), to save memory", low=1)
    optimizer: Literal["muon", "adamw"] | None = option(
        None, "muon: Muon for hidden matrices and AdamW for the rest; adamw: AdamW for all parameters"
    )
    lr: float | None = option(None, "peak learning rate of AdamW", low=0)
    muon_lr: float | None = option(None, "peak learning rate of Muon", low=0, only={"optimizer": "muon"})
    lr_schedule: Literal["cosine", "wsd"] | None = option(
        None, "after warmup_steps: cosine decay to zero; or wsd: constant, then linear decay to zero"
    )
    warmup_steps: int | None = option(None, "steps of linear warmup_steps", low=0)
    decay_fraction: float | None = option(
        None, "wsd: fraction of all steps in the final decay", low=0, high=1, only={"lr_schedule": "wsd"}
    )
    weight_decay: float | None = option(None, "decoupled weight decay", low=0)
    weight_decay_on: Literal["matrices", "all"] | None = option(
        None, "parameters with weight decay: hidden matrices, or all"
    )
    beta2: float | None = option(None, "beta2 of AdamW", low=0, below=1)
    grad_clip: float | None = option(None, "clip the gradient norm at this value; 0 disables clipping", low=0)
    seed: int = option(0, "random seed", low=0, high=2**63 - 1)
    init_from: str | None = option(None, "initialize the backbone from this run, with a new head")
    freeze: Literal["none", "backbone"] = option("none", "backbone: train only the head; needs --init-from")

    eval_every: int | None = option(None, "steps between evaluations on the validation split", low=1, group=SAVING)
    save_every: int | None = option(
        None, "steps between checkpoints; one is also saved at each evaluation", low=1, group=SAVING
    )
    keep_checkpoints: int = option(2, "number of latest checkpoints to keep, besides the best", low=1, group=SAVING)
    patience: int | None = option(None, "stop after this many evaluations without a new best loss", low=1, group=SAVING)

    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps, …", group=MACHINE)
    dtype: Literal["float32", "bfloat16"] = option(
        "float32", "dtype of matrix products; weights stay in float32", group=MACHINE
    )
    compile: bool = option(False, "compile the model with torch.compile", group=MACHINE)
    threads: int | None = option(None, "CPU threads; timed and chosen when not given", low=1, group=MACHINE)
    parallel: Literal["ddp", "fsdp"] | None = option(
        None,
        "under torchrun: replicate the model (ddp), or shard it over the processes (fsdp) [default: ddp]",
        group=MACHINE,
    )
    activation_checkpointing: bool = option(
        False, "recompute activations in the backward pass, to save memory", group=MACHINE
    )


# The values when neither the user nor the task's recipe gives one.
DEFAULT_RECIPE: dict[str, Any] = {
    "minutes": 5.0,
    "batch_size": 32,
    "optimizer": "muon",
    "lr": 3e-3,
    "muon_lr": 0.02,
    "weight_decay": 0.05,
    "weight_decay_on": "matrices",
    "beta2": 0.95,
    "grad_clip": 1.0,
    "lr_schedule": "wsd",
    "decay_fraction": 0.8,
}
