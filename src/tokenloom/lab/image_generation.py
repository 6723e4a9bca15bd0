"""Section 4: image generation token by token, over the pixels of a palette and over VQ codes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import tokenloom
from tokenloom.data.image_decoding import Pixels
from tokenloom.evaluation.baselines.grid_counts import neighbor_nats
from tokenloom.lab.experiment import (
    ExperimentContext,
    Measurement,
    Outcome,
    at_least,
    at_most,
    between,
    experiment,
    holds,
    shown,
)
from tokenloom.lab.image_classification import FULL, OWN, QUICK, judge, rounded
from tokenloom.plotting.svg import Line, Panel, Plot
from tokenloom.tasks._image_tokens import TokenizedImages
from tokenloom.tasks.image_generation import ImageGeneration
from tokenloom.tokenizers.palette import Palette
from tokenloom.training.events import Finished, StepFinished

# Sizes of both transformers.
SIZES = {"width": 48, "depth": 3, "heads": 4}
# Completions per image, and images in a row of a plot.
TIMES, ROW = 8, 12


@dataclass(frozen=True)
class Generator:
    """A trained model, its metrics on validation images, and the CPU seconds of its training, with those of the
    tokenizer and the baselines."""

    task: ImageGeneration
    metrics: dict[str, float]
    seconds: float

    @property
    def pair(self) -> str:
        """Bits and error together: tokens that lose more of an image need fewer bits."""
        return f"{self.metrics['bits_per_dim']:.3f} bits, {self.metrics['mse']:.5f}"


def trained(ctx: ExperimentContext, tokenizer: str) -> Generator:
    """Return a model over palette pixels or VQ codes, trained once per run of the lab."""
    return ctx.cached(("generator", tokenizer, ctx.quick, ctx.seed), lambda: _train(ctx, tokenizer))


def _train(ctx: ExperimentContext, tokenizer: str) -> Generator:
    if tokenizer == "palette":
        settings: dict[str, Any] = {"steps": 40 if ctx.quick else 400, "batch_size": 16}
    else:
        settings = {"downsample_factor": 2, "augmentations_per_image": 2, "codebook_size": 16 if ctx.quick else 64}
        settings |= {"tokenizer_steps": 40 if ctx.quick else 150, "steps": 60 if ctx.quick else 300}
        settings |= {"batch_size": 32 if ctx.quick else 64}
    size, data = ("8", QUICK) if ctx.quick else ("12", FULL)
    settings |= {"image_tokenizer": tokenizer, "image_size": size, "eval_every": settings["steps"], **SIZES}
    began = time.process_time()
    training = tokenloom.start_session(data, task="image-generation", seed=ctx.seed, threads=1, **settings)
    metrics: dict[str, float] = {}
    for event in training:
        if isinstance(event, StepFinished):
            ctx.report_progress(event.step / event.steps)
        elif isinstance(event, Finished):
            metrics = event.best
    assert isinstance(training.task, ImageGeneration)
    return Generator(training.task, metrics, time.process_time() - began)


def parts(task: ImageGeneration, ctx: ExperimentContext) -> tuple[Pixels, Pixels]:
    """Return the training and the validation images."""
    prepared = task.load(QUICK if ctx.quick else FULL)
    assert isinstance(prepared.train, TokenizedImages)
    assert isinstance(prepared.validation, TokenizedImages)
    return prepared.train.pixels, prepared.validation.pixels


def sheet(pixels: Pixels, columns: int) -> list[Any]:
    """Return images (n, 1, H, W) as one matrix in 0 … 1, row by row, with a gray pixel between them."""
    n, _, H, W = pixels.shape
    rows = -(-n // columns)
    whole = np.full((rows * (H + 1) + 1, columns * (W + 1) + 1), 0.45)
    for place, image in enumerate(pixels):
        top, left = place // columns * (H + 1) + 1, place % columns * (W + 1) + 1
        whole[top : top + H, left : left + W] = image[0] / 255
    return rounded(whole)


def samples(task: ImageGeneration, title: str, seed: int) -> Plot:
    """Return a plot of ten samples of each class, one row per class."""
    images = [task.generate(10, class_name=name, seed=seed)[0] for name in task.classes]
    caption = "One row per class, ten samples each at temperature 1, not selected."
    return Plot(title, caption, panels=[Panel("", sheet(np.concatenate(images), 10), image=True)], num_columns=1)


def recognized(ctx: ExperimentContext, task: ImageGeneration, count: int) -> float:
    """Return the fraction of samples that 4.1's convolutional network assigns to the requested class."""
    pixels, names = task.generate(count, seed=ctx.seed)
    network = judge(ctx)
    answers = network.logits(torch.from_numpy(pixels)).argmax(-1).tolist()
    return float(np.mean([network.classes[answer] == name for answer, name in zip(answers, names, strict=True)]))


def completions(task: ImageGeneration, train: Pixels, val: Pixels, seed: int, count: int) -> tuple[Plot, float]:
    """Return a plot of completed validation images, and their squared error relative to that of the mean image.

    The error is that of the mean of several completions, the model's best estimate of each pixel.
    """
    chosen = val[:: max(1, len(val) // count)][:count]
    half = chosen.shape[2] // 2
    given = chosen.copy()
    given[:, :, half:] = 115
    completed = np.stack([task.generate(TIMES, complete=image[:, :half], seed=seed)[0] for image in chosen])
    plain = (train[:, :, half:] / 255).mean(0)
    truth = chosen[:, :, half:] / 255
    ours = np.square((completed[:, :, :, half:] / 255).mean(1) - truth).mean()
    rows = np.concatenate((chosen, given, completed[:, 0], completed[:, 1], completed[:, 2]))
    caption = "From the top: validation images, the given half, and three completions of each."
    panels = [Panel("", sheet(rows, len(chosen)), image=True)]
    error_ratio = float(ours / np.square(plain - truth).mean())
    return Plot("Lower halves completed", caption, panels=panels, num_columns=1), error_ratio


@experiment(
    "4.3",
    "Images as sequences of pixels",
    question="Can a language model of pixels generate images?",
    protocol="mnist-5k at 12 × 12 pixels, a palette of 16 gray levels found by k-means, raster order, 4,000 images to "
    "train and 1,000 to validate. A decoder over the 144 pixels, given the class; D = 48, L = 3, H = 4; 400 steps of "
    "16 images. Counts: each pixel after its left, upper left, upper and upper right neighbor, smoothed.",
    explanation="The pixels are a sequence of 144 tokens. The model must need fewer bits than counts given the four "
    "neighbors, and lower halves that it completes must be nearer to the true ones than the mean image is.",
    dataset=FULL,
    quick_dataset=QUICK,
    quick=True,
    seconds=75.0,
)
def pixels(ctx: ExperimentContext) -> Outcome:
    """4.3."""
    found = trained(ctx, "palette")
    task, metrics = found.task, found.metrics
    completion_plot, error_ratio = completions(task, *parts(task, ctx), ctx.seed, 4 if ctx.quick else ROW)
    measurements = [
        shown("bits/pixel, unigram", f"{metrics['unigram_bits']:.3f}"),
        shown("bits/pixel, counts given four neighbors", f"{metrics['neighbor_bits']:.3f}"),
        shown("bits/pixel, transformer", f"{metrics['bits_per_token']:.3f}"),
    ]
    if ctx.quick:
        ratio = metrics["bits_per_token"] / metrics["unigram_bits"]
        measurements.append(at_most("transformer ÷ unigram (coarse)", 1.0, ratio, OWN))
    else:
        right = recognized(ctx, task, 200)
        measurements += [
            at_most("transformer ÷ counts", 0.85, metrics["bits_per_token"] / metrics["neighbor_bits"], OWN),
            at_most("error of completions ÷ of the mean image", 0.9, error_ratio, OWN),
            at_least("requested class recognized by 4.1's network", 0.4, right, "0.1 by chance"),
        ]
    return Outcome(measurements, [samples(task, "Samples, pixel by pixel", ctx.seed), completion_plot])


@experiment(
    "4.4",
    "Images as a few VQ codes",
    question="What do fewer tokens per image gain and lose?",
    protocol="The images of 4.3. First a VQ-VAE, 6 × 6 codes of 64, 150 steps of 64; then a decoder of the sizes of "
    "4.3 over the 36 codes, 300 steps of 64: about as many CPU seconds as 4.3 in all. Bits are per pixel; the squared "
    "error is that of reconstructed images.",
    explanation="A code represents a piece of a stroke, which needs a quarter of the tokens. But codes lose detail: "
    "fewer bits at a larger error are no gain by themselves. Both values are therefore given together, and compared "
    "with palettes of fewer colors, which also trade error for bits: at a budget of a minute the codes are hardly "
    "better than those.",
    dataset=FULL,
    quick_dataset=QUICK,
    quick=True,
    seconds=65.0,
)
def codes(ctx: ExperimentContext) -> Outcome:
    """4.4."""
    coarse, fine = trained(ctx, "vq"), trained(ctx, "palette")
    tokens = math.prod(coarse.task.tokenizer.grid)
    few, many = coarse.metrics, fine.metrics
    values = math.prod(coarse.task.image_format.shape)
    count_bits = few["neighbor_bits"] * tokens / values
    train, val = parts(fine.task, ctx)
    curve = palette_curve(train, val, (2, 3, 4, 8, 16))
    measurements: list[Measurement] = [
        shown("palette of 4.3: bits/dim, mse", fine.pair),
        shown(f"{tokens} codes: bits/dim, mse", coarse.pair),
        shown("codes, counts given four neighbors: bits/dim", f"{count_bits:.3f}"),
        holds("codes: fewer bits, larger error", "both", f"{coarse.pair}", _traded(few, many)),
    ]
    measurements += _codes_bounds(ctx, coarse, fine)
    lines = [
        Line("counts, palettes of 2 … 16 colors", [error for _, error in curve], [bits for bits, _ in curve]),
        Line("transformer, palette", [many["mse"]], [many["bits_per_dim"]]),
        Line("counts, codes", [few["mse"]], [count_bits]),
        Line("transformer, codes", [few["mse"]], [few["bits_per_dim"]]),
    ]
    plot = Plot(
        "Bits against error",
        "Lower and further left is better; the transformer is below the counts on the same tokens.",
        "mse of reconstructed images",
        "bits/dim",
        lines,
        log_x=True,
    )
    return Outcome(
        measurements,
        [plot, samples(coarse.task, "Samples, code by code", ctx.seed), plot_reconstructions(coarse.task, val)],
    )


def _traded(few: dict[str, float], many: dict[str, float]) -> bool:
    return few["bits_per_dim"] < many["bits_per_dim"] and few["mse"] > many["mse"]


def _codes_bounds(ctx: ExperimentContext, coarse: Generator, fine: Generator) -> list[Measurement]:
    few = coarse.metrics
    spent = coarse.seconds / fine.seconds
    if ctx.quick:
        ratio = few["bits_per_token"] / few["unigram_bits"]
        return [at_most("transformer ÷ unigram (coarse)", 1.0, ratio, OWN)]
    ours, theirs = (recognized(ctx, one.task, 200) for one in (coarse, fine))
    return [
        at_most("codes: transformer ÷ counts", 0.9, few["bits_per_token"] / few["neighbor_bits"], OWN),
        at_most("codes: mse", 0.012, few["mse"], OWN),
        between("CPU seconds, codes ÷ palette", 0.4, 2.5, spent, "equal budget"),
        at_least("codes: requested class recognized by 4.1's network", 0.45, ours, "0.1 by chance"),
        shown("palette: requested class recognized", f"{theirs:.3f}"),
    ]


def palette_curve(train: Pixels, val: Pixels, sizes: Sequence[int]) -> list[tuple[float, float]]:
    """Return (bits/pixel, mse) of palettes of several sizes, by counts given four neighbors."""
    found = []
    for size in sizes:
        palette = Palette.train(train, size)
        train_ids, val_ids = palette.encode(train), palette.encode(val)
        bits = neighbor_nats(train_ids, val_ids, palette.grid, palette.vocab_size) / math.log(2)
        found.append((bits, float(np.square(palette.decode(val_ids) / 255.0 - val / 255.0).mean())))
    return found


def plot_reconstructions(task: ImageGeneration, val: NDArray[np.uint8]) -> Plot:
    """Return a plot of validation images above their reconstructions."""
    chosen = val[:: max(1, len(val) // ROW)][:ROW]
    back = task.tokenizer.decode(task.tokenizer.encode(chosen))
    panels = [Panel("", sheet(np.concatenate((chosen, back)), len(chosen)), image=True)]
    return Plot("Reconstructions", "Above the image, below its reconstruction from codes.", panels=panels)
