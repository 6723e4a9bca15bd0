"""Make pictures: a decoder paints cell after cell, over the pixels of a palette or over codes that were learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.data.image_files import ImageFormat, Pixels
from tokenloom.data.image_split import ImageReport, ImageSplit
from tokenloom.data.images import ImageData
from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.generation import Request, Sampling, generate_all
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.image_gpt import ClassifierFreeGuidance, ImageGPT, ImageGPTConfig
from tokenloom.models.protocols import StepModel
from tokenloom.plotting.image_grid import MOST, draw_sheet
from tokenloom.plotting.style import place_of
from tokenloom.tasks import _image_tokenizers as tokenizers
from tokenloom.tasks._image_cells import CellSamples, histogram_nats, neighbor_nats
from tokenloom.tasks._image_completion import UpperHalf, check_whole, form_of_codes, nearest_row, read_top, upper_half
from tokenloom.tasks._image_generation_settings import GenerateOptions, ImageGenerationSettings
from tokenloom.tasks._image_input import read, read_parts
from tokenloom.tasks._image_settings import ImageInputSettings
from tokenloom.tasks._paths import every_path
from tokenloom.tasks.base import Example, PreparedData, Prerequisite, Show, Task
from tokenloom.tasks.image_tokenizer import ImageTokenizerTask
from tokenloom.tokenizers.palette import Palette
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum, cross_entropy_term
from tokenloom.utils.names import counted, did_you_mean, some

STAGE = "codes"
# Cells a step, about, so that a step of pixels costs what one of codes does.
CELLS = 64 * 49
# Passes over the pictures, of which each is seen in several ways; over pixels, so many that each picture adds about
# this many cells in all. At least so many steps.
EPOCHS, CELLS_SEEN, LEAST_STEPS = 38, 1800, 300
# Cells that are made at a time, in pictures.
TOGETHER = 100
COPIES = 8
# How often a row of codes is drawn of which a part is given.
CANDIDATES = 8


class ImageGeneration(Task):
    """Pictures, cell after cell."""

    name = "image-generation"
    summary = "train a model to make pictures like yours, of a class, or to complete one"
    Settings = ImageGenerationSettings
    models: ClassVar[Mapping[str, str]] = {"decoder": "decoder-only transformer that sees the cells above the next one"}
    uses: ClassVar[Mapping[str, type]] = {"generate": GenerateOptions}
    decoded: ClassVar[str] = "cells"
    things: ClassVar[str] = "cells"
    unit: str = "nats a cell"

    def __init__(self, settings: ImageGenerationSettings | None = None) -> None:
        super().__init__(settings)
        self.classes: list[str] = []
        self.form = ImageFormat()
        self._tokenizer: tokenizers.PictureTokenizer | None = None
        self.settings.check()

    @property
    def tokenizer(self) -> tokenizers.PictureTokenizer:
        """From pictures to cells and back. Raises UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("this image-generation task has no tokenizer yet: train it, or load a run")
        return self._tokenizer

    @property
    def lossy(self) -> bool:
        """Whether cells are codes, which stand for pictures with an error."""
        return isinstance(self.tokenizer, ImageTokenizerTask)

    # The stage before.

    def prerequisites(self) -> Mapping[str, Prerequisite]:
        s: ImageGenerationSettings = self.settings
        if s.tokens != "codes" or self._tokenizer is not None:
            return {}
        own = {one.name: getattr(s, one.name) for one in fields(ImageInputSettings)}
        sizes = {"codes": s.codes, "factor": s.factor, "steps": s.codes_steps}
        return {
            STAGE: Prerequisite(ImageTokenizerTask.name, {**own, **{k: v for k, v in sizes.items() if v is not None}})
        }

    def take_prerequisite(self, name: str, trained: Task) -> None:
        assert isinstance(trained, ImageTokenizerTask)
        self._tokenizer = trained

    # Data.

    def prepare(self, data: str | None) -> PreparedData:
        assert data is not None
        s: ImageGenerationSettings = self.settings
        if self._tokenizer is None and s.tokens not in ("codes", "palette"):
            self._tokenizer = tokenizers.codes_of_run(s.tokens)
        if isinstance(self._tokenizer, ImageTokenizerTask) and not self.model_config:
            self.form = form_of_codes(s, self._tokenizer.form)
        parts = read_parts(s, data, self.form if self.model_config or self.form.size else None)
        self.form = parts.training.form
        check_whole(self._tokenizer, self.form, s.tokens)
        if self._tokenizer is None:
            gray = self.form.mode == "gray"
            self._tokenizer = Palette.learn(parts.training.pixels, s.colors or (16 if gray else 64))
        if not self.model_config:
            self.classes = [] if s.unconditional else parts.classes
            rows, columns = self.tokenizer.grid
            sizes = {"width": s.width, "depth": s.depth, "heads": s.heads}
            config = ImageGPTConfig(
                self.tokenizer.vocab_size, rows, columns, len(self.classes), **sizes, dropout=s.dropout
            )
            self.model_config = config.as_dict()
        copies = s.copies or (COPIES if self.lossy else 1)
        training, held = self._samples(parts.training, copies), self._samples(parts.validation, 1)
        report = ImageReport.of(parts, self._extra(parts, copies))
        return PreparedData(training, held, report.lines(), report.as_dict())

    def _samples(self, data: ImageData, copies: int) -> CellSamples:
        labels = data.labels if self.classes else np.full(len(data), -1)
        return CellSamples(data.pixels, labels, self.tokenizer.encode, self.tokenizer.fingerprint(), copies)

    def _extra(self, parts: ImageSplit, copies: int) -> dict[str, str]:
        rows, columns = self.tokenizer.grid
        kind = "codes" if self.lossy else "colors of a palette"
        extra = {"cells": f"{rows} × {columns} a picture, of {self.tokenizer.vocab_size} {kind}"}
        if copies > 1:
            extra["copies"] = f"each picture in {copies} ways: as it is, and turned, moved, scaled and bent a little"
        return extra

    def load_samples(self, data: str) -> CellSamples:
        found = read(self.settings, data, self.form, measured=True)
        number = {label: n for n, label in enumerate(self.classes)}
        labels = np.array([number.get(found.classes[n], -1) if n >= 0 else -1 for n in found.labels], dtype=np.int64)
        return CellSamples(found.pixels, labels, self.tokenizer.encode, self.tokenizer.fingerprint())

    def save_parts(self, folder: Path) -> dict[str, Any]:
        kept = tokenizers.save(self.tokenizer, folder)
        return {**kept, "classes": self.classes, "form": self.form.as_dict()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        self._tokenizer = tokenizers.read_back(folder, kept)
        self.classes, self.form = list(kept["classes"]), ImageFormat.from_dict(kept["form"])

    # The model and its loss.

    @property
    def config(self) -> ImageGPTConfig:
        """The sizes of the model."""
        return ImageGPTConfig(**self.model_config)

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        batch = max(4, min(64, round(CELLS / self.config.cells)))
        epoch = -(-len(material.training) // batch)
        epochs = EPOCHS if self.lossy else min(EPOCHS, max(1.0, CELLS_SEEN / self.config.cells))
        steps = max(LEAST_STEPS, round(epochs * epoch))
        return {"batch": batch, "steps": steps, "decay_fraction": 1.0}

    def derived(self) -> dict[str, Any]:
        c = self.config
        return {"grid": f"{c.rows} × {c.columns}", "cells": c.vocab_size, "classes": c.classes}

    @property
    def sequence(self) -> int:
        """Cells of a picture."""
        return self.config.cells

    def build(self, seed: int) -> ImageGPT:
        return ImageGPT(self.config, seed)

    def collate(self, samples: tuple[NDArray[np.int64], NDArray[np.int64]], moment: BatchContext) -> Batch:
        ids, labels = samples
        copy, labels = np.zeros(len(ids), dtype=np.int64), labels.copy()
        if moment.training:
            for row in range(len(ids)):
                random = moment.random(row)
                copy[row] = random.integers(ids.shape[1])
                labels[row] = -1 if random.random() < self.settings.class_drop else labels[row]
        cells = torch.from_numpy(ids[np.arange(len(ids)), copy])
        starts = torch.from_numpy(np.where(labels < 0, self.config.nothing, self.config.vocab_size + labels))
        return Batch({"cells": Stream(ids=torch.cat((starts[:, None], cells[:, :-1]), 1))}, {"loss": cells})

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        terms: dict[str, LossTerm] = {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}
        return terms

    # Metrics.

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        loss, (C, H, W) = totals["loss"].value, self.form.shape
        bits = loss / math.log(2)
        return {"loss": loss, "bits_per_cell": bits, "bits_per_dimension": bits * self.config.cells / (C * H * W)}

    def _compared(self, material: PreparedData) -> dict[str, float]:
        """Counts on the same split, in bits a cell; and the squared error of the cells themselves."""
        training, held = material.training, material.validation
        assert isinstance(training, CellSamples)
        assert isinstance(held, CellSamples)
        seen, asked, vocab_size = (
            training.ids[:, 0].astype(np.int64),
            held.ids[:, 0].astype(np.int64),
            self.config.vocab_size,
        )
        back = self.tokenizer.decode(asked)
        return {
            "histogram_bits": histogram_nats(seen, asked, vocab_size) / math.log(2),
            "neighbor_bits": neighbor_nats(seen, asked, self.tokenizer.grid, vocab_size) / math.log(2),
            "squared_error": float(np.square(back / 255.0 - held.pixels / 255.0).mean()),
        }

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        if folder is not None:
            self._draw_example(folder / "pictures.png")
        return self._compared(material)

    def evaluate(self, data: str | None = None, *, batch: int = 64, samples: Samples | None = None) -> dict[str, Any]:
        """As every task does; on data of the run's own split with the simple methods beside it."""
        if samples is not None or data is not None:
            return super().evaluate(data, batch=batch, samples=samples)
        material = self.prepare(self.source)
        return {**super().evaluate(batch=batch, samples=material.validation), **self._compared(material)}

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        cell = "code" if self.lossy else "pixel"
        lines = [
            f"{f'bits a {cell}:':<18} {metrics['bits_per_cell']:.4f} (loss {metrics['loss']:.4f} nats),"
            f" {metrics['bits_per_dimension']:.4f} a dimension, of pictures that were held out"
        ]
        if "neighbor_bits" in metrics:
            lines.append(
                f"{'to compare:':<18} {metrics['histogram_bits']:.4f} by how often each {cell} comes,"
                f" {metrics['neighbor_bits']:.4f} by counts of four neighbors"
            )
            what = "what the codes lose; bits and error belong together" if self.lossy else "what the palette loses"
            lines.append(f"{'squared error:':<18} {metrics['squared_error']:.5f} a value in 0 … 1: {what}")
        return lines

    def baseline(self, material: PreparedData) -> Baseline | None:
        bits = self._compared(material)["neighbor_bits"]
        note = f"= {bits:.4f} bits: left, upper left, upper and upper right cell"
        return Baseline("counts of four neighbors", bits * math.log(2), "nats a cell", note)

    # Use.

    def generate(
        self,
        count: int = 16,
        *,
        class_: str | None = None,
        guidance: float = 1.0,
        top: Pixels | None = None,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> tuple[Pixels, list[str]]:
        """Pictures (count, C, H, W), and the class that was asked for of each ("" for none).

        class_: None asks for all classes in turn, or for none with `top`. guidance: see `ClassifierFreeGuidance`. top: (C, H', W), the
        upper part of a picture to be completed, at least half of it. Raises UserError for what this run cannot make.
        """
        if count < 1:
            raise UserError(f"--count {count}: must be at least 1")
        classes = self._asked(count, class_, in_turn=top is None)
        self._check_guidance(guidance, classes)
        given = None if top is None else upper_half(top, self.tokenizer, self.form)
        starts = [self.config.nothing if number is None else self.config.vocab_size + number for number in classes]
        ids = np.empty((count, self.config.cells), dtype=np.int64)
        with self.ready() as model:
            assert isinstance(model, ImageGPT)
            decoder: StepModel = model if guidance == 1 else ClassifierFreeGuidance(model, guidance)
            for begin in range(0, count, TOGETHER):
                chosen = range(begin, min(begin + TOGETHER, count))
                # Each picture has its own seed, whatever else is made beside it.
                seeds = [seed * 2**32 + n for n in chosen]
                known = self._known(decoder, given, [starts[n] for n in chosen], seeds, sampling or Sampling())
                requests = [
                    Request((starts[n], *row), self.config.cells - len(row), sampling or Sampling(), own)
                    for n, row, own in zip(chosen, known, seeds, strict=True)
                ]
                for n, row, (made,) in zip(chosen, known, generate_all(decoder, requests), strict=True):
                    ids[n] = (*row, *made.ids)
        pixels = self.tokenizer.decode(ids)
        if given is not None:
            pixels[:, :, : given.pixels.shape[1]] = given.pixels
        return pixels, ["" if number is None else self.classes[number] for number in classes]

    def _known(
        self, decoder: StepModel, given: UpperHalf | None, starts: list[int], seeds: list[int], sampling: Sampling
    ) -> list[list[int]]:
        """The first ids of each picture. A row of codes of which the upper half covers a part is drawn several times,
        and the one that fits is taken."""
        if given is None:
            return [[] for _ in starts]
        if not given.partly:
            return [given.known for _ in starts]
        columns = self.tokenizer.grid[1]
        requests = [
            # Seeds of its own: what is drawn below must not repeat these draws.
            Request((start, *given.known), columns, sampling, own + 2**96, samples=CANDIDATES)
            for start, own in zip(starts, seeds, strict=True)
        ]
        drawn = [np.array([one.ids for one in made], dtype=np.int64) for made in generate_all(decoder, requests)]
        return [[*given.known, *nearest_row(rows, given, self.tokenizer)] for rows in drawn]

    def _asked(self, count: int, name: str | None, *, in_turn: bool) -> Sequence[int | None]:
        K = len(self.classes)
        if name is None:
            # Without a class at all, or with the first of them first.
            return [n * K // count if count <= K else n % K for n in range(count)] if K and in_turn else [None] * count
        if not K:
            raise UserError(f"--class {name}: this run has learned no classes")
        if name not in self.classes:
            raise UserError(
                f"--class {name}: no such class{did_you_mean(name, self.classes)} (there are {some(self.classes, 20)})"
            )
        return [self.classes.index(name)] * count

    def _check_guidance(self, guidance: float, classes: Sequence[int | None]) -> None:
        if not (math.isfinite(guidance) and guidance >= 0):
            raise UserError(f"--guidance {guidance}: must be a number from 0 up; 1 does nothing")
        hidden = self.settings.class_drop > 0
        if guidance != 1 and (not self.classes or not hidden or None in classes):
            why = "this run has learned no classes" if not self.classes else "no class is asked for (--class)"
            why = why if hidden else "this run was trained with --class-drop 0"
            raise UserError(f"--guidance {guidance}: needs a class, and what no class looks like; {why}")
        if None in classes and self.classes and not hidden:
            raise UserError("--top without --class: this run was trained with --class-drop 0, and needs a class")

    def use(self, verb: str, options: GenerateOptions, show: Show) -> dict[str, Any]:
        o = options
        place_of(o.out)
        if o.count > MOST:
            raise UserError(f"--count {o.count}: one sheet has room for {MOST:,} pictures at most")
        sampling = o.sampling()
        top, note = (None, None) if o.top is None else read_top(o.top, self.form)
        chosen: dict[str, Any] = {"class_": o.class_, "guidance": o.guidance, "seed": o.seed, "sampling": sampling}
        pixels, classes = self.generate(o.count, top=top, **chosen)
        captions = classes if any(classes) else []
        if top is not None:
            pixels = np.concatenate((self._given(top)[None], pixels))
            captions = ["given", *(name or f"completed {n}" for n, name in enumerate(classes, start=1))]
        draw_sheet(pixels, o.out, captions=captions)
        show(f"{counted(o.count, 'picture')}: {o.out}\n")
        return {"out": o.out, "count": o.count, "classes": classes, "notes": [note] if note else []}

    def _given(self, top: Pixels) -> Pixels:
        """What was given, with gray below."""
        whole = np.full(self.form.shape, 128, dtype=np.uint8)
        half = self.form.shape[1] // 2
        whole[:, :half] = top[:, :half]
        return whole

    def _draw_example(self, path: Path) -> None:
        pixels, classes = self.generate(16)
        draw_sheet(pixels, path, captions=classes if any(classes) else [])

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        {
            **dict.fromkeys(
                ("padded left = unpadded", "padded right = unpadded", "packed = alone"),
                "all pictures have one size, and each stands alone in its row",
            ),
            "streamed = whole": "a picture is shown when it is whole",
        }
    )

    def decoder(self, batch: Batch) -> StepModel:
        assert isinstance(self.model, ImageGPT)
        return self.model

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        sizes = {"width": 16, "depth": 2, "heads": 2, "batch": 8}
        codes = {"tokens": "codes", "codes": 8, "codes_steps": 3, "copies": 2}
        return {
            "pixels": Example("digits", {**sizes, "tokens": "palette", "colors": 4}),
            "codes": Example("digits", {**sizes, **codes}),
        }
