"""Tiny Shakespeare with the protocol of the chapter: evaluation windows and batches from fixed generators."""

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
    """Return the whole corpus."""
    return load(CORPUS).documents[0].text


class ProtocolWindows(TextWindows):
    """8 × 64 windows of a text, drawn with G(123): the evaluation samples of the chapter."""

    def all(self) -> Any:
        """Return the starts of the windows."""
        generator = torch.Generator().manual_seed(123)
        starts = [torch.randint(len(self.ids) - WINDOW - 1, (64,), generator=generator) for _ in range(8)]
        return torch.cat(starts).numpy()


def prepared(ctx: ExperimentContext, **settings: Any) -> tuple[TextGeneration, TextWindows, TextWindows]:
    """Return a task on the corpus with its training and validation samples."""
    task = TextGeneration(TextGenerationSettings(**settings), CORPUS)
    data = task.load(CORPUS)
    assert isinstance(data.train, TextWindows)
    assert isinstance(data.validation, TextWindows)
    return task, data.train, data.validation


def ngram_metrics(
    ctx: ExperimentContext, *, sliding: bool = False, both: bool = False, **settings: Any
) -> dict[str, Any]:
    """Return the metrics of an n-gram model on the protocol windows, or on all validation text with sliding context.

    both: also its loss on windows of the training text, as "training_loss".
    """

    def fit() -> tuple[TextGeneration, TextWindows, TextWindows]:
        task = TextGeneration(TextGenerationSettings(**settings), CORPUS)
        data = task.load(CORPUS)
        assert data.fit is not None
        task.model = data.fit()
        assert isinstance(data.train, TextWindows)
        assert isinstance(data.validation, TextWindows)
        return task, data.train, data.validation

    task, train, val = ctx.cached(("ngram", *sorted(settings.items())), fit) if sliding else fit()
    if sliding:
        return dict(task.evaluate(context="sliding"))
    found = dict(task.evaluate(samples=ProtocolWindows(val.ids, WINDOW)))
    if both:
        found["training_loss"] = task.evaluate(samples=ProtocolWindows(train.ids, WINDOW))["loss"]
    return found


def drawn_batches(
    task: TextGeneration, train: TextWindows, generator: torch.Generator, batch_size: int
) -> Callable[[int], list[Batch]]:
    """Return a function that draws a batch of windows for each step, by one `randint` as in the chapter."""

    def batches(step: int) -> list[Batch]:
        starts = torch.randint(len(train.ids) - WINDOW - 1, (batch_size,), generator=generator).numpy()
        return [task.collate(train.take(starts), BatchContext(0, step, starts))]

    return batches
