"""Loss against training time: the nano recipe against 900 steps of the plain implementation, on tinyshakespeare.

Losses are measured on 8 × 64 windows of 64 characters, drawn with seed 123 from the last tenth of the text, without
context before them. Seconds are those of training alone, without evaluations, reading and planning, for both.
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

from benchmarks import data
from benchmarks.harness import SPEEDUP, Row, Setting, Spread, at_least, at_most, progress
from benchmarks.peers.plain_gpt import PlainTraining
from tokenloom import start_session
from tokenloom.data.samples import Keys, TextWindows
from tokenloom.runs.events import Planned
from tokenloom.runs.session import TrainingSession
from tokenloom.tasks.text_generation import TextGeneration
from tokenloom.training.events import Finished, StepFinished

WINDOW, STEPS, QUALITY = 64, 900, 1.9085
SEEDS = (1, 2, 3)
# Order-6 Kneser–Ney (lab row 2.7): on the validation text with sliding context, and on the windows.
NGRAM_TEXT, NGRAM_WINDOWS = 1.555, 1.611
# Evaluations per run of ours; the resolution of the time to a loss.
NUM_EVALUATIONS = 40

# The size preset for trainings of seconds.
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
    """A training: (seconds, loss) of each evaluation, in order."""

    evaluations: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of the whole training."""
        return self.evaluations[-1][0]

    @property
    def loss(self) -> float:
        """The final loss."""
        return self.evaluations[-1][1]

    def time_to(self, loss: float) -> float:
        """Return the seconds until the first evaluation with at most this loss; infinity if there is none."""
        return next((seconds for seconds, value in self.evaluations if value <= loss), float("inf"))


def eval_interval(steps: int) -> int:
    """Return the number of steps between evaluations."""
    return max(1, steps // NUM_EVALUATIONS)


def plain_trace(ids: Tensor, val_ids: NDArray[Any], vocab_size: int, steps: int, seed: int = 12) -> Trace:
    """Train the plain implementation, with six evaluations."""
    training = PlainTraining(ids, vocab_size, steps=steps, seed=seed)
    samples = Protocol(val_ids, WINDOW)
    windows = torch.from_numpy(samples.take(samples.all()))
    trace, seconds = Trace(), 0.0
    for number in range(1, steps + 1):
        began = time.perf_counter()
        training.step()
        seconds += time.perf_counter() - began
        if number % max(1, steps // 6) == 0 or number == steps:
            with torch.no_grad():
                logits = training.model(windows[:, :-1])
            trace.evaluations.append((seconds, float(cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))))
    return trace


def our_trace(val_ids: NDArray[Any], **settings: Any) -> tuple[Trace, TextGeneration]:
    """Train through the public function, with evaluations outside of its time."""
    # The training itself evaluates only at its end.
    session = start_session(data.QUALITY_TEXT, **{"eval_every": 10**9, **RECIPE, **settings})
    samples, trace, seconds = Protocol(val_ids, WINDOW), Trace(), 0.0
    task = session.task
    assert isinstance(task, TextGeneration)
    for event, elapsed in with_seconds(session):
        if isinstance(event, StepFinished):
            seconds += elapsed
            if event.step % eval_interval(event.steps) == 0 or event.step == event.steps:
                trace.evaluations.append((seconds, task.evaluate(samples=samples)["loss"]))
        elif isinstance(event, Finished):
            break
    return trace, task


def steps_in(seconds: float, **settings: Any) -> int:
    """Return the number of our steps in some seconds of training, by the step time that the plan measures.

    The setting `minutes` would include evaluations.
    """
    events = start_session(data.QUALITY_TEXT, dry_run=True, **RECIPE, **settings)
    planned = next(event for event in events if isinstance(event, Planned))
    # The plan measures the fastest step.
    return max(1, int(0.95 * seconds / planned.plan.seconds_per_step))


def with_seconds(session: TrainingSession) -> Iterator[tuple[Any, float]]:
    """Yield the events of a training, each with the seconds since the one before."""
    events = iter(session)
    while True:
        began = time.perf_counter()
        try:
            event = next(events)
        except StopIteration:
            return
        yield event, time.perf_counter() - began


def measure(setting: Setting) -> list[Row]:
    _, prepared = data.prepared(context=WINDOW)
    ids, val_ids = prepared.train.ids, prepared.validation.ids  # type: ignore[attr-defined]
    vocab_size = int(ids.max()) + 1
    seeds = SEEDS[:1] if setting.quick else SEEDS
    steps = 90 if setting.quick else STEPS
    as_tensor = torch.from_numpy(ids.astype("int64"))
    rows = []

    def row(
        name: str,
        values: list[float],
        unit: str,
        goal: Any,
        ours: list[float] | None = None,
        theirs: float | None = None,
    ) -> None:
        peer = "" if theirs is None else f"plain implementation, {steps} steps"
        our_seconds = None if ours is None else median(ours)
        rows.append(
            Row(
                name,
                setting.threads,
                Spread.of(values),
                unit,
                goal,
                peer,
                our_seconds,
                theirs,
                "" if ours is None else "s",
            )
        )

    # Both alternately, seed by seed, so that drift of the machine affects both.
    plains: list[Trace] = []
    equal: list[Trace] = []
    third: list[Trace] = []
    for seed in seeds:
        progress(f"seed {seed}: plain implementation, {steps} steps")
        # The first is the seed of lab row 3.4.
        plains.append(plain_trace(as_tensor, val_ids, vocab_size, steps, seed=11 + seed))
        budget = plains[-1].seconds
        progress(
            f"  {plains[-1].seconds:.1f} s, loss {plains[-1].loss:.4f}; ours in the same time, and in a third of it"
        )
        for traces, divisor in ((equal, 1), (third, 3)):
            options = {"seed": seed, "threads": setting.threads}
            traces.append(our_trace(val_ids, **options, steps=steps_in(budget / divisor, **options))[0])
        for name, trace in (("equal time", equal[-1]), ("a third", third[-1])):
            progress(f"  {name}: {trace.seconds:.1f} s, loss {trace.loss:.4f}")
    goal_loss = QUALITY if steps == STEPS else plains[0].loss
    theirs = median(trace.seconds for trace in plains)
    row(f"loss of the plain implementation after {steps} steps", [t.loss for t in plains], "nats", None)
    row(
        f"our loss after a third of its time ({median(t.seconds for t in third):.1f} s)",
        [t.loss for t in third],
        "nats",
        at_most(goal_loss),
    )
    row(
        f"our loss at equal time ({median(t.seconds for t in equal):.1f} s)",
        [t.loss for t in equal],
        "nats",
        at_most(1.72),
    )
    reached = [min(a.time_to(goal_loss), b.time_to(goal_loss)) for a, b in zip(equal, third, strict=True)]
    ratios = [plain.seconds / ours for plain, ours in zip(plains, reached, strict=True)]
    row(f"time until the loss is {goal_loss:.4f}", ratios, SPEEDUP, at_least(3), reached, theirs)
    if setting.long:
        rows += ten_minutes(setting, val_ids, seeds[:1])
    return rows


def ten_minutes(setting: Setting, val_ids: NDArray[Any], seeds: tuple[int, ...]) -> list[Row]:
    """Return the loss after ten minutes, with the n-gram as the goal: on the windows, and on the whole validation text,
    where ours reads separate windows and the n-gram sliding context."""
    windows, whole = [], []
    for seed in seeds:
        progress(f"ten minutes, seed {seed}")
        options = {"seed": seed, "threads": setting.threads}
        _, task = our_trace(val_ids, **options, size="small", minutes=10, eval_every=None)
        windows.append(task.evaluate(samples=Protocol(val_ids, WINDOW))["loss"])
        whole.append(task.evaluate(samples=TextWindows(val_ids, task.model_config["context"]))["loss"])
    name = "our loss after ten minutes"
    return [
        Row(f"{name}, windows", setting.threads, Spread.of(windows), "nats", at_most(NGRAM_WINDOWS)),
        Row(f"{name}, whole validation text", setting.threads, Spread.of(whole), "nats", at_most(NGRAM_TEXT)),
    ]
