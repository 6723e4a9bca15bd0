"""Cost of long sequences: fused against explicit attention, and a training step against its context.

Memory is the peak of a new process minus its memory before attention. The plot of the training step, length.png, is
written with the results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import data
from benchmarks.harness import SPEEDUP, Row, Setting, Spread, at_most, crossing, progress, slope, timed
from tokenloom.config import fill
from tokenloom.models.gpt import GPT
from tokenloom.nn.attention import explicit_attention
from tokenloom.nn.masks import Causal
from tokenloom.nn.ops import fused_attention
from tokenloom.training.batches import Batches
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

LONG, HEAD = 16_384, 64
LENGTHS = (2048, 4096, 8192, LONG)
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
TOKENS = 4096  # per step, for every context

WHOLE, ATTENTION, PAIRS, MLP = "training step", "attention", "Q Kᵀ and A V", "MLP"

Curve = list[tuple[float, float]]


def attend(backend: str, N: int, threads: int) -> dict[str, float]:
    """Return seconds and bytes of one causal attention forward pass with one head; to be called in a new process."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    Q, K, V = (torch.randn(1, 1, N, HEAD, generator=generator) for _ in range(3))
    attention: Callable[..., Any] = fused_attention if backend == "fused" else explicit_attention
    with torch.no_grad():
        attention(*(x[:, :, :256] for x in (Q, K, V)), Causal())  # loads what the first call needs
        before = peak_memory(reset=True)
        began = time.perf_counter()
        attention(Q, K, V, Causal())
        return {"seconds": time.perf_counter() - began, "bytes": float(peak_memory() - before)}


def peak_memory(*, reset: bool = False) -> int:
    """Return the peak memory of this process, in bytes. reset: reset the peak first."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def attend_in_subprocess(backend: str, N: int, threads: int) -> dict[str, float]:
    """Run `attend` in its own process. Raise CalledProcessError if it fails, for example for lack of memory."""
    words = [sys.executable, "-m", "benchmarks.length", backend, str(N), str(threads)]
    process = subprocess.run(words, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(process.stdout)
    return result


def attention_rows(setting: Setting) -> list[Row]:
    N = 4096 if setting.quick else LONG
    lengths = [n for n in LENGTHS if n <= N]
    fused: dict[int, list[dict[str, float]]] = {n: [] for n in lengths}
    explicit: list[dict[str, float]] = []
    for number in range(setting.repeats):
        progress(f"attention up to {N:,} tokens, {number + 1} of {setting.repeats}")
        explicit.append(attend_in_subprocess("explicit", N, setting.threads))
        for n in lengths:
            fused[n].append(attend_in_subprocess("fused", n, setting.threads))
    name, peer, threads = f"causal attention, N = {N:,}, D = {HEAD}", "explicit N × N", setting.threads
    rows = []
    for kind, scale, unit, result_unit in (
        ("seconds", 1e3, "ms", SPEEDUP),
        ("bytes", 1e-6, "MB", "× less memory"),
    ):
        ours, theirs = ([one[kind] for one in found] for found in (fused[N], explicit))
        row = Row(
            f"{name}: {'time' if kind == 'seconds' else 'peak memory'}",
            threads,
            Spread.of([b / a for a, b in zip(ours, theirs, strict=True)]),
            result_unit,
            None,
            peer,
            scale * Spread.of(ours).median,
            scale * Spread.of(theirs).median,
            unit,
        )
        rows.append(row)
    exponents = [slope([(n, fused[n][i]["bytes"]) for n in lengths]) for i in range(setting.repeats)]
    rows.append(
        Row(
            f"fused: exponent p of memory ~ Nᵖ, N = {lengths[0]:,} … {N:,}",
            threads,
            Spread.of(exponents),
            "(p)",
            at_most(1.1),
        )
    )
    return rows


def training_step(context: int) -> tuple[Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Return a training step of the default small model on `TOKENS` tokens, and forward and backward passes of parts of
    its layers: attention, its N × N part alone, and the MLP."""
    task, prepared = data.prepared(context=context)
    settings, _ = fill(TrainingSettings(), {**DEFAULT_RECIPE, **prepared.recipe})
    model = task.build_model(0).train()
    assert isinstance(model, GPT)
    trainer = Trainer(
        task, model, settings, Batches(prepared.train, task.collate, batch_size=TOKENS // context, seed=0)
    )
    numbers = iter(range(1 << 40))
    X = torch.randn(TOKENS // context, context, model.config.width, requires_grad=True)
    positions = torch.arange(context)[None]
    position_info = model.positions.position_info(positions, positions, X.dtype)

    def forward_backward(part: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(model.config.depth):
                part(X).sum().backward()  # type: ignore[no-untyped-call]

        return work

    layer: Any = model.transformer.layers[0]
    heads = X.detach().view(*X.shape[:2], model.config.heads, -1).transpose(1, 2).requires_grad_()

    def pairs() -> None:
        for _ in range(model.config.depth):
            fused_attention(heads, heads, heads, Causal()).sum().backward()  # type: ignore[no-untyped-call]

    parts = {
        ATTENTION: forward_backward(lambda X: layer.attention(X, mask=Causal(), position_info=position_info)),
        PAIRS: pairs,
        MLP: forward_backward(layer.mlp),
    }
    return lambda: trainer.step(next(numbers), 1 << 40), parts


def curves(setting: Setting) -> dict[str, Curve]:
    """Return seconds by context, of the whole step and of its parts."""
    found: dict[str, Curve] = {name: [] for name in (WHOLE, ATTENTION, PAIRS, MLP)}
    contexts = CONTEXTS[::2] if setting.quick else CONTEXTS
    for context in contexts:
        progress(f"training step of {TOKENS:,} tokens, context {context:,}")
        step, parts = training_step(context)
        runners = {name: timed(work) for name, work in {WHOLE: step, **parts}.items()}
        rounds = [{name: run() for name, run in runners.items()} for _ in range(1 + setting.repeats)][1:]
        for name, curve in found.items():
            curve.append((context, median(one[name] for one in rounds)))
    return found


def draw(found: dict[str, Curve], path: Path) -> None:
    """Plot seconds per step against the context, on logarithmic scales, with the context where attention dominates."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from tokenloom.plotting.style import apply, new_figure, palette, save

    figure = new_figure(7, 4.4)
    axes = figure.add_subplot()
    colors = palette(False)
    for (name, curve), color in zip(found.items(), colors.series, strict=True):
        axes.plot(*zip(*curve, strict=True), color=color, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name in (ATTENTION, PAIRS):
        crossover = crossing(found[name], found[MLP])
        if crossover is not None:
            axes.axvline(crossover, color=colors.faint, linewidth=1, linestyle="--")
            axes.text(crossover * 1.05, axes.get_ylim()[0] * 1.1, f"{crossover:,.0f}", fontsize=9)
    ticks = [context for context, _ in found[WHOLE]]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 1e3:,.0f} ms"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("context, tokens")
    axes.set_ylabel(f"step of {TOKENS:,} tokens")
    axes.legend(loc="lower right")
    apply(figure, axes, dark=False)
    save(figure, path)


def step_rows(setting: Setting) -> list[Row]:
    found = curves(setting)
    rows = [
        Row(f"training step of {TOKENS:,} tokens, context {context:,.0f}", setting.threads, Spread.of([1e3 * s]), "ms")
        for context, s in found[WHOLE]
    ]
    for name in (ATTENTION, PAIRS):
        crossover = crossing(found[name], found[MLP])
        if crossover is not None:
            rows.append(
                Row(
                    f"context at which the cost of {name} exceeds that of the MLP",
                    setting.threads,
                    Spread.of([crossover]),
                    "tokens",
                )
            )
    if setting.threads == 1:
        folder = Path("/tmp") if setting.quick else Path(__file__).resolve().parent
        draw(found, folder / "length.png")
    return rows


def measure(setting: Setting) -> list[Row]:
    return attention_rows(setting) + step_rows(setting)


if __name__ == "__main__":
    print(json.dumps(attend(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
