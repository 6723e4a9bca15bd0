"""Section 1: what attention costs in time and memory, against length."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, between, experiment, shown
from tokenloom.nn.attention import attention, explicit_attention
from tokenloom.nn.mlp import MLP
from tokenloom.plotting.svg import Line, Plot

D = 64
LENGTHS, QUICK_LENGTHS = (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048)
# Short calls are repeated to at least this many seconds, because of the resolution of the clock.
MIN_SECONDS = 0.02


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of all tensors that are created inside and alive at the same time. `peak`: their maximum.

    Temporary memory of kernels is not counted; views count once, with the storage that they share.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and count the storages that it creates."""
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        outputs = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in inputs and key not in self._known:
                self._known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, key, size)
        return outputs

    def _freed(self, key: int, size: int) -> None:
        self.now -= size
        self._known.discard(key)


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the peak of the bytes of tensors that a function creates."""
    live = LiveBytes()
    with live:
        work()
    return live.peak


def clock() -> float:
    """Return the user CPU seconds of this process; on Windows, user and system.

    Page faults count as system time, which on virtual machines takes as long as the arithmetic.
    """
    if sys.platform == "win32":
        return time.process_time()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def cpu_seconds(works: Sequence[Callable[[], Any]]) -> tuple[list[float], list[float]]:
    """Return the seconds of `clock` per call of each function, and those with system time: the best of three rounds.

    Functions take turns, so that a disturbance affects at most one round of each.
    """
    calls = []
    for work in works:
        began = time.process_time()
        work()
        calls.append(max(1, round(MIN_SECONDS / max(time.process_time() - began, 1e-5))))
    own, whole = ([float("inf")] * len(works) for _ in range(2))
    for _ in range(3):
        for place, (work, count) in enumerate(zip(works, calls, strict=True)):
            began, began_whole = clock(), time.process_time()
            for _ in range(count):
                work()
            own[place] = min(own[place], (clock() - began) / count)
            whole[place] = min(whole[place], (time.process_time() - began_whole) / count)
    return own, whole


def slope(lengths: tuple[int, ...], values: list[float]) -> float:
    """Return the slope of the straight line through log value against log length."""
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


@experiment(
    "1.8",
    "Cost against length",
    question="What does twice the length cost?",
    protocol="D = 64, one head, N = 256 … 4096: explicit N × N attention without output projection, the same with the "
    "fused kernel, and an MLP with 256 ReLU units; best of 3, no gradients, one thread, user CPU time. Slopes from N "
    "= 512.",
    explanation="The cost of attention of N queries to N keys grows with the square of the length, that of an MLP, "
    "which maps each token alone, linearly. The fused kernel does as many multiplications but never stores the N × N "
    "weights: its memory grows linearly, and it saves the passes over them.",
    seconds=4.0,
    quick=True,
)
def cost(ctx: ExperimentContext) -> Outcome:
    """1.8."""
    g = ctx.generator()
    maps = [torch.randn(D, D, generator=g) / D**0.5 for _ in "qkv"]
    torch.manual_seed(ctx.seed)
    mlp = MLP(D, 4 * D, "relu")

    def heads(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        Q, K, V = ((X @ W)[None, None] for W in maps)
        return Q, K, V

    works: dict[str, Callable[[Tensor], Any]] = {
        "explicit attention": lambda X: explicit_attention(*heads(X))[0],
        "fused attention": lambda X: attention(*heads(X)),
        "MLP": mlp,
    }
    lengths = QUICK_LENGTHS if ctx.quick else LENGTHS
    longest = f"N = {lengths[-1]}"
    inputs = [torch.randn(N, D, generator=g) for N in lengths]
    bound = [partial(work, X) for work in works.values() for X in inputs]
    with torch.no_grad():
        found = [[peak_bytes(work) / 2**20 for work in bound], *cpu_seconds(bound)]
    count = len(lengths)
    memory, seconds, whole = (
        {name: values[i * count : (i + 1) * count] for i, name in enumerate(works)} for values in found
    )
    time_slopes = {name: slope(lengths[1:], values[1:]) for name, values in seconds.items()}
    memory_slopes = {name: slope(lengths[1:], values[1:]) for name, values in memory.items()}
    last = {name: values[-1] for name, values in memory.items()}
    times = [values["explicit attention"][-1] / values["fused attention"][-1] for values in (seconds, whole)]
    time_slope, memory_slope = "slope of the time, {}".format, "slope of the memory, {}".format
    saved = last["explicit attention"] / last["fused attention"]
    low, high = (1.4, 2.6) if ctx.quick else (1.7, 2.3)
    measurements = [
        between(time_slope("explicit attention"), low, high, time_slopes["explicit attention"], "1.7 … 2.3"),
        between(
            time_slope("MLP"), 0.6 if ctx.quick else 0.8, 1.6 if ctx.quick else 1.3, time_slopes["MLP"], "0.8 … 1.3"
        ),
        shown(time_slope("fused attention"), f"{time_slopes['fused attention']:.2f}"),
        between(memory_slope("explicit attention"), 1.7, 2.1, memory_slopes["explicit attention"], "own figure"),
        between(memory_slope("fused attention"), 0.9, 1.1, memory_slopes["fused attention"], "own figure"),
        at_least(f"memory at {longest}, explicit ÷ fused", 10, saved, "own figure"),
        shown(f"time at {longest}, explicit ÷ fused", f"{times[0]:.1f}; with system time {times[1]:.1f}"),
        shown("threads", str(torch.get_num_threads())),
    ]
    for name in works:
        measurements.append(shown(f"{name}, {longest}", f"{seconds[name][-1] * 1e3:.1f} ms, {last[name]:.1f} MiB"))

    def plot_of(title: str, caption: str, unit: str, values: dict[str, list[float]]) -> Plot:
        lines = [Line(name, lengths, found) for name, found in values.items()]
        return Plot(title, caption, "tokens", unit, lines, log_x=True, log_y=True)

    plots = [
        plot_of("Time", "Twice the length: four times the time of attention.", "seconds", seconds),
        plot_of(
            "Memory", "The explicit attention stores N × N weights, the fused kernel does not.", "peak MiB", memory
        ),
    ]
    return Outcome(measurements, plots)
