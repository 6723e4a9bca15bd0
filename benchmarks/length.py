"""What long sequences cost: fused attention against the explicit one, and a training step against its context.

Memory is the most that a fresh process ever held, less what it held before attention. The drawing of the training step
goes to length.png beside this file when the comparison is kept.
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

from benchmarks import texts
from benchmarks.harness import FASTER, Row, Setting, Spread, at_most, crossing, progress, slope, timed
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
TOKENS = 4096  # a step, whatever the context

WHOLE, ATTENTION, PAIRS, MLP = "the whole step", "attention", "its N × N part", "the MLP"

Curve = list[tuple[float, float]]


def attend(road: str, N: int, threads: int) -> dict[str, float]:
    """Seconds and bytes of one causal attention, forward alone, one head of `HEAD` features; for a fresh process."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    Q, K, V = (torch.randn(1, 1, N, HEAD, generator=generator) for _ in range(3))
    attention: Callable[..., Any] = fused_attention if road == "fused" else explicit_attention
    with torch.no_grad():
        attention(*(x[:, :, :256] for x in (Q, K, V)), Causal())  # what is loaded at the first call
        before = most_memory(forget=True)
        began = time.perf_counter()
        attention(Q, K, V, Causal())
        return {"seconds": time.perf_counter() - began, "bytes": float(most_memory() - before)}


def most_memory(*, forget: bool = False) -> int:
    """The most bytes that this process ever held at once; forget: since now."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def in_fresh_process(road: str, N: int, threads: int) -> dict[str, float]:
    """`attend` in a process of its own. Raises CalledProcessError where that fails, as for lack of memory."""
    words = [sys.executable, "-m", "benchmarks.length", road, str(N), str(threads)]
    made = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(made.stdout)
    return found


def attention_rows(setting: Setting) -> list[Row]:
    N = 4096 if setting.quick else LONG
    lengths = [n for n in LENGTHS if n <= N]
    fused: dict[int, list[dict[str, float]]] = {n: [] for n in lengths}
    explicit: list[dict[str, float]] = []
    for number in range(setting.repeats):
        progress(f"attention up to {N:,} tokens, {number + 1} of {setting.repeats}")
        explicit.append(in_fresh_process("explicit", N, setting.threads))
        for n in lengths:
            fused[n].append(in_fresh_process("fused", n, setting.threads))
    what, peer, threads = f"causal attention, N = {N:,}, D = {HEAD}", "explicit N × N", setting.threads
    rows = []
    for kind, scale, unit, measure in (
        ("seconds", 1e3, "ms", FASTER),
        ("bytes", 1e-6, "MB", "times less memory"),
    ):
        ours, theirs = ([one[kind] for one in found] for found in (fused[N], explicit))
        both = Row(
            f"{what}: {'time' if kind == 'seconds' else 'peak memory'}",
            threads,
            Spread.of([b / a for a, b in zip(ours, theirs, strict=True)]),
            measure,
            None,
            peer,
            scale * Spread.of(ours).median,
            scale * Spread.of(theirs).median,
            unit,
        )
        rows.append(both)
    exponents = [slope([(n, fused[n][i]["bytes"]) for n in lengths]) for i in range(setting.repeats)]
    rows.append(
        Row(f"fused: p in memory ~ Nᵖ, N = {lengths[0]:,} … {N:,}", threads, Spread.of(exponents), "(p)", at_most(1.1))
    )
    return rows


def training_step(context: int) -> tuple[Callable[[], Any], dict[str, Callable[[], Any]]]:
    """A step of the default small model on `TOKENS` tokens; and forward and backward of parts of its layers on as many:
    all of attention, the N × N part of it alone, and the MLP."""
    task, material = texts.prepared(context=context)
    settings, _ = fill(TrainingSettings(), {**DEFAULT_RECIPE, **material.recipe})
    model = task.build_model(0).train()
    assert isinstance(model, GPT)
    trainer = Trainer(
        task, model, settings, Batches(material.train, task.collate, batch_size=TOKENS // context, seed=0)
    )
    numbers = iter(range(1 << 40))
    X = torch.randn(TOKENS // context, context, model.config.width, requires_grad=True)
    positions = torch.arange(context)[None]
    position_info = model.positions.position_info(positions, positions, X.dtype)

    def both(part: Callable[[Tensor], Tensor]) -> Callable[[], None]:
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
        ATTENTION: both(lambda X: layer.attention(X, mask=Causal(), position_info=position_info)),
        PAIRS: pairs,
        MLP: both(layer.mlp),
    }
    return lambda: trainer.step(next(numbers), 1 << 40), parts


def curves(setting: Setting) -> dict[str, Curve]:
    """Seconds against context, of the whole step and of its parts."""
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
    """Seconds a step against the context, both on logarithmic scales, with the place where attention takes over."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from tokenloom.plotting.style import apply, new_figure, palette, save

    figure = new_figure(7, 4.4)
    axes = figure.add_subplot()
    look = palette(False)
    for (name, curve), color in zip(found.items(), look.series, strict=True):
        axes.plot(*zip(*curve, strict=True), color=color, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name in (ATTENTION, PAIRS):
        place = crossing(found[name], found[MLP])
        if place is not None:
            axes.axvline(place, color=look.faint, linewidth=1, linestyle="--")
            axes.text(place * 1.05, axes.get_ylim()[0] * 1.1, f"{place:,.0f}", fontsize=9)
    ticks = [context for context, _ in found[WHOLE]]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 1e3:,.0f} ms"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("context, tokens")
    axes.set_ylabel(f"a step of {TOKENS:,} tokens")
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
        place = crossing(found[name], found[MLP])
        if place is not None:
            what = f"context from which {name} outweighs the MLP"
            rows.append(Row(what, setting.threads, Spread.of([place]), "tokens"))
    if setting.threads == 1:
        folder = Path("/tmp") if setting.quick else Path(__file__).resolve().parent
        draw(found, folder / "length.png")
    return rows


def measure(setting: Setting) -> list[Row]:
    return attention_rows(setting) + step_rows(setting)


if __name__ == "__main__":
    print(json.dumps(attend(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
