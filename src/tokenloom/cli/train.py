"""`tokenloom train`: flags and config file → a run, with progress."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.display import Display, field
from tokenloom.cli.output import OutputOptions, is_main_process, print_json
from tokenloom.cli.parameters import peek
from tokenloom.config import build, excluded_by, option, options, read_config, refuse_unknown
from tokenloom.errors import UserError
from tokenloom.utils.progress import reporting_progress

if TYPE_CHECKING:
    from tokenloom.runs.session import TrainingSession
    from tokenloom.training.events import Event

INTERRUPTED = 130
DEFAULT_TASK = "text-generation"


@dataclass(frozen=True)
class TrainOptions(OutputOptions):
    """What `train` is given beside settings of the task and of the training."""

    task: str | None = option(None, "task to train; guessed from the data when not given; ./mine.py:Name for your own")
    out: str | None = option(None, "run folder [default: runs/NAME, after the data]")
    config: str | None = option(None, "TOML or YAML file with settings; flags override it")
    overwrite: bool = option(False, "replace an existing run")
    resume: bool = option(False, "resume the run in --out")
    dry_run: bool = option(False, "show the plan without training")
    tensorboard: bool = option(False, "also write TensorBoard files into the run folder")


def option_classes(rest: list[str]) -> list[type]:
    """Return the settings classes of a `train` command line, with those of its task."""
    from tokenloom.tasks.registry import all_tasks, find_task
    from tokenloom.training.settings import TrainingSettings

    given = peek(rest, [TrainOptions, TrainingSettings, *(task.Settings for task in all_tasks())])
    data = next(iter(given["arguments"]), None)
    return [TrainOptions, find_task(_task_name(data, {**_config(given), **given})).Settings, TrainingSettings]


def tasks_with(flag: str) -> list[str]:
    """Return the names of the tasks that have an option with this flag."""
    from tokenloom.tasks.registry import all_tasks

    name = flag.lstrip("-").removeprefix("no-").replace("-", "_")
    return [task.name for task in all_tasks() if name in {one.name for one in options(task.Settings)}]


def _task_name(data: str | None, values: Mapping[str, Any]) -> str:
    """Return the task that is given, that of the run that is resumed, or the one guessed from the data."""
    from tokenloom.runs.folder import RunFolder
    from tokenloom.tasks.registry import guess_task

    data = values.get("data") if data is None else data
    if values.get("task") is not None:
        return str(values["task"])
    if values.get("resume") and values.get("out") and (folder := RunFolder(str(values["out"]))).config_file.is_file():
        return str(folder.read_config()["task"])
    return DEFAULT_TASK if data is None else guess_task(str(data))[0]


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    return read_config(given["config"]) if given.get("config") else {}


def train_run(data: str | None, given: dict[str, Any]) -> int:
    """`tokenloom train`. Return the exit code."""
    from tokenloom.runs.session import start_session, summary
    from tokenloom.training.events import StepFinished

    began = time.perf_counter()
    settings = with_config(data, given)
    own = build(TrainOptions, settings)
    # Of several processes, the main one prints and writes.
    main = is_main_process()
    quiet = own.quiet or not main
    data = settings.pop("data", None) if data is None else data
    if "out" not in settings:
        settings["out"] = default_out(data, settings)
    if not _is_unicode(str(settings["out"])):
        raise UserError(f"--out {settings['out']}: the name of a run must be valid UTF-8")
    for name in ("json", "quiet", "tensorboard"):
        settings.pop(name, None)
    board = TensorBoardWriter() if own.tensorboard and main else None
    with interruptible() as interrupts, Display(quiet=quiet) as display, reporting_progress(display.progress_line):
        session = start_session(data, stop=interrupts, **settings)
        events: list[Event] = []
        try:
            for event in session:
                interrupts.training = isinstance(event, StepFinished) or interrupts.training
                if not events and session.guessed:
                    what = f"{session.name} (the data look like {session.guessed}; --task chooses another)"
                    display.line(field("task", what))
                if not isinstance(event, StepFinished):
                    events.append(event)
                display.show(event)
                if board is not None:
                    board.write(event, session)
        except (ArithmeticError, KeyboardInterrupt) as error:
            raise _with_hint(error, display, session) from error
        finally:
            if board is not None:
                board.close()
    result = summary(session, events, began)
    if display.speed.overall is not None:
        result["tokens_per_second"] = display.speed.overall
    display.result(session, result, example=not own.json)
    if own.json and main:
        print_json(result)
    return INTERRUPTED if result.get("reason") == "interrupt" else 0


def with_config(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the config file, if one is given, overridden by the flags.

    Raise UserError, naming the file, for an unknown setting in it and for one of the wrong type.
    """
    from tokenloom.tasks.registry import find_task
    from tokenloom.training.settings import TrainingSettings

    config = _config(given)
    path, given = given.get("config"), {name: value for name, value in given.items() if name != "config"}
    if not config:
        return given
    task = find_task(_task_name(data, {**config, **given}))
    classes = (task.Settings, TrainingSettings, TrainOptions)
    refuse_unknown({k: v for k, v in config.items() if k != "data"}, classes, f"--config {path}: ")
    try:
        for cls in classes:
            build(cls, config)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from None
    excluded = excluded_by(given, classes)
    return {name: value for name, value in config.items() if name not in excluded} | given


def _is_unicode(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def default_out(data: str | None, settings: dict[str, Any]) -> str:
    """Return runs/NAME, after the data or the task."""
    if data is None and settings.get("resume"):
        raise UserError("--resume: give the run folder with --out")
    if data in (None, "-"):
        name = str(settings.get("task") or "run").rpartition(":")[2]
    else:
        # File names need not be valid Unicode; the name of a run must be.
        name = os.fsencode(Path(str(data)).resolve().stem).decode("utf-8", "replace")
    return str(Path("runs") / (name or "run"))


def _with_hint(
    error: ArithmeticError | KeyboardInterrupt, display: Display, session: TrainingSession
) -> ArithmeticError | KeyboardInterrupt:
    """Return the error with what was saved and how to resume."""
    text = str(error) or "stopped"
    if display.saved is None or session.folder is None:
        if session.resume and isinstance(error, KeyboardInterrupt):
            text += "; the run is unchanged"
        return type(error)(text)
    where, step = shlex.quote(str(session.folder.path)), display.saved.step
    if isinstance(error, KeyboardInterrupt):
        text += f"; resume from step {step:,} with: tokenloom train --resume --out {where}"
    else:
        text += f"; the checkpoint of step {step:,} is in {where}"
    return type(error)(text)


class Interrupts:
    """Handler of Ctrl-C: during training, the first saves and stops after the step, the second stops at once."""

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
            if not is_main_process(machine=True):
                return
            # Unbuffered: the handler may have interrupted another print.
            os.write(2, b"\nsaving and stopping after this step; Ctrl-C again stops at once\n")


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Handle Ctrl-C by `Interrupts`; not outside the main thread, where signals cannot be handled."""
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


class TensorBoardWriter:
    """Writer of TensorBoard files in a run folder, which it creates at the first step."""

    def __init__(self) -> None:
        """Raise UserError when TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("--tensorboard needs TensorBoard: pip install 'tokenloom[tensorboard]'") from error
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def write(self, event: Event, session: TrainingSession) -> None:
        """Write the scalars of an event."""
        from tokenloom.training.events import Evaluated, StepFinished

        if session.folder is None or not isinstance(event, StepFinished | Evaluated):
            return
        if self._writer is None:
            self._writer = self._make(str(session.folder.path / "tensorboard"))
        if isinstance(event, StepFinished):
            for name in ("loss", "lr", "muon_lr", "grad_norm"):
                if (value := getattr(event, name)) is not None:
                    self._writer.add_scalar(f"training/{name}", value, event.step)
        else:
            for name, value in event.metrics.items():
                self._writer.add_scalar(f"validation/{name}", value, event.step)

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
