"""Section 1: positions beyond those of the training, for each kind of position encoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from tokenloom.config import fill
from tokenloom.lab.corpus import CORPUS, WINDOW, drawn_batches, prepared
from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, experiment, holds, shown
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.nn.positions import Learned
from tokenloom.plotting.svg import Line, Plot
from tokenloom.training.events import StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

POSITIONS = ("learned", "sinusoidal", "rotary", "relative-bias")
LENGTHS = (64, 96, 128, 192)
# Losses along the window are means over this many positions.
BIN = 16


def trained(ctx: ExperimentContext, kind: str, *, width: int, depth: int, steps: int) -> tuple[GPT, Tensor]:
    """Return a small GPT with one kind of positions, trained on windows of 64, and the validation ids."""
    task, train, val = prepared(ctx, size="nano", context=WINDOW, width=width, depth=depth, heads=4)
    config = replace(
        GPTConfig(task.tokenizer.vocab_size, WINDOW, width=width, depth=depth, heads=4), positions={"kind": kind}
    )
    task.model = GPT(config, ctx.seed)
    settings, _ = fill(TrainingSettings(steps=steps, batch_size=16, eval_every=steps), task.load(None).recipe)
    done = 0
    for event in fit(task, task.model, settings, drawn_batches(task, train, ctx.generator(), 16), val):
        done += isinstance(event, StepFinished)
        ctx.report_progress((POSITIONS.index(kind) + done / steps) / len(POSITIONS))
        if done == steps:  # The model is evaluated below, not by the loop.
            break
    return task.model, torch.from_numpy(np.asarray(val.ids, np.int64))


def loss_by_position(model: GPT, ids: Tensor, length: int, windows: int = 128) -> Tensor:
    """Return the loss (length,), in nats, at each position of a window, as a mean over windows drawn with G(123).

    The loss of a causal model at a position does not depend on later ones, so one pass covers all shorter windows.
    """
    starts = torch.randint(len(ids) - LENGTHS[-1] - 1, (windows,), generator=torch.Generator().manual_seed(123))
    rows = ids[starts[:, None] + torch.arange(length + 1)]
    model.eval()
    with torch.no_grad():
        found = [
            nn.functional.cross_entropy(
                model(Batch({"text": Stream(ids=part[:, :-1])})).mT, part[:, 1:], reduction="none"
            )
            for part in torch.split(rows, 32)
        ]
    return torch.cat(found).mean(0)


def extend_positions(model: GPT, limit: int) -> GPT:
    """Return a model with learned positions up to `limit`; those beyond the training have initial values."""
    config = replace(model.config, context=limit)
    other = GPT(config, seed=1)
    assert isinstance(model.positions, Learned)
    state, name = model.state_dict(), "positions.table"
    known, initial = state[name], other.state_dict()[name]
    other.load_state_dict({**state, name: torch.cat((known, initial[len(known) :]))})
    return other


@experiment(
    "1.12d",
    "Beyond the training length",
    question="Does a model generalize to positions that it has never seen?",
    protocol="A GPT (D = 64, L = 2, H = 4), trained on windows of 64 for 200 steps of 16, with learned, sinusoidal, "
    "rotary and relative-bias positions; mean loss on 128 windows of 64, 96, 128 and 192 of the validation part.",
    explanation="A table of learned positions ends at the training length. Sinusoidal vectors are defined beyond it, "
    "but the layers have not learned them. Rotations and biases depend on n − m alone and extrapolate much better: "
    "most of the relevant context is near. None of them gains from the longer context, since none was trained on it.",
    dataset=CORPUS,
    seconds=40.0,
    quick=True,
)
def beyond(ctx: ExperimentContext) -> Outcome:
    """1.12d."""
    size = {"width": 32, "depth": 1, "steps": 40} if ctx.quick else {"width": 64, "depth": 2, "steps": 200}
    losses: dict[str, Tensor] = {}
    message = "no error"
    for kind in POSITIONS:
        model, ids = trained(ctx, kind, **size)
        if kind == "learned":
            losses[kind] = loss_by_position(model, ids, WINDOW)
            try:
                loss_by_position(model, ids, LENGTHS[1])
            except ValueError as error:
                message = str(error)
            losses["learned, then initial vectors"] = loss_by_position(
                extend_positions(model, LENGTHS[-1]), ids, LENGTHS[-1]
            )
        else:
            losses[kind] = loss_by_position(model, ids, LENGTHS[-1])
    means = {name: [course[:N].mean().item() for N in LENGTHS if len(course) >= N] for name, course in losses.items()}
    # Loss of the last 64 positions − loss of the last 32 within the training length.
    rise = {n: (c[-64:].mean() - c[32:64].mean()).item() for n, c in losses.items() if len(c) > WINDOW}
    measurements = [holds("learned, 96 tokens", "undefined", message, "learned positions for 0 … 63" in message)]
    if ctx.quick:
        measurements.append(at_most("worst loss at 192 (coarse)", 3.0, max(found[-1] for found in means.values())))
    else:
        best = max(rise["rotary"], rise["relative-bias"])
        measurements.append(
            at_least("sinusoidal: rise at 128 … 191 − that of the others", 0.1, rise["sinusoidal"] - best)
        )
        measurements.append(at_most("rotary and relative bias: rise at 128 … 191", 0.6, best))
    for name, found in means.items():
        measurements.append(shown(f"{name}: loss at 64, 96, 128, 192", ", ".join(f"{value:.3f}" for value in found)))
    for name, value in rise.items():
        measurements.append(shown(f"{name}: rise at 128 … 191", f"{value:+.3f}"))
    return Outcome(measurements, plots(losses, means))


def plots(losses: dict[str, Tensor], means: dict[str, list[float]]) -> list[Plot]:
    """Return plots of the mean loss against length and of the loss along the longest window."""
    # The line that ends early is drawn last, on top of the others.
    names = sorted(losses, key="learned".__eq__)
    along = []
    for name in names:
        course = losses[name]
        values = course.view(-1, BIN).mean(1).tolist()
        along.append(Line(name, [BIN * (i + 0.5) for i in range(len(values))], values))
    return [
        Plot(
            "Loss against length",
            "Trained on 64 tokens. Sinusoidal positions degrade most, rotations and biases least.",
            "tokens per window",
            "nats/character",
            [Line(name, LENGTHS[: len(means[name])], means[name]) for name in names],
        ),
        Plot(
            "Loss along the window",
            f"Means over {BIN} positions; the training length is 64.",
            "position in the window",
            "nats/character",
            along,
            legend_above=True,
        ),
    ]
