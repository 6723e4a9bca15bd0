"""A sweep: several language models trained on one text with the same split and tokenizer, and evaluated alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenloom.config import flag, options
from tokenloom.errors import UserError
from tokenloom.evaluation.perplexity import SLIDING, check_context
from tokenloom.nn.modules import count_saved_numbers
from tokenloom.runs.events import Prepared
from tokenloom.runs.session import USED_BY_FIT, TrainingSession, start_session
from tokenloom.tasks._lm_families import FAMILIES
from tokenloom.tasks.text_generation import TextGenerationSettings
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
    for index, model in enumerate(models):
        if model not in FAMILIES:
            hint = did_you_mean(model, FAMILIES)
            raise UserError(f"--models {model}: no such model{hint}; there are {', '.join(FAMILIES)}")
        if model in models[:index]:
            raise UserError(f"--models: {model} is given twice")
    training = {one.name for one in options(TrainingSettings)}
    for name in settings:
        if not any(_has_effect(name, model) for model in models):
            raise UserError(f"{flag(name)} has no effect on any of {', '.join(models)}: leave it out")
    all_fitted = all(FAMILIES[model].fitted for model in models)
    sessions = []
    for model in models:
        own = {
            name: value
            for name, value in settings.items()
            if _has_effect(name, model)
            # Training settings go to the other models; where there are none, the session refuses them.
            and (not FAMILIES[model].fitted or all_fitted or name not in training or name in USED_BY_FIT)
        }
        out = folder / model
        session = start_session(data, task="text-generation", model=model, out=out, overwrite=overwrite, **own)
        sessions.append((model, session))
    yield from sessions


def _has_effect(name: str, model: str) -> bool:
    """Return whether a setting has an effect on a model, as far as the model alone decides."""
    only = {one.name: one.only for one in options(TextGenerationSettings)}.get(name, {})
    return "model" not in only or model in only["model"]


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
            check_context(context, task.family.max_context(task.model_config))
        elif isinstance(event, Finished):
            seconds = event.seconds
    assert session.folder is not None
    sliding, windows = task.evaluate(context=SLIDING), task.evaluate(context=context)
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
