"""Forecast of a training on given hardware: memory, tokens/s, days, and what would make it fit.

Memory and FLOPs are those of `costs.py`, rates those of `hardware.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tokenloom.config import flag
from tokenloom.models.gpt import GPT
from tokenloom.planning.costs import (
    Memory,
    Mode,
    Optimizer,
    Precision,
    Work,
    memory,
    planned_flops_per_token,
    workspace_bytes,
)
from tokenloom.planning.hardware import Hardware

# Fraction of device memory left to the framework and to fragmentation.
RESERVE = 0.1
# Model FLOPs utilization that optimized trainings reach: GPT-3 21 %, Llama 2 about 42 %, PaLM 46 % (Chowdhery et al.
# 2022, table 3, for the first and the last).
MFU = 0.4
# Compute-optimal number of tokens per parameter, approximately (Hoffmann et al. 2022, table 3).
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Training:
    """A training, without the hardware.

    model: may be on the meta device. num_tokens: over all epochs. batch_size: samples per step, over all devices.
    grad_accum: micro-batches per step.
    """

    model: GPT
    num_tokens: int
    batch_size: int
    grad_accum: int = 1
    optimizer: Optimizer = "muon"
    separate_documents: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of the whole training, without recomputation."""
        return self.num_tokens * planned_flops_per_token(self.model)

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return -(-self.num_tokens // (self.batch_size * self.model.config.context))

    def micro_batch_size(self, num_devices: int) -> int:
        """Return the largest number of samples of a device in a micro-batch."""
        return -(-self.batch_size // (self.grad_accum * num_devices))


@dataclass(frozen=True)
class Forecast:
    """A training on several devices of one kind.

    memory, workspace: bytes per device; the workspace is needed temporarily, at the end of the forward pass. mfu: model
    FLOPs utilization, the fraction of the peak rate that is used. tokens_per_second: of all devices together.
    missing: bytes that a device lacks, 0 when the training fits. remedy: what would make it fit, "" when it does.
    """

    hardware: Hardware
    num_devices: int
    mode: Mode
    dtype: Precision
    activation_checkpointing: bool
    memory: Memory
    workspace: int
    mfu: float
    tokens_per_second: float
    seconds: float
    missing: int
    remedy: str = ""

    @property
    def needed(self) -> int:
        """Bytes needed per device."""
        return self.memory.total + self.workspace

    @property
    def fits(self) -> bool:
        """Whether each device has enough memory, with a tenth of it kept free."""
        return self.missing == 0

    @property
    def days(self) -> float:
        """Days of training."""
        return self.seconds / 86400


def forecast(
    training: Training,
    hardware: Hardware,
    *,
    num_devices: int = 1,
    mode: Mode = "one device",
    dtype: Precision | None = None,
    activation_checkpointing: bool = False,
    mfu: float = MFU,
) -> Forecast:
    """Return the forecast of a training: tokens/s = devices × peak rate × MFU ÷ FLOPs per token.

    dtype: None for the usual one of the hardware. mfu: over the whole training, communication included; replaced by the
    measured value where the hardware has one.
    """
    model = training.model
    dtype = hardware.usual_dtype if dtype is None else dtype
    work = Work(training.micro_batch_size(num_devices), dtype, activation_checkpointing, training.separate_documents)
    needed = memory(model, work, optimizer=training.optimizer, mode=mode, devices=num_devices)
    workspace = workspace_bytes(model, work)
    missing = max(0, needed.total + workspace - int(hardware.memory * (1 - RESERVE)))
    flops = planned_flops_per_token(model, activation_checkpointing)
    mfu = mfu if hardware.mfu is None else hardware.mfu
    rate = num_devices * hardware.peak(dtype) * mfu / flops
    return Forecast(
        hardware,
        num_devices,
        mode,
        dtype,
        activation_checkpointing,
        needed,
        workspace,
        mfu,
        rate,
        training.num_tokens / rate,
        missing,
    )


def forecasts(
    training: Training,
    hardware: Hardware,
    *,
    num_devices: int = 1,
    dtype: Precision | None = None,
    mfu: float = MFU,
) -> list[Forecast]:
    """Return a forecast for every parallel mode, without and with activation checkpointing, each with its remedy."""
    modes: list[tuple[Mode, int]] = [("one device", 1)]
    if num_devices > 1:
        modes += [("ddp", num_devices), ("fsdp", num_devices)]
    results = []
    for mode, n in modes:
        for checkpointing in (False, True):
            one = forecast(
                training,
                hardware,
                num_devices=n,
                mode=mode,
                dtype=dtype,
                activation_checkpointing=checkpointing,
                mfu=mfu,
            )
            results.append(one if one.fits else replace(one, remedy=remedy(training, one)))
    return results


def remedy(training: Training, failed: Forecast, *, max_devices: int = 1 << 17) -> str:
    """Return the cheapest options of `train` with which a training would fit.

    Tried in order: smaller micro-batches, activation checkpointing, and FSDP on as few devices as suffice, in powers of
    two times those given.
    """

    def fits(changed: Training, num_devices: int, mode: Mode, checkpointing: bool) -> bool:
        return forecast(
            changed,
            failed.hardware,
            num_devices=num_devices,
            mode=mode,
            dtype=failed.dtype,
            activation_checkpointing=checkpointing,
        ).fits

    choices = [(False, ""), (True, flag("activation_checkpointing"))]
    if failed.activation_checkpointing:
        choices = [(True, "")]
    for checkpointing, option in choices:
        for grad_accum in _doublings(training.grad_accum, training.batch_size // failed.num_devices):
            if fits(replace(training, grad_accum=grad_accum), failed.num_devices, failed.mode, checkpointing):
                accumulate = f"{flag('grad_accum')} {grad_accum}" if grad_accum != training.grad_accum else ""
                return " and ".join(filter(None, (accumulate, option)))
    for n in _doublings(max(2, failed.num_devices), max_devices):
        batch_size = max(n, training.batch_size)
        smallest = replace(training, batch_size=batch_size, grad_accum=max(1, batch_size // n))
        for checkpointing, option in choices:
            if fits(smallest, n, "fsdp", checkpointing):
                options = " ".join(filter(None, (f"{flag('parallel')} fsdp", option)))
                return f"{options} on {n:,} devices, with micro-batches of 1 sample"
    return "a smaller model or context: one sample needs too much memory on any number of devices"


def _doublings(first: int, last: int) -> Iterator[int]:
    """Yield first, 2 first, 4 first … below last, then last if it is above first, else first."""
    value = first
    while value < last:
        yield value
        value *= 2
    yield max(first, last)
