"""What a training shows while it runs: the report, the plan, a progress line, the curve.

Everything goes to standard error but the summary at the end. In a terminal there is a progress bar; elsewhere, plain
lines at each evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Planned, Prepared, Saved, Stepped

if TYPE_CHECKING:
    from rich.progress import Progress

    from tokenloom.tasks.frame.fitting import Fitting
    from tokenloom.training.estimate import Plan


def duration(seconds: float) -> str:
    """1:05:09, 3:20, 0:08."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def quantity(value: float, unit: str = "") -> str:
    """1.2k, 3.4M, 5.6G, three digits."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}{unit}"
    return f"{value:.3g}{unit}"


def plan_lines(plan: Plan) -> list[str]:
    """The plan before training, line by line."""
    t, m = plan.settings, plan.memory
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in plan.derived.items())
    epochs = plan.steps / max(1, plan.steps_per_epoch)
    return [
        f"model:      {plan.parameters:,} parameters, {quantity(plan.flops_per_token)} FLOPs to train a token",
        f"derived:    {shown}",
        f"memory:     {quantity(m.total, 'B')} (weights {quantity(m.weights, 'B')}, gradients"
        f" {quantity(m.gradients, 'B')}, optimiser {quantity(m.optimizer, 'B')},"
        f" activations {quantity(m.activations, 'B')})",
        f"machine:    {plan.device}, {t.machine.threads or 'default'} threads, {t.machine.precision},"
        f" {quantity(plan.tokens_per_second)} tokens/s measured",
        f"training:   {plan.steps:,} steps of {plan.targets_per_step:,} targets, {epochs:.1f} epochs,"
        f" about {duration(plan.seconds)}",
    ]


class Display:
    """Shows the events of one training."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.plan: Plan | None = None
        self.baseline: Baseline | None = None
        self.validation = ""
        self.training_curve: list[tuple[float, float]] = []
        self.validation_curve: list[tuple[float, float]] = []
        self._progress: Progress | None = None
        self._bar: Any = None
        self._recent: list[Stepped] = []

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def line(self, text: str) -> None:
        """One line on standard error."""
        if not self.quiet:
            self.console.print(text, markup=False)

    def show(self, event: Event) -> None:
        """Show what happened."""
        match event:
            case Prepared():
                for text in event.lines:
                    self.line(text)
            case Planned():
                self.plan = event.plan
                for text in plan_lines(event.plan):
                    self.line(text)
            case Baseline():
                self.baseline = event
                self.line(f"to beat:    {event.value:.4f} {event.unit}, {event.name} {event.note}".rstrip())
            case Stepped():
                self._stepped(event)
            case Evaluated():
                self._evaluated(event)
            case Saved() | Finished():
                self._ended(event)
            case _:
                pass

    def _stepped(self, event: Stepped) -> None:
        self._recent = [*self._recent[-49:], event]
        self.training_curve.append((event.step, event.loss))
        if self.quiet or not self.console.is_terminal:
            return
        if self._progress is None:
            self._open(event)
        assert self._progress is not None
        text = f"loss {self._mean():.4f}{self.validation}  {quantity(self._rate())} tokens/s"
        self._progress.update(self._bar, completed=event.step, description=text)

    def _mean(self) -> float:
        return sum(e.loss for e in self._recent) / max(1, len(self._recent))

    def _rate(self) -> float:
        """Targets a second over the recent steps."""
        first, last = self._recent[0], self._recent[-1]
        if len(self._recent) < 2 or last.seconds <= first.seconds:
            return 0.0 if self.plan is None else self.plan.tokens_per_second
        return sum(e.targets for e in self._recent[1:]) / (last.seconds - first.seconds)

    def _left(self) -> float:
        last = self._recent[-1]
        return (last.steps - last.step) * last.targets / max(1e-9, self._rate())

    def _open(self, event: Stepped) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True)
        self._progress.start()
        self._bar = self._progress.add_task("", total=event.steps, completed=event.step)

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _evaluated(self, event: Evaluated) -> None:
        loss = event.metrics["loss"]
        self.validation_curve.append((event.step, loss))
        self.validation = f"  validation {loss:.4f}"
        if not self._recent:
            return
        total = self._recent[-1].steps
        self.line(
            f"step {event.step:>{len(str(total))}}/{total}  loss {self._mean():.4f}  validation {loss:.4f}"
            f"{' best' if event.best else '     '}  {quantity(self._rate())} tokens/s  {duration(event.seconds)}"
            f"  left {duration(self._left())}"
        )

    def _ended(self, event: Saved | Finished) -> None:
        if isinstance(event, Saved):
            return
        self._close()
        for note in event.notes:
            self.line(f"note: {note}")
        if self.quiet:
            return
        if len(self.training_curve) > 2:
            self._draw()
        if event.clipped:
            share = event.clipped / max(1, event.step)
            self.line(f"the gradient was clipped in {event.clipped:,} of {event.step:,} steps ({share:.0%})")

    def _draw(self) -> None:
        from tokenloom.drawing.terminal import terminal_curve

        baseline = None if self.baseline is None else (self.baseline.name, self.baseline.value)
        wide = min(100, self.console.width)
        series: dict[str, Sequence[tuple[float, float]]] = {
            "training": self.training_curve,
            "validation": self.validation_curve,
        }
        plain = "utf" not in (sys.stderr.encoding or "").lower()
        self.line(terminal_curve(series, wide, 16, baseline=baseline, ascii_only=plain))

    def result(self, fitting: Fitting, result: dict[str, Any]) -> None:
        """The last lines, on standard output: what came out and what to do next."""
        if self.quiet:
            return
        if fitting.dry_run:
            print("a dry run: nothing was trained")
            return
        if "loss" in result:
            print("\n".join(fitting.task.metric_lines({k: v for k, v in result.items() if isinstance(v, int | float)})))
        if self.baseline is not None and "loss" in result:
            better = result["loss"] < self.baseline.value
            print(f"{'beats' if better else 'does not beat'} the {self.baseline.name} ({self.baseline.value:.4f})")
        if fitting.folder is None:
            return
        where = fitting.folder.path
        if result.get("reason") == "interrupt":
            print(f"stopped and saved at step {result['steps']}; go on with: tokenloom train --resume --out {where}")
            return
        verb = next(iter(fitting.task.uses), "evaluate")
        print(f"saved in {where}; try: tokenloom {verb} {where}")
