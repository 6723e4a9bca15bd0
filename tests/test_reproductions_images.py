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
        if data in recipes.names():
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


def of_size(folder: Path, n: int) -> tuple[str, str]:
    """mnist-5k as folders of pictures: n to train, the first n / 10 of each class, and the 1,000 that validate."""
    from PIL import Image

    from tokenloom.data.picture_split import split_pictures
    from tokenloom.data.pictures import read_pictures

    parts = split_pictures(read_pictures("mnist-5k"))
    for name, part, most in (("train", parts.training, n // 10), ("held", parts.validation, 100)):
        for label in range(10):
            (folder / name / str(label)).mkdir(parents=True)
            for place in (part.labels == label).nonzero()[0][:most]:
                Image.fromarray(part.pixels[place, 0]).save(folder / name / str(label) / f"{place}.png")
    return str(folder / "train"), str(folder / "held")


def test_against_the_number_of_pictures(tmp_path: Path) -> None:
    """The weaker inductive bias of the transformer is seen where pictures are few, and gone where there are 4,000.

    The same number of steps and pictures a step for both, whatever the number of pictures.
    """
    rows = []
    for n in (250, 500, 1000, 2000, 4000):
        data, held = of_size(tmp_path / str(n), n)
        row = [n]
        for model in ("vit", "cnn"):
            out = tmp_path / str(n) / model
            row.append(trained(data, out, model=model, validation=held, steps=1500, batch=64)[1])
        rows.append(row)
        print("pictures, vit, cnn:", *row)
    gaps = [cnn - vit for _, vit, cnn in rows]
    assert gaps[0] > 0.01
    assert gaps[0] > gaps[-1]


def test_cost_and_accuracy_by_patch(tmp_path: Path) -> None:
    """Reference 4.2, at equal epochs: patches of 14, 7 and 4 pixels; tokens, accuracy, processor seconds."""
    rows = []
    for patch, tokens in ((14, 4), (7, 16), (4, 49)):
        _, accuracy, seconds = trained("mnist-5k", tmp_path / str(patch), patch=str(patch), steps=1260, batch=64)
        rows.append((patch, tokens, accuracy, seconds))
        print("patch, tokens, accuracy, seconds:", *rows[-1])
    assert rows[1][2] > rows[0][2]
    assert rows[2][3] > 1.5 * rows[1][3]
