"""`tokenloom train`: from flags to a run, with progress on the way."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.display import Display, field
from tokenloom.cli.output import leads, print_json
from tokenloom.errors import UserError
from tokenloom.utils.progress import reporting_progress

if TYPE_CHECKING:
    from tokenloom.runs.session import TrainingSession
    from tokenloom.training.events import Event

INTERRUPTED = 130


def _flag(name: str, type_: Any, help: str, short: str | None = None) -> inspect.Parameter:
    annotation = Annotated[type_, Parameter(help=help, negative="", show_default=False, alias=short)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


COMMON = [
    _flag("task", str | None, "what to train; guessed from the data when not given; ./mine.py:Name for your own"),
    _flag("out", str | None, "the run folder [default: runs/ and the name of the data]"),
    _flag("config", str | None, "TOML or YAML file with settings; flags come after it"),
    _flag("overwrite", bool | None, "replace the run that is there"),
    _flag("resume", bool | None, "go on with the run that is there"),
    _flag("dry_run", bool | None, "show the plan, and train nothing"),
    _flag("tensorboard", bool | None, "also write TensorBoard files into the run folder"),
    _flag("json", bool | None, "end standard output with one JSON object"),
    _flag("quiet", bool | None, "no reports and no progress", short="-q"),
]


def train_run(data: str | None, given: dict[str, Any]) -> int:
    """Train as the flags say. Returns the exit code."""
    from tokenloom.runs.session import begin
    from tokenloom.runs.summary import summary
    from tokenloom.training.events import StepFinished

    began = time.perf_counter()
    settings = with_config(data, given)
    as_json, quiet, tensorboard = (_switch(settings, name) for name in ("json", "quiet", "tensorboard"))
    if not leads():
        # Another of the processes says it all.
        as_json, quiet, tensorboard = False, True, False
    data = settings.pop("data", None) if data is None else data
    if "out" not in settings:
        settings["out"] = default_out(data, settings)
    if not _is_unicode(str(settings["out"])):
        raise UserError(f"--out {settings['out']}: the name of a run must be valid UTF-8; give another")
    board = Board() if tensorboard else None
    with interruptible() as interrupts, Display(quiet=quiet) as display, reporting_progress(display.progress_line):
        fitting = begin(data, stop=interrupts, **settings)
        events: list[Event] = []
        try:
            for event in fitting:
                interrupts.training = isinstance(event, StepFinished) or interrupts.training
                if not events and fitting.guessed:
                    what = f"{fitting.name} (the data look like {fitting.guessed}; --task chooses another)"
                    display.line(field("task", what))
                if not isinstance(event, StepFinished):
                    events.append(event)
                display.show(event)
                if board is not None:
                    board.show(event, fitting)
        except (ArithmeticError, KeyboardInterrupt) as error:
            raise _with_way_on(error, display, fitting) from error
        finally:
            if board is not None:
                board.close()
    result = summary(fitting, events, began)
    if display.speed.overall is not None:
        result["tokens_per_second"] = display.speed.overall
    display.result(fitting, result, example=not as_json)
    if as_json:
        print_json(result)
    return INTERRUPTED if result.get("reason") == "interrupt" else 0


def with_config(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of the config file, where there is one, with the flags on top.

    Raises UserError, naming the file, for a setting in it that there is not or that has another type.
    """
    from tokenloom.cli.options import DEFAULT_TASK
    from tokenloom.config import build, read_config, refuse_unknown
    from tokenloom.tasks.registry import find_task, guess_task
    from tokenloom.training.settings import TrainingSettings

    given = dict(given)
    path = given.pop("config", None)
    if path is None:
        return given
    config = read_config(path)
    data = config.get("data") if data is None else data
    name = given.get("task") or config.get("task") or (DEFAULT_TASK if data is None else guess_task(str(data))[0])
    classes = (find_task(str(name)).Settings, TrainingSettings)
    own = {parameter.name for parameter in COMMON} | {"data"}
    refuse_unknown({k: v for k, v in config.items() if k not in own}, classes, f"--config {path}: ")
    try:
        for cls in classes:
            build(cls, config)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from None
    if {"steps", "minutes"} & set(given):
        # Either says how long to train, so that a flag replaces both.
        config = {k: v for k, v in config.items() if k not in ("steps", "minutes")}
    return {**config, **given}


def _is_unicode(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def _switch(settings: dict[str, Any], name: str) -> bool:
    value = settings.pop(name, False)
    if not isinstance(value, bool):
        raise UserError(f"{name}: {value!r} is not true or false")
    return value


def default_out(data: str | None, settings: dict[str, Any]) -> str:
    """runs/NAME, after the data or the task."""
    if data is None and settings.get("resume"):
        raise UserError("--resume: say which run with --out")
    if data in (None, "-"):
        name = str(settings.get("task") or "run").rpartition(":")[2]
    else:
        # Names of files need not be valid Unicode, and that of a run must be.
        name = os.fsencode(Path(str(data)).resolve().stem).decode("utf-8", "replace")
    return str(Path("runs") / (name or "run"))


def _with_way_on(
    error: ArithmeticError | KeyboardInterrupt, display: Display, fitting: TrainingSession
) -> ArithmeticError | KeyboardInterrupt:
    """The same error, telling also what was kept and how to go on."""
    text = str(error) or "stopped at once"
    if display.saved is None or fitting.folder is None:
        if fitting.resume and isinstance(error, KeyboardInterrupt):
            text += "; the run is as it was before"
        return type(error)(text)
    where, step = shlex.quote(str(fitting.folder.path)), display.saved.step
    if isinstance(error, KeyboardInterrupt):
        text += f"; go on from step {step:,} with: tokenloom train --resume --out {where}"
    else:
        text += f"; the checkpoint of step {step:,} is kept in {where}"
    return type(error)(text)


class Interrupts:
    """Ctrl-C. While training, once asks for a save, twice stops at once; before, once is enough."""

    def __init__(self) -> None:
        self.asked = False
        self.training = False

    def __call__(self) -> bool:
        return self.asked

    def handle(self, signum: int, frame: Any) -> None:
        """The signal handler."""
        if self.asked or not self.training:
            raise KeyboardInterrupt
        self.asked = True
        with suppress(OSError):
            if not leads(machine=True):
                return
            # Straight to the file: a handler may have broken in on another print.
            os.write(2, b"\nstopping after this step, and saving; Ctrl-C again stops at once\n")


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Ctrl-C handled as `Interrupts` says; outside the main thread, as before."""
    interrupts = Interrupts()
    try:
        before = signal.signal(signal.SIGINT, interrupts.handle)
    except ValueError:  # not in the main thread
        yield interrupts
        return
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


class Board:
    """TensorBoard files in a run folder, from the first step on."""

    def __init__(self) -> None:
        """Raises UserError when TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("--tensorboard needs TensorBoard: pip install 'tokenloom[tensorboard]'") from error
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def show(self, event: Event, fitting: TrainingSession) -> None:
        """Write what TensorBoard shows of an event."""
        from tokenloom.training.events import Evaluated, StepFinished

        if fitting.folder is None or not isinstance(event, StepFinished | Evaluated):
            return
        if self._writer is None:
            self._writer = self._make(str(fitting.folder.path / "tensorboard"))
        if isinstance(event, StepFinished):
            for name in ("loss", "lr", "norm"):
                self._writer.add_scalar(f"training/{name}", getattr(event, name), event.step)
        else:
            for name, value in event.metrics.items():
                self._writer.add_scalar(f"validation/{name}", value, event.step)

    def close(self) -> None:
        """Finish the files."""
        if self._writer is not None:
            self._writer.close()
