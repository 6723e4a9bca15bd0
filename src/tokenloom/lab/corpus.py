"""Tiny Shakespeare as the chapter measurements on it: windows drawn once, batches given from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tokenloom.data.registry import load
from tokenloom.data.samples import TextWindows
from tokenloom.lab.experiment import ExperimentContext
from tokenloom.models.batch import Batch
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.training.batches import BatchContext

CORPUS = "tinyshakespeare"
WINDOW = 64


def corpus_text() -> str:
    """The whole corpus."""
    return load(CORPUS).documents[0].text


class Drawn(TextWindows):
    """Eight batches of 64 windows of a text, drawn once with G(123): what the chapter's figures are measured on."""

    def all(self) -> Any:
        """The starts of the windows."""
        generator = torch.Generator().manual_seed(123)
        starts = [torch.randint(len(self.ids) - WINDOW - 1, (64,), generator=generator) for _ in range(8)]
        return torch.cat(starts).numpy()


def prepared(ctx: ExperimentContext, **settings: Any) -> tuple[TextGeneration, TextWindows, TextWindows]:
    """A task on the corpus, its training part and its validation part."""
    task = TextGeneration(TextGenerationSettings(**settings), CORPUS)
    data = task.load(CORPUS)
    assert isinstance(data.train, TextWindows)
    assert isinstance(data.validation, TextWindows)
    return task, data.train, data.validation


def counted(ctx: ExperimentContext, *, sliding: bool = False, both: bool = False, **settings: Any) -> dict[str, Any]:
    """What a counted model reaches on the drawn windows, or on the whole validation part with sliding context.

    both: its loss on windows drawn alike from the training part too, as "training_loss".
    """

    def made() -> tuple[TextGeneration, TextWindows, TextWindows]:
        task = TextGeneration(TextGenerationSettings(**settings), CORPUS)
        data = task.load(CORPUS)
        assert data.fit is not None
        task.model = data.fit()
        assert isinstance(data.train, TextWindows)
        assert isinstance(data.validation, TextWindows)
        return task, data.train, data.validation

    task, training, held = ctx.cached(("counted", *sorted(settings.items())), made) if sliding else made()
    if sliding:
        return dict(task.evaluate(context="sliding"))
    found = dict(task.evaluate(samples=Drawn(held.ids, WINDOW)))
    if both:
        found["training_loss"] = task.evaluate(samples=Drawn(training.ids, WINDOW))["loss"]
    return found


def drawn_batches(
    task: TextGeneration, training: TextWindows, generator: torch.Generator, batch_size: int
) -> Callable[[int], list[Batch]]:
    """Batches as the chapter draws them: the starts of each step are one `randint`."""

    def batches(step: int) -> list[Batch]:
        starts = torch.randint(len(training.ids) - WINDOW - 1, (batch_size,), generator=generator).numpy()
        return [task.collate(training.take(starts), BatchContext(0, step, starts))]

    return batches
