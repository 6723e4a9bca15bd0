"""`tokenloom plan` for text generation: from sizes, data and machines to forecasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from tokenloom.config import Options, build, fill, option, refuse_unknown
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPTConfig
from tokenloom.planning.costs import Optimizer, Precision, Sizes, Work, flops_per_token, memory, parameters
from tokenloom.planning.estimate import choose_threads
from tokenloom.planning.forecast import TOKENS_PER_PARAMETER, UTILISATION, Forecast, Training, forecasts
from tokenloom.planning.hardware import THIS, Hardware, built_in, find_hardware
from tokenloom.tasks._text_generation_settings import TextGenerationSettings
from tokenloom.tasks.text_generation import TextGeneration
from tokenloom.tokenizers.base import END
from tokenloom.training.batches import BatchContext
from tokenloom.training.losses import LossTerms, MetricSum, cross_entropy_term
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

# A step of this machine is timed when it is expected to take no longer, in seconds.
LONGEST_STEP = 5.0


@dataclass(frozen=True)
class PlanSettings(Options):
    """What a plan asks for beside the sizes of the model."""

    tokens: int | None = option(None, "tokens to train on, over all epochs; 20 a parameter when there are no data")
    epochs: float | None = option(None, "how often the data are gone through; once when not given")
    batch_size: int | None = option(None, "samples a step, over all devices; that of the size when not given")
    grad_accum: int = option(1, "micro-batches that a step is split into, to save memory")
    optimizer: Optimizer | None = option(None, "muon keeps 4 bytes a hidden number, adamw 8 of each")
    dtype: Precision | None = option(None, "of the products; the machine's usual one")
    hardware: list[str] = option([], "a machine, this, or a file.toml of your own; may be repeated; all when not given")
    count: int = option(1, "devices of each machine")
    utilisation: float = option(UTILISATION, "share of the peak rate that is reached, where it was not measured")

    def check(self) -> None:
        for name in ("tokens", "batch_size", "grad_accum", "count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.epochs is not None and not 0 < self.epochs < 1e9:
            raise UserError(f"--epochs {self.epochs}: must be above 0")
        if not 0 < self.utilisation <= 1:
            raise UserError(f"--utilisation {self.utilisation}: must be above 0 and at most 1")
        if self.tokens is not None and self.epochs is not None:
            raise UserError("--tokens and --epochs: give one of them, both say how much to train on")


@dataclass(frozen=True)
class TextPlan:
    """A training, where its number of tokens comes from, and what it would need on each machine."""

    training: Training
    tokens_from: str
    forecasts: list[Forecast]

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return -(-self.training.tokens // (self.training.batch_size * self.training.sizes.context))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        t = self.training
        return {
            "parameters": parameters(t.sizes),
            "flops_per_token": flops_per_token(t.sizes),
            "flops": t.flops,
            "tokens": t.tokens,
            "tokens_from": self.tokens_from,
            "steps": self.steps,
            "batch_size": t.batch_size,
            "grad_accum": t.grad_accum,
            "optimizer": t.optimizer,
            "sizes": vars(t.sizes),
            "forecasts": [_row(one) for one in self.forecasts],
        }


def _row(one: Forecast) -> dict[str, Any]:
    m = one.memory
    return {
        "hardware": one.hardware.name,
        "source": one.hardware.source,
        "devices": one.devices,
        "mode": one.mode,
        "dtype": one.dtype,
        "activation_checkpointing": one.activation_checkpointing,
        "weight_bytes": m.weights,
        "gradient_bytes": m.gradients,
        "optimizer_bytes": m.optimizer,
        "activation_bytes": m.activations,
        "memory_bytes": m.total,
        "workspace_bytes": one.workspace,
        "needed_bytes": one.needed,
        "device_bytes": one.hardware.memory,
        "fits": one.fits,
        "remedy": one.remedy,
        "utilisation": one.utilisation,
        "tokens_per_second": one.tokens_per_second,
        "seconds": one.seconds,
        "days": one.days,
    }


def plan(data: str | None = None, **given: Any) -> TextPlan:
    """What training a text model would need: sizes as for training, and the settings of `PlanSettings`, by flat name.

    data: what is read to count its tokens, and to know the vocabulary; without it, `tokens` of them or 20 a parameter
    (Hoffmann et al. 2022). Raises UserError for sizes, machines and numbers that cannot be.
    """
    refuse_unknown(given, [TextGenerationSettings, PlanSettings])
    own = build(PlanSettings, given)
    names = own.hardware or [THIS, *built_in()]
    machines = {name: [] if name == THIS else find_hardware([name]) for name in names}
    task = TextGeneration(build(TextGenerationSettings, given))
    if task.settings.model != "gpt":
        raise UserError(f"--model {task.settings.model}: plans are for gpt; tokenloom train --dry-run shows others")
    training, where = _training(task, data, own)
    if own.count * own.grad_accum > training.batch_size:
        raise UserError(
            f"--count {own.count}: --batch-size {training.batch_size} with --grad-accum {own.grad_accum} leaves devices"
            f" without samples; --batch-size {own.count * own.grad_accum} is the least"
        )
    if THIS in machines:
        machines[THIS] = [_this(task, training, own.dtype)]
    found: list[Forecast] = []
    for machine in (one for some in machines.values() for one in some):
        known = own.hardware or own.dtype in machine.peaks
        found += forecasts(
            training,
            machine,
            devices=own.count,
            dtype=own.dtype if known else None,
            utilisation=own.utilisation,
        )
    return TextPlan(training, where, found)


def _training(task: TextGeneration, data: str | None, own: PlanSettings) -> tuple[Training, str]:
    borders, there = False, None
    if data is None:
        if own.epochs is not None:
            raise UserError(f"--epochs {own.epochs}: there are no data to go through; give some, or --tokens")
        task.sketch()
    else:
        material = task.prepare(data)
        there = len(cast(TextWindows, material.training).ids)
        borders = END in task.tokenizer.specials
    sizes = Sizes.of(GPTConfig(**{name: value for name, value in task.model_config.items() if name != "kind"}))
    if own.tokens is not None:
        tokens, where = own.tokens, "--tokens"
        if there is not None:
            where += f", {own.tokens / there:.3g} times the training part of {data}"
    elif there is not None:
        tokens = max(1, round(there * (own.epochs or 1)))
        where = f"the training part of {data}, {own.epochs or 1:g} times"
    else:
        tokens, where = TOKENS_PER_PARAMETER * parameters(sizes), f"{TOKENS_PER_PARAMETER} a parameter"
    recipe = {**DEFAULT_RECIPE, **task.recipe()}
    return (
        Training(
            sizes,
            tokens,
            own.batch_size or recipe["batch_size"],
            own.grad_accum,
            own.optimizer or recipe["optimizer"],
            borders,
        ),
        where,
    )


def _this(task: TextGeneration, training: Training, wanted: Precision | None) -> Hardware:
    """This machine, with the utilisation of one timed step, unless that would take too long or too much memory."""
    (machine,) = find_hardware([THIS])
    dtype = machine.usual if wanted is None or wanted not in machine.peaks else wanted
    s = training.sizes
    a_step = flops_per_token(s) * training.batch_size * s.context
    need = memory(s, Work(training.samples(1), dtype), optimizer=training.optimizer).total
    if a_step / (0.2 * machine.rate(dtype)) > LONGEST_STEP or need > machine.memory / 3:
        return machine
    settings, _ = fill(
        TrainingSettings(
            steps=1000,
            batch_size=training.batch_size,
            grad_accum=training.grad_accum,
            optimizer=training.optimizer,
            dtype=dtype,
        ),
        DEFAULT_RECIPE,
    )
    model = task.build(0).to("cuda" if torch.cuda.is_available() else "cpu")
    _, seconds = choose_threads(NextId(), model, settings, lambda step: _random_batches(training, step))
    # Again, with the number of threads that was just chosen.
    (machine,) = find_hardware([THIS])
    return replace(machine, utilisation=min(1.0, a_step / seconds / machine.rate(dtype)))


def _random_batches(training: Training, step: int) -> list[Batch]:
    """The micro-batches of a step, of random ids."""
    s, draw = training.sizes, torch.Generator().manual_seed(step)
    rows = [training.samples(1)] * training.grad_accum
    made = [torch.randint(s.vocab_size, (count, s.context + 1), generator=draw) for count in rows]
    return [Batch({"text": Stream(ids=ids[:, :-1])}, {"loss": ids[:, 1:]}) for ids in made]


class NextId:
    """As much of a task as timing a step needs: predict the next id, without data or tokenizer."""

    def collate(self, samples: Any, moment: BatchContext) -> Batch:
        """Batches are given from outside."""
        raise ValueError("the batches of a timed step are made of random ids")

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """The cross-entropy of the next id."""
        return {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        """The loss alone."""
        return {"loss": totals["loss"].value}
