"""Reference 3.4, digit for digit, with its own draws: batches and validation windows are given from outside.

The model of the textbook's chapter, 112,065 parameters, on tinyshakespeare. Exact on one thread of any CPU.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tokenloom.config import fill
from tokenloom.data.samples import TextWindows
from tokenloom.models.batch import Batch
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Evaluated, StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

N = 64
BATCH = 32
VALIDATION = {150: 2.457, 300: 2.377, 450: 2.110, 600: 1.990, 750: 1.927, 900: 1.9085}
TRAINING = {150: 2.450, 300: 2.328, 450: 2.049, 600: 1.885, 750: 1.786, 900: 1.760}


class Drawn(TextWindows):
    """Eight batches of 64 windows, drawn once with G(123): what every figure of the chapter is measured on."""

    def all(self) -> Any:
        generator = torch.Generator().manual_seed(123)
        starts = [torch.randint(len(self.ids) - N - 1, (64,), generator=generator) for _ in range(8)]
        return torch.cat(starts).numpy()


def chapter_run(text: str, path: Any, steps: int) -> tuple[dict[int, float], dict[int, float]]:
    """The loss on the validation windows, and the mean training loss of the 50 steps before, by step."""
    data = path / "tinyshakespeare.txt"
    data.write_bytes(text.encode())
    task = TextGeneration(TextGenerationSettings(preset="classic", context=N, width=64, depth=2, heads=4))
    material = task.load(str(data))
    training, held = material.train, material.validation
    assert isinstance(training, TextWindows)
    assert isinstance(held, TextWindows)
    assert (len(training.ids), len(held.ids), task.tokenizer.vocab_size) == (1_003_854, 111_540, 65)
    validation = Drawn(held.ids, N)
    task.model = task.build_model(seed=12)
    assert sum(p.numel() for p in task.model.parameters()) == 112_065
    generator = torch.Generator().manual_seed(0)

    def batches(step: int) -> list[Batch]:
        starts = torch.randint(len(training.ids) - N - 1, (BATCH,), generator=generator).numpy()
        return [task.collate(training.take(starts), BatchContext(0, step, starts))]

    first = task.evaluate(samples=validation)
    assert first["num_targets"] == 8 * 64 * N
    assert round(first["loss"], 2) == 4.38
    settings, taken = fill(TrainingSettings(eval_every=150), material.recipe)
    assert (taken["steps"], taken["batch_size"]) == (900, BATCH)
    losses: list[float] = []
    measured: dict[int, float] = {}
    means: dict[int, float] = {}
    for event in fit(task, task.model, settings, batches, validation):
        if isinstance(event, StepFinished):
            losses.append(event.loss)
        elif isinstance(event, Evaluated):
            measured[event.step] = event.metrics["loss"]
            means[event.step] = float(np.mean(losses[-50:]))
            if event.step >= steps:
                break
    return measured, means


def test_the_first_150_steps(tinyshakespeare: str, tmp_path: Any) -> None:
    measured, means = chapter_run(tinyshakespeare, tmp_path, 150)
    assert measured[150] == pytest.approx(VALIDATION[150], abs=0.002)
    assert means[150] == pytest.approx(TRAINING[150], abs=0.002)


@pytest.mark.slow
def test_all_900_steps_to_the_printed_digits(tinyshakespeare: str, tmp_path: Any) -> None:
    measured, means = chapter_run(tinyshakespeare, tmp_path, 900)
    assert {step: round(loss, 4 if step == 900 else 3) for step, loss in measured.items()} == VALIDATION
    assert {step: round(loss, 3) for step, loss in means.items()} == TRAINING
