"""Progress of a training: the data report, the plan, a progress bar, the loss curve, the result.

Everything but the result goes to standard error. A terminal gets a progress bar; a file, a line per evaluation.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenloom.cli.output import plain, quantity
from tokenloom.errors import UserError
from tokenloom.kernels import loader
from tokenloom.runs.events import Fitted, InitializedFrom, Planned, Prepared, PrerequisiteEvent
from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.utils.progress import duration

if TYPE_CHECKING:
    from rich.progress import Progress

    from tokenloom.planning.estimate import Plan
    from tokenloom.runs.session import TrainingSession
    from tokenloom.tasks.base import Task

# Width of the column of labels.
COLUMN = 19
LABELED = re.compile(r"([a-z][\w –-]*): +(.*)")
# Steps over which speed and training loss are averaged.
RECENT = 50


def field(label: str, text: str) -> str:
    """Return `label:            text`."""
    return f"{label + ':':<{COLUMN}}{text}"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {plain(value)}" for name, value in values.items())


def plan_lines(plan: Plan) -> list[str]:
    """Return the lines that describe a training before it starts."""
    t, m = plan.settings, plan.memory
    parts = {"weights": m.weights, "gradients": m.gradients, "optimizer": m.optimizer, "activations": m.activations}
    memory = ", ".join(f"{what} {quantity(size, 'B')}" for what, size in parts.items())
    threads = t.threads
    native = f"{words}, " if plan.device == "cpu" and (words := loader.summary()) else ""
    epochs = plan.steps / max(1, plan.steps_per_epoch)
    return [
        field("model", f"{plan.parameters:,} parameters, {quantity(plan.flops_per_token)} FLOPs/token (training)"),
        field("auto settings", _listed(plan.derived)),
        field("memory", f"{quantity(m.total, 'B')} ({memory})"),
        field(
            "machine",
            f"{plan.device}, {'' if threads is None else f'{threads} thread' + 's' * (threads > 1) + ', '}"
            f"{t.dtype}, {native}{quantity(plan.tokens_per_second)} {plan.unit}/s measured",
        ),
        field(
            "plan",
            f"{plan.steps:,} steps of {plan.targets_per_step:,} {plan.unit}, {epochs:.3g} epochs,"
            f" about {duration(plan.seconds)}",
        ),
    ]


class Speed:
    """Targets per second. A step after an evaluation or a save is left out: its time includes theirs."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._targets, self._seconds = 0, 0.0
        self._previous: StepFinished | None = None

    def update(self, event: Event) -> None:
        """Count a step."""
        if not isinstance(event, StepFinished):
            self._previous = None
            return
        if self._previous is not None:
            took = event.seconds - self._previous.seconds
            self._recent.append((event.num_targets, took))
            self._targets, self._seconds = self._targets + event.num_targets, self._seconds + took
        self._previous = event

    @property
    def recent(self) -> float | None:
        """Return the speed over the last steps; None before two consecutive steps."""
        seconds = sum(took for _, took in self._recent)
        return sum(targets for targets, _ in self._recent) / seconds if seconds else None

    @property
    def overall(self) -> float | None:
        """Return the speed over the whole training; None before two consecutive steps."""
        return self._targets / self._seconds if self._seconds else None


class Display:
    """Display of the events of one training, and of the trainings that it needs first."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._notes: list[str] = []
        self._progress: Progress | None = None
        self._reset()

    def _reset(self) -> None:
        """Start the display of another training."""
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
        self._fitted = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def line(self, text: str) -> None:
        """Print a line to standard error; a terminal wraps it behind the label."""
        if self.quiet:
            return
        if self.console.is_terminal and len(text) > self.console.width and "\n" not in text:
            indent = " " * COLUMN if text[:COLUMN].rstrip().endswith(":") else "  "
            text = textwrap.fill(text, self.console.width, subsequent_indent=indent, break_on_hyphens=False)
        try:
            self.console.print(text, markup=False)
        except OSError:
            # The reader of standard error has closed it: train on without reports.
            self.quiet = True

    def progress_line(self, text: str) -> None:
        """Show the progress of work other than training steps."""
        self.line(field("progress", text))

    def note(self, text: str) -> None:
        """Print a note, once."""
        if text not in self._notes:
            self._notes.append(text)
            self.line(field("note", text))

    def show(self, event: Event) -> None:
        """Show an event."""
        self.speed.update(event)
        match event:
            case Prepared():
                for text in event.lines:
                    labeled = LABELED.fullmatch(text)
                    self.line(field(*labeled.groups()) if labeled else text)
            case PrerequisiteEvent():
                self._prerequisite(event)
            case InitializedFrom():
                fresh = f"; newly initialized: {', '.join(event.fresh)}" if event.fresh else ""
                self.line(field("initialized from", f"{event.run}: {event.taken} tensors{fresh}"))
            case Planned():
                self._plan = event.plan
                for text in plan_lines(event.plan):
                    self.line(text)
            case Fitted():
                self._show_fitted(event)
            case Baseline():
                self._baseline = event
                self.line(field("baseline", f"{event.value:.4f} {event.unit}, {event.name} {event.note}".rstrip()))
            case Resumed():
                self.line(field("resumed", f"from step {event.step:,}"))
                for text in event.damaged:
                    self.note(text)
            case StepFinished():
                self._step_finished(event)
            case Evaluated():
                self._evaluated(event)
            case Saved():
                self.saved = event
            case Finished():
                self._finished(event)
            case _:
                pass

    def _prerequisite(self, event: PrerequisiteEvent) -> None:
        """Show that a prerequisite training starts or ends."""
        self._close()
        out = f", in {event.out}" if event.out is not None else ""
        self.line(field("prerequisite", f"{event.name} {'finished' if event.over else f'starts: {event.task}'}{out}"))
        self._reset()

    def _show_fitted(self, event: Fitted) -> None:
        numbers, size = f"{event.numbers:,} numbers", quantity(event.size, "B")
        self.line(field("model", f"{numbers} ({size}), fitted in {event.seconds:.1f} s"))
        self._fitted = True
        if event.auto_settings:
            self.line(field("auto settings", _listed(event.auto_settings)))

    def _step_finished(self, event: StepFinished) -> None:
        self._first, self._last = self._first or event, event
        self._losses.append(event.loss)
        self._training_curve.append((event.step, event.loss))
        if self.quiet or not self.console.is_terminal:
            return
        if self._progress is None:
            self._open(event)
        assert self._progress is not None
        text = f"loss {self._mean():.4f}{self._validation}  {self._rate()}  ETA {self._eta()}"
        self._progress.update(self._bar, completed=event.step, description=text)

    def _mean(self) -> float:
        return sum(self._losses) / max(1, len(self._losses))

    def _rate(self) -> str:
        planned, things = (0.0, "tokens") if self._plan is None else (self._plan.tokens_per_second, self._plan.unit)
        return f"{quantity(self.speed.recent or planned)} {things}/s"

    def _eta(self) -> str:
        """Return the estimated time to the end, evaluations included."""
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
            f"{' best' if event.best else '     '}  {self._rate()}  {duration(event.seconds)}  ETA {self._eta()}"
        )

    def _finished(self, event: Finished) -> None:
        self._close()
        self._best = event.best
        for text in event.notes:
            self.note(text)
        if self._last is None and event.reason != "fitted":
            self.line(f"nothing left to train: {event.step:,} steps are done (--steps trains longer)")
        if len(self._training_curve) > 2 and not self.quiet:
            self._draw()
        if event.reason == "patience":
            self.line(
                f"stopped at step {event.step:,}: no better evaluation since step {event.best_step:,} (--patience)"
            )
        self._overfitted(event)
        if event.clipped:
            share = event.clipped / max(1, event.step)
            self.line(f"gradients were clipped in {event.clipped:,} of {event.step:,} steps ({share:.1%})")

    def _overfitted(self, event: Finished) -> None:
        """Warn when the validation loss has risen since an early best evaluation."""
        if not self._validation_curve or event.best_step > 0.75 * event.step:
            return
        last, best = self._validation_curve[-1][1], event.best["loss"]
        if last > 1.01 * best:
            self.line(
                f"overfitting: validation loss was best at step {event.best_step:,} ({best:.4f}) and rose to"
                f" {last:.4f}; fewer steps, a smaller size or dropout may do as well"
            )

    def _draw(self) -> None:
        from tokenloom.plotting.terminal import terminal_curve

        found = self._baseline
        baseline = (found.name, found.value) if found is not None and found.metric == "loss" else None
        series: dict[str, Sequence[tuple[float, float]]] = {
            "training": self._training_curve,
            "validation": self._validation_curve,
        }
        ascii_only = "utf" not in (sys.stderr.encoding or "").lower()
        self.line(terminal_curve(series, min(100, self.console.width), 16, baseline=baseline, ascii_only=ascii_only))

    def result(self, session: TrainingSession, result: dict[str, Any], *, example: bool) -> None:
        """Print the result to standard output: metrics, an example, and the next command."""
        from tokenloom.cli.metrics import metric_lines
        from tokenloom.config import options
        from tokenloom.tasks.base import actions_of

        if self.quiet:
            return
        if session.dry_run:
            print("dry run: nothing was " + ("saved" if self._fitted else "trained"))
            return
        if "loss" in result:
            print("\n".join(metric_lines(session.task.metrics, self._best)))
            if self._baseline is not None and (better := self._baseline.beaten(result)) is not None:
                verdict = "better" if better else "worse"
                print(f"{verdict} than the baseline, {self._baseline.name} ({self._baseline.value:.4f})")
        if example and (text := example_of(session.task)):
            print(f"{'-' * 29} example {'-' * 30}\n{text.strip()}\n{'-' * 68}")
        if session.folder is None:
            return
        where = shlex.quote(str(session.folder.path))
        if result.get("reason") == "interrupt":
            print(f"stopped and saved at step {result['steps']:,}; resume with: tokenloom train --resume --out {where}")
            return
        actions = actions_of(type(session.task))
        action = next((one for one in actions.values() if one.name != "evaluate"), actions["evaluate"])
        command, *words = action.name.split()
        words += [one.name.upper() for one in options(action.options) if one.positional]
        print(f"saved in {where}; try: {' '.join(['tokenloom', command, where, *words])}")


def example_of(task: Task) -> str:
    """Return what the action of a task shows that is declared as its example; empty when there is none."""
    from tokenloom.config import build
    from tokenloom.tasks.base import actions_of

    shown: list[str] = []
    for action in actions_of(type(task)).values():
        if action.example is not None:
            with suppress(UserError):
                action.run(task, build(action.options, action.example(task)), shown.append)
    return "".join(shown)
