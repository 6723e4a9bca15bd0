"""The ladder: one text, one split, one tokenizer, and each kind of model trained on it and measured alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import UserError
from tokenloom.evaluation.perplexity import RUNNING, checked_window
from tokenloom.nn.modules import count_saved_numbers
from tokenloom.runs.counted import USED
from tokenloom.runs.session import TrainingSession, begin
from tokenloom.tasks._lm_families.table import MODEL_FAMILIES, MODELS, family_of
from tokenloom.training.events import Event, Finished, Prepared
from tokenloom.utils.files import write_json
from tokenloom.utils.names import did_you_mean

# The windows in which all are measured, beside running context: those of the textbook's own protocol.
WINDOW = 64


@dataclass(frozen=True)
class ModelComparison:
    """One model of the ladder. running, windows: bits per byte with running context, and in separate windows of
    `window` tokens; nats_…: nats a token. seconds: of training. numbers: that are stored."""

    model: str
    running: float
    windows: float
    nats_running: float
    nats_windows: float
    window: int
    seconds: float
    numbers: int
    run: str


def chosen(models: Sequence[str]) -> list[str]:
    """The models by their names. Raises UserError for one that there is not, or that is named twice."""
    for place, model in enumerate(models):
        if model not in MODELS:
            hint = did_you_mean(model, MODELS)
            raise UserError(f"--models {model}: no such model{hint}; there are {', '.join(MODELS)}")
        if model in models[:place]:
            raise UserError(f"--models: {model} stands there twice")
    return list(models)


def own_settings(model: str, models: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that have an effect on a model. Raises UserError for one that has none on any of them."""
    special = frozenset[str]().union(*(kind.takes for kind in MODEL_FAMILIES))
    for name in settings:
        if name in special and not any(name in family_of(other).takes for other in models):
            raise UserError(f"--{name.replace('_', '-')} has no effect on any of {', '.join(models)}: leave it out")
    takes = family_of(model).takes
    return {name: value for name, value in settings.items() if name not in special or name in takes}


def trainings(
    data: str, models: Sequence[str], folder: Path, settings: dict[str, Any], steps: dict[str, Any], overwrite: bool
) -> Iterator[tuple[str, TrainingSession]]:
    """A training of each model, not yet begun. steps: settings of training, which counted models do without.

    Raises UserError, before the first, for what cannot be.
    """
    found = []
    for model in chosen(models):
        # What does nothing to a counted model is for the others; when there are none, `begin` refuses it.
        idle = family_of(model).counted and not all(family_of(other).counted for other in models)
        training = {name: value for name, value in steps.items() if not idle or name in USED}
        own = own_settings(model, models, settings) | training
        found.append(
            (model, begin(data, task="text-generation", model=model, out=folder / model, overwrite=overwrite, **own))
        )
    yield from found


def climb(model: str, fitting: TrainingSession, window: int, show: Callable[[Event], None]) -> ModelComparison:
    """Train a model and measure it on the whole validation part, in both ways."""
    task: Any = fitting.task
    began, seconds = time.perf_counter(), None
    for event in fitting:
        show(event)
        if isinstance(event, Prepared):
            # The sizes are settled, and nothing is spent yet.
            checked_window(window, task.kind.largest(task.model_config))
        elif isinstance(event, Finished):
            seconds = event.seconds
    assert fitting.folder is not None
    running, apart = task.evaluate(context=RUNNING), task.evaluate(context=window)
    return ModelComparison(
        model,
        running["bits_per_byte"],
        apart["bits_per_byte"],
        running["loss"],
        apart["loss"],
        window,
        time.perf_counter() - began if seconds is None else seconds,
        count_saved_numbers(task.model),
        str(fitting.folder.path),
    )


def write(folder: Path, data: str, rungs: Sequence[ModelComparison]) -> dict[str, Any]:
    """compare.json and, where matplotlib is installed, compare.png and compare-dark.png."""
    from tokenloom.plotting.model_comparison import draw_ladder

    result: dict[str, Any] = {"data": data, "models": [asdict(rung) for rung in rungs]}
    write_json(folder / "compare.json", result)
    for name, dark in (("compare.png", False), ("compare-dark.png", True)):
        try:
            draw_ladder(result["models"], folder / name, title=Path(data).name, dark=dark)
        except UserError:
            break
    return result
