"""Section 1: positions beyond those of the training, for each way to put them in."""

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

MODEL_FAMILIES = ("learned", "sinusoidal", "rotary", "relative-bias")
LENGTHS = (64, 96, 128, 192)
# Losses along the window are means over so many places.
PLACES = 16


def trained(ctx: ExperimentContext, kind: str, *, width: int, depth: int, steps: int) -> tuple[GPT, Tensor]:
    """A small GPT with one kind of positions after a training on windows of 64, and the ids that are held out."""
    task, training, held = prepared(ctx, size="nano", context=WINDOW, width=width, depth=depth, heads=4)
    config = replace(
        GPTConfig(task.tokenizer.vocab_size, WINDOW, width=width, depth=depth, heads=4), positions={"kind": kind}
    )
    task.model = GPT(config, ctx.seed)
    settings, _ = fill(TrainingSettings(steps=steps, batch_size=16, eval_every=steps), task.load(None).recipe)
    done = 0
    for event in fit(task, task.model, settings, drawn_batches(task, training, ctx.generator(), 16), held):
        done += isinstance(event, StepFinished)
        ctx.report_progress((MODEL_FAMILIES.index(kind) + done / steps) / len(MODEL_FAMILIES))
        if done == steps:  # It is measured below, and not by the loop.
            break
    return task.model, torch.from_numpy(np.asarray(held.ids, np.int64))


def by_place(model: GPT, ids: Tensor, length: int, windows: int = 128) -> Tensor:
    """(length,): nats at each place of a window, the mean over windows whose starts are drawn with G(123).

    A causal model's loss at a place is that of any window that reaches so far, so one pass serves all shorter ones.
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


def lengthened(model: GPT, limit: int) -> GPT:
    """A model with learned positions up to `limit`: those beyond the training are as a training begins."""
    config = replace(model.config, context=limit)
    other = GPT(config, seed=1)
    assert isinstance(model.positions, Learned)
    state, place = model.state_dict(), "positions.table"
    known, fresh = state[place], other.state_dict()[place]
    other.load_state_dict({**state, place: torch.cat((known, fresh[len(known) :]))})
    return other


@experiment(
    "1.12d",
    "Beyond the training length",
    question="Does a model understand places that it has never seen?",
    protocol="A GPT (D = 64, L = 2, H = 4), trained on windows of 64 for 200 steps of 16, with learned, sinusoidal, "
    "rotary and relative-bias positions; mean loss on 128 windows of 64, 96, 128 and 192 of the validation part.",
    explanation="A table of learned positions ends where the training ended. Sinusoidal vectors go on, but the layers "
    "have never met them and read them wrongly. Rotations and biases depend on n − m alone and get by much better: "
    "most of what a letter needs is near. None of them gains by the longer context, for none was taught to use it.",
    dataset=CORPUS,
    seconds=40.0,
    quick=True,
)
def beyond(ctx: ExperimentContext) -> Outcome:
    """1.12d."""
    size = {"width": 32, "depth": 1, "steps": 40} if ctx.quick else {"width": 64, "depth": 2, "steps": 200}
    courses: dict[str, Tensor] = {}
    refusal = "no error"
    for kind in MODEL_FAMILIES:
        model, ids = trained(ctx, kind, **size)
        if kind == "learned":
            courses[kind] = by_place(model, ids, WINDOW)
            try:
                by_place(model, ids, LENGTHS[1])
            except ValueError as error:
                refusal = str(error)
            courses["learned, then fresh vectors"] = by_place(lengthened(model, LENGTHS[-1]), ids, LENGTHS[-1])
        else:
            courses[kind] = by_place(model, ids, LENGTHS[-1])
    means = {name: [course[:N].mean().item() for N in LENGTHS if len(course) >= N] for name, course in courses.items()}
    # How much worse the last 64 places are than the last 32 of the training length.
    rise = {n: (c[-64:].mean() - c[32:64].mean()).item() for n, c in courses.items() if len(c) > WINDOW}
    measurements = [holds("learned, 96 tokens", "undefined", refusal, "learned positions for 0 … 63" in refusal)]
    if ctx.quick:
        measurements.append(at_most("worst loss at 192 (coarse)", 3.0, max(found[-1] for found in means.values())))
    else:
        best = max(rise["rotary"], rise["relative-bias"])
        measurements.append(
            at_least("sinusoidal: rise at 128 … 191, beyond that of the others", 0.1, rise["sinusoidal"] - best)
        )
        measurements.append(at_most("rotary and relative bias: rise at 128 … 191", 0.6, best))
    for name, found in means.items():
        measurements.append(shown(f"{name}: loss at 64, 96, 128, 192", ", ".join(f"{value:.3f}" for value in found)))
    for name, value in rise.items():
        measurements.append(shown(f"{name}: rise at 128 … 191", f"{value:+.3f}"))
    return Outcome(measurements, plots(courses, means))


def plots(courses: dict[str, Tensor], means: dict[str, list[float]]) -> list[Plot]:
    """The mean loss against length, and the loss along the longest window; what ends early is drawn last, on top."""
    names = sorted(courses, key="learned".__eq__)
    along = []
    for name in names:
        course = courses[name]
        values = course.view(-1, PLACES).mean(1).tolist()
        along.append(Line(name, [PLACES * (i + 0.5) for i in range(len(values))], values))
    return [
        Plot(
            "Loss against length",
            "Trained on 64 tokens: learned positions end there, sinusoidal ones lose most, rotations and biases least.",
            "tokens of the window",
            "nats/character",
            [Line(name, LENGTHS[: len(means[name])], means[name]) for name in names],
        ),
        Plot(
            "Loss along the window",
            f"Means over {PLACES} places: what changes does so at place 64, where the training ended.",
            "place in the window",
            "nats/character",
            along,
            above=True,
        ),
    ]
