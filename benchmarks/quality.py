"""How good after how long: tokenloom's small recipe against the plain implementation's 900 steps, on tinyshakespeare.

Every loss is that of the evaluation protocol of the chapter: 8 × 64 windows of 64 characters, drawn once with seed 123
from the last tenth of the text, each on its own. Seconds are those of training alone: neither evaluations nor the
reading of the text nor the choice of a pace are among them, for either side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import texts
from benchmarks.harness import FASTER, Row, Setting, Spread, at_least, at_most, progress
from benchmarks.peers.chapter_gpt import ChapterTraining
from tokenloom import start_session
from tokenloom.data.samples import Keys, TextWindows
from tokenloom.runs.events import Planned
from tokenloom.runs.session import TrainingSession
from tokenloom.tasks.text_generation import TextGeneration
from tokenloom.training.events import Finished, StepFinished

WINDOW, STEPS, QUALITY = 64, 900, 1.9085
SEEDS = (1, 2, 3)
# Order-6 Kneser–Ney (reference 2.7): on the validation text with running context, and on the protocol's windows.
NGRAM_TEXT, NGRAM_WINDOWS = 1.555, 1.611
# Our runs are looked at so often: the time to a quality is known to a part of the whole time as small as that.
LOOKS = 40

# Settings of ours beside seed, threads and length: the default recipe of the size that suits seconds.
RECIPE: dict[str, Any] = {"size": "nano"}


class Protocol(TextWindows):
    """The windows on which losses are measured."""

    def all(self) -> Keys:
        generator = torch.Generator().manual_seed(123)
        starts = [torch.randint(len(self.ids) - WINDOW - 1, (64,), generator=generator) for _ in range(8)]
        keys: Keys = torch.cat(starts).numpy()
        return keys


@dataclass
class Trace:
    """A training as it went: seconds of training and the loss at each look, in order."""

    looks: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        return self.looks[-1][0]

    @property
    def loss(self) -> float:
        """Where it ended."""
        return self.looks[-1][1]

    def time_to(self, loss: float) -> float:
        """Seconds until the first look at which the loss was no higher; infinity if it never was."""
        return next((seconds for seconds, value in self.looks if value <= loss), float("inf"))


def every(steps: int) -> int:
    """After how many steps a training of so many is looked at."""
    return max(1, steps // LOOKS)


def plain_trace(ids: Tensor, held: NDArray[Any], vocab_size: int, steps: int, seed: int = 12) -> Trace:
    """The plain implementation's training, looked at six times as the chapter does."""
    training = ChapterTraining(ids, vocab_size, steps=steps, seed=seed)
    samples = Protocol(held, WINDOW)
    windows = torch.from_numpy(samples.take(samples.all()))
    trace, seconds = Trace(), 0.0
    for number in range(1, steps + 1):
        began = time.perf_counter()
        training.step()
        seconds += time.perf_counter() - began
        if number % max(1, steps // 6) == 0 or number == steps:
            with torch.no_grad():
                logits = training.model(windows[:, :-1])
            trace.looks.append((seconds, float(cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))))
    return trace


def our_trace(held: NDArray[Any], **settings: Any) -> tuple[Trace, TextGeneration]:
    """A training through the public function, with looks outside of its time."""
    # An evaluation of the training's own would fall between two looks; with this there is one, at the end.
    fitting = start_session(texts.QUALITY_TEXT, **{"eval_every": 10**9, **RECIPE, **settings})
    samples, trace, seconds = Protocol(held, WINDOW), Trace(), 0.0
    task = fitting.task
    assert isinstance(task, TextGeneration)
    for event, taken in with_seconds(fitting):
        if isinstance(event, StepFinished):
            seconds += taken
            if event.step % every(event.steps) == 0 or event.step == event.steps:
                trace.looks.append((seconds, task.evaluate(samples=samples)["loss"]))
        elif isinstance(event, Finished):
            break
    return trace, task


def steps_in(seconds: float, **settings: Any) -> int:
    """How many steps of ours fit into so much time of training, by the pace that training itself measures first.

    `minutes` would not do: out of them it also pays for evaluations.
    """
    planned = next(
        e for e in start_session(texts.QUALITY_TEXT, dry_run=True, **RECIPE, **settings) if isinstance(e, Planned)
    )
    # Steps are a little slower than the fastest, which is what it measures.
    return max(1, int(0.95 * seconds / planned.plan.seconds_per_step))


def with_seconds(fitting: TrainingSession) -> Iterator[tuple[Any, float]]:
    """The events of a training, each with the time that it took to come."""
    events = iter(fitting)
    while True:
        began = time.perf_counter()
        try:
            event = next(events)
        except StopIteration:
            return
        yield event, time.perf_counter() - began


def measure(setting: Setting) -> list[Row]:
    _, material = texts.prepared(context=WINDOW)
    ids, held = material.train.ids, material.validation.ids  # type: ignore[attr-defined]
    vocab_size = int(ids.max()) + 1
    seeds = SEEDS[:1] if setting.quick else SEEDS
    steps = 90 if setting.quick else STEPS
    as_tensor = torch.from_numpy(ids.astype("int64"))
    rows = []

    def row(
        what: str,
        values: list[float],
        measure: str,
        goal: Any,
        ours: list[float] | None = None,
        theirs: float | None = None,
    ) -> None:
        peer = "" if theirs is None else f"plain implementation, {steps} steps"
        mine = None if ours is None else median(ours)
        unit = "" if ours is None else "s"
        rows.append(Row(what, setting.threads, Spread.of(values), measure, goal, peer, mine, theirs, unit))

    # The plain one and ours in turn, a seed each, so that both meet the same machine.
    plains: list[Trace] = []
    equal: list[Trace] = []
    third: list[Trace] = []
    for seed in seeds:
        progress(f"seed {seed}: plain implementation, {steps} steps")
        # The chapter's own seed first, which gives its digits.
        plains.append(plain_trace(as_tensor, held, vocab_size, steps, seed=11 + seed))
        budget = plains[-1].seconds
        progress(
            f"  {plains[-1].seconds:.1f} s, loss {plains[-1].loss:.4f}; ours in the same time, and in a third of it"
        )
        for traces, share in ((equal, 1), (third, 3)):
            own = {"seed": seed, "threads": setting.threads}
            traces.append(our_trace(held, **own, steps=steps_in(budget / share, **own))[0])
        for name, found in (("equal time", equal[-1]), ("a third", third[-1])):
            progress(f"  {name}: {found.seconds:.1f} s, loss {found.loss:.4f}")
    goal_loss = QUALITY if steps == STEPS else plains[0].loss
    theirs = median(trace.seconds for trace in plains)
    row(f"loss of the plain implementation after {steps} steps", [t.loss for t in plains], "nats", None)
    row(
        f"loss of ours after a third of its time ({median(t.seconds for t in third):.1f} s)",
        [t.loss for t in third],
        "nats",
        at_most(goal_loss),
    )
    row(
        f"loss of ours at equal time ({median(t.seconds for t in equal):.1f} s)",
        [t.loss for t in equal],
        "nats",
        at_most(1.72),
    )
    reached = [min(a.time_to(goal_loss), b.time_to(goal_loss)) for a, b in zip(equal, third, strict=True)]
    ratios = [plain.seconds / mine for plain, mine in zip(plains, reached, strict=True)]
    row(f"time until the loss is {goal_loss:.4f}", ratios, FASTER, at_least(3), reached, theirs)
    if setting.long:
        rows += ten_minutes(setting, held, seeds[:1])
    return rows


def ten_minutes(setting: Setting, held: NDArray[Any], seeds: tuple[int, ...]) -> list[Row]:
    """The default of ten minutes against the n-gram: on the same windows, and on the whole validation text, where ours
    sees no more than its own windows and the n-gram all that came before."""
    windows, whole = [], []
    for seed in seeds:
        progress(f"ten minutes, seed {seed}")
        own = {"seed": seed, "threads": setting.threads}
        _, task = our_trace(held, **own, size="small", minutes=10, eval_every=None)
        windows.append(task.evaluate(samples=Protocol(held, WINDOW))["loss"])
        whole.append(task.evaluate(samples=TextWindows(held, task.model_config["context"]))["loss"])
    what = "loss of ours after ten minutes"
    return [
        Row(f"{what}, protocol", setting.threads, Spread.of(windows), "nats", at_most(NGRAM_WINDOWS)),
        Row(f"{what}, whole validation text", setting.threads, Spread.of(whole), "nats", at_most(NGRAM_TEXT)),
    ]
