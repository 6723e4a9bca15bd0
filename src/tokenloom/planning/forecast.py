"""A training on machines near and far: memory, tokens a second, days, and what would make it fit.

Memory and work are those of `footprint.py`, rates those of `hardware.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tokenloom.planning.costs import (
    Mode,
    Optimizer,
    Precision,
    Sizes,
    Work,
    flops_per_token,
    memory,
    recomputed_flops_per_token,
    workspace_bytes,
)
from tokenloom.planning.estimate import Memory
from tokenloom.planning.hardware import Hardware

# What the framework and fragmentation take of a device.
RESERVE = 0.1
# A share of the peak that well-made trainings reach: GPT-3 21 %, Llama 2 about 42 %, PaLM 46 % (Chowdhery et al. 2022,
# table 3, for the first and the last).
UTILISATION = 0.4
# Tokens a parameter at which loss falls fastest with compute, about (Hoffmann et al. 2022, table 3).
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Training:
    """What is to be trained, and how: all but the machine.

    tokens: in all, over all epochs. batch: samples a step over all devices. grad_accum: micro-batches a step.
    """

    sizes: Sizes
    tokens: int
    batch_size: int
    grad_accum: int = 1
    optimizer: Optimizer = "muon"
    borders: bool = False

    @property
    def flops(self) -> int:
        """Of the whole training, without anything that is computed twice."""
        return self.tokens * flops_per_token(self.sizes)

    def samples(self, devices: int) -> int:
        """The largest number of samples that a device has in a micro-batch."""
        return -(-self.batch_size // (self.grad_accum * devices))


@dataclass(frozen=True)
class Forecast:
    """A training on some devices of one kind, in one mode.

    workspace: bytes needed for a moment beside the memory. tokens_per_second: of all devices together. short: bytes
    that a device lacks, 0 when it fits. remedy: what would make it fit, "" when it does.
    """

    hardware: Hardware
    devices: int
    mode: Mode
    dtype: Precision
    activation_checkpointing: bool
    memory: Memory
    workspace: int
    utilisation: float
    tokens_per_second: float
    seconds: float
    short: int
    remedy: str = ""

    @property
    def needed(self) -> int:
        """Bytes on each device, all together."""
        return self.memory.total + self.workspace

    @property
    def fits(self) -> bool:
        """Whether it fits into the memory of each device, with a tenth kept free."""
        return self.short == 0

    @property
    def days(self) -> float:
        """To the end."""
        return self.seconds / 86400


def forecast(
    training: Training,
    hardware: Hardware,
    *,
    devices: int = 1,
    mode: Mode = "one device",
    dtype: Precision | None = None,
    activation_checkpointing: bool = False,
    utilisation: float = UTILISATION,
) -> Forecast:
    """Memory from `memory`; tokens a second = devices × peak × utilisation ÷ FLOPs a token.

    utilisation: the share of the peak that products reach over the whole training, communication included; that which
    was measured, where the hardware is this machine. dtype: the machine's usual one when None.
    """
    s = training.sizes
    dtype = hardware.usual if dtype is None else dtype
    work = Work(training.samples(devices), dtype, activation_checkpointing, training.borders)
    need = memory(s, work, optimizer=training.optimizer, mode=mode, devices=devices)
    space = workspace_bytes(s, work)
    short = max(0, need.total + space - int(hardware.memory * (1 - RESERVE)))
    a_token = flops_per_token(s) + (recomputed_flops_per_token(s) if activation_checkpointing else 0)
    share = utilisation if hardware.utilisation is None else hardware.utilisation
    rate = devices * hardware.rate(dtype) * share / a_token
    return Forecast(
        hardware,
        devices,
        mode,
        dtype,
        activation_checkpointing,
        need,
        space,
        share,
        rate,
        training.tokens / rate,
        short,
    )


def remedy(training: Training, found: Forecast, *, most: int = 1 << 17) -> str:
    """What would make a training fit that does not, as options of `train`, the cheapest first: smaller micro-batches,
    then activation checkpointing, then sharding over as few devices as suffice (doubling up to `most`)."""
    hardware, dtype = found.hardware, found.dtype

    def fits(change: Training, devices: int, mode: Mode, activation_checkpointing: bool) -> bool:
        return forecast(
            change,
            hardware,
            devices=devices,
            mode=mode,
            dtype=dtype,
            activation_checkpointing=activation_checkpointing,
        ).fits

    devices, mode = found.devices, found.mode
    for activation_checkpointing in sorted({found.activation_checkpointing, True}):
        for grad_accum in _doublings(training.grad_accum, training.batch_size // devices):
            if fits(replace(training, grad_accum=grad_accum), devices, mode, activation_checkpointing):
                ways = [f"--grad-accum {grad_accum}"] if grad_accum != training.grad_accum else []
                ways += (
                    ["--activation-checkpointing"]
                    if activation_checkpointing and not found.activation_checkpointing
                    else []
                )
                return " and ".join(ways)
    for count in _doublings(max(2, devices), most):
        whole = replace(training, batch_size=max(count, training.batch_size), grad_accum=1)
        smallest = replace(whole, grad_accum=max(1, whole.batch_size // count))
        for activation_checkpointing in sorted({found.activation_checkpointing, True}):
            if fits(smallest, count, "fully sharded", activation_checkpointing):
                also = (
                    " --activation-checkpointing"
                    if activation_checkpointing and not found.activation_checkpointing
                    else ""
                )
                return f"--parallel fsdp{also}, over {count:,} of them, 1 sample at a time"
    return "a smaller model or context: one sample is too much for any number of them"


def _doublings(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first … below last, and last, if it is above first."""
    value = first
    while value < last:
        yield value
        value *= 2
    yield max(first, last)


def forecasts(
    training: Training,
    hardware: Hardware,
    *,
    devices: int = 1,
    dtype: Precision | None = None,
    utilisation: float = UTILISATION,
) -> list[Forecast]:
    """Every mode that there is on so many devices, without and with activation checkpointing."""
    modes: list[tuple[Mode, int]] = [("one device", 1)]
    if devices > 1:
        modes += [("data-parallel", devices), ("fully sharded", devices)]
    found = []
    for mode, count in modes:
        for activation_checkpointing in (False, True):
            one = forecast(
                training,
                hardware,
                devices=count,
                mode=mode,
                dtype=dtype,
                activation_checkpointing=activation_checkpointing,
                utilisation=utilisation,
            )
            found.append(one if one.fits else replace(one, remedy=remedy(training, one)))
    return found
