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
from tokenloom.lab.gpt import MODEL, first_steps, reference_gpt
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig, GPTState
from tokenloom.plotting.svg import Line, Plot

TOKENS = 200
LENGTHS, QUICK_LENGTHS, REPEATS = (128, 256, 512, 1024, 2048), (64, 128, 256), 7
# On a CPU fused attention goes by a name of its own, which the framework's counter does not know.
FUSED_HERE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def without_cache(model: GPT, prompt: list[int], sampling: Sampling, generator: torch.Generator) -> list[int]:
    """200 tokens, each from a whole reading of the last 64: what generating does when nothing is kept."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(Batch({"text": Stream(ids=torch.tensor([ids[-WINDOW:]]))}))
            ids += sampling.choose(logits[:, -1].log_softmax(-1), [generator])[0]
    return ids[len(prompt) :]


@experiment(
    "3.11",
    "The key–value cache",
    question="Does keeping keys and values change what is written, and what does it save?",
    protocol=MODEL
    + "; 200 tokens after “ROMEO:⏎”, greedy and drawn, in float64. Cost of the token at place n: a fresh "
    "GPT of this shape for 2,048 tokens, multiplications counted and seconds (median of 7, one thread).",
    explanation="Under a causal mask keys and values of old tokens never change, so that they need not be computed "
    "again. A token then costs what one query costs against n keys; without the cache the whole prefix goes through "
    "the model for it, n queries against n keys. The tokens are the same.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=10.0,
)
def cache(ctx: ExperimentContext) -> Outcome:
    """3.11."""
    trained = reference_gpt(ctx)
    measurements = first_steps(trained) if ctx.quick else []
    model: Any = deepcopy(trained.task.model).double().eval()
    prompt = [int(i) for i in trained.task.tokenizer.encode("ROMEO:\n")]
    for name, sampling in (("greedy", Sampling(temperature=0.0)), ("drawn at T = 1", Sampling())):
        [[kept]] = generate_all(model, [Request(prompt, TOKENS, sampling, seed=ctx.seed)])
        anew = without_cache(model, prompt, sampling, sample_generator(ctx.seed, 0))
        same = sum(a == b for a, b in zip(kept.ids, anew, strict=True))
        measurements.append(exact(f"{name}: same tokens", f"{TOKENS} of {TOKENS}", f"{same} of {TOKENS}"))
    lengths = QUICK_LENGTHS if ctx.quick else LENGTHS
    counts, seconds = cost_of_a_token(ctx, lengths)
    # a + b n against a n + b n²: between doublings the slope of the first is below 1, of the second above.
    for name, low, high in (("with", 0.0, 1.0), ("without", 1.0, 2.0)):
        slope = float(np.log2(counts[name][-1] / counts[name][-2]))
        measurements.append(between(f"multiplications {name}, log–log slope at the end", low, high, slope))
        grown = seconds[name][-1] / seconds[name][0]
        measurements.append(shown(f"seconds {name}, n = {lengths[-1]:,} ÷ n = {lengths[0]}", f"{grown:.1f} ×"))
    bends = [float(np.diff(counts[name], n=1)[-1] / np.diff(counts[name], n=1)[-2]) for name in ("with", "without")]
    measurements.append(
        between("with: growth of the last doubling ÷ of the one before", 1.99, 2.01, bends[0], "2: O(n)")
    )
    measurements.append(between("without: the same", 2.5, 4.0, bends[1], "→ 4: O(n²)"))
    x = list(lengths)
    names = {"with": "with the cache", "without": "without it"}
    plots = [
        Plot(
            title,
            "Without the cache a token costs the more the longer the text, far more than with it.",
            "place of the token",
            unit,
            [Line(names[name], x, [value * scale for value in found[name]]) for name in names],
            log_x=True,
            log_y=True,
        )
        for title, unit, found, scale in (
            ("What a token costs, counted", "million multiplications", counts, 1e-6),
            ("What a token costs, measured", "milliseconds", seconds, 1e3),
        )
    ]
    return Outcome(measurements, plots)


def cost_of_a_token(
    ctx: ExperimentContext, lengths: tuple[int, ...]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Multiplications, and seconds, of the token at place n, with the cache and without, for each n."""
    model = GPT(
        GPTConfig(65, lengths[-1], width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=ctx.seed
    ).eval()
    counts: dict[str, list[float]] = {"with": [], "without": []}
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for n in lengths:
        ids = torch.randint(65, (1, n), generator=ctx.generator())
        with torch.no_grad():
            _, state = prefill(model, [ids[0, :-1].tolist()])
            # A state is fed once; each repeat has a copy of its own, made beforehand.
            states = [state.repeat(1) for _ in range(REPEATS + 1)]
            # The first is counted, and compiled steps hide their products from the counter: it goes the plain way.
            cast(GPTState, states[-1]).decode_step = None
            roads: dict[str, Callable[[], Tensor]] = {
                "with": lambda ids=ids, states=states: model.step(ids[:, -1:], states.pop())[0],  # type: ignore[misc]
                "without": lambda ids=ids: model(Batch({"text": Stream(ids=ids)})),  # type: ignore[misc]
            }
            for name, road in roads.items():
                counts[name].append(multiplications(road))
                seconds[name].append(median_seconds(road))
    return counts, seconds


def multiplications(road: Callable[[], Tensor]) -> float:
    """How many numbers are multiplied in products of matrices and in attention (what a mask hides is counted, too)."""
    # Q Kᵀ and A V are B H N M Dh each, and the counter counts additions as well. It hands over shapes.
    mapping: dict[Any, Any] = {FUSED_HERE: lambda Q, K, V, *rest, **more: 4 * Q[0] * Q[1] * Q[2] * K[2] * Q[3]}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        road()
    return float(counter.get_total_flops()) / 2


def median_seconds(road: Callable[[], Tensor]) -> float:
    """The median of seven."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        road()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
