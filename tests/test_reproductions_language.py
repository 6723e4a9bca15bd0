"""The language rows of the reference results that take long: counted and recurrent models, and their ladder."""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tokenloom.config import fill
from tokenloom.data.samples import TextWindows
from tokenloom.models.batch import Batch
from tokenloom.tasks.base import PreparedData
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Evaluated, StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

N, BATCH = 64, 32


class Drawn(TextWindows):
    """Eight batches of 64 windows, drawn once with G(123): what every figure of the chapter is measured on."""

    def all(self) -> Any:
        generator = torch.Generator().manual_seed(123)
        starts = [torch.randint(len(self.ids) - N - 1, (64,), generator=generator) for _ in range(8)]
        return torch.cat(starts).numpy()


@pytest.fixture
def data(tinyshakespeare: str, tmp_path: Path) -> str:
    path = tmp_path / "tinyshakespeare.txt"
    path.write_bytes(tinyshakespeare.encode())
    return str(path)


def fitted(data: str, **settings: Any) -> tuple[TextGeneration, PreparedData, TextWindows]:
    """An n-gram model, its data, and its validation windows."""
    task = TextGeneration(TextGenerationSettings(**settings), data)
    prepared = task.load(data)
    assert prepared.fit is not None
    task.model = prepared.fit()
    assert isinstance(prepared.validation, TextWindows)
    return task, prepared, prepared.validation


@pytest.mark.parametrize(
    ("model", "nats", "perplexity"), [("unigram", 3.3580, 28.73), ("bigram", 2.4859, 12.01)], ids=["2.5", "2.6"]
)
def test_add_one_counts_to_the_printed_digits(data: str, model: str, nats: float, perplexity: float) -> None:
    """References 2.5 and 2.6, exact."""
    task, _, val = fitted(data, model=model)
    found = task.evaluate(samples=Drawn(val.ids, N))
    assert (round(found["loss"], 4), round(found["perplexity"], 2)) == (nats, perplexity)
    if model == "bigram":
        assert round(found["bits_per_token"], 3) == 3.586


def test_kneser_ney_of_order_six(data: str) -> None:
    """The line above which a transformer is worth having."""
    task, _, val = fitted(data, model="ngram")
    assert task.evaluate(context="sliding")["loss"] == pytest.approx(1.56, abs=0.01)
    assert task.evaluate(samples=Drawn(val.ids, N))["loss"] == pytest.approx(1.611, abs=0.005)


@pytest.mark.slow
def test_where_more_context_stops_paying(data: str) -> None:
    """Reference 2.7: orders 1 … 8. Adding one pays up to 4 and then ruins; Kneser–Ney's last gain is the sixth."""
    curves = {}
    for smoothing in ("add-k", "kneser-ney"):
        rows = []
        for order in range(1, 9):
            task, prepared, _ = fitted(data, model="ngram", ngram_order=order, ngram_smoothing=smoothing)
            assert isinstance(prepared.train, TextWindows)
            train_loss = task.sliding_nats(prepared.train.ids).mean()
            rows.append((float(train_loss), task.evaluate(context="sliding")["loss"]))
        curves[smoothing] = np.array(rows)
        print(smoothing, np.round(curves[smoothing], 4).tolist())
    added, kneser = curves["add-k"], curves["kneser-ney"]
    assert added[:, 1].argmin() + 1 == 4
    assert added[7, 1] > added[2, 1] + 0.5
    assert kneser[:, 1].argmin() + 1 == 6
    assert kneser[5, 1] == pytest.approx(1.555, abs=0.01)
    assert (np.diff(kneser[:, 0]) < 0).all()
    assert (added[2:, 1] > kneser[2:, 1]).all()


@pytest.mark.slow
def test_order_eight_on_five_megabytes_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["-m", "tokenloom", "train", "shakespeare", "--model", "ngram", "--order", "8", "--out", str(out), "-q"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run([sys.executable, *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert after > before, "another child of this process was larger: nothing is known"
    print(f"peak memory {after / 1024**2:.2f} GB")
    assert after < 1024**2


def elman(data: str, steps: int) -> tuple[dict[int, float], float]:
    """Training loss at steps, and the validation loss at the end."""
    task = TextGeneration(TextGenerationSettings(model="rnn", context=N, width=128, depth=1, burn_in=0), data)
    prepared = task.load(data)
    train, val = prepared.train, prepared.validation
    assert isinstance(train, TextWindows)
    assert isinstance(val, TextWindows)
    task.model = task.build_model(seed=12)
    assert sum(p.numel() for p in task.model.parameters()) == 33_217
    generator = torch.Generator().manual_seed(1)

    def batches(step: int) -> list[Batch]:
        starts = torch.randint(len(train.ids) - N - 1, (BATCH,), generator=generator).numpy()
        return [task.collate(train.take(starts), BatchContext(0, step, starts))]

    adam = {
        "optimizer": "adamw",
        "lr": 3e-3,
        "weight_decay": 0.0,
        "weight_decay_on": "matrices",
        "beta2": 0.999,
        "grad_clip": 1.0,
    }
    constant = {"lr_schedule": "wsd", "warmup_steps": 0, "decay_fraction": 0.0, "steps": 301, "batch_size": BATCH}
    settings, _ = fill(TrainingSettings(eval_every=steps), {**adam, **constant})
    losses = {}
    for event in fit(task, task.model, settings, batches, Drawn(val.ids, N)):
        if isinstance(event, StepFinished):
            losses[event.step - 1] = event.loss
        elif isinstance(event, Evaluated) and event.step >= steps:
            return losses, event.metrics["loss"]
    raise AssertionError("it was never measured")


def test_the_first_step_of_the_elman_network(data: str) -> None:
    losses, _ = elman(data, 1)
    assert round(losses[0], 3) == 4.211


@pytest.mark.slow
def test_the_elman_network_to_the_printed_digits(data: str) -> None:
    """Reference 2.9."""
    losses, validation = elman(data, 301)
    found = {step: losses[step] for step in (0, 100, 200, 300)}
    print(found, validation)
    assert found[0] == pytest.approx(4.211, abs=0.0005)
    assert [round(found[step], 2) for step in (100, 200, 300)] == [2.49, 2.22, 2.16]
    assert validation == pytest.approx(2.188, abs=0.01)
