"""The run folder: all that is needed to load a trained task.

`config.json` (format, task, settings, model, data), `model.safetensors` (the weights of the best evaluation),
`metrics.jsonl`, `checkpoints/`, `loss.png`, and the assets of the task, such as `tokenizer.json`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokenloom.config import build, flatten, refuse_unknown
from tokenloom.data.registry import names
from tokenloom.errors import UserError
from tokenloom.tasks.base import Task
from tokenloom.tasks.registry import find_task
from tokenloom.training.checkpoints import load_weights
from tokenloom.training.device import choose_device
from tokenloom.training.events import Baseline
from tokenloom.training.settings import TrainingSettings
from tokenloom.utils.files import write_json, write_text
from tokenloom.version import VERSION

FORMAT = 2
WHOLE = ".whole"

# What a config must hold beside its format.
CONFIG: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "data": (str, type(None)),
    "settings": dict,
    "model": dict,
    "sequence_length": int,
    "training": dict,
    "assets": dict,
}


class RunFolder:
    """The paths inside a run, its config and its metrics."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.weights = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.curve = self.path / "loss.png"
        # Where a run that is being replaced waits until the new one has something to show.
        self.replaced = self.path / ".replaced"

    @property
    def disk(self) -> Path:
        """The nearest existing folder, which is on the disk where the run will be."""
        return next(path for path in (self.path, *self.path.absolute().parents) if path.is_dir())

    def claim(self, *, overwrite: bool, resume: bool) -> None:
        """Check that a training may write here, without changing anything. Raise UserError when not."""
        if resume:
            self.read_config()
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"--out {self.path}: is a file; give the name of a folder")
            occupied = self.path.is_dir() and any(self.path.iterdir())
            if occupied and not (overwrite or resume):
                raise UserError(f"--out {self.path}: is there already; --overwrite starts over, --resume continues it")
            if occupied and not self.config_file.is_file():
                raise UserError(f"--overwrite: {self.path} is not a run (it has no config.json); give another --out")
            _try_to_write(self.path)
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise UserError(f"--out {self.path}: cannot be written ({why})") from error

    def make(self, *, overwrite: bool) -> None:
        """Make the folder, and move an earlier run in it aside. Raise UserError when that may not be replaced."""
        self.restore_replaced()
        if self.config_file.is_file():
            if not overwrite:
                raise UserError(f"--out {self.path}: another training has begun there meanwhile")
            shutil.rmtree(self.replaced, ignore_errors=True)
            self.replaced.mkdir()
            for path in self._others():
                path.replace(self.replaced / path.name)
            (self.replaced / WHOLE).touch()
        self.path.mkdir(parents=True, exist_ok=True)

    def _others(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path != self.replaced]

    def restore_replaced(self) -> None:
        """Restore the run that was moved aside, unless the new one has weights.

        A kill at any instant, here or in `make`, loses nothing: the next call continues.
        """
        if not self.replaced.is_dir():
            return
        if (self.replaced / WHOLE).is_file():
            if self.weights.is_file():
                return
            # All other files are of a training that left no weights.
            for path in self._others():
                _remove(path)
            (self.replaced / WHOLE).unlink()
        for path in self.replaced.iterdir():
            path.replace(self.path / path.name)
        self.replaced.rmdir()

    def drop_replaced(self) -> None:
        """Remove the run that was moved aside, except for files that are not part of a run."""
        if not self.replaced.is_dir():
            return
        own = {path.name for path in (self.checkpoints, self.weights, self.metrics, self.curve, self.config_file)}
        for path in self.replaced.iterdir():
            if path.name not in {*own, WHOLE} and not (self.path / path.name).exists():
                path.replace(self.path / path.name)
        shutil.rmtree(self.replaced)

    def write_config(
        self, task: Task, name: str, data: str | None, training: TrainingSettings, sequence_length: int
    ) -> None:
        """Write config.json and the assets of a task whose sizes are decided."""
        write_json(
            self.config_file,
            {
                "format": FORMAT,
                "tokenloom": VERSION,
                "task": findable(name),
                "data": None if data is None else findable(data),
                "settings": flatten(task.settings),
                "model": task.model_config,
                "sequence_length": sequence_length,
                "training": flatten(training),
                "assets": task.save_assets(self.path),
            },
        )

    def read_config(self) -> dict[str, Any]:
        """Return the config. Raise UserError when this is no run, or one of another format."""
        if not self.path.exists():
            raise UserError(f"{self.path}: there is no such run")
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: not a run (it has no config.json)")
        try:
            config: dict[str, Any] = json.loads(self.config_file.read_text("utf-8"))
            if config["format"] != FORMAT:
                raise UserError(
                    f"{self.config_file}: format {config['format']}, written by tokenloom"
                    f" {config.get('tokenloom', 'of an unknown version')}; tokenloom {VERSION} reads format {FORMAT}"
                )
            for key, kind in CONFIG.items():
                if not isinstance(config[key], kind):
                    raise TypeError(f"{key} is {config[key]!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.config_file}: damaged ({type(error).__name__}: {error})") from error
        return config

    def update_training(self, training: TrainingSettings) -> None:
        """Write other training settings into the config."""
        write_json(self.config_file, {**self.read_config(), "training": flatten(training)})

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl; NaN and infinity become null, as JSON has neither."""
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the complete lines of metrics.jsonl."""
        rows: list[dict[str, Any]] = []
        if self.metrics.is_file():
            for line in self.metrics.read_text("utf-8", errors="replace").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # the last line of a run that was killed
                if isinstance(row, dict) and "step" in row:
                    rows.append(row)
        return rows

    def truncate_metrics(self, step: int) -> None:
        """Remove the lines after a step, which a resumed run writes again."""
        kept = [row for row in self.read_metrics() if row["step"] <= step]
        write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))


def _try_to_write(folder: Path) -> None:
    """Write a temporary file into a folder, which may not exist yet. Raise OSError when that is impossible."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    finally:
        for path in made:
            if path.is_dir():
                path.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def draw_curve(folder: RunFolder, unit: str, baseline: Baseline | None) -> None:
    """Draw loss.png of a run, in the unit of its loss, where matplotlib is installed."""
    from tokenloom.plotting.loss_curve import draw_loss_curve

    rows = [{**row, "validation": row.get("validation_loss")} for row in folder.read_metrics()]
    line = (baseline.name, baseline.value) if baseline is not None and baseline.metric == "loss" else None
    try:
        draw_loss_curve(rows, folder.curve, title=folder.path.name, unit=unit, baseline=line)
    except UserError:
        return


def findable(name: str) -> str:
    """Return a name unchanged; a path, or that of a task `path:Name`, as an absolute path."""
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return f"{Path(path).resolve()}:{class_name}"
    return str(Path(name).resolve()) if name not in names() and Path(name).exists() else name


def task_of(config: dict[str, Any], folder: RunFolder, source: str | None = None) -> Task:
    """Return the task that a config describes, with its settings and assets but without a model.

    source: of the data, when they have been moved. Raise UserError when the config does not fit the task, or the assets
    are not those of the run.
    """
    cls = find_task(config["task"])
    refuse_unknown(config["settings"], [cls.Settings], f"{folder.config_file}: ")
    try:
        task = cls(build(cls.Settings, config["settings"]), config["data"] if source is None else source)
    except UserError as error:
        raise UserError(f"{folder.config_file}: {error}") from error
    task.model_config = config["model"]
    task.load_assets(folder.path, config["assets"])
    return task


def load(path: str | Path, *, device: str = "cpu") -> Task:
    """Return the trained task of a run folder.

    Loading is strict: config, tokenizer and every weight must be those of the training. Raise UserError with the file
    and the first difference.
    """
    folder = RunFolder(path)
    config = folder.read_config()
    task = task_of(config, folder)
    if not folder.weights.is_file():
        before = f"; the run that it was to replace lies in {folder.replaced}" if folder.replaced.is_dir() else ""
        raise UserError(f"{folder.weights}: missing; a run has it from its first evaluation or save on{before}")
    try:
        task.model = task.build_model(seed=0)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder.config_file}: no model can be built from it ({what})") from error
    load_weights(task.model, folder.weights)
    task.model.eval()
    task.model.to(choose_device(device))
    return task
