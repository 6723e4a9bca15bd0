"""Section 3: two bugs that raise no error and make a training look better than it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tokenloom.config import fill
from tokenloom.lab.corpus import CORPUS, WINDOW, ProtocolWindows, drawn_batches, prepared
from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, experiment, shown
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT
from tokenloom.nn.masks import Causal, Mask
from tokenloom.plotting.svg import Line, Plot
from tokenloom.training.events import StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

STEPS, QUICK_STEPS, BATCH, QUICK_BATCH, TEXTS = 150, 100, 32, 16, 128
PROMPT, NEW_TOKENS = "ROMEO:\n", 120
# Add-one unigram (row 2.5).
UNIGRAM = 3.358
LIMIT, QUICK_LIMIT = 0.2, 1.2


class Masked(nn.Module):
    """A GPT with another mask; None for full attention."""

    def __init__(self, gpt: GPT, mask: Mask | None) -> None:
        super().__init__()
        self.gpt, self.mask = gpt, mask

    def forward(self, batch: Batch, hooks: Any = None) -> Tensor:
        """Return logits (B, N, vocab) for the stream "text"."""
        text = batch["text"]
        places = text.positions_or_count(relative=True)
        X = self.gpt.positions.add(self.gpt.tokens(text.tokens), places)
        position_info = self.gpt.positions.position_info(places, places, X.dtype)
        logits: Tensor = self.gpt.lm_head(self.gpt.transformer(X, mask=self.mask, position_info=position_info))
        return logits


def unshifted(batches: Callable[[int], list[Batch]]) -> Callable[[int], list[Batch]]:
    """Return the same batches with each token as its own target."""
    return lambda step: [Batch(batch.streams, {"loss": batch["text"].tokens}) for batch in batches(step)]


@dataclass(frozen=True)
class TrainedVariant:
    """A trained model: its training losses, its loss on the next unseen character, and a sample."""

    name: str
    losses: list[float]
    next_loss: float
    text: str


def train_variant(ctx: ExperimentContext, name: str, number: int, *, mask: Mask | None, shift: bool) -> TrainedVariant:
    """Train a model with a mask, with or without shifted targets; measure its next-character loss and sample."""
    steps, batch = (QUICK_STEPS, QUICK_BATCH) if ctx.quick else (STEPS, BATCH)
    task, train, val = prepared(ctx, context=WINDOW, width=64, depth=2, heads=4)
    built = task.build_model(seed=ctx.seed)
    assert isinstance(built, GPT)
    model = Masked(built, mask)
    # The schedule is that of 900 steps; the training stops early, while the learning rate is high.
    settings, _ = fill(TrainingSettings(steps=900, eval_every=900), task.load(None).recipe)
    batches = drawn_batches(task, train, ctx.generator(), batch)
    losses: list[float] = []
    for event in fit(task, model, settings, batches if shift else unshifted(batches), ProtocolWindows(val.ids, WINDOW)):
        if isinstance(event, StepFinished):
            losses.append(event.loss)
            ctx.report_progress((number + len(losses) / steps) / 3)
        if len(losses) >= steps:
            break
    model.eval()
    ids = torch.from_numpy(np.asarray(val.ids).astype(np.int64))
    starts = torch.randint(len(ids) - WINDOW - 1, (TEXTS,), generator=ctx.generator())
    rows = ids[starts[:, None] + torch.arange(WINDOW + 1)]
    return TrainedVariant(name, losses, next_loss(model, rows), sample(model, task.tokenizer, ctx.seed))


def next_loss(model: nn.Module, rows: Tensor) -> float:
    """Return the mean loss on the next character after 8, 16 … 56 characters of each row, the whole input."""
    found = []
    with torch.no_grad():
        for n in range(8, WINDOW, 8):
            logits = model(Batch({"text": Stream(ids=rows[:, :n])}))[:, -1]
            found.append(float(cross_entropy(logits, rows[:, n])))
    return float(np.mean(found))


def sample(model: nn.Module, tokenizer: Any, seed: int) -> str:
    """Return 120 characters after “ROMEO:⏎” at T = 1, each from a forward pass over the last 64."""
    ids = [int(i) for i in tokenizer.encode(PROMPT)]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(Batch({"text": Stream(ids=torch.tensor([ids[-WINDOW:]]))}))[0, -1]
            ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
    return str(tokenizer.decode(ids))


@experiment(
    "3.3",
    "A missing mask, a missing shift",
    question="How does a training with one of the two classic bugs look?",
    protocol="GPTs of the size of 3.4 with the modern preset, the first 150 of 900 steps of 32 windows: correct; "
    "without the causal mask; with each token as its own target. Then the loss on the next character after 8, 16 … 56 "
    "characters, which are the whole input, and 120 characters after “ROMEO:⏎”.",
    explanation="Without the mask the target is the next token of the input, and without the shift the same token: "
    "copying is enough, and the training loss goes to zero. No error is raised, but in generation there is nothing to "
    "copy. A loss far below what such a model can reach indicates a bug.",
    seed=12,
    dataset=CORPUS,
    quick=True,
    seconds=30.0,
)
def bugs(ctx: ExperimentContext) -> Outcome:
    """3.3."""
    correct = train_variant(ctx, "correct", 0, mask=Causal(), shift=True)
    open_ = train_variant(ctx, "without the mask", 1, mask=None, shift=True)
    same = train_variant(ctx, "without the shift", 2, mask=Causal(), shift=False)
    variants = (correct, open_, same)
    last = {variant.name: float(np.mean(variant.losses[-25:])) for variant in variants}
    limit = QUICK_LIMIT if ctx.quick else LIMIT
    measurements = [
        at_most("training loss without the mask", limit, last[open_.name], "near zero"),
        at_most("training loss without the shift", LIMIT, last[same.name], "near zero"),
        at_least("training loss, correct", 2.1 if ctx.quick else 1.7, last[correct.name]),
        at_most("next character, correct", 2.7, correct.next_loss),
        # Worse than the unigram, whatever the training loss.
        at_least("next character without the mask", UNIGRAM, open_.next_loss, "useless"),
        at_least("next character without the shift", UNIGRAM, same.next_loss, "useless"),
    ]
    measurements += [
        shown(f"{variant.name}: loss at the first step", f"{variant.losses[0]:.3f}") for variant in variants
    ]
    lines = [Line(variant.name, list(range(1, len(variant.losses) + 1)), variant.losses) for variant in variants]
    text = "\n\n".join(f"— {variant.name}\n{variant.text}" for variant in variants)
    caption = "The two models with a bug have much lower training losses than the correct one."
    return Outcome(
        measurements,
        [
            Plot("Training loss", caption, "step", "nats/character", lines, log_y=True),
            Plot("Samples", "One sample of each model at T = 1.", text=text),
        ],
        ["With the learned positions of 3.4 the loss falls slowly: 2.04 nats without the mask after 900 steps."],
    )
