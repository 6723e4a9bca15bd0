"""Section 4: pictures made cell after cell, over the pixels of a palette and over codes that were learned."""

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
from tokenloom.data.image_files import Pixels
from tokenloom.evaluation.baselines.grid_counts import neighbor_nats
from tokenloom.lab.experiment import Bench, Measure, Outcome, at_least, at_most, between, experiment, holds, shown
from tokenloom.lab.image_classification import FULL, OWN, QUICK, judge, rounded
from tokenloom.plotting.svg import Line, Panel, Picture
from tokenloom.tasks._image_tokens import TokenizedImages
from tokenloom.tasks.image_generation import ImageGeneration
from tokenloom.tokenizers.palette import Palette
from tokenloom.training.events import Finished, StepFinished

# Sizes of both decoders.
BODY = {"width": 48, "depth": 3, "heads": 4}
# Lower halves that are completed, and how often each; a row of pictures is so long.
TIMES, LONG = 8, 12


@dataclass(frozen=True)
class Painter:
    """A trained maker of pictures, its figures on the pictures held out, and the processor seconds of its training,
    all stages and the counts beside it included."""

    task: ImageGeneration
    metrics: dict[str, float]
    seconds: float

    @property
    def pair(self) -> str:
        """Bits and error belong together: cells that lose more of a picture are told in fewer bits."""
        return f"{self.metrics['bits_per_dim']:.3f} bits, {self.metrics['mse']:.5f}"


def painter(bench: Bench, tokens: str) -> Painter:
    """Over the pixels of a palette or over codes, made once a run."""
    return bench.shared(("painter", tokens, bench.quick, bench.seed), lambda: _painter(bench, tokens))


def _painter(bench: Bench, tokens: str) -> Painter:
    if tokens == "palette":
        settings: dict[str, Any] = {"steps": 40 if bench.quick else 400, "batch_size": 16}
    else:
        settings = {"downsample_factor": 2, "augmentations_per_image": 2, "codebook_size": 16 if bench.quick else 64}
        settings |= {"tokenizer_steps": 40 if bench.quick else 150, "steps": 60 if bench.quick else 300}
        settings |= {"batch_size": 32 if bench.quick else 64}
    size, data = ("8", QUICK) if bench.quick else ("12", FULL)
    settings |= {"image_tokenizer": tokens, "image_size": size, "eval_every": settings["steps"], **BODY}
    began = time.process_time()
    training = tokenloom.fit(data, task="image-generation", seed=bench.seed, threads=1, **settings)
    metrics: dict[str, float] = {}
    for event in training:
        if isinstance(event, StepFinished):
            bench.tell(event.step / event.steps)
        elif isinstance(event, Finished):
            metrics = event.best
    assert isinstance(training.task, ImageGeneration)
    return Painter(training.task, metrics, time.process_time() - began)


def parts(task: ImageGeneration, bench: Bench) -> tuple[Pixels, Pixels]:
    """The pictures that trained it, and those held out."""
    material = task.prepare(QUICK if bench.quick else FULL)
    assert isinstance(material.training, TokenizedImages)
    assert isinstance(material.validation, TokenizedImages)
    return material.training.pixels, material.validation.pixels


def sheet(pixels: Pixels, columns: int) -> list[Any]:
    """Pictures (n, 1, H, W), row by row, with a gray pixel between them, as one matrix in 0 … 1."""
    n, _, H, W = pixels.shape
    rows = -(-n // columns)
    whole = np.full((rows * (H + 1) + 1, columns * (W + 1) + 1), 0.45)
    for place, picture in enumerate(pixels):
        top, left = place // columns * (H + 1) + 1, place % columns * (W + 1) + 1
        whole[top : top + H, left : left + W] = picture[0] / 255
    return rounded(whole)


def samples(task: ImageGeneration, title: str, seed: int) -> Picture:
    """Ten of each class, a class a row; of the codes too."""
    made = [task.generate(10, class_name=name, seed=seed)[0] for name in task.classes]
    caption = "A row a class, ten samples each at temperature 1, none of them chosen."
    return Picture(title, caption, panels=[Panel("", sheet(np.concatenate(made), 10), picture=True)], across=1)


def read_right(bench: Bench, task: ImageGeneration, count: int) -> float:
    """The share of samples in which 4.1's convolutional network reads the class that was asked for."""
    pixels, names = task.generate(count, seed=bench.seed)
    network = judge(bench)
    answers = network.logits(torch.from_numpy(pixels)).argmax(-1).tolist()
    return float(np.mean([network.classes[answer] == name for answer, name in zip(answers, names, strict=True)]))


def completions(task: ImageGeneration, seen: Pixels, held: Pixels, seed: int, count: int) -> tuple[Picture, float]:
    """Lower halves of pictures that were held out, and their squared error as a share of the mean picture's.

    The error is that of the mean of some completions, the best guess that the model has of each pixel.
    """
    chosen = held[:: max(1, len(held) // count)][:count]
    half = chosen.shape[2] // 2
    given = chosen.copy()
    given[:, :, half:] = 115
    made = np.stack([task.generate(TIMES, complete=picture[:, :half], seed=seed)[0] for picture in chosen])
    plain = (seen[:, :, half:] / 255).mean(0)
    truth = chosen[:, :, half:] / 255
    ours = np.square((made[:, :, :, half:] / 255).mean(1) - truth).mean()
    rows = np.concatenate((chosen, given, made[:, 0], made[:, 1], made[:, 2]))
    caption = "From above: pictures that were held out, what is given of them, and three completions of each."
    panels = [Panel("", sheet(rows, len(chosen)), picture=True)]
    share = float(ours / np.square(plain - truth).mean())
    return Picture("Lower halves completed", caption, panels=panels, across=1), share


@experiment(
    "4.3",
    "Pictures as a text of pixels",
    asked="Can a language model of pixels make pictures?",
    protocol="mnist-5k at 12 × 12 pixels, a palette of 16 gray levels found by k-means, raster order, 4,000 pictures "
    "to train and 1,000 held out. A decoder over the 144 pixels, told the class; D = 48, L = 3, H = 4; 400 steps of "
    "16 pictures. Counts: each pixel after its left, upper left, upper and upper right neighbor, smoothed.",
    explanation="Nothing here knows that the pixels lie in a plane: they are 144 tokens in a row, and the model "
    "learns which of those before belongs to which. It must need fewer bits than counts of the four neighbors, and "
    "lower halves that it completes must come nearer to the truth than the mean picture does.",
    needs=FULL,
    quick_needs=QUICK,
    quick=True,
    seconds=75.0,
)
def pixels(bench: Bench) -> Outcome:
    """4.3."""
    found = painter(bench, "palette")
    task, metrics = found.task, found.metrics
    drawn, share = completions(task, *parts(task, bench), bench.seed, 4 if bench.quick else LONG)
    measures = [
        shown("bits a pixel, by how often each color comes", f"{metrics['unigram_bits']:.3f}"),
        shown("bits a pixel, counts of four neighbors", f"{metrics['neighbor_bits']:.3f}"),
        shown("bits a pixel, transformer", f"{metrics['bits_per_token']:.3f}"),
    ]
    if bench.quick:
        ratio = metrics["bits_per_token"] / metrics["unigram_bits"]
        measures.append(at_most("transformer ÷ how often each comes (coarse)", 1.0, ratio, OWN))
    else:
        right = read_right(bench, task, 200)
        measures += [
            at_most("transformer ÷ counts", 0.85, metrics["bits_per_token"] / metrics["neighbor_bits"], OWN),
            at_most("error of completions ÷ of the mean picture", 0.9, share, OWN),
            at_least("class asked for is read by 4.1's network", 0.4, right, "0.1 by chance"),
        ]
    return Outcome(measures, [samples(task, "Samples, pixel by pixel", bench.seed), drawn])


@experiment(
    "4.4",
    "Pictures as a few codes",
    asked="What is gained when pictures become few tokens, and what is lost?",
    protocol="The pictures of 4.3. First an autoencoder with a codebook, 6 × 6 codes of 64, 150 steps of 64; then a "
    "decoder of the sizes of 4.3 over the 36 codes, 300 steps of 64: about as many processor seconds as 4.3 in all. "
    "Bits are of all 144 pixels; the squared error is that of a picture that went through the cells and back.",
    explanation="A code stands for a piece of stroke, so that there are a quarter of the tokens, and each says more. "
    "But codes lose detail: fewer bits for a worse picture are no victory by themselves. So both figures are given "
    "together, beside palettes of fewer colors, which pay for fewer bits in the same coin: at a budget of a minute "
    "the codes are hardly better than those.",
    needs=FULL,
    quick_needs=QUICK,
    quick=True,
    seconds=65.0,
)
def codes(bench: Bench) -> Outcome:
    """4.4."""
    coarse, fine = painter(bench, "vq"), painter(bench, "palette")
    cells = math.prod(coarse.task.tokenizer.grid)
    few, many = coarse.metrics, fine.metrics
    pieces = math.prod(coarse.task.image_format.shape)
    counted = few["neighbor_bits"] * cells / pieces
    seen, held = parts(fine.task, bench)
    curve = counted_palettes(seen, held, (2, 3, 4, 8, 16))
    measures: list[Measure] = [
        shown("palette of 4.3: bits a dimension, squared error", fine.pair),
        shown(f"{cells} codes: bits a dimension, squared error", coarse.pair),
        shown("codes, counts of four neighbors: bits a dimension", f"{counted:.3f}"),
        holds("codes: fewer bits, larger error", "both", f"{coarse.pair}", _traded(few, many)),
    ]
    measures += _codes_bounds(bench, coarse, fine)
    lines = [
        Line("counts, palettes of 2 … 16 colors", [error for _, error in curve], [bits for bits, _ in curve]),
        Line("transformer, palette", [many["mse"]], [many["bits_per_dim"]]),
        Line("counts, codes", [few["mse"]], [counted]),
        Line("transformer, codes", [few["mse"]], [few["bits_per_dim"]]),
    ]
    picture = Picture(
        "Bits against error",
        "Lower and further left is better; the transformer is below the counts on the same cells.",
        "squared error of what the cells keep",
        "bits a dimension",
        lines,
        log_x=True,
    )
    return Outcome(
        measures, [picture, samples(coarse.task, "Samples, code by code", bench.seed), through(coarse.task, held)]
    )


def _traded(few: dict[str, float], many: dict[str, float]) -> bool:
    return few["bits_per_dim"] < many["bits_per_dim"] and few["mse"] > many["mse"]


def _codes_bounds(bench: Bench, coarse: Painter, fine: Painter) -> list[Measure]:
    few = coarse.metrics
    spent = coarse.seconds / fine.seconds
    if bench.quick:
        ratio = few["bits_per_token"] / few["unigram_bits"]
        return [at_most("transformer ÷ how often each code comes (coarse)", 1.0, ratio, OWN)]
    ours, theirs = (read_right(bench, one.task, 200) for one in (coarse, fine))
    return [
        at_most("codes: transformer ÷ counts", 0.9, few["bits_per_token"] / few["neighbor_bits"], OWN),
        at_most("codes: squared error", 0.012, few["mse"], OWN),
        between("processor seconds, codes ÷ palette", 0.4, 2.5, spent, "equal budget"),
        at_least("codes: class asked for is read by 4.1's network", 0.45, ours, "0.1 by chance"),
        shown("palette: class asked for is read", f"{theirs:.3f}"),
    ]


def counted_palettes(seen: Pixels, held: Pixels, sizes: Sequence[int]) -> list[tuple[float, float]]:
    """(bits a pixel, squared error) of palettes of so many colors, by counts of four neighbors."""
    found = []
    for size in sizes:
        palette = Palette.train(seen, size)
        training, asked = palette.encode(seen), palette.encode(held)
        bits = neighbor_nats(training, asked, palette.grid, palette.vocab_size) / math.log(2)
        found.append((bits, float(np.square(palette.decode(asked) / 255.0 - held / 255.0).mean())))
    return found


def through(task: ImageGeneration, held: NDArray[np.uint8]) -> Picture:
    """Pictures that were held out, above what comes back of their codes."""
    chosen = held[:: max(1, len(held) // LONG)][:LONG]
    back = task.tokenizer.decode(task.tokenizer.encode(chosen))
    panels = [Panel("", sheet(np.concatenate((chosen, back)), len(chosen)), picture=True)]
    return Picture("Through the codes and back", "Above the picture, below what its codes keep.", panels=panels)
