"""What a training shows while it runs: the report, the plan, a progress line, the curve.

Everything goes to standard error but the result at the end. In a terminal there is a progress bar; elsewhere, plain
lines at each evaluation.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenloom.cli.output import duration, plain, quantity
from tokenloom.kernels import loader
from tokenloom.training.events import (
    Baseline,
    Counted,
    Evaluated,
    Event,
    Finished,
    InitializedFrom,
    Planned,
    Prepared,
    PrerequisiteEvent,
    Resumed,
    Saved,
    StepFinished,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from tokenloom.planning.estimate import Plan
    from tokenloom.runs.session import TrainingSession

# Labels stand in a column of this width, as those of the data report do.
COLUMN = 12
RECENT = 50


def field(label: str, text: str) -> str:
    """`label:      text`."""
    return f"{label + ':':<{COLUMN}}{text}"


def _listed(derived: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {plain(value)}" for name, value in derived.items())


def plan_lines(plan: Plan) -> list[str]:
    """The plan before training, line by line."""
    t, m = plan.settings, plan.memory
    parts = {"weights": m.weights, "gradients": m.gradients, "optimizer": m.optimizer, "activations": m.activations}
    memory = ", ".join(f"{what} {quantity(size, 'B')}" for what, size in parts.items())
    threads = t.machine.threads
    native = f"{words}, " if plan.device == "cpu" and (words := loader.summary()) else ""
    epochs = plan.steps / max(1, plan.steps_per_epoch)
    return [
        field("model", f"{plan.parameters:,} parameters, {quantity(plan.flops_per_token)} FLOPs to train a token"),
        field("derived", _listed(plan.derived)),
        field("memory", f"{quantity(m.total, 'B')} ({memory})"),
        field(
            "machine",
            f"{plan.device}, {'' if threads is None else f'{threads} thread' + 's' * (threads > 1) + ', '}"
            f"{t.machine.precision}, {native}{quantity(plan.tokens_per_second)} {plan.things}/s measured",
        ),
        field(
            "plan",
            f"{plan.steps:,} steps of {plan.targets_per_step:,} {plan.things}, {epochs:.3g} epochs,"
            f" about {duration(plan.seconds)}",
        ),
    ]


class Speed:
    """Targets a second. A step that follows an evaluation or a save is left out, since they take time of their own."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._targets, self._seconds = 0, 0.0
        self._before: StepFinished | None = None

    def see(self, event: Event) -> None:
        """Take note of what happened."""
        if not isinstance(event, StepFinished):
            self._before = None
            return
        if self._before is not None:
            took = event.seconds - self._before.seconds
            self._recent.append((event.targets, took))
            self._targets, self._seconds = self._targets + event.targets, self._seconds + took
        self._before = event

    @property
    def recent(self) -> float | None:
        """Over the last steps; None before there are two in a row."""
        seconds = sum(took for _, took in self._recent)
        return sum(targets for targets, _ in self._recent) / seconds if seconds else None

    @property
    def overall(self) -> float | None:
        """Over the whole training; None before there are two steps in a row."""
        return self._targets / self._seconds if self._seconds else None


class Display:
    """Shows the events of one training."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._told: list[str] = []
        self._progress: Progress | None = None
        self._forget()

    def _forget(self) -> None:
        """Know nothing of any training yet."""
        self.speed = Speed()
        self.saved: Saved | None = None
        self._plan: Plan | None = None
        self._baseline: Baseline | None = None
        self._validation = ""
        self._training_curve: list[tuple[float, float]] = []
        self._validation_curve: list[tuple[float, float]] = []
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._best: dict[str, float] = {}
        self._first: StepFinished | None = None
        self._last: StepFinished | None = None
        self._bar: Any = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def line(self, text: str) -> None:
        """One line on standard error; in a terminal, long ones go on under their first column."""
        if self.quiet:
            return
        if self.console.is_terminal and len(text) > self.console.width and "\n" not in text:
            indent = " " * COLUMN if text[:COLUMN].rstrip().endswith(":") else "  "
            text = textwrap.fill(text, self.console.width, subsequent_indent=indent, break_on_hyphens=False)
        try:
            self.console.print(text, markup=False)
        except OSError:
            # Whoever read our reports has gone; the training is worth more than they are.
            self.quiet = True

    def progress_line(self, text: str) -> None:
        """How far long work is that is no training."""
        self.line(field("so far", text))

    def note(self, text: str) -> None:
        """A line of what else there is to say, once."""
        if text not in self._told:
            self._told.append(text)
            self.line(field("note", text))

    def show(self, event: Event) -> None:
        """Show what happened."""
        self.speed.see(event)
        match event:
            case Prepared():
                for text in event.lines:
                    self.line(text)
            case PrerequisiteEvent():
                self._staged(event)
            case InitializedFrom():
                fresh = f"; fresh: {', '.join(event.fresh)}" if event.fresh else ""
                self.line(field("starts", f"from {event.run}, with {event.taken} tensors of it{fresh}"))
            case Planned():
                self._plan = event.plan
                for text in plan_lines(event.plan):
                    self.line(text)
            case Counted():
                self._counted(event)
            case Baseline():
                self._baseline = event
                self.line(field("to beat", f"{event.value:.4f} {event.unit}, {event.name} {event.note}".rstrip()))
            case Resumed():
                self.line(field("resumed", f"from step {event.step:,}"))
                for text in event.damaged:
                    self.note(text)
            case StepFinished():
                self._stepped(event)
            case Evaluated():
                self._evaluated(event)
            case Saved():
                self.saved = event
            case Finished():
                self._finished(event)
            case _:
                pass

    def _staged(self, event: PrerequisiteEvent) -> None:
        """A stage begins, or is over: what was told of the training before it does not belong to the next one."""
        self._close()
        kept = f", kept in {event.out}" if event.out is not None else ""
        self.line(field("stage", f"{event.name} {'is done' if event.over else f'first: {event.task}'}{kept}"))
        self._forget()

    def _counted(self, event: Counted) -> None:
        numbers, size = f"{event.numbers:,} numbers", quantity(event.size, "B")
        self.line(field("model", f"{numbers} ({size}), counted in {event.seconds:.1f} s"))
        if event.derived:
            self.line(field("derived", _listed(event.derived)))

    def _stepped(self, event: StepFinished) -> None:
        self._first, self._last = self._first or event, event
        self._losses.append(event.loss)
        self._training_curve.append((event.step, event.loss))
        if self.quiet or not self.console.is_terminal:
            return
        if self._progress is None:
            self._open(event)
        assert self._progress is not None
        text = f"loss {self._mean():.4f}{self._validation}  {self._rate()}  left {self._left()}"
        self._progress.update(self._bar, completed=event.step, description=text)

    def _mean(self) -> float:
        return sum(self._losses) / max(1, len(self._losses))

    def _rate(self) -> str:
        planned, things = (0.0, "tokens") if self._plan is None else (self._plan.tokens_per_second, self._plan.things)
        return f"{quantity(self.speed.recent or planned)} {things}/s"

    def _left(self) -> str:
        """Time to the end, evaluations included, as the time so far suggests."""
        first, last = self._first, self._last
        assert first is not None
        assert last is not None
        each = self._plan.seconds_per_step if self._plan is not None else 0.0
        if last.step > first.step:
            each = (last.seconds - first.seconds) / (last.step - first.step)
        return duration(each * (last.steps - last.step))

    def _open(self, event: StepFinished) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        bar = BarColumn(bar_width=max(5, min(20, self.console.width - 75)))
        self._progress = Progress(
            bar, MofNCompleteColumn(), TextColumn("{task.description}"), console=self.console, transient=True
        )
        self._progress.start()
        self._bar = self._progress.add_task("", total=event.steps, completed=event.step)

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _evaluated(self, event: Evaluated) -> None:
        loss = event.metrics["loss"]
        self._validation_curve.append((event.step, loss))
        self._validation = f"  validation {loss:.4f}"
        if self._last is None:
            return
        total = self._last.steps
        self.line(
            f"{event.step:>{len(str(total))}}/{total}  loss {self._mean():.4f}  validation {loss:.4f}"
            f"{' best' if event.best else '     '}  {self._rate()}  {duration(event.seconds)}  left {self._left()}"
        )

    def _finished(self, event: Finished) -> None:
        self._close()
        self._best = event.best
        for text in event.notes:
            self.note(text)
        if self._last is None and event.reason != "counted":
            self.line(f"nothing left to train: {event.step:,} steps are done already (--steps trains longer)")
        if len(self._training_curve) > 2 and not self.quiet:
            self._draw()
        if event.reason == "patience":
            self.line(
                f"stopped at step {event.step:,}: no better evaluation since step {event.best_step:,} (--patience)"
            )
        self._overfitted(event)
        if event.clipped:
            share = event.clipped / max(1, event.step)
            self.line(f"the gradient was clipped in {event.clipped:,} of {event.step:,} steps ({share:.1%})")

    def _overfitted(self, event: Finished) -> None:
        """Say so when the best evaluation lies well back, and things got worse since."""
        if not self._validation_curve or event.best_step > 0.75 * event.step:
            return
        last, best = self._validation_curve[-1][1], event.best["loss"]
        if last > 1.01 * best:
            self.line(
                f"validation was best at step {event.best_step:,} ({best:.4f}) and rose to {last:.4f}: from there the"
                " training data were learned by heart; fewer steps, a smaller size or dropout would do as well"
            )

    def _draw(self) -> None:
        from tokenloom.plotting.terminal import terminal_curve

        beside = self._baseline if self._baseline is not None and self._baseline.metric == "loss" else None
        baseline = None if beside is None else (beside.name, beside.value)
        series: dict[str, Sequence[tuple[float, float]]] = {
            "training": self._training_curve,
            "validation": self._validation_curve,
        }
        ascii_only = "utf" not in (sys.stderr.encoding or "").lower()
        self.line(terminal_curve(series, min(100, self.console.width), 16, baseline=baseline, ascii_only=ascii_only))

    def result(self, fitting: TrainingSession, result: dict[str, Any], *, example: bool) -> None:
        """The last lines, on standard output: what came out, what it makes, and what to do next."""
        from tokenloom.config import options

        if self.quiet:
            return
        if fitting.dry_run:
            print("a dry run: nothing was " + ("kept" if fitting.task.counted else "trained"))
            return
        if "loss" in result:
            print("\n".join(fitting.task.metric_lines(self._best)))
            if self._baseline is not None and (better := self._baseline.beaten(result)) is not None:
                verdict = "beats" if better else "does not beat"
                print(f"{verdict} the simple method, {self._baseline.name} ({self._baseline.value:.4f})")
        if example and (text := fitting.task.example()):
            print(f"{'-' * 20} an example of what it makes {'-' * 20}\n{text.strip()}\n{'-' * 68}")
        if fitting.folder is None:
            return
        where = shlex.quote(str(fitting.folder.path))
        if result.get("reason") == "interrupt":
            print(f"stopped and saved at step {result['steps']:,}; go on with: tokenloom train --resume --out {where}")
            return
        verb, uses = next(iter(fitting.task.uses.items()), ("evaluate", None))
        inputs = [] if uses is None else [option.name.upper() for option in options(uses) if option.positional]
        print(f"saved in {where}; try: {' '.join(['tokenloom', verb, where, *inputs])}")
