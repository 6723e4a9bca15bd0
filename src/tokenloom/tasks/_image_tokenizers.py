"""What turns pictures into cells and back: a palette of colors, or the run of a task that has learned codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.image_files import ImageFormat, Pixels
from tokenloom.errors import UserError
from tokenloom.runs.folder import load
from tokenloom.tasks.image_tokenizer import ImageTokenizerTask
from tokenloom.tokenizers.palette import Palette
from tokenloom.training.checkpoints import load_weights, save_weights
from tokenloom.utils.files import write_json
from tokenloom.utils.names import with_article

FORMAT = 1


class PictureTokenizer(Protocol):
    """Pictures (n, C, H, W) of bytes to ids (n, cells), row by row, and back."""

    @property
    def vocab_size(self) -> int:
        """How many different cells there are."""
        ...

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        ...

    @property
    def cell(self) -> int:
        """Pixels along the side of what an id stands for; the last row and column may reach past the picture."""
        ...

    def encode(self, pixels: Pixels) -> NDArray[np.int64]:
        """To ids."""
        ...

    def decode(self, ids: NDArray[np.int64], /) -> Pixels:
        """To pictures."""
        ...

    def fingerprint(self) -> str:
        """A hash of all that decides both."""
        ...


def codes_of_run(run: str) -> ImageTokenizerTask:
    """The tokenizer that a run is. Raises UserError for a run of another task."""
    task = load(run)
    if not isinstance(task, ImageTokenizerTask):
        raise UserError(f"--tokens {run}: is {with_article(task.name)} run; one of image-tokenizer is needed")
    return task


def save(tokenizer: PictureTokenizer, folder: Path) -> dict[str, Any]:
    """Write a tokenizer into a run, which then needs nothing beside itself; returns what config.json keeps."""
    if isinstance(tokenizer, Palette):
        tokenizer.save(folder / "tokenizer.json")
    elif isinstance(tokenizer, ImageTokenizerTask):
        save_weights(tokenizer.model, folder / "tokenizer.safetensors")
        kept = {"model": tokenizer.model_config, "form": tokenizer.form.as_dict()}
        write_json(folder / "tokenizer.json", {"format": FORMAT, "kind": tokenizer.name, **kept})
    else:
        raise TypeError(f"no way to save a {type(tokenizer).__name__}")
    return {"tokenizer": tokenizer.fingerprint()}


def read_back(folder: Path, kept: dict[str, Any]) -> PictureTokenizer:
    """The tokenizer of a run. Raises UserError, naming the file, when it is not the one that was saved."""
    path = folder / "tokenizer.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        coded = content["kind"] == ImageTokenizerTask.name
        tokenizer: PictureTokenizer = _codes(content, folder) if coded else Palette.load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a tokenizer ({type(error).__name__}: {error})") from error
    if tokenizer.fingerprint() != kept.get("tokenizer"):
        raise UserError(f"{path}: is not the tokenizer that this run was trained with")
    return tokenizer


def _codes(content: dict[str, Any], folder: Path) -> ImageTokenizerTask:
    task = ImageTokenizerTask()
    task.model_config, task.form = content["model"], ImageFormat.from_dict(content["form"])
    task.model = task.build(seed=0)
    load_weights(task.model, folder / "tokenizer.safetensors")
    task.model.eval()
    return task
