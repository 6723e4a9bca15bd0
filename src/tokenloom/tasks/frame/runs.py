"""The run folder: everything that is needed to have the trained task back.

`config.json` (format, task, settings, model, data), `model.safetensors` (the weights of the best evaluation),
`metrics.jsonl`, `checkpoints/`, `loss.png`, and the task's own parts, such as `tokenizer.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tokenloom
from tokenloom.errors import UserError
from tokenloom.tasks.frame.base import Task
from tokenloom.tasks.frame.flat import build, flatten, refuse_unknown
from tokenloom.tasks.frame.registry import find_task
from tokenloom.training.checkpoints import load_weights, write_json
from tokenloom.training.settings import TrainingSettings

FORMAT = 1


class RunFolder:
    """Paths inside a run, and its config."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.weights = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.curve = self.path / "loss.png"

    def claim(self, *, overwrite: bool, resume: bool) -> None:
        """Make the folder ready for a training. Raises UserError, before any work, when it cannot be."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file; give the name of a folder")
        if resume and not self.config_file.is_file():
            raise UserError(f"--resume: {self.path} holds no run to go on with")
        occupied = self.path.is_dir() and any(self.path.iterdir())
        if occupied and not (overwrite or resume):
            raise UserError(f"--out {self.path}: is there already; --overwrite starts anew, --resume goes on with it")
        if occupied and overwrite:
            self._clear()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UserError(f"--out {self.path}: cannot be written ({os.strerror(error.errno or 0)})") from error

    def _clear(self) -> None:
        """Remove an earlier run, but never a folder that is no run."""
        if not self.config_file.is_file():
            raise UserError(f"--overwrite: {self.path} is not a run (it has no config.json); give another --out")
        for name in ("checkpoints", "config.json", "model.safetensors", "metrics.jsonl", "loss.png", "loss-dark.png"):
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def write_config(self, task: Task, name: str, data: str | None, training: TrainingSettings) -> None:
        """Everything needed to rebuild the task, once its parts and sizes are settled."""
        write_json(
            self.config_file,
            {
                "format": FORMAT,
                "tokenloom": tokenloom.__version__,
                "task": name,
                "data": data,
                "settings": flatten(task.settings),
                "model": task.model_config,
                "training": flatten(training),
                "parts": task.save_parts(self.path),
            },
        )

    def read_config(self) -> dict[str, Any]:
        """The config. Raises UserError when this is no run, or one of a format that is not known."""
        if not self.config_file.is_file():
            raise UserError(f"{self.path}: not a run (it has no config.json)")
        try:
            config: dict[str, Any] = json.loads(self.config_file.read_text("utf-8"))
            if config["format"] != FORMAT:
                raise UserError(f"{self.config_file}: format {config['format']}; this tokenloom reads format {FORMAT}")
            for key in ("task", "data", "settings", "model", "training", "parts"):
                config[key]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.config_file}: damaged ({type(error).__name__}: {error})") from error
        return config

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are whole."""
        rows = []
        if self.metrics.is_file():
            for line in self.metrics.read_text("utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    continue  # the last line of a run that was killed
        return rows

    def truncate_metrics(self, step: int) -> None:
        """Drop what was written after a step: a resumed run writes it again."""
        kept = [row for row in self.read_metrics() if row["step"] <= step]
        self.metrics.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")


def task_of(config: dict[str, Any], folder: RunFolder) -> Task:
    """The task that a config describes, with its settings and parts but without a model."""
    cls = find_task(config["task"])
    refuse_unknown(config["settings"], [cls.Settings], f"{folder.config_file}: ")
    task = cls(build(cls.Settings, config["settings"]))
    task.model_config, task.source = config["model"], config["data"]
    task.load_parts(folder.path, config["parts"])
    return task


def load(path: str | Path, *, device: str = "cpu") -> Task:
    """The trained task of a run folder, ready to use.

    Strict: the config must be whole, the tokeniser the one of the training, every weight in its place. Raises
    UserError naming the file and the first difference.
    """
    folder = RunFolder(path)
    if not folder.path.exists():
        raise UserError(f"{folder.path}: there is no such run")
    config = folder.read_config()
    task = task_of(config, folder)
    if not folder.weights.is_file():
        raise UserError(f"{folder.weights}: missing; the run was stopped before its first evaluation")
    task.model = task.build(seed=0)
    load_weights(task.model, folder.weights)
    task.model.eval()
    return task.to(device)
