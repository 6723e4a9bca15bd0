"""Long reproductions on pictures, run apart: pytest -m slow tests/test_reproductions_images.py.

Processor seconds are those of one thread; budgets are minutes of two cores.
"""

import resource
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from needs import lacking

import tokenloom
from tokenloom.data import recipes
from tokenloom.errors import UserError
from tokenloom.tasks.labels.vectors import support_vector_accuracy

pytestmark = pytest.mark.slow


def trained(data: str, out: Path, **settings: Any) -> tuple[Any, float, float]:
    """The task after training with the defaults, its validation accuracy, and the processor seconds."""
    try:
        recipes.get(data, progress=False)
    except UserError as error:
        lacking(str(error))
    before = resource.getrusage(resource.RUSAGE_SELF)
    tokenloom.train(data, task="image-classification", out=out, threads=1, **settings)
    after = resource.getrusage(resource.RUSAGE_SELF)
    task: Any = tokenloom.load(out)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return task, task.evaluate()["accuracy"], seconds


def test_mnist_5k_by_the_defaults(tmp_path: Path) -> None:
    """4,000 / 1,000, three seeds, 5 minutes of two cores each."""
    found = [trained("mnist-5k", tmp_path / str(seed), seed=seed) for seed in range(3)]
    material = found[0][0].prepare("mnist-5k")
    training, held = material.training, material.validation
    assert (len(training), len(held)) == (4000, 1000)
    machine = support_vector_accuracy(training.pixels, training.labels, held.pixels, held.labels)
    assert machine is not None
    accuracy = mean(one[1] for one in found)
    print("mnist-5k", [one[1:] for one in found], "support-vector machine", machine)
    assert max(one[2] for one in found) <= 600
    assert accuracy >= 0.978
    assert accuracy >= machine[0] + 0.015


def test_digits_by_the_defaults(tmp_path: Path) -> None:
    found = [trained("digits", tmp_path / str(split), split=split) for split in range(5)]
    print("digits", [one[1:] for one in found])
    assert mean(one[1] for one in found) >= 0.975
    assert max(one[2] for one in found) <= 60


def test_fashion_mnist_by_the_defaults(tmp_path: Path) -> None:
    _, accuracy, seconds = trained("fashion-mnist", tmp_path / "run")
    print("fashion-mnist", accuracy, seconds)
    assert accuracy >= 0.88
    assert seconds <= 1200
