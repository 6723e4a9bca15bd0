"""Section 3: what the key–value cache saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tokenloom.generation.generate import Request, generate_all, sample_generator
from tokenloom.generation.prefill import prefill
from tokenloom.generation.sampling import Sampling
from tokenloom.lab.corpus import CORPUS, WINDOW
from tokenloom.lab.experiment import ExperimentContext, Outcome, between, exact, experiment, shown
from tokenloom.lab.gpt import MODEL, quick_check, reference_gpt
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig, GPTState
from tokenloom.plotting.svg import Line, Plot

TOKENS = 200
LENGTHS, QUICK_LENGTHS, REPEATS = (128, 256, 512, 1024, 2048), (64, 128, 256), 7
# The CPU operator of fused attention, which torch's FLOP counter does not know.
FUSED_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def without_cache(model: GPT, prompt: list[int], sampling: Sampling, generator: torch.Generator) -> list[int]:
    """Return 200 generated tokens, each from a forward pass over the last 64: generation without a cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(Batch({"text": Stream(ids=torch.tensor([ids[-WINDOW:]]))}))
            ids += sampling.choose(logits[:, -1].log_softmax(-1), [generator])[0]
    return ids[len(prompt) :]


@experiment(
    "3.11",
    "The key–value cache",
    question="Does caching keys and values change the generated tokens, and what does it save?",
    protocol=MODEL
    + "; 200 tokens after “ROMEO:⏎”, greedy and sampled, in float64. Cost of the token at position n: an "
    "untrained GPT of these sizes for 2,048 tokens, counted multiplications and seconds (median of 7, one thread).",
    explanation="Under a causal mask the keys and values of earlier tokens never change, so they need not be computed "
    "again. A token then costs one query against n keys; without the cache the whole prefix goes through the model "
    "for each token, n queries against n keys. The tokens are the same.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=10.0,
)
def cache(ctx: ExperimentContext) -> Outcome:
    """3.11."""
    trained = reference_gpt(ctx)
    measurements = quick_check(trained) if ctx.quick else []
    model: Any = deepcopy(trained.task.model).double().eval()
    prompt = [int(i) for i in trained.task.tokenizer.encode("ROMEO:\n")]
    for name, sampling in (("greedy", Sampling(temperature=0.0)), ("sampled at T = 1", Sampling())):
        [[cached]] = generate_all(model, [Request(prompt, TOKENS, sampling, seed=ctx.seed)])
        uncached = without_cache(model, prompt, sampling, sample_generator(ctx.seed, 0))
        same = sum(a == b for a, b in zip(cached.ids, uncached, strict=True))
        measurements.append(exact(f"{name}: same tokens", f"{TOKENS} of {TOKENS}", f"{same} of {TOKENS}"))
    lengths = QUICK_LENGTHS if ctx.quick else LENGTHS
    counts, seconds = cost_per_token(ctx, lengths)
    # a + b n and a n + b n²: the log–log slope of the first is below 1, of the second above 1.
    for name, low, high in (("with", 0.0, 1.0), ("without", 1.0, 2.0)):
        slope = float(np.log2(counts[name][-1] / counts[name][-2]))
        measurements.append(between(f"multiplications {name}, log–log slope at the end", low, high, slope))
        grown = seconds[name][-1] / seconds[name][0]
        measurements.append(shown(f"seconds {name}, n = {lengths[-1]:,} ÷ n = {lengths[0]}", f"{grown:.1f} ×"))
    ratios = [float(np.diff(counts[name], n=1)[-1] / np.diff(counts[name], n=1)[-2]) for name in ("with", "without")]
    measurements.append(
        between("with: growth of the last doubling ÷ of the one before", 1.99, 2.01, ratios[0], "2: O(n)")
    )
    measurements.append(between("without: the same", 2.5, 4.0, ratios[1], "→ 4: O(n²)"))
    x = list(lengths)
    names = {"with": "with the cache", "without": "without the cache"}
    plots = [
        Plot(
            title,
            "Without the cache the cost per token grows much faster with the length of the text.",
            "position of the token",
            unit,
            [Line(names[name], x, [value * scale for value in found[name]]) for name in names],
            log_x=True,
            log_y=True,
        )
        for title, unit, found, scale in (
            ("Cost per token, counted", "million multiplications", counts, 1e-6),
            ("Cost per token, measured", "milliseconds", seconds, 1e3),
        )
    ]
    return Outcome(measurements, plots)


def cost_per_token(
    ctx: ExperimentContext, lengths: tuple[int, ...]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return multiplications and seconds of the token at position n, with and without the cache, for each n."""
    model = GPT(
        GPTConfig(65, lengths[-1], width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=ctx.seed
    ).eval()
    counts: dict[str, list[float]] = {"with": [], "without": []}
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for n in lengths:
        ids = torch.randint(65, (1, n), generator=ctx.generator())
        with torch.no_grad():
            _, state = prefill(model, [ids[0, :-1].tolist()])
            # A state is used once; each repetition gets a copy.
            states = [state.repeat(1) for _ in range(REPEATS + 1)]
            # The FLOP counter does not see the products of the fused decode step, so the counted call does not use it.
            cast(GPTState, states[-1]).decode_step = None
            variants: dict[str, Callable[[], Tensor]] = {
                "with": lambda ids=ids, states=states: model.step(ids[:, -1:], states.pop())[0],  # type: ignore[misc]
                "without": lambda ids=ids: model(Batch({"text": Stream(ids=ids)})),  # type: ignore[misc]
            }
            for name, work in variants.items():
                counts[name].append(multiplications(work))
                seconds[name].append(median_seconds(work))
    return counts, seconds


def multiplications(work: Callable[[], Tensor]) -> float:
    """Return the multiplications in matrix products and in attention, masked pairs included."""
    # Q Kᵀ and A V have B H N M Dh multiplications each; the counter also counts additions. Arguments are shapes.
    mapping: dict[Any, Any] = {FUSED_CPU: lambda Q, K, V, *rest, **more: 4 * Q[0] * Q[1] * Q[2] * K[2] * Q[3]}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        work()
    return float(counter.get_total_flops()) / 2


def median_seconds(work: Callable[[], Tensor]) -> float:
    """Return the median of `REPEATS` times."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
