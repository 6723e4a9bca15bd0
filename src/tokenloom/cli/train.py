"""`tokenloom train`: from flags to a run, with progress on the way."""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.display import Display
from tokenloom.cli.output import print_json
from tokenloom.errors import UserError


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


def train_run(data: str | None, given: dict[str, Any]) -> None:
    """Train as the flags say."""
    from tokenloom.tasks.frame.fitting import begin, summary
    from tokenloom.tasks.frame.flat import read_config

    began = time.perf_counter()
    settings = {**(read_config(given.pop("config")) if "config" in given else {}), **given}
    as_json, quiet = bool(settings.pop("json", False)), bool(settings.pop("quiet", False))
    tensorboard = bool(settings.pop("tensorboard", False))
    data = settings.pop("data", None) if data is None else data
    settings.setdefault("out", default_out(data, settings.get("task")))
    with interruptible() as stop:
        fitting = begin(data, stop=stop, **settings)
        display = Display(quiet=quiet)
        if fitting.guessed and not quiet:
            display.line(f"task:       {fitting.name} (the data look like {fitting.guessed}; --task chooses another)")
        writer = None
        if tensorboard and fitting.folder is not None:
            writer = make_writer(fitting.folder.path / "tensorboard")
        events = []
        with display:
            for event in fitting:
                events.append(event)
                display.show(event)
                if writer is not None:
                    write_scalars(writer, event)
    if writer is not None:
        writer.close()
    result = summary(fitting, events, began)
    display.result(fitting, result)
    if as_json:
        print_json(result)


def default_out(data: str | None, task: str | None) -> str:
    """runs/NAME, after the data or the task."""
    name = Path(data).stem if data not in (None, "-") else (task or "run").rpartition(":")[2] or "run"
    return str(Path("runs") / (name or "run"))


@contextmanager
def interruptible() -> Iterator[Any]:
    """Ctrl-C once asks the training to save and stop; twice stops now."""
    asked = False

    def handle(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not in the main thread
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def make_writer(folder: Path) -> Any:
    """A TensorBoard writer. Raises UserError when TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("--tensorboard needs TensorBoard: pip install 'tokenloom[tensorboard]'") from error
    return SummaryWriter(str(folder))


def write_scalars(writer: Any, event: Any) -> None:
    """What TensorBoard shows of an event."""
    from tokenloom.training.events import Evaluated, Stepped

    if isinstance(event, Stepped):
        for name in ("loss", "rate", "norm"):
            writer.add_scalar(f"training/{name}", getattr(event, name), event.step)
    elif isinstance(event, Evaluated):
        for name, value in event.metrics.items():
            writer.add_scalar(f"validation/{name}", value, event.step)
