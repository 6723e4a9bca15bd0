"""A sweep: several language models trained on one text with the same split and tokenizer, and evaluated alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenloom.config import flag, options
from tokenloom.errors import UserError
from tokenloom.evaluation.perplexity import RUNNING, checked_window
from tokenloom.nn.modules import count_saved_numbers
from tokenloom.runs.counted import USED
from tokenloom.runs.events import Prepared
from tokenloom.runs.session import TrainingSession, begin
from tokenloom.tasks._lm_families.table import MODEL_FAMILIES, MODELS, family_of
from tokenloom.training.events import Event, Finished
from tokenloom.training.settings import TrainingSettings
from tokenloom.utils.files import write_json
from tokenloom.utils.names import did_you_mean


@dataclass(frozen=True)
class ModelComparison:
    """One model of a sweep.

    bits_per_byte_sliding, loss_sliding: with sliding context. bits_per_byte_windows, loss_windows: in separate windows
    of `context` tokens. Losses are in nats/token. seconds: of training. saved_numbers: parameters or counts.
    """

    model: str
    bits_per_byte_sliding: float
    bits_per_byte_windows: float
    loss_sliding: float
    loss_windows: float
    context: int
    seconds: float
    saved_numbers: int
    run: str


def sweep_sessions(
    data: str, models: Sequence[str], folder: Path, settings: dict[str, Any], overwrite: bool
) -> Iterator[tuple[str, TrainingSession]]:
    """Yield a training session per model, not yet started. settings: of the task and the training, by name.

    A setting goes to the models on which it has an effect. Raise UserError, before the first session, for an unknown or
    repeated model and for a setting without effect on any model.
    """
    for place, model in enumerate(models):
        if model not in MODELS:
            hint = did_you_mean(model, MODELS)
            raise UserError(f"--models {model}: no such model{hint}; there are {', '.join(MODELS)}")
        if model in models[:place]:
            raise UserError(f"--models: {model} is given twice")
    training = {one.name for one in options(TrainingSettings)}
    special = frozenset[str]().union(*(family.takes for family in MODEL_FAMILIES))
    for name in settings:
        if name in special and not any(name in family_of(model).takes for model in models):
            raise UserError(f"{flag(name)} has no effect on any of {', '.join(models)}: leave it out")
    all_counted = all(family_of(model).counted for model in models)
    sessions = []
    for model in models:
        family = family_of(model)
        own = {
            name: value
            for name, value in settings.items()
            if (name not in special or name in family.takes)
            # Settings of training go to the other models; where there are none, `begin` refuses them.
            and (not family.counted or all_counted or name not in training or name in USED)
        }
        begun = begin(data, task="text-generation", model=model, out=folder / model, overwrite=overwrite, **own)
        sessions.append((model, begun))
    yield from sessions


def train_and_evaluate(
    model: str, session: TrainingSession, context: int, show: Callable[[Event], None]
) -> ModelComparison:
    """Train a model and evaluate it on the whole validation split, with sliding context and in separate windows."""
    task: Any = session.task
    began, seconds = time.perf_counter(), None
    for event in session:
        show(event)
        if isinstance(event, Prepared):
            # The sizes are decided, and no step has been trained.
            checked_window(context, task.kind.largest(task.model_config))
        elif isinstance(event, Finished):
            seconds = event.seconds
    assert session.folder is not None
    sliding, windows = task.evaluate(context=RUNNING), task.evaluate(context=context)
    return ModelComparison(
        model,
        sliding["bits_per_byte"],
        windows["bits_per_byte"],
        sliding["loss"],
        windows["loss"],
        context,
        time.perf_counter() - began if seconds is None else seconds,
        count_saved_numbers(task.model),
        str(session.folder.path),
    )


def write_sweep(folder: Path, data: str, results: Sequence[ModelComparison]) -> dict[str, Any]:
    """Write sweep.json and, where matplotlib is installed, sweep.png and sweep-dark.png. Return what sweep.json has."""
    from tokenloom.plotting.model_comparison import draw_models

    result: dict[str, Any] = {"data": data, "models": [asdict(one) for one in results]}
    write_json(folder / "sweep.json", result)
    for name, dark in (("sweep.png", False), ("sweep-dark.png", True)):
        try:
            draw_models(result["models"], folder / name, title=Path(data).name, dark=dark)
        except UserError:
            break
    return result
