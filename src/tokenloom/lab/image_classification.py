"""Section 4: image classification. A vision transformer and a convolutional network; patches down to one pixel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import tokenloom
from tokenloom.lab.experiment import (
    ExperimentContext,
    Measurement,
    Outcome,
    at_least,
    at_most,
    between,
    exact,
    experiment,
    shown,
)
from tokenloom.nn.hooks import Hooks
from tokenloom.plotting.svg import Line, Panel, Plot
from tokenloom.tasks.image_classification import ImageClassification
from tokenloom.training.events import Baseline, Finished, StepFinished

FULL, QUICK = "mnist-5k", "digits"
OWN = "own figure"
# No augmentation, which would add prior knowledge, as a convolution does.
NO_AUGMENTATION = {"translate": 0.0, "rotate": 0.0, "scale": 0.0, "elastic": 0.0}


@dataclass(frozen=True)
class Classifier:
    """A trained image classifier, its validation accuracy, that of the support-vector machine on the same split, and
    the CPU seconds per step."""

    task: ImageClassification
    accuracy: float
    svm: float
    step: float


def classifier(ctx: ExperimentContext, data: str, **settings: Any) -> Classifier:
    """Return a trained classifier, made once per run of the lab."""
    key = ("classifier", data, ctx.seed, *sorted(settings.items()))
    return ctx.cached(key, lambda: _train(ctx, data, settings))


def _train(ctx: ExperimentContext, data: str, settings: dict[str, Any]) -> Classifier:
    settings = {"eval_every": settings["steps"], **settings}
    training = tokenloom.start_session(data, task="image-classification", seed=ctx.seed, threads=1, **settings)
    accuracy, svm, stamps = float("nan"), float("nan"), []
    for event in training:
        if isinstance(event, StepFinished):
            stamps.append(time.process_time())
            ctx.report_progress(event.step / event.steps)
        elif isinstance(event, Baseline):
            svm = event.value
        elif isinstance(event, Finished):
            accuracy = event.best["accuracy"]
    assert isinstance(training.task, ImageClassification)
    # The median, because an evaluation follows some steps.
    return Classifier(training.task, accuracy, svm, float(np.median(np.diff(stamps))))


# Validation fractions, and the number of training images left of 5,000, or of the 1,797 digits.
TRAIN_SIZES = {False: ((0.95, 250), (0.8, 1000), (0.2, 4000)), True: ((0.8, 360), (0.2, 1440))}


def classifiers(
    ctx: ExperimentContext, val_fraction: float, models: Sequence[str] = ("vit", "cnn")
) -> list[Classifier]:
    """Return 4.1's transformer and convolutional network."""
    size, steps = ("8", 40) if ctx.quick else ("12", 500)
    common = {"val_fraction": val_fraction, "image_size": size, "batch_size": 32, "steps": steps, **NO_AUGMENTATION}
    sizes: dict[str, dict[str, Any]] = {
        "vit": {"patch_size": "2" if ctx.quick else "3", "pool": "cls", "width": 64, "depth": 3, "heads": 4},
        "cnn": {"width": 32, "depth": 2},
    }
    data = QUICK if ctx.quick else FULL
    return [classifier(ctx, data, model=name, **sizes[name], **common) for name in models]


def judge(ctx: ExperimentContext) -> ImageClassification:
    """Return 4.1's convolutional network trained on most images, which classifies generated images."""
    val_fraction, _ = TRAIN_SIZES[ctx.quick][-1]
    return classifiers(ctx, val_fraction, ["cnn"])[0].task


@experiment(
    "4.1",
    "A vision transformer",
    question="How many images does a transformer need to catch up with a convolutional network?",
    protocol="mnist-5k at 12 × 12 pixels, 250, 1,000 and 4,000 training images, the others for validation. Patches of "
    "3 × 3, a class token, D = 64, L = 3, H = 4; a convolutional network of two blocks; both 500 steps of 32 images "
    "without augmentation. A support-vector machine on the pixels, on the same split.",
    explanation="A convolutional network has locality and translation equivariance built in. A transformer has to "
    "learn both from examples: with few images it is less accurate, and the gap shrinks with their number.",
    dataset=FULL,
    quick_dataset=QUICK,
    quick=True,
    seconds=110.0,
)
def vision(ctx: ExperimentContext) -> Outcome:
    """4.1."""
    counts, found = [], []
    for val_fraction, count in TRAIN_SIZES[ctx.quick]:
        vit, cnn = classifiers(ctx, val_fraction)
        counts.append(count)
        found.append((vit.svm, cnn.accuracy, vit.accuracy))
    names = ("support-vector machine", "convolutional network", "vision transformer")
    columns = list(zip(*found, strict=True))
    measurements = [
        shown(f"{count:,} images: SVM, convolutional network, transformer", ", ".join(f"{one:.1%}" for one in row))
        for count, row in zip(counts, found, strict=True)
    ]
    behind = [cnn - vit for _, cnn, vit in found]
    measurements += _vision_bounds(ctx, behind, found[-1])
    lines = [Line(name, counts, column) for name, column in zip(names, columns, strict=True)]
    first, last = (f"{100 * one:.1f} points" for one in (behind[0], behind[-1]))
    caption = f"With {counts[0]:,} images the transformer is {first} behind the convolutional network, with "
    curve = Plot(
        "Accuracy against the number of images",
        f"{caption}{counts[-1]:,} it is {last} behind.",
        "training images",
        "validation accuracy",
        lines,
        log_x=True,
    )
    attention_plot, sums = plot_attention(vit.task, QUICK if ctx.quick else FULL, 4)
    measurements.append(at_most("rows of the class token's attention − 1", 1e-5, sums, "rows sum to 1"))
    return Outcome(measurements, [curve, attention_plot])


def _vision_bounds(
    ctx: ExperimentContext, behind: Sequence[float], most: tuple[float, float, float]
) -> list[Measurement]:
    """Return the bounds with the most training images, and against those with the fewest."""
    svm, _, vit = most
    if ctx.quick:
        return [at_least("transformer, most images (coarse)", 0.2, vit, OWN)]
    return [
        at_least("gap to the convolutional network: fewest − most images", 0.05, behind[0] - behind[-1], OWN),
        at_least("transformer, 4,000 images", 0.9, vit, OWN),
        shown("transformer − SVM, 4,000 images", f"{100 * (vit - svm):+.1f} points"),
    ]


def plot_attention(task: ImageClassification, data: str, count: int) -> tuple[Plot, float]:
    """Return a plot of validation images with the class token's attention to each patch (last layer, mean over heads),
    and the largest deviation of its rows' sums from 1."""
    samples = task.load(data).validation
    pixels = samples.take(samples.all()[:: max(1, len(samples) // count)][:count])[0]
    hooks = Hooks("layers.*.pattern")
    answers = task.logits(torch.from_numpy(pixels), hooks).argmax(-1).tolist()
    pattern = list(hooks.values.values())[-1].double()
    rows = pattern[:, :, 0]
    grid = task.patches.grid
    weights = rows[:, :, 1:].mean(1).reshape(count, *grid).numpy()
    panels = []
    for image, answer in zip(pixels, answers, strict=True):
        panels.append(Panel(f"predicted {task.classes[answer]}", rounded(image[0] / 255), image=True))
    for image, weight in zip(pixels, weights, strict=True):
        panels.append(Panel(f"{weight.min():.3f} … {weight.max():.3f}", overlay(image[0] / 255, weight), image=True))
    caption = "The class token attends to some strokes much more than to others, and little to the empty border."
    title = "Images, and the attention of the class token over them"
    return Plot(title, caption, panels=panels, num_columns=count), float((rows.sum(-1) - 1).abs().max())


def overlay(gray: NDArray[Any], weights: NDArray[Any]) -> list[Any]:
    """Return an image (H, W) in 0 … 1 with patches highlighted by weights (rows, columns): (H, W, 3)."""
    strength = (weights - weights.min()) / max(float(np.ptp(weights)), 1e-12)
    strength = np.kron(strength, np.ones((gray.shape[0] // weights.shape[0], gray.shape[1] // weights.shape[1])))[
        ..., None
    ]
    color = np.array([1.0, 0.55, 0.1])
    return rounded((1 - 0.65 * strength) * gray[..., None] + 0.65 * strength * color)


def rounded(values: NDArray[Any]) -> list[Any]:
    """Return plain numbers with three digits, for JSON."""
    found: list[Any] = np.round(values.astype(np.float64), 3).tolist()
    return found


@experiment(
    "4.2",
    "Patches against pixels",
    question="What do smaller patches cost and gain, in equal epochs and in equal time?",
    protocol="mnist-5k at 12 × 12 pixels, patches of 12, 6, 3, 2 and 1 pixels a side; D = 48, L = 2, H = 4, the mean "
    "of all tokens is pooled; 32 images per step, no augmentation. Equal epochs: 400 steps each. Equal time: each as "
    "many steps as fit into the CPU seconds that 400 steps of patches of 3 took, by the median step of the first "
    "part. One thread. (How many steps fit differs from machine to machine, and the accuracy with it.)",
    explanation="A patch of p pixels a side makes (12/p)² tokens. One token alone is a plain network on all pixels; "
    "four tokens, a quarter each, learn more in the same steps. Smaller patches cost more and, in so short a "
    "training, gain less: a single pixel carries little information, and the model must first learn which belong "
    "together. In equal time they also get fewer steps.",
    dataset=FULL,
    quick_dataset=QUICK,
    quick=True,
    seconds=200.0,
)
def patches(ctx: ExperimentContext) -> Outcome:
    """4.2."""
    side, steps, data = (8, 30, QUICK) if ctx.quick else (12, 400, FULL)
    sides = (8, 4, 2, 1) if ctx.quick else (12, 6, 3, 2, 1)

    def trained(patch: int, steps: int) -> Classifier:
        sizes = {"image_size": str(side), "patch_size": str(patch), "pool": "mean", "width": 48, "depth": 2, "heads": 4}
        return classifier(ctx, data, **sizes, batch_size=32, steps=steps, warmup_steps=steps // 25, **NO_AUGMENTATION)

    epochs = [trained(patch, steps) for patch in sides]
    middle = epochs[sides.index(2 if ctx.quick else 3)]
    fitting = [max(1, round(steps * middle.step / one.step)) for one in epochs]
    timed = [one if one is middle else trained(*sizes) for one, *sizes in zip(epochs, sides, fitting, strict=True)]
    return _by_patch(ctx, sides, ByPatch([steps] * len(sides), epochs), ByPatch(fitting, timed))


@dataclass(frozen=True)
class ByPatch:
    """Trainings of 4.2, one per patch size: the steps of each, and the classifiers."""

    steps: Sequence[int]
    found: Sequence[Classifier]

    @property
    def accuracy(self) -> list[float]:
        """Validation accuracies."""
        return [one.accuracy for one in self.found]

    @property
    def seconds(self) -> list[float]:
        """CPU seconds: the median step × steps."""
        return [one.step * steps for one, steps in zip(self.found, self.steps, strict=True)]

    def table(self, name: str, sides: Sequence[int]) -> list[Measurement]:
        """Return a row per patch size."""
        rows = zip(sides, self.found, self.steps, self.accuracy, self.seconds, strict=True)
        return [
            shown(
                f"{name}, {patch} × {patch} pixels: tokens, steps, seconds, accuracy",
                f"{one.task.patches.num_patches}, {steps:,}, {seconds:.1f} s, {right:.1%}",
            )
            for patch, one, steps, right, seconds in rows
        ]


def _by_patch(ctx: ExperimentContext, sides: Sequence[int], epochs: ByPatch, timed: ByPatch) -> Outcome:
    """Return both tables, the bounds and the curves."""
    tokens = [one.task.patches.num_patches for one in epochs.found]
    cost = [1000 * one.step for one in epochs.found]
    accuracy = epochs.accuracy
    measurements = [*epochs.table("equal epochs", sides), *timed.table("equal time", sides)]
    expected = ", ".join(str((sides[0] // patch) ** 2) for patch in sides)
    measurements.append(exact("tokens", expected, ", ".join(map(str, tokens))))
    cost_ratios = {"cost at one pixel ÷ cost at two": cost[-1] / cost[-2], "÷ cost of one token": cost[-1] / cost[0]}
    apart = max(timed.seconds) / min(timed.seconds)
    if ctx.quick:
        # Too few steps to measure time.
        measurements += [shown(name, f"{ratio:.1f} ×") for name, ratio in cost_ratios.items()]
        measurements.append(shown("equal time: longest ÷ shortest", f"{apart:.2f} ×"))
        measurements.append(at_least("best accuracy (coarse)", 0.4, max(accuracy), OWN))
    else:
        names = list(cost_ratios)
        measurements += [
            between(names[0], 2.0, 12.0, cost_ratios[names[0]], "four times the tokens"),
            at_least(names[1], 3.0, cost_ratios[names[1]], OWN),
            between("equal time: longest ÷ shortest", 1.0, 2.0, apart, "equal, if step times are stable"),
            at_least("patches of 2, accuracy", 0.8, accuracy[sides.index(2)], OWN),
            at_least("best of several tokens − one token", 0.005, max(accuracy[1:]) - accuracy[0], OWN),
            at_least("one pixel, accuracy: equal epochs − equal time", 0.05, accuracy[-1] - timed.accuracy[-1], OWN),
        ]
    panels = [
        Plot(
            "Accuracy by tokens",
            f"Best with {tokens[int(np.argmax(accuracy))]} tokens in equal epochs, "
            f"with {tokens[int(np.argmax(timed.accuracy))]} in equal time.",
            "tokens per image",
            "accuracy",
            [Line("equal epochs", tokens, accuracy), Line("equal time", tokens, timed.accuracy)],
            log_x=True,
        ),
        Plot(
            "Cost by tokens",
            f"From {cost[0]:.1f} ms with one token to {cost[-1]:.0f} ms with a token per pixel.",
            "tokens per image",
            "CPU milliseconds per step",
            [Line("measured", tokens, cost)],
            log_x=True,
            log_y=True,
        ),
    ]
    return Outcome(measurements, panels)
