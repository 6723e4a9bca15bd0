"""Section 3: ways to sample the chapter's GPT, and what becomes of a model that reads its own samples."""

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
from tokenloom.lab.gpt import MODEL, first_steps, reference_gpt
from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.modules import eval_mode
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tasks.text_generation import TextGeneration

PROMPT = "ROMEO:\n"
WAYS = {
    "T = 0.5": Sampling(temperature=0.5),
    "top-k 5": Sampling(top_k=5),
    "top-p 0.9": Sampling(top_p=0.9),
    "T = 1.5": Sampling(temperature=1.5),
}
LENGTH, SAMPLES = 120, 32
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.25, 1.5)


def drawn_from(task: TextGeneration, prompt: str, sampling: Sampling, generator: torch.Generator) -> str:
    """120 characters after a prompt, with random numbers from a generator that several samples may share in turn."""
    fed = torch.as_tensor(np.asarray(task.tokenizer.encode(prompt), dtype=np.int64)).tolist()
    ids: list[int] = []
    with eval_mode(task.model), torch.inference_mode():
        model: Any = task.model
        log_probs, state = prefill(model, [fed])
        for _ in range(LENGTH):
            [token], _ = sampling.choose(log_probs, [generator])
            ids.append(token)
            after, state = model.step(torch.tensor([[token]]), state)
            log_probs = after[:, -1]
    return task.tokenizer.decode(ids)


def words_of(text: str, *, cut: bool = False) -> list[str]:
    """The words of a text in small letters; cut: without the last one, which the end of a sample may have cut."""
    if cut:
        text = text[: max(map(text.rfind, " \n"))] if {" ", "\n"} & set(text) else ""
    return re.findall(r"[a-z']+", text.lower())


def shares(texts: Sequence[str], known: Collection[str]) -> tuple[float, float]:
    """The share of different words in a text, mean over texts, and the share of all words that are among the known."""
    split = [words for text in texts if (words := words_of(text, cut=True))]
    distinct = float(np.mean([len(set(words)) / len(words) for words in split]))
    found = float(np.mean([word in known for words in split for word in words]))
    return distinct, found


@experiment(
    "3.6b",
    "Four ways to sample",
    question="What do temperature, top-k and top-p do to what is written?",
    protocol=MODEL + "; 120 characters each after “ROMEO:⏎”, at T = 0.5, top-k 5, top-p 0.9, T = 1.5, from one G(7) in "
    "this order. The curves: 32 samples of 120 characters a temperature.",
    explanation="Sharpened, the model spells well and says the same few words again; flattened, it makes up words. "
    "Top-k and top-p keep the variety of T = 1 among likely letters and drop the unlikely ones, of which a single one "
    "is enough to spoil a word.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=5.0,
)
def ways(ctx: ExperimentContext) -> Outcome:
    """3.6b."""
    trained = reference_gpt(ctx)
    task = trained.task
    known = set(words_of(corpus_text()[: int(0.9 * len(corpus_text()))]))
    generator = torch.Generator().manual_seed(7 if ctx.default_seed else ctx.seed)
    measurements = first_steps(trained) if ctx.quick else []
    written = []
    for name, sampling in WAYS.items():
        text = drawn_from(task, PROMPT, sampling, generator)
        written.append(f"— {name}\n{PROMPT}{text}")
        distinct, found = shares([text], known)
        measurements.append(
            shown(f"{name}: different words, found in training", f"{distinct:.0%}, {found:.0%}", "report")
        )
    curves = [shares(_samples(task, T, ctx), known) for T in TEMPERATURES]
    by = dict(zip(TEMPERATURES, curves, strict=True))
    # Of 32 samples, about 600 words; a single sample has some twenty, too few to tell.
    gap = 0.05 if ctx.quick else 0.15
    measurements += [
        at_least("found in training, T = 0.5 − T = 1.5", gap, by[0.5][1] - by[1.5][1], "more invented words when high"),
        at_least("different words, T = 1.5 − T = 0.5", 0.02, by[1.5][0] - by[0.5][0], "more repetition when low"),
    ]
    lines = [
        Line("different words in a sample", list(TEMPERATURES), [distinct for distinct, _ in curves]),
        Line("words found in training", list(TEMPERATURES), [found for _, found in curves]),
    ]
    plots = [
        Plot("What it writes, four ways", "One sample of each.", text="\n\n".join(written)),
        Plot(
            "Variety against spelling",
            "As the temperature rises, words repeat less and fewer of them are words.",
            "temperature",
            "share",
            lines,
        ),
    ]
    note = "The library draws by inverting the running sum, with one number a token from G(7)."
    return Outcome(measurements, plots, [note])


def _samples(task: TextGeneration, T: float, ctx: ExperimentContext) -> list[str]:
    [texts] = task.generate_all([PROMPT], max_new_tokens=LENGTH, temperature=T, num_samples=SAMPLES, seed=ctx.seed)
    return texts


SEED_LENGTH, ASKED = 8, 8
PREFIXES = (0, 4, 8, 16, 24, 32, 40, 48)
TEXTS = 512


@experiment(
    "3.6c",
    "Exposure",
    question="What happens to a model that reads what it wrote itself?",
    protocol=MODEL + "; 512 validation windows: 8 real characters, then n more, and the loss on the 8 real characters "
    "after those. The n are the real ones, the model's own sample (T = 1), or real ones of another place.",
    explanation="In training the model reads real text only; in use it reads its own. After a few characters of its "
    "own it has left the text that is asked about, and does not come back to it. Real characters of another place do "
    "nearly as much harm: most of the drift is that the text is another one, not that it is badly written.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=8.0,
)
def exposure(ctx: ExperimentContext) -> Outcome:
    """3.6c."""
    trained = reference_gpt(ctx)
    task = trained.task
    ids = torch.from_numpy(trained.held.astype(np.int64))
    generator = torch.Generator().manual_seed(ctx.seed)
    starts = torch.randint(len(ids) - WINDOW, (TEXTS,), generator=generator)
    windows = ids[starts[:, None] + torch.arange(WINDOW)]
    elsewhere = ids[torch.randint(len(ids) - WINDOW, (TEXTS,), generator=generator)[:, None] + torch.arange(WINDOW)]
    own = _continued(task, windows[:, :SEED_LENGTH], max(PREFIXES), generator)
    kinds = {"real": windows[:, SEED_LENGTH:], "its own sample": own, "real, of another place": elsewhere}
    lines = []
    for name, text in kinds.items():
        losses = [_loss_after(task, windows, text[:, :n], n) for n in PREFIXES]
        lines.append(Line(name, list(PREFIXES), losses))
    real, sampled, other = (line.y for line in lines)
    drift = [b - a for a, b in zip(real, sampled, strict=True)]
    measurements = [
        *(first_steps(trained) if ctx.quick else []),
        at_most("drift without a prefix", 0.0, abs(drift[0])),
        at_least("drift after 48 characters, nats", 0.05 if ctx.quick else 0.5, drift[-1], "own figure: grows"),
    ]
    if not ctx.quick:
        measurements.append(near("real prefix, loss after 48", trained.validation[900], real[-1], 0.15, 3))
    measurements += [shown(f"drift after {n}", f"{d:.3f}") for n, d in zip(PREFIXES, drift, strict=True)]
    measurements.append(shown("its own − another place, after 48", f"{sampled[-1] - other[-1]:+.3f}"))
    caption = "After real text the loss stays; after the model's own it jumps up and does not come down again."
    plot = Plot("Loss on real text after a prefix", caption, "characters of prefix", "nats/character", lines)
    return Outcome(measurements, [plot])


def _continued(task: TextGeneration, heads: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The model's own samples (B, count) after ids (B, N), at T = 1."""
    rows = []
    with eval_mode(task.model), torch.inference_mode():
        model: Any = task.model
        log_probs, state = prefill(model, heads.tolist())
        for _ in range(count):
            # All rows draw in turn from one generator.
            chosen, _ = Sampling().choose(log_probs, [generator] * len(heads))
            rows.append(torch.tensor(chosen))
            after, state = model.step(rows[-1][:, None], state)
            log_probs = after[:, -1]
    return torch.stack(rows, 1)


def _loss_after(task: TextGeneration, windows: Tensor, prefix: Tensor, n: int) -> float:
    """The mean loss on the real characters after the first 8 and n, where `prefix` (B, n) stands in place of the n."""
    asked = windows[:, SEED_LENGTH + n : SEED_LENGTH + n + ASKED]
    read = torch.cat((windows[:, :SEED_LENGTH], prefix, asked), 1)
    with eval_mode(task.model) as model, torch.no_grad():
        logits = model(Batch({"text": Stream(ids=read[:, :-1])}))[:, -ASKED:]
    return float(cross_entropy(logits.flatten(0, 1), asked.flatten()))
