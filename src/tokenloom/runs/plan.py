"""Forecasts of a text-generation training from its sizes, its data, and hardware: `tokenloom plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import nn

from tokenloom.config import Options, build, fill, flag, option, refuse_unknown
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPTConfig
from tokenloom.nn.modules import count_parameters
from tokenloom.planning.costs import Optimizer, Precision, Work, memory, planned_flops_per_token, planned_model
from tokenloom.planning.estimate import choose_threads
from tokenloom.planning.forecast import MFU, TOKENS_PER_PARAMETER, Forecast, Training, forecasts
from tokenloom.planning.hardware import THIS, Hardware, built_in, find_hardware
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.tokenizers.base import END
from tokenloom.training.batches import BatchContext
from tokenloom.training.losses import LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

# A step on this machine is timed if it is expected to take at most this long, in seconds.
MAX_STEP_SECONDS = 5.0


@dataclass(frozen=True)
class PlanSettings(Options):
    """Options of a plan, besides those of the model."""

    group: ClassVar[str] = "Optimization"

    num_tokens: int | None = option(
        None, "training tokens over all epochs; without data, 20 per parameter", low=1, excludes="epochs"
    )
    epochs: float | None = option(None, "passes over the training data [default: 1]", above=0, below=1e9)
    batch_size: int | None = option(None, "samples per step, over all devices; that of the size preset", low=1)
    grad_accum: int = option(1, "micro-batches per step (gradient accumulation), to save memory", low=1)
    optimizer: Optimizer | None = option(None, "muon stores 4 bytes per hidden weight, adamw 8 per parameter")
    dtype: Precision | None = option(None, "dtype of matrix products; the usual one of the hardware", group="Machine")
    hardware: list[str] = option(
        [], "hardware by name, this, or your own file.toml; may be repeated; all when not given", group="Machine"
    )
    num_devices: int = option(1, "number of devices", low=1, group="Machine")
    mfu: float = option(
        MFU, "model FLOPs utilization: fraction of the peak rate, where not measured", above=0, high=1, group="Machine"
    )


@dataclass(frozen=True)
class TextPlan:
    """A training, the source of its number of tokens, and its forecast for each hardware and parallel mode."""

    training: Training
    tokens_from: str
    forecasts: list[Forecast]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`."""
        t = self.training
        return {
            "parameters": count_parameters(t.model),
            "flops_per_token": planned_flops_per_token(t.model),
            "flops": t.flops,
            "num_tokens": t.num_tokens,
            "tokens_from": self.tokens_from,
            "steps": t.steps,
            "batch_size": t.batch_size,
            "grad_accum": t.grad_accum,
            "optimizer": t.optimizer,
            "model": t.model.config.as_dict(),
            "forecasts": [_as_dict(one) for one in self.forecasts],
        }


def _as_dict(one: Forecast) -> dict[str, Any]:
    return {
        "hardware": one.hardware.name,
        "source": one.hardware.source,
        "num_devices": one.num_devices,
        "mode": one.mode,
        "dtype": one.dtype,
        "activation_checkpointing": one.activation_checkpointing,
        "weight_bytes": one.memory.weights,
        "gradient_bytes": one.memory.gradients,
        "optimizer_bytes": one.memory.optimizer,
        "activation_bytes": one.memory.activations,
        "memory_bytes": one.memory.total,
        "workspace_bytes": one.workspace,
        "needed_bytes": one.needed,
        "device_bytes": one.hardware.memory,
        "fits": one.fits,
        "remedy": one.remedy,
        "mfu": one.mfu,
        "tokens_per_second": one.tokens_per_second,
        "seconds": one.seconds,
        "days": one.days,
    }


def plan(data: str | None = None, **given: Any) -> TextPlan:
    """Return the plan of a text-generation training with these settings of the task and of `PlanSettings`.

    data: read to count its tokens and to find the vocabulary; without it, `num_tokens`, or 20 per parameter (Hoffmann
    et al. 2022). Raise UserError for settings out of range and unknown hardware.
    """
    refuse_unknown(given, [TextGenerationSettings, PlanSettings])
    own = build(PlanSettings, given)
    names = own.hardware or [THIS, *built_in()]
    # Look all names up before the data are read; this machine is measured after that.
    by_name = {name: [] if name == THIS else find_hardware([name]) for name in names}
    task = TextGeneration(build(TextGenerationSettings, given))
    if task.settings.model != "gpt":
        raise UserError(
            f"{flag('model')} {task.settings.model}: plan supports gpt only; tokenloom train {flag('dry_run')} shows"
            " the costs of others"
        )
    training, tokens_from = _training(task, data, own)
    min_batch_size = own.num_devices * own.grad_accum
    if min_batch_size > training.batch_size:
        raise UserError(
            f"{flag('num_devices')} {own.num_devices}: {flag('batch_size')} {training.batch_size} with"
            f" {flag('grad_accum')} {own.grad_accum} leaves devices without samples; {flag('batch_size')}"
            f" {min_batch_size} is the least"
        )
    if THIS in by_name:
        by_name[THIS] = [_this_machine(task, training, own.dtype)]
    results: list[Forecast] = []
    for hardware in (one for found in by_name.values() for one in found):
        # Of hardware that nobody asked for by name, one without this dtype takes its usual one.
        dtype = own.dtype if own.hardware or own.dtype in hardware.peaks else None
        results += forecasts(training, hardware, num_devices=own.num_devices, dtype=dtype, mfu=own.mfu)
    return TextPlan(training, tokens_from, results)


def _training(task: TextGeneration, data: str | None, own: PlanSettings) -> tuple[Training, str]:
    """Return the training that the settings describe, and where its number of tokens is from."""
    separate_documents, available = False, None
    if data is None:
        if own.epochs is not None:
            raise UserError(f"{flag('epochs')} {own.epochs}: needs data; give some, or {flag('num_tokens')}")
        prepared = task.load(None)
    else:
        prepared = task.load(data)
        available = len(cast(TextWindows, prepared.train).ids)
        separate_documents = END in task.tokenizer.specials
    model = planned_model(GPTConfig(**{name: value for name, value in task.model_config.items() if name != "kind"}))
    if own.num_tokens is not None:
        num_tokens, tokens_from = own.num_tokens, flag("num_tokens")
        if available is not None:
            tokens_from += f", {own.num_tokens / available:.3g} times the training split of {data}"
    elif available is not None:
        num_tokens = max(1, round(available * (own.epochs or 1)))
        tokens_from = f"the training split of {data}, {own.epochs or 1:g} times"
    else:
        num_tokens = TOKENS_PER_PARAMETER * count_parameters(model)
        tokens_from = f"{TOKENS_PER_PARAMETER} per parameter"
    recipe = {**DEFAULT_RECIPE, **prepared.recipe}
    training = Training(
        model,
        num_tokens,
        own.batch_size or recipe["batch_size"],
        own.grad_accum,
        own.optimizer or recipe["optimizer"],
        separate_documents,
    )
    return training, tokens_from


def _this_machine(task: TextGeneration, training: Training, dtype: Precision | None) -> Hardware:
    """Return this machine, with the MFU of a timed step unless that would need too much time or memory."""
    (machine,) = find_hardware([THIS])
    if dtype is None or dtype not in machine.peaks:
        dtype = machine.usual_dtype
    context = training.model.config.context
    flops = planned_flops_per_token(training.model) * training.batch_size * context
    needed = memory(training.model, Work(training.micro_batch_size(1), dtype), optimizer=training.optimizer).total
    if flops / (0.2 * machine.peak(dtype)) > MAX_STEP_SECONDS or needed > machine.memory / 3:
        return machine
    given = TrainingSettings(
        steps=1000,
        batch_size=training.batch_size,
        grad_accum=training.grad_accum,
        optimizer=training.optimizer,
        dtype=dtype,
    )
    settings, _ = fill(given, DEFAULT_RECIPE)
    model = task.build_model(0).to("cuda" if torch.cuda.is_available() else "cpu")
    _, seconds = choose_threads(_NextToken(), model, settings, lambda step: _random_batches(training, step))
    # The peak again, with the number of threads just chosen.
    (machine,) = find_hardware([THIS])
    return replace(machine, mfu=min(1.0, flops / seconds / machine.peak(dtype)))


def _random_batches(training: Training, step: int) -> list[Batch]:
    """Return the micro-batches of a step, of random ids."""
    c, generator = training.model.config, torch.Generator().manual_seed(step)
    shape = (training.micro_batch_size(1), c.context + 1)
    drawn = [torch.randint(c.vocab_size, shape, generator=generator) for _ in range(training.grad_accum)]
    return [Batch({"text": Stream(ids=ids[:, :-1])}, {"loss": ids[:, 1:]}) for ids in drawn]


class _NextToken:
    """The part of a task that timing a step needs: next-token prediction without data or tokenizer."""

    metrics = (Metric("loss", "nats/token", "lower"),)

    def collate(self, samples: Any, context: BatchContext) -> Batch:
        raise NotImplementedError("a timed step uses random ids")

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        return {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}
