"""Section 4: pictures as tokens. A vision transformer beside what came before it, and patches down to one pixel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import tokenloom
from tokenloom.lab.experiment import Bench, Measure, Outcome, at_least, at_most, between, exact, experiment, shown
from tokenloom.nn.hooks import Hooks
from tokenloom.plotting.svg import Line, Panel, Picture
from tokenloom.tasks.image_classification import ImageClassification
from tokenloom.training.events import Baseline, Finished, StepFinished

FULL, QUICK = "mnist-5k", "digits"
OWN = "own figure"
# Pictures as they are: what turning and bending them brings is the same prior knowledge as a convolution.
UNCHANGED = {"translate": 0.0, "rotate": 0.0, "scale": 0.0, "elastic": 0.0}


@dataclass(frozen=True)
class Reader:
    """A trained classifier of pictures, its accuracy on the pictures held out, that of the support-vector machine on
    the same split, and the processor seconds of one step."""

    task: ImageClassification
    accuracy: float
    machine: float
    step: float


def reader(bench: Bench, data: str, **settings: Any) -> Reader:
    """Train one, made once a run."""
    key = ("reader", data, bench.seed, *sorted(settings.items()))
    return bench.shared(key, lambda: _reader(bench, data, settings))


def _reader(bench: Bench, data: str, settings: dict[str, Any]) -> Reader:
    settings = {"eval_every": settings["steps"], **settings}
    training = tokenloom.fit(data, task="image-classification", seed=bench.seed, threads=1, **settings)
    accuracy, machine, stamps = float("nan"), float("nan"), []
    for event in training:
        if isinstance(event, StepFinished):
            stamps.append(time.process_time())
            bench.tell(event.step / event.steps)
        elif isinstance(event, Baseline):
            machine = event.value
        elif isinstance(event, Finished):
            accuracy = event.best["accuracy"]
    assert isinstance(training.task, ImageClassification)
    # The median, since some steps are followed by an evaluation.
    return Reader(training.task, accuracy, machine, float(np.median(np.diff(stamps))))


# Shares of the pictures that are held out, and what is left of 5,000, or of the 1,797 digits.
FEW_TO_MANY = {False: ((0.95, 250), (0.8, 1000), (0.2, 4000)), True: ((0.8, 360), (0.2, 1440))}


def readers(bench: Bench, held: float, models: Sequence[str] = ("vit", "cnn")) -> list[Reader]:
    """4.1's transformer and convolutional network, with a share of the pictures held out."""
    size, steps = ("8", 40) if bench.quick else ("12", 500)
    common = {"val_fraction": held, "image_size": size, "batch_size": 32, "steps": steps, **UNCHANGED}
    bodies: dict[str, dict[str, Any]] = {
        "vit": {"patch_size": "2" if bench.quick else "3", "pool": "cls", "width": 64, "depth": 3, "heads": 4},
        "cnn": {"width": 32, "depth": 2},
    }
    data = QUICK if bench.quick else FULL
    return [reader(bench, data, model=name, **bodies[name], **common) for name in models]


def judge(bench: Bench) -> ImageClassification:
    """4.1's convolutional network that has learned from most pictures: it reads pictures that were made."""
    held, _ = FEW_TO_MANY[bench.quick][-1]
    return readers(bench, held, ["cnn"])[0].task


@experiment(
    "4.1",
    "A vision transformer",
    asked="How many pictures does a transformer need to catch up with a convolutional network?",
    protocol="mnist-5k at 12 × 12 pixels, 250, 1,000 and 4,000 pictures to learn from, the others held out. Patches "
    "of 3 × 3, a class token, D = 64, L = 3, H = 4; a convolutional network of two blocks; both 500 steps of 32 "
    "pictures, which are left as they are. A support-vector machine on the pixels, of the same split.",
    explanation="A convolutional network knows beforehand that neighboring pixels belong together and that a stroke "
    "is the same stroke anywhere. A transformer has to learn both from examples: with few pictures it is behind, and "
    "the distance shrinks as they become more.",
    needs=FULL,
    beside=("sklearn", "digits"),
    quick_needs=QUICK,
    quick=True,
    seconds=110.0,
)
def vision(bench: Bench) -> Outcome:
    """4.1."""
    counts, found = [], []
    for held, count in FEW_TO_MANY[bench.quick]:
        vit, cnn = readers(bench, held)
        counts.append(count)
        found.append((vit.machine, cnn.accuracy, vit.accuracy))
    names = ("support-vector machine", "convolutional network", "vision transformer")
    columns = list(zip(*found, strict=True))
    measures = [
        shown(f"{count:,} pictures: machine, convolutional, transformer", ", ".join(f"{one:.1%}" for one in row))
        for count, row in zip(counts, found, strict=True)
    ]
    behind = [cnn - vit for _, cnn, vit in found]
    measures += _vision_bounds(bench, behind, found[-1])
    lines = [Line(name, counts, column) for name, column in zip(names, columns, strict=True)]
    first, last = (f"{100 * one:.1f} points" for one in (behind[0], behind[-1]))
    caption = f"With {counts[0]:,} pictures the transformer is {first} behind the convolutional network, with "
    curve = Picture(
        "Accuracy against the number of pictures",
        f"{caption}{counts[-1]:,} it is {last} behind.",
        "pictures to learn from",
        "accuracy on those held out",
        lines,
        log_x=True,
    )
    looked, sums = look(vit.task, QUICK if bench.quick else FULL, 4)
    measures.append(at_most("rows of the class token's attention − 1", 1e-5, sums, "rows sum to 1"))
    return Outcome(measures, [curve, looked])


def _vision_bounds(bench: Bench, behind: Sequence[float], most: tuple[float, float, float]) -> list[Measure]:
    """What must hold with the most pictures, and against those with the fewest."""
    machine, _, vit = most
    if bench.quick:
        return [at_least("transformer, most pictures (coarse)", 0.2, vit, OWN)]
    return [
        at_least("distance to the convolutional network: fewest − most pictures", 0.05, behind[0] - behind[-1], OWN),
        at_least("transformer, 4,000 pictures", 0.9, vit, OWN),
        shown("transformer − machine, 4,000 pictures", f"{100 * (vit - machine):+.1f} points"),
    ]


def look(task: ImageClassification, data: str, count: int) -> tuple[Picture, float]:
    """Pictures that were held out, and over each how much the class token looks at each patch, last layer, heads
    averaged; and by how much the rows of that attention miss 1 at most."""
    samples = task.prepare(data).validation
    pixels = samples.take(samples.all()[:: max(1, len(samples) // count)][:count])[0]
    hooks = Hooks("layers.*.pattern")
    answers = task.logits(torch.from_numpy(pixels), hooks).argmax(-1).tolist()
    pattern = list(hooks.values.values())[-1].double()
    rows = pattern[:, :, 0]
    grid = task.patches.grid
    weights = rows[:, :, 1:].mean(1).reshape(count, *grid).numpy()
    panels = []
    for picture, answer in zip(pixels, answers, strict=True):
        panels.append(Panel(f"read as {task.classes[answer]}", rounded(picture[0] / 255), picture=True))
    for picture, weight in zip(pixels, weights, strict=True):
        panels.append(
            Panel(f"{weight.min():.3f} … {weight.max():.3f}", overlay(picture[0] / 255, weight), picture=True)
        )
    caption = "The class token looks at some strokes much more than at others, and little at the empty border."
    title = "Pictures, and the attention of the class token over them"
    return Picture(title, caption, panels=panels, across=count), float((rows.sum(-1) - 1).abs().max())


def overlay(gray: NDArray[Any], weights: NDArray[Any]) -> list[Any]:
    """A picture (H, W) in 0 … 1 with patches shining as their weights (rows, columns) are: (H, W, 3)."""
    share = (weights - weights.min()) / max(float(np.ptp(weights)), 1e-12)
    share = np.kron(share, np.ones((gray.shape[0] // weights.shape[0], gray.shape[1] // weights.shape[1])))[..., None]
    shine = np.array([1.0, 0.55, 0.1])
    return rounded((1 - 0.65 * share) * gray[..., None] + 0.65 * share * shine)


def rounded(values: NDArray[Any]) -> list[Any]:
    """Plain numbers with three digits: a row is written as text."""
    found: list[Any] = np.round(values.astype(np.float64), 3).tolist()
    return found


@experiment(
    "4.2",
    "Patches against pixels",
    asked="What do smaller patches cost, and what do they bring, in equal epochs and in equal time?",
    protocol="mnist-5k at 12 × 12 pixels, patches of 12, 6, 3, 2 and 1 pixels a side; D = 48, L = 2, H = 4, the mean "
    "of all tokens is read; 32 pictures a step, pictures left as they are. Equal epochs: 400 steps each. Equal time: "
    "each as many steps as fit into the processor seconds that 400 steps of patches of 3 took, by the median step of "
    "the first part. One thread. (How many steps fit differs from machine to machine, and the accuracy with it.)",
    explanation="A patch of p pixels a side makes (12/p)² tokens. One token alone is a plain network on all pixels; "
    "four tokens, a quarter each, learn more in the same steps. Smaller patches cost more and, in so short a "
    "training, bring less: a pixel says nothing alone, and which of them belong together must first be learned. In "
    "equal time it shows twice: what costs more also gets fewer steps.",
    needs=FULL,
    beside=("sklearn", "digits"),
    quick_needs=QUICK,
    quick=True,
    seconds=200.0,
)
def patches(bench: Bench) -> Outcome:
    """4.2."""
    side, steps, data = (8, 30, QUICK) if bench.quick else (12, 400, FULL)
    sides = (8, 4, 2, 1) if bench.quick else (12, 6, 3, 2, 1)

    def trained(patch: int, steps: int) -> Reader:
        body = {"image_size": str(side), "patch_size": str(patch), "pool": "mean", "width": 48, "depth": 2, "heads": 4}
        return reader(bench, data, **body, batch_size=32, steps=steps, warmup_steps=steps // 25, **UNCHANGED)

    epochs = [trained(patch, steps) for patch in sides]
    middle = epochs[sides.index(2 if bench.quick else 3)]
    fitting = [max(1, round(steps * middle.step / one.step)) for one in epochs]
    timed = [one if one is middle else trained(*asked) for one, *asked in zip(epochs, sides, fitting, strict=True)]
    return _by_patch(bench, sides, ByPatch([steps] * len(sides), epochs), ByPatch(fitting, timed))


@dataclass(frozen=True)
class ByPatch:
    """4.2's trainings, one for each size of patch: how many steps each took, and what came of it."""

    steps: Sequence[int]
    found: Sequence[Reader]

    @property
    def accuracy(self) -> list[float]:
        """Of the pictures held out."""
        return [one.accuracy for one in self.found]

    @property
    def seconds(self) -> list[float]:
        """Processor seconds: the median step × steps."""
        return [one.step * steps for one, steps in zip(self.found, self.steps, strict=True)]

    def table(self, name: str, sides: Sequence[int]) -> list[Measure]:
        """A row for each size of patch."""
        rows = zip(sides, self.found, self.steps, self.accuracy, self.seconds, strict=True)
        return [
            shown(
                f"{name}, {patch} × {patch} pixels: tokens, steps, seconds, accuracy",
                f"{one.task.patches.num_patches}, {steps:,}, {seconds:.1f} s, {right:.1%}",
            )
            for patch, one, steps, right, seconds in rows
        ]


def _by_patch(bench: Bench, sides: Sequence[int], epochs: ByPatch, timed: ByPatch) -> Outcome:
    """Both tables, what must hold, and the curves."""
    tokens = [one.task.patches.num_patches for one in epochs.found]
    cost = [1000 * one.step for one in epochs.found]
    accuracy = epochs.accuracy
    measures = [*epochs.table("equal epochs", sides), *timed.table("equal time", sides)]
    wanted = ", ".join(str((sides[0] // patch) ** 2) for patch in sides)
    measures.append(exact("tokens", wanted, ", ".join(map(str, tokens))))
    dear = {"cost at one pixel ÷ cost at two": cost[-1] / cost[-2], "÷ cost of one token": cost[-1] / cost[0]}
    apart = max(timed.seconds) / min(timed.seconds)
    if bench.quick:
        # So few steps of so little work are no measurement of time.
        measures += [shown(name, f"{ratio:.1f} ×") for name, ratio in dear.items()]
        measures.append(shown("equal time: longest ÷ shortest", f"{apart:.2f} ×"))
        measures.append(at_least("best accuracy (coarse)", 0.4, max(accuracy), OWN))
    else:
        names = list(dear)
        measures += [
            between(names[0], 2.0, 12.0, dear[names[0]], "four times the tokens"),
            at_least(names[1], 3.0, dear[names[1]], OWN),
            between("equal time: longest ÷ shortest", 1.0, 2.0, apart, "equal, where steps take as long as before"),
            at_least("patches of 2, accuracy", 0.8, accuracy[sides.index(2)], OWN),
            at_least("best of several tokens − one token", 0.005, max(accuracy[1:]) - accuracy[0], OWN),
            at_least("one pixel, accuracy: equal epochs − equal time", 0.05, accuracy[-1] - timed.accuracy[-1], OWN),
        ]
    panels = [
        Picture(
            "Accuracy by tokens",
            f"Best with {tokens[int(np.argmax(accuracy))]} tokens in equal epochs, "
            f"with {tokens[int(np.argmax(timed.accuracy))]} in equal time.",
            "tokens a picture",
            "accuracy",
            [Line("equal epochs", tokens, accuracy), Line("equal time", tokens, timed.accuracy)],
            log_x=True,
        ),
        Picture(
            "Cost by tokens",
            f"From {cost[0]:.1f} ms with one token to {cost[-1]:.0f} ms with a token a pixel.",
            "tokens a picture",
            "processor milliseconds a step",
            [Line("measured", tokens, cost)],
            log_x=True,
            log_y=True,
        ),
    ]
    return Outcome(measures, panels)
