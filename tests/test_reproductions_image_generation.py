"""Long reproductions of image generation on mnist-5k, with the default settings."""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

import tokenloom
from tokenloom.data.images import read_images
from tokenloom.data.split import split
from tokenloom.generation import Sampling
from tokenloom.tasks._image_tokens import augmented_copy
from tokenloom.tasks.image_generation import ImageGeneration
from tokenloom.tokenizers.vq import VQTokenizer

pytestmark = pytest.mark.slow

Read = Callable[[NDArray[np.uint8]], NDArray[np.int64]]


def seconds() -> float:
    """Of this process on all processors."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def reader(pixels: NDArray[np.uint8], labels: NDArray[np.int64], steps: int = 1200) -> Read:
    """A small convolutional network that learns classes from real images, slightly changed each time."""
    torch.manual_seed(0)
    side = pixels.shape[-1] // 4
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * side**2, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    random = np.random.default_rng(0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (step + 1) / 50, 1.2 * (steps - step) / steps)
        chosen = random.integers(len(pixels), size=64)
        X = torch.from_numpy(augmented_copy(pixels[chosen], step, 1)).float() / 255
        loss = F.cross_entropy(model(X), torch.from_numpy(labels[chosen]), label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()

    @torch.no_grad()
    def read(found: NDArray[np.uint8]) -> NDArray[np.int64]:
        answer: NDArray[np.int64] = model(torch.from_numpy(found).float() / 255).argmax(1).numpy()
        return answer

    return read


def share_read(task: ImageGeneration, read: Read, count: int, **options: Any) -> tuple[float, NDArray[np.uint8], Any]:
    """The share of images in which the class that was asked for is read; the images, and their classes."""
    pixels, names = task.generate(count, **options)
    labels = np.array([task.classes.index(name) for name in names])
    return float((read(pixels) == labels).mean()), pixels, labels


def learnt_from(pixels: NDArray[np.uint8], labels: NDArray[np.int64], held: Any) -> float:
    """Accuracy on real images of a support-vector machine that was trained on others."""
    svm = pytest.importorskip("sklearn.svm").SVC(C=10, gamma=0.02)
    svm.fit(pixels.reshape(len(pixels), -1) / 255.0, labels)
    return float(svm.score(held.pixels.reshape(len(held), -1) / 255.0, held.labels))


def completed(task: ImageGeneration, parts: Any, count: int = 40) -> tuple[float, float]:
    """Mean squared errors of lower halves that were held out: of the mean of 16 completions, and of the image of the
    training part whose upper half is nearest."""
    half = parts.train.pixels.shape[2] // 2
    known = parts.train.pixels / 255.0
    ours, theirs = [], []
    for image in parts.validation.pixels[:: len(parts.validation) // count][:count]:
        wanted = image[:, half:] / 255.0
        made, _ = task.generate(16, complete=image[:, :half])
        nearest = np.square(known[:, :, :half] - image[:, :half] / 255.0).sum((1, 2, 3)).argmin()
        ours.append(float(np.square(made[:, :, half:].mean(0) / 255.0 - wanted).mean()))
        theirs.append(float(np.square(known[nearest, :, half:] - wanted).mean()))
    return float(np.mean(ours)), float(np.mean(theirs))


def images_per_second(task: ImageGeneration, count: int) -> float:
    """Made at once."""
    began = time.process_time()
    task.generate(count)
    return count / (time.process_time() - began)


def measured_codes(run: Path) -> dict[str, float]:
    """All figures of a run over codes."""
    task = tokenloom.load(run)
    assert isinstance(task, ImageGeneration)
    assert isinstance(task.tokenizer, VQTokenizer)
    parts = split(read_images("mnist-5k"))
    read = reader(parts.train.pixels, parts.train.labels)
    metrics = task.evaluate()
    found = {name: metrics[name] for name in ("bits_per_token", "bits_per_dim", "mse")}
    found["reader"] = float((read(parts.validation.pixels) == parts.validation.labels).mean())
    guided = {"guidance_scale": 2.0, "sampling": Sampling(temperature=0.9)}
    found["plain"], pixels, labels = share_read(task, read, 1000)
    found["plain_svm"] = learnt_from(pixels, labels, parts.validation)
    found["guided"], pixels, labels = share_read(task, read, 1000, **guided)
    found["guided_svm"] = learnt_from(pixels, labels, parts.validation)
    found["completion"], found["nearest"] = completed(task, parts)
    found["images_per_second"] = images_per_second(task, 100)
    return found


def test_codes(tmp_path: Path) -> None:
    before = seconds()
    tokenloom.train("mnist-5k", task="image-generation", threads=1, out=tmp_path / "run")
    used = seconds() - before
    found = measured_codes(tmp_path / "run")
    print(used, found)
    assert used <= 600
    assert found["mse"] <= 0.0045
    assert found["bits_per_token"] <= 3.5
    assert found["plain"] >= 0.80
    assert found["guided"] >= 0.93
    assert found["plain_svm"] >= 0.85
    assert found["completion"] < found["nearest"]


def measured_pixels(run: Path) -> dict[str, float]:
    """Figures of a run over pixels."""
    task = tokenloom.load(run)
    assert isinstance(task, ImageGeneration)
    found = {name: task.evaluate()[name] for name in ("bits_per_token", "unigram_bits", "neighbor_bits")}
    found["images_per_second"] = images_per_second(task, 20)
    return found


def test_pixels(tmp_path: Path) -> None:
    before = seconds()
    tokenloom.train("mnist-5k", task="image-generation", image_tokenizer="palette", threads=1, out=tmp_path / "run")
    used = seconds() - before
    found = measured_pixels(tmp_path / "run")
    print(used, found)
    assert used <= 1200
    assert found["bits_per_token"] <= 0.512
    assert found["bits_per_token"] <= 0.9 * found["neighbor_bits"]


def measured_small(run: Path) -> float:
    """The share of small images in which the class is read that was asked for."""
    task = tokenloom.load(run)
    assert isinstance(task, ImageGeneration)
    parts = split(read_images("mnist-5k", task.image_format))
    read = reader(parts.train.pixels, parts.train.labels)
    return share_read(task, read, 500)[0]


def test_small_pixels(tmp_path: Path) -> None:
    settings = {"image_tokenizer": "palette", "image_size": "14", "threads": 1}
    tokenloom.train("mnist-5k", task="image-generation", out=tmp_path / "run", **settings)
    share = measured_small(tmp_path / "run")
    print("14 × 14 pixels, class read", share)
    assert share >= 0.70
