"""Section 3: the chapter's GPT, trained once per run, and the experiments that use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tokenloom.config import fill
from tokenloom.generation.score import Score
from tokenloom.lab.corpus import CORPUS, WINDOW, ProtocolWindows, drawn_batches, ngram_metrics, prepared
from tokenloom.lab.elman import reference_elman
from tokenloom.lab.experiment import (
    ExperimentContext,
    Measurement,
    Outcome,
    at_least,
    at_most,
    exact,
    experiment,
    holds,
    near,
    shown,
)
from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import count_parameters, eval_mode
from tokenloom.plotting.svg import Line, Panel, Plot
from tokenloom.tasks.text_generation import TextGeneration
from tokenloom.training.events import Evaluated, StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

STEPS, QUICK_STEPS, EVERY = 900, 150, 150
SAMPLES = 16
VALIDATION = {150: 2.457, 300: 2.377, 450: 2.110, 600: 1.990, 750: 1.927, 900: 1.9085}
TRAINING = {150: 2.450, 300: 2.328, 450: 2.049, 600: 1.885, 750: 1.786, 900: 1.760}
MODEL = "The GPT of 3.4: D = 64, H = 4, L = 2, N = 64"
PROTOCOL = " 8 × 64 windows of 64 drawn with G(123), without context before them."


@dataclass(frozen=True)
class TrainedGPT:
    """A trained task, its validation ids, its losses by step, and training loss and CPU seconds of every step."""

    task: TextGeneration
    val_ids: np.ndarray[Any, Any]
    initial_loss: float
    validation: dict[int, float]
    training: dict[int, float]
    losses: list[float]
    seconds: list[float]


def reference_gpt(ctx: ExperimentContext, steps: int | None = None) -> TrainedGPT:
    """Return the chapter's model after its training, or after the first sixth in quick form; trained once per run.

    steps: a smaller number, a multiple of `EVERY`; the training continues when another experiment needs more.
    """
    training = ctx.cached(("gpt", ctx.seed, ctx.default_seed, ctx.quick), lambda: GPTTraining(ctx))
    total = QUICK_STEPS if ctx.quick else STEPS
    return training.run_until(total if steps is None else min(steps, total), ctx.report_progress)


class GPTTraining:
    """The training of the chapter's model, which runs as far as experiments need it."""

    def __init__(self, ctx: ExperimentContext) -> None:
        task, train, val = prepared(ctx, preset="classic", context=WINDOW, width=64, depth=2, heads=4)
        task.model = task.build_model(seed=ctx.seed)
        windows = ProtocolWindows(val.ids, WINDOW)
        initial_loss = task.evaluate(samples=windows)["loss"]
        settings, _ = fill(TrainingSettings(eval_every=EVERY), task.load(None).recipe)
        generator = torch.Generator().manual_seed(0 if ctx.default_seed else ctx.seed + 1)
        self.events = fit(task, task.model, settings, drawn_batches(task, train, generator, 32), windows)
        self.trained = TrainedGPT(task, np.asarray(val.ids), initial_loss, {}, {}, [], [])

    def run_until(self, steps: int, report_progress: Callable[[float], None]) -> TrainedGPT:
        """Train to at least some steps, and return the state."""
        t = self.trained
        began = time.process_time()
        while max(t.validation, default=0) < steps:
            event = next(self.events)
            if isinstance(event, StepFinished):
                t.losses.append(event.loss)
                t.seconds.append(time.process_time() - began)
                report_progress(len(t.losses) / steps)
            elif isinstance(event, Evaluated):
                t.validation[event.step] = event.metrics["loss"]
                t.training[event.step] = float(np.mean(t.losses[-50:]))
            began = time.process_time()
        return t


def quick_check(trained: TrainedGPT) -> list[Measurement]:
    """Return the check of all quick forms that use the trained model: its loss after a sixth of the steps."""
    return [near("validation at 150 (coarse)", VALIDATION[150], trained.validation[150], 0.06, 3)]


@experiment(
    "3.4",
    "A small GPT",
    question="Which loss does the chapter's transformer reach in 900 steps?",
    protocol=MODEL
    + ", 112,065 parameters, AdamW 6e-3 on all of them, 900 steps of 32 windows drawn with G(0);"
    + PROTOCOL,
    explanation="The loss falls in two stages: first the model learns bigrams; after some hundred steps attention "
    "begins to use more of the context. An n-gram of order six is still better (2.7).",
    seed=12,
    dataset=CORPUS,
    seconds=60.0,
    quick=True,
)
def small_gpt(ctx: ExperimentContext) -> Outcome:
    """3.4."""
    trained = reference_gpt(ctx)
    measurements = [
        exact("parameters", "112,065", f"{count_parameters(trained.task.model):,}"),
        ctx.digits("initial validation", 4.38, trained.initial_loss, 2, 0.15),
    ]
    if ctx.quick:
        measurements += quick_check(trained)
    else:
        for step, published in VALIDATION.items():
            last = step == STEPS
            # Losses of other seeds vary more during the training than at its end.
            measurements.append(
                ctx.digits(
                    f"validation at {step}",
                    published,
                    trained.validation[step],
                    4 if last else 3,
                    0.03 if last else 0.1,
                )
            )
        for step, published in TRAINING.items():
            measurements.append(ctx.digits(f"training at {step}", published, trained.training[step], 3, 0.1))
    lines = [
        Line(name, list(found), list(found.values()))
        for name, found in (("validation", trained.validation), ("training, mean of 50 steps", trained.training))
    ]
    caption = "Both losses fall together: the model is too small to memorize the text."
    return Outcome(measurements, [Plot("Training of the chapter's GPT", caption, "step", "nats/character", lines)])


@experiment(
    "3.5",
    "Comparison of models",
    question="How do the models compare on the same windows?",
    protocol="Unigram, bigram, the Elman network of 2.9, the GPT of 3.4, order-6 Kneser–Ney, on the same windows:"
    + PROTOCOL,
    explanation="Each model uses more of the context than the one before. The n-gram of order six is the baseline "
    "that a transformer has to beat; this small one does not.",
    seed=12,
    dataset=CORPUS,
    seconds=20.0,
    quick=True,
)
def comparison(ctx: ExperimentContext) -> Outcome:
    """3.5."""
    trained = reference_gpt(ctx)
    unigram = ngram_metrics(ctx, model="unigram", ngram_smoothing="add-k", add_k=1.0)["loss"]
    bigram = ngram_metrics(ctx, model="bigram", ngram_smoothing="add-k", add_k=1.0)["loss"]
    kneser_ney = ngram_metrics(ctx, model="ngram", ngram_order=6)["loss"]
    gpt_loss = trained.validation[max(trained.validation)]
    losses = {"unigram": unigram, "bigram": bigram}
    if not ctx.quick:
        losses["RNN"] = reference_elman(ctx).validation
    losses |= {"GPT": gpt_loss, "order-6 n-gram": kneser_ney}
    measurements = [exact("unigram", "3.3580", f"{unigram:.4f}"), exact("bigram", "2.4859", f"{bigram:.4f}")]
    if ctx.quick:
        measurements += quick_check(trained)
    else:
        measurements.append(ctx.near("RNN", 2.188, losses["RNN"], 0.01, 0.04, 3))
        measurements.append(ctx.near("GPT", 1.9085, gpt_loss, 0.02, 0.03))
        for name, published in (("unigram", "28.73"), ("bigram", "12.01"), ("RNN", "8.92"), ("GPT", "6.74")):
            measurements.append(shown(f"perplexity, {name}", f"{np.exp(losses[name]):.2f}", published))
    measurements.append(near("Kneser–Ney, order 6", 1.611, kneser_ney, 0.01, 3))
    plot = Plot(
        "Models on the same windows",
        "Validation loss: " + ", ".join(f"{name} {value:.3f}" for name, value in losses.items()) + " nats.",
        "model",
        "nats/character",
        [Line("validation", list(range(1, len(losses) + 1)), list(losses.values()))],
        x_labels=list(losses),
    )
    return Outcome(measurements, [plot])


@experiment(
    "3.6",
    "Sampling",
    question="Do samples look like a play?",
    protocol=MODEL + "; 16 samples of 300 characters after “ROMEO:⏎”, temperature 0.8.",
    explanation="Names in capitals, colons and short lines are learned first, since they repeat; spelling comes next, "
    "and meaning last.",
    seed=12,
    dataset=CORPUS,
    quick=True,
)
def sampling(ctx: ExperimentContext) -> Outcome:
    """3.6."""
    trained = reference_gpt(ctx)
    [texts] = trained.task.generate_all(["ROMEO:\n"], max_new_tokens=300, temperature=0.8, seed=7, num_samples=SAMPLES)
    if ctx.quick:
        measurements = [*quick_check(trained), at_least("characters", 300, len(texts[0]))]
    else:
        named = sum(any(line.endswith(":") and line[:1].isupper() for line in text.splitlines()) for text in texts)
        breaks = float(np.mean([text.count("\n") for text in texts]))
        measurements = [
            at_least(f"of {SAMPLES} samples with another speaker", SAMPLES // 2, named, "speaker names and colons"),
            at_least("line breaks per sample", 4, breaks, "line breaks"),
        ]
    written = "\n\n".join(f"— {number}\nROMEO:\n{text}" for number, text in enumerate(texts[:2], start=1))
    return Outcome(measurements, [Plot("Samples", "Two of the samples after “ROMEO:”.", text=written)])


# Characters in the heat maps of heads; labels of more would not be legible.
SHOWN = 24


@experiment(
    "3.7",
    "Attention distance of heads",
    question="How far back does each head attend?",
    protocol=MODEL
    + "; per head the mean of Σ_m a_nm (n − m) over 64 windows; heat maps of the nearest and the farthest.",
    explanation="Some heads attend to the last one or two characters, like a bigram; others attend far back, which no "
    "short n-gram can.",
    seed=12,
    dataset=CORPUS,
    quick=True,
)
def heads(ctx: ExperimentContext) -> Outcome:
    """3.7."""
    trained = reference_gpt(ctx)
    ids = torch.from_numpy(trained.val_ids[: 64 * WINDOW].astype(np.int64)).view(64, WINDOW)
    hooks = Hooks("layers.*.pattern")
    with eval_mode(trained.task.model) as model, torch.no_grad():
        model(Batch({"text": Stream(ids=ids)}), hooks=hooks)
    places = torch.arange(WINDOW)
    back = (places[:, None] - places[None]).float()
    patterns = {f"layer {i + 1}, head {h + 1}": A[:, h] for i, A in enumerate(hooks.values.values()) for h in range(4)}
    distances = {name: (A * back).sum(-1).mean().item() for name, A in patterns.items()}
    near_head, far_head = (choose(distances, key=distances.__getitem__) for choose in (min, max))
    above = max(A.triu(1).abs().max().item() for A in patterns.values())
    line = [repr(c)[1:-1] for c in trained.task.tokenizer.decode(ids[0, :SHOWN].tolist())]
    panels = [
        Panel(f"{name}: {distances[name]:.1f} back", patterns[name][0, :SHOWN, :SHOWN].tolist(), line, line)
        for name in (near_head, far_head)
    ]
    measurements = [at_most("largest weight on a later token", 0.0, above, "lower-triangular")]
    if ctx.quick:
        measurements += quick_check(trained)
    else:
        measurements += [
            at_most("nearest head, characters back", 3.0, distances[near_head], "within 1–2"),
            at_least("farthest ÷ nearest", 2.0, distances[far_head] / distances[near_head], "one far back"),
        ]
    measurements += [shown(name, f"{value:.2f} characters back") for name, value in distances.items()]
    return Outcome(
        measurements,
        [Plot("Two heads", "Left the shortest, right the longest attention distance.", "key", "query", panels=panels)],
    )


@experiment(
    "3.9",
    "Greedy, beam search and human text",
    question="Is human text the most probable text?",
    protocol=MODEL
    + "; 40 characters after “KING RICHARD III:⏎”, greedy and by a beam of 5; validation 2020 … 2060 and a "
    "beam after the same 20 characters.",
    explanation="A wider search finds a more probable text. Shakespeare's text is far less probable than what search "
    "finds: human text is surprising, so the most probable text is not the best one.",
    seed=12,
    dataset=CORPUS,
    quick=True,
)
def human(ctx: ExperimentContext) -> Outcome:
    """3.9."""
    trained = reference_gpt(ctx)
    task = trained.task
    decode = task.tokenizer.decode
    prefix, real = (decode(trained.val_ids[a:b].tolist()) for a, b in ((2000, 2020), (2020, 2060)))
    prompt = "KING RICHARD III:\n"

    def search(start: str, num_beams: int) -> Score:
        text = task.generate(
            start, max_new_tokens=40, **({"num_beams": num_beams} if num_beams > 1 else {"temperature": 0.0})
        )
        return task.score(start, text)

    scored = {
        "greedy": search(prompt, 1),
        "beam of 5": search(prompt, 5),
        "human": task.score(prefix, real),
        "beam of 5 after the same text": search(prefix, 5),
    }
    found = {name: float(score.average) for name, score in scored.items()}
    measurements = [
        holds("order", "beam ≥ greedy", f"{found['beam of 5']:.3f}, {found['greedy']:.3f}", _ordered(found)),
        at_most("human − beam", 0.0, found["human"] - found["beam of 5 after the same text"], "human below"),
    ]
    published = (-0.968, -0.930, -2.181, -0.824)
    if ctx.default_seed and not ctx.quick:
        measurements += [near(name, p, v, 0.05, 3) for (name, v), p in zip(found.items(), published, strict=True)]
    else:
        measurements += [shown(name, f"{value:.3f}") for name, value in found.items()]
    lines = [
        Line(name, list(range(1, 41)), np.exp(scored[name].log_probs).tolist())
        for name in ("beam of 5 after the same text", "human")
    ]
    caption = "Search results have few improbable characters, human text has many."
    plot = Plot("Probability of each character", caption, "character", "probability", lines, legend_above=True)
    return Outcome([*measurements, *(quick_check(trained) if ctx.quick else [])], [plot])


def _ordered(found: dict[str, float]) -> bool:
    return found["beam of 5"] >= found["greedy"] - 1e-6


@experiment(
    "3.10",
    "Temperature, top-k, top-p",
    question="How do temperature, top-k and top-p change the distribution of the next character?",
    protocol=MODEL
    + "; after “ROMEO:⏎I will not s”: entropy at T = 0.5, 1, 2, the three most probable, tokens that cover 90 %.",
    explanation="A low temperature sharpens the distribution and a high one flattens it; neither changes the order of "
    "the tokens. Top-k and top-p cut the tail, whose tokens are improbable one by one but not together.",
    seed=12,
    dataset=CORPUS,
    quick=True,
)
def temperature(ctx: ExperimentContext) -> Outcome:
    """3.10."""
    trained = reference_gpt(ctx)
    task = trained.task
    ids = torch.from_numpy(np.asarray(task.tokenizer.encode("ROMEO:\nI will not s"), dtype=np.int64))[None]
    with eval_mode(task.model) as model, torch.no_grad():
        logits = model(Batch({"text": Stream(ids=ids)}))[0, -1].double()
    measurements = quick_check(trained) if ctx.quick else []
    lines = []
    for T, published in ((0.5, 1.816), (1.0, 2.279), (2.0, 2.936)):
        p = (logits / T).softmax(-1)
        entropy = -(p * p.log()).sum().item()
        name = f"entropy at T = {T:g}"
        close = not ctx.quick and ctx.default_seed
        measurements.append(near(name, published, entropy, 0.15, 3) if close else shown(name, f"{entropy:.3f}"))
        lines.append(Line(f"T = {T:g}", list(range(1, 21)), p.sort(descending=True).values[:20].tolist()))
    p = logits.softmax(-1).sort(descending=True)
    top = ", ".join(
        f"{task.tokenizer.decode([i])} {v:.2f}" for i, v in zip(p.indices[:3].tolist(), p.values, strict=False)
    )
    covering = int((p.values.cumsum(0) < 0.9).sum()) + 1
    measurements.append(shown("three most probable at T = 1", top, "h 0.20, o 0.17, t 0.16"))
    if close:
        measurements.append(near("tokens that cover 90 %", 9, covering, 2, 0))
    else:
        measurements.append(at_most("tokens that cover 90 %", 30, covering))
    caption = "The order is the same at every temperature; the slope differs."
    return Outcome(
        measurements, [Plot("The next character", caption, "token, sorted by probability", "probability", lines)]
    )
