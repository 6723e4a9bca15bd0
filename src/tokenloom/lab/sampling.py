"""Section 3: sampling methods for the chapter's GPT, and exposure bias."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tokenloom.generation.prefill import prefill
from tokenloom.generation.sampling import Sampling
from tokenloom.lab.corpus import CORPUS, WINDOW, corpus_text
from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, experiment, near, shown
from tokenloom.lab.gpt import MODEL, quick_check, reference_gpt
from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.modules import eval_mode
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tasks.text_generation import TextGeneration

PROMPT = "ROMEO:\n"
METHODS = {
    "T = 0.5": Sampling(temperature=0.5),
    "top-k 5": Sampling(top_k=5),
    "top-p 0.9": Sampling(top_p=0.9),
    "T = 1.5": Sampling(temperature=1.5),
}
LENGTH, SAMPLES = 120, 32
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.25, 1.5)


def generate_from(task: TextGeneration, prompt: str, sampling: Sampling, generator: torch.Generator) -> str:
    """Return 120 characters after a prompt, with random numbers from a generator that several samples may share."""
    prompt_ids = torch.as_tensor(np.asarray(task.tokenizer.encode(prompt), dtype=np.int64)).tolist()
    ids: list[int] = []
    with eval_mode(task.model), torch.inference_mode():
        model: Any = task.model
        log_probs, state = prefill(model, [prompt_ids])
        for _ in range(LENGTH):
            [token], _ = sampling.choose(log_probs, [generator])
            ids.append(token)
            step_log_probs, state = model.step(torch.tensor([[token]]), state)
            log_probs = step_log_probs[:, -1]
    return task.tokenizer.decode(ids)


def words_of(text: str, *, drop_last: bool = False) -> list[str]:
    """Return the words of a text in lower case. drop_last: without the last word, which may be incomplete."""
    if drop_last:
        text = text[: max(map(text.rfind, " \n"))] if {" ", "\n"} & set(text) else ""
    return re.findall(r"[a-z']+", text.lower())


def word_fractions(texts: Sequence[str], known: Collection[str]) -> tuple[float, float]:
    """Return the fraction of distinct words, as a mean over texts, and the fraction of known words in all texts."""
    split = [words for text in texts if (words := words_of(text, drop_last=True))]
    distinct = float(np.mean([len(set(words)) / len(words) for words in split]))
    found = float(np.mean([word in known for words in split for word in words]))
    return distinct, found


@experiment(
    "3.6b",
    "Four sampling methods",
    question="How do temperature, top-k and top-p change the samples?",
    protocol=MODEL + "; 120 characters each after “ROMEO:⏎”, at T = 0.5, top-k 5, top-p 0.9, T = 1.5, from one G(7) in "
    "this order. The curves: 32 samples of 120 characters per temperature.",
    explanation="At a low temperature the model spells well and repeats a few words; at a high one it invents words. "
    "Top-k and top-p keep the variety of T = 1 among probable characters and drop the improbable ones, any of which "
    "can misspell a word.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=5.0,
)
def methods(ctx: ExperimentContext) -> Outcome:
    """3.6b."""
    trained = reference_gpt(ctx)
    task = trained.task
    known = set(words_of(corpus_text()[: int(0.9 * len(corpus_text()))]))
    generator = torch.Generator().manual_seed(7 if ctx.default_seed else ctx.seed)
    measurements = quick_check(trained) if ctx.quick else []
    samples = []
    for name, sampling in METHODS.items():
        text = generate_from(task, PROMPT, sampling, generator)
        samples.append(f"— {name}\n{PROMPT}{text}")
        distinct, found = word_fractions([text], known)
        measurements.append(
            shown(f"{name}: distinct words, found in training", f"{distinct:.0%}, {found:.0%}", "report")
        )
    curves = [word_fractions(_samples(task, T, ctx), known) for T in TEMPERATURES]
    by = dict(zip(TEMPERATURES, curves, strict=True))
    # 32 samples have about 600 words; the 20 of a single sample would be too few.
    gap = 0.05 if ctx.quick else 0.15
    measurements += [
        at_least("found in training, T = 0.5 − T = 1.5", gap, by[0.5][1] - by[1.5][1], "more invented words when high"),
        at_least("distinct words, T = 1.5 − T = 0.5", 0.02, by[1.5][0] - by[0.5][0], "more repetition when low"),
    ]
    lines = [
        Line("distinct words per sample", list(TEMPERATURES), [distinct for distinct, _ in curves]),
        Line("words found in training", list(TEMPERATURES), [found for _, found in curves]),
    ]
    plots = [
        Plot("Samples", "One sample of each method.", text="\n\n".join(samples)),
        Plot(
            "Variety against spelling",
            "At higher temperatures words repeat less, and fewer of them are correct.",
            "temperature",
            "fraction",
            lines,
        ),
    ]
    note = "Tokens are sampled by inverting the cumulative distribution, with one number of G(7) per token."
    return Outcome(measurements, plots, [note])


def _samples(task: TextGeneration, T: float, ctx: ExperimentContext) -> list[str]:
    [texts] = task.generate_all([PROMPT], max_new_tokens=LENGTH, temperature=T, num_samples=SAMPLES, seed=ctx.seed)
    return texts


PREFIX_LENGTH, TARGET_LENGTH = 8, 8
PREFIXES = (0, 4, 8, 16, 24, 32, 40, 48)
TEXTS = 512


@experiment(
    "3.6c",
    "Exposure",
    question="How does the loss change when the model reads its own samples?",
    protocol=MODEL + "; 512 validation windows: 8 real characters, then n more, and the loss on the 8 real characters "
    "after those. The n are real ones, the model's own sample (T = 1), or real ones from elsewhere in the text.",
    explanation="In training the model reads real text, in generation its own samples. After a few sampled characters "
    "the context is another text, and the loss on the original one stays high. Real characters from elsewhere have "
    "nearly the same effect: most of the drift is due to another text, not to poor samples.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=8.0,
)
def exposure(ctx: ExperimentContext) -> Outcome:
    """3.6c."""
    trained = reference_gpt(ctx)
    task = trained.task
    ids = torch.from_numpy(trained.val_ids.astype(np.int64))
    generator = torch.Generator().manual_seed(ctx.seed)
    starts = torch.randint(len(ids) - WINDOW, (TEXTS,), generator=generator)
    windows = ids[starts[:, None] + torch.arange(WINDOW)]
    elsewhere = ids[torch.randint(len(ids) - WINDOW, (TEXTS,), generator=generator)[:, None] + torch.arange(WINDOW)]
    own = _sample_after(task, windows[:, :PREFIX_LENGTH], max(PREFIXES), generator)
    kinds = {"real": windows[:, PREFIX_LENGTH:], "own sample": own, "real, from elsewhere": elsewhere}
    lines = []
    for name, text in kinds.items():
        losses = [_loss_after(task, windows, text[:, :n], n) for n in PREFIXES]
        lines.append(Line(name, list(PREFIXES), losses))
    real, sampled, other = (line.y for line in lines)
    drift = [b - a for a, b in zip(real, sampled, strict=True)]
    measurements = [
        *(quick_check(trained) if ctx.quick else []),
        at_most("drift without a prefix", 0.0, abs(drift[0])),
        at_least("drift after 48 characters, nats", 0.05 if ctx.quick else 0.5, drift[-1], "own figure: grows"),
    ]
    if not ctx.quick:
        measurements.append(near("real prefix, loss after 48", trained.validation[900], real[-1], 0.15, 3))
    measurements += [shown(f"drift after {n}", f"{d:.3f}") for n, d in zip(PREFIXES, drift, strict=True)]
    measurements.append(shown("own sample − real from elsewhere, after 48", f"{sampled[-1] - other[-1]:+.3f}"))
    caption = "After real text the loss is constant; after the model's own samples it rises and stays high."
    plot = Plot("Loss on real text after a prefix", caption, "characters of prefix", "nats/character", lines)
    return Outcome(measurements, [plot])


def _sample_after(task: TextGeneration, prefixes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return samples (B, count) of the model after ids (B, N), at T = 1."""
    rows = []
    with eval_mode(task.model), torch.inference_mode():
        model: Any = task.model
        log_probs, state = prefill(model, prefixes.tolist())
        for _ in range(count):
            # All rows share one generator.
            chosen, _ = Sampling().choose(log_probs, [generator] * len(prefixes))
            rows.append(torch.tensor(chosen))
            step_log_probs, state = model.step(rows[-1][:, None], state)
            log_probs = step_log_probs[:, -1]
    return torch.stack(rows, 1)


def _loss_after(task: TextGeneration, windows: Tensor, prefix: Tensor, n: int) -> float:
    """Return the mean loss on the real characters after the first 8 and n, where `prefix` (B, n) replaces the n."""
    targets = windows[:, PREFIX_LENGTH + n : PREFIX_LENGTH + n + TARGET_LENGTH]
    ids = torch.cat((windows[:, :PREFIX_LENGTH], prefix, targets), 1)
    with eval_mode(task.model) as model, torch.no_grad():
        logits = model(Batch({"text": Stream(ids=ids[:, :-1])}))[:, -TARGET_LENGTH:]
    return float(cross_entropy(logits.flatten(0, 1), targets.flatten()))
