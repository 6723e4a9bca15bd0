"""Text generation without the training: a task that has read a text, with a model of random weights in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tokenloom.data.samples import TextWindows
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings

RHYME = "One, two, buckle my shoe.\nThree, four, knock at the door.\nFive, six, pick up sticks.\n"
SIZES: dict[str, Any] = {"size": "nano", "context": 16, "width": 16, "depth": 2, "heads": 2}


def task_on(data: str | Path, **settings: Any) -> TextGeneration:
    """A task that has prepared some data."""
    task = TextGeneration(TextGenerationSettings(**{**SIZES, **settings}), str(data))
    task.load(str(data))
    return task


def all_ids(task: TextGeneration, source: str) -> Any:
    """All ids of some data."""
    samples = task.load(source, for_evaluation=True).validation
    assert isinstance(samples, TextWindows)
    return samples.ids


def with_model(task: TextGeneration, seed: int = 0) -> TextGeneration:
    """Give it a model in which every part matters (fresh ones start with maps of zeros)."""
    model = task.build_model(seed).double()
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    task.model = model.eval()
    return task


def written(folder: Path, text: str = RHYME * 8, name: str = "text.txt") -> Path:
    """A file with a text."""
    path = folder / name
    path.write_bytes(text.encode())
    return path
