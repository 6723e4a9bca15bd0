"""Generate images: a causal transformer predicts token after token, over palette colors or learned VQ codes."""

# Longer than other tasks: it also trains with a prerequisite, and completes and guides what it generates.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, flag, option
from tokenloom.data.image_decoding import ImageFormat, Pixels
from tokenloom.data.report import data_report
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.grid_counts import neighbor_nats, unigram_nats
from tokenloom.generation import Request, Sampling, generate_all
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.image_gpt import ClassifierFreeGuidance, ImageGPT, ImageGPTConfig
from tokenloom.models.protocols import StepModel
from tokenloom.nn.modules import eval_mode
from tokenloom.plotting.image_grid import MAX_IMAGES, draw_sheet
from tokenloom.plotting.style import place_of
from tokenloom.tasks._image_tokens import (
    ImageTokenizer,
    TokenizedImages,
    UpperHalf,
    encode_upper_half,
    load_tokenizer,
    nearest_row,
    read_upper_half,
    save_tokenizer,
)
from tokenloom.tasks._images import ImageInput
from tokenloom.tasks._settings import TransformerParts
from tokenloom.tasks.base import NO_SAMPLES, PreparedData, Prerequisite, Show, Task, action, need_data
from tokenloom.tasks.image_tokenizer import ImageTokenizerTask
from tokenloom.tokenizers.palette import Palette
from tokenloom.tokenizers.vq import VQTokenizer
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.utils.names import counted, did_you_mean, some

PREREQUISITE = "tokenizer"
# Tokens per step, about, so that a step over pixels costs about as much as a step over codes.
TOKENS_PER_STEP = 64 * 49
# Epochs; over pixels fewer, so that each image contributes about this many tokens in all. Steps, at least.
EPOCHS, TOKENS_PER_IMAGE, MIN_STEPS = 38, 1800, 300
COPIES = 8
# Images that are generated at a time.
CHUNK = 100
# How often a row of codes of which only the upper pixels are given is sampled.
CANDIDATES = 8


@dataclass(frozen=True)
class ImageGenerationSettings(TransformerParts, ImageInput):
    """Which images, how they are tokenized, and the sizes of the transformer."""

    group: ClassVar[str] = "Model"

    image_tokenizer: str = option(
        "vq", "vq: trains a VQ tokenizer first; palette: pixels of a color palette; or a run of image-tokenizer"
    )
    codebook_size: int | None = option(None, "vq: number of codes [default: 128]", only={"image_tokenizer": "vq"})
    downsample_factor: int | None = option(
        None, "vq: pixels per side of a code [default: 4, small images 2]", only={"image_tokenizer": "vq"}
    )
    tokenizer_steps: int | None = option(None, "vq: optimizer steps", low=1, only={"image_tokenizer": "vq"})
    palette_size: int | None = option(
        None, "palette: number of colors [default: 16, rgb 64]", low=2, high=4096, only={"image_tokenizer": "palette"}
    )
    augmentations_per_image: int | None = option(
        None, "versions of each image, all but one slightly augmented [default: 8, palette 1]", low=1, group="Data"
    )
    unconditional: bool = option(False, "ignore the classes of the images")
    condition_dropout: float = option(
        0.1, "fraction of images trained without their class; guidance needs some", low=0, below=1
    )
    width: int = option(64, "features per token", low=1)
    depth: int = option(4, "number of layers", low=1)
    heads: int = option(4, "attention heads per layer", low=1)
    dropout: float = option(0.0, "fraction of activations set to zero in training", low=0, below=1)

    def check(self) -> None:
        """Raise UserError for a width that the heads cannot share, and for sizes that no VQ tokenizer could have."""
        super().check()
        if self.width % (2 * self.heads):
            raise UserError(
                f"{flag('width')} {self.width}: must be divisible by twice the number of {flag('heads')} {self.heads}"
            )
        ImageTokenizerTask.Settings(**self.tokenizer_sizes())

    def tokenizer_sizes(self) -> dict[str, Any]:
        """Return the given settings of the VQ tokenizer."""
        sizes = {"codebook_size": self.codebook_size, "downsample_factor": self.downsample_factor}
        return {name: value for name, value in sizes.items() if value is not None}


@dataclass(frozen=True)
class GenerateOptions(Options):
    """What is generated, and how each token is sampled."""

    num_images: int = option(16, "number of images, or of completions of one", low=1, high=MAX_IMAGES)
    out: str = option("sheet.png", "PNG to write")
    class_name: str | None = option(None, "class of the images [default: all in turn]")
    guidance_scale: float = option(1.0, "classifier-free guidance: 1 is none, more follows the class closer", low=0)
    complete: str | None = option(None, "image file whose upper half is kept and lower half generated")
    temperature: float = option(1.0, "sampling temperature; lower is more deterministic, 0 is greedy")
    top_k: int | None = option(None, "sample among this many most likely tokens")
    top_p: float | None = option(None, "sample among the most likely tokens of this total probability")
    seed: int = option(0, "seed of the sampling")


class ImageGeneration(Task):
    """Train a model to generate images like yours, by class, and to complete images."""

    name = "image-generation"
    Settings = ImageGenerationSettings
    metrics = (
        Metric("loss", "nats/token", "lower"),
        Metric("bits_per_token", "", "lower", compute=lambda task, sums: sums["loss"].value / math.log(2)),
        Metric("bits_per_dim", "", "lower", compute=lambda task, sums: task.bits_per_dim(sums["loss"].value)),
        Metric("unigram_bits", "bits/token", label="unigram"),
        Metric("neighbor_bits", "bits/token", label="counts given four neighbors"),
        Metric("mse", "per value in 0 … 1, of the image tokenizer", "lower"),
    )

    def __init__(self, settings: ImageGenerationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.classes: list[str] = []
        self.image_format = ImageFormat()
        self._tokenizer: ImageTokenizer | None = None

    @property
    def tokenizer(self) -> ImageTokenizer:
        """The image tokenizer. Raise UserError before there is one."""
        if self._tokenizer is None:
            raise UserError("this image-generation task has no tokenizer yet: train it, or load a run")
        return self._tokenizer

    @property
    def lossy(self) -> bool:
        """Whether tokens are VQ codes."""
        return isinstance(self.tokenizer, VQTokenizer)

    # The tokenizer, trained before or taken from a run.

    def prerequisites(self) -> Sequence[Prerequisite]:
        s: ImageGenerationSettings = self.settings
        if self._tokenizer is not None or s.image_tokenizer == "palette":
            return ()
        run = None if s.image_tokenizer == "vq" else s.image_tokenizer
        settings = {one.name: getattr(s, one.name) for one in fields(ImageInput)} | s.tokenizer_sizes()
        if s.tokenizer_steps is not None:
            settings["steps"] = s.tokenizer_steps
        return (Prerequisite(PREREQUISITE, ImageTokenizerTask.name, self._use_tokenizer_of, settings, run),)

    def _use_tokenizer_of(self, trained: ImageTokenizerTask) -> None:
        """Take over the tokenizer of a run, and the image format that it was trained with.

        Raise UserError where the settings ask for another format.
        """
        s: ImageGenerationSettings = self.settings
        theirs, ours, default = trained.image_format, s.image_format, ImageFormat()
        options = {
            "color_mode": "color_mode",
            "resize_mode": "resize_mode",
            "background_color": "background_color",
            "max_pixels": "max_megapixels",
        }
        for name, setting in options.items():
            if getattr(ours, name) not in (getattr(default, name), getattr(theirs, name)):
                raise UserError(
                    f"{flag(setting)} {getattr(s, setting)}: the tokenizer of {flag('image_tokenizer')}"
                    f" {s.image_tokenizer} was trained with {getattr(theirs, name)}: leave it out"
                )
        self._tokenizer = trained.tokenizer
        self.image_format = theirs if ours.size is None else replace(theirs, size=ours.size)

    # Data.

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: ImageGenerationSettings = self.settings
        source = need_data(self, source)
        if for_evaluation:
            images = s.read(source, self.image_format, other_data=True)
            number = {label: n for n, label in enumerate(self.classes)}
            labels = [number.get(images.classes[n], -1) if n >= 0 else -1 for n in images.labels]
            return PreparedData(NO_SAMPLES, self._samples(images.pixels, np.array(labels, dtype=np.int64), 1))
        parts = s.split(s.read(source, self.image_format if self.model_config or self.image_format.size else None))
        self.image_format = parts.train.image_format
        if self._tokenizer is None:
            gray = self.image_format.color_mode == "gray"
            self._tokenizer = Palette.train(parts.train.pixels, s.palette_size or (16 if gray else 64))
        self._check_shape()
        rows, columns = self.tokenizer.grid
        if not self.model_config:
            self.classes = [] if s.unconditional else parts.train.classes
            self.model_config = ImageGPTConfig(
                self.tokenizer.vocab_size,
                rows,
                columns,
                len(self.classes),
                width=s.width,
                depth=s.depth,
                heads=s.heads,
                dropout=s.dropout,
                **s.parts(ImageGPTConfig),
            ).as_dict()
            try:
                self.build_model(0)
            except ValueError as error:
                raise UserError(str(error)) from error
        copies = s.augmentations_per_image or (COPIES if self.lossy else 1)
        train = self._samples(parts.train.pixels, parts.train.labels, copies)
        val = self._samples(parts.validation.pixels, parts.validation.labels, 1)
        kind = "VQ codes" if self.lossy else "palette colors"
        report = {"tokens": f"{rows} × {columns} per image, vocabulary of {self.tokenizer.vocab_size} {kind}"}
        if copies > 1:
            report["augmentation"] = f"{copies} versions of each image, all but one slightly augmented"
        c = self.config
        return PreparedData(
            train,
            val,
            data_report(parts, report),
            recipe=self._recipe(len(train)),
            auto_settings={"grid": f"{rows} × {columns}", "vocab_size": c.vocab_size, "classes": c.classes},
            sequence_length=c.num_tokens,
            baseline=lambda: self._baseline(train, val),
            analyze=lambda folder: self._analyze(train, val, folder),
        )

    def _check_shape(self) -> None:
        """Raise UserError where a VQ tokenizer is for images of another shape."""
        if isinstance(self._tokenizer, VQTokenizer) and self._tokenizer.shape != self.image_format.shape:
            (C, H, W), (c, h, w) = self._tokenizer.shape, self.image_format.shape
            raise UserError(
                f"{flag('image_tokenizer')} {self.settings.image_tokenizer}: is for images of {W} × {H} pixels with {C}"
                f" channel(s), and these have {w} × {h} with {c}"
            )

    def _samples(self, pixels: Pixels, labels: NDArray[np.int64], copies: int) -> TokenizedImages:
        labels = labels if self.classes else np.full(len(pixels), -1)
        return TokenizedImages(pixels, labels, self.tokenizer.encode, self.tokenizer.fingerprint(), copies)

    def _recipe(self, num_images: int) -> dict[str, Any]:
        """Return training settings for a number of training images."""
        tokens = self.config.num_tokens
        batch_size = max(4, min(64, round(TOKENS_PER_STEP / tokens)))
        epochs = EPOCHS if self.lossy else min(EPOCHS, max(1.0, TOKENS_PER_IMAGE / tokens))
        steps = max(MIN_STEPS, round(epochs * -(-num_images // batch_size)))
        return {"batch_size": batch_size, "steps": steps, "decay_fraction": 1.0}

    def save_assets(self, folder: Path) -> dict[str, Any]:
        save_tokenizer(self.tokenizer, folder)
        return {
            "tokenizer": self.tokenizer.fingerprint(),
            "classes": self.classes,
            "image_format": self.image_format.as_dict(),
        }

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(folder, saved.get("tokenizer"))
        self.classes, self.image_format = list(saved["classes"]), ImageFormat.from_dict(saved["image_format"])

    # Model and loss.

    @property
    def config(self) -> ImageGPTConfig:
        """The sizes of the model."""
        return ImageGPTConfig(**self.model_config)

    def build_model(self, seed: int) -> ImageGPT:
        return ImageGPT(self.config, seed)

    def collate(self, samples: tuple[NDArray[np.int64], NDArray[np.int64]], context: BatchContext) -> Batch:
        ids, labels = samples  # (B, copies, tokens), (B,)
        copy, labels = np.zeros(len(ids), dtype=np.int64), labels.copy()
        if context.training:
            for row in range(len(ids)):
                random = context.random(row)
                copy[row] = random.integers(ids.shape[1])
                labels[row] = -1 if random.random() < self.settings.condition_dropout else labels[row]
        tokens = torch.from_numpy(ids[np.arange(len(ids)), copy])  # (B, tokens)
        starts = torch.from_numpy(np.where(labels < 0, self.config.null_class, self.config.vocab_size + labels))
        return Batch({"tokens": Stream(ids=torch.cat((starts[:, None], tokens[:, :-1]), 1))}, {"loss": tokens})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        return {"loss": cross_entropy_term(model(batch), batch.targets["loss"])}

    # Metrics and baselines.

    def bits_per_dim(self, loss: float) -> float:
        """Return bits per value of an image for a loss in nats/token."""
        return loss / math.log(2) * self.config.num_tokens / math.prod(self.image_format.shape)

    def _analyze(self, train: TokenizedImages, val: TokenizedImages, folder: Path | None) -> dict[str, Any]:
        """Return the bits/token of count models, and the mean squared error of the tokenizer; draw samples."""
        if folder is not None:
            pixels, classes = self.generate(16)
            draw_sheet(pixels, folder / "samples.png", captions=classes if any(classes) else [])
        train_ids, val_ids = (samples.ids[:, 0].astype(np.int64) for samples in (train, val))
        images = self.tokenizer.decode(val_ids)
        return {
            "unigram_bits": unigram_nats(train_ids, val_ids, self.config.vocab_size) / math.log(2),
            "neighbor_bits": self._neighbor_nats(train, val) / math.log(2),
            "mse": float(np.square(images / 255.0 - val.pixels / 255.0).mean()),
        }

    def _neighbor_nats(self, train: TokenizedImages, val: TokenizedImages) -> float:
        train_ids, val_ids = (samples.ids[:, 0].astype(np.int64) for samples in (train, val))
        return neighbor_nats(train_ids, val_ids, self.tokenizer.grid, self.config.vocab_size)

    def _baseline(self, train: TokenizedImages, val: TokenizedImages) -> Baseline:
        nats = self._neighbor_nats(train, val)
        note = f"= {nats / math.log(2):.4f} bits: left, upper left, upper and upper right token"
        return Baseline("counts given four neighbors", nats, "nats/token", note)

    # Generation.

    def generate(
        self,
        num_images: int = 16,
        *,
        class_name: str | None = None,
        guidance_scale: float = 1.0,
        complete: Pixels | None = None,
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> tuple[Pixels, list[str]]:
        """Return images (num_images, C, H, W), and the class of each ("" for none).

        class_name: None takes all classes in turn, or none with `complete`. guidance_scale: see
        `ClassifierFreeGuidance`. complete: (C, H', W), the upper part of an image, at least half of it. Raise UserError
        for what this run cannot generate.
        """
        # Check the ranges; only a sheet limits the number of images.
        GenerateOptions(num_images=min(num_images, MAX_IMAGES), guidance_scale=guidance_scale)
        classes = self._classes(num_images, class_name, in_turn=complete is None)
        self._check_guidance(guidance_scale, classes)
        given = None if complete is None else encode_upper_half(complete, self.tokenizer, self.image_format)
        c, sampling = self.config, sampling or Sampling()
        starts = [c.null_class if number is None else c.vocab_size + number for number in classes]
        ids = np.empty((num_images, c.num_tokens), dtype=np.int64)
        with eval_mode(self.model) as model:
            assert isinstance(model, ImageGPT)
            decoder: StepModel = model if guidance_scale == 1 else ClassifierFreeGuidance(model, guidance_scale)
            for begin in range(0, num_images, CHUNK):
                chunk = range(begin, min(begin + CHUNK, num_images))
                # Each image has its own seed, whatever else is generated beside it.
                seeds = [seed * 2**32 + n for n in chunk]
                prefixes = self._prefixes(decoder, given, [starts[n] for n in chunk], seeds, sampling)
                requests = [
                    Request((starts[n], *prefix), c.num_tokens - len(prefix), sampling, own_seed)
                    for n, prefix, own_seed in zip(chunk, prefixes, seeds, strict=True)
                ]
                for n, prefix, (made,) in zip(chunk, prefixes, generate_all(decoder, requests), strict=True):
                    ids[n] = (*prefix, *made.ids)
        pixels = self.tokenizer.decode(ids)
        if given is not None:
            pixels[:, :, : given.pixels.shape[1]] = given.pixels
        return pixels, ["" if number is None else self.classes[number] for number in classes]

    def _prefixes(
        self, decoder: StepModel, given: UpperHalf | None, starts: list[int], seeds: list[int], sampling: Sampling
    ) -> list[list[int]]:
        """Return the first ids of each image. A row of codes of which only the upper pixels are given is sampled
        several times, and the one nearest to the pixels is taken."""
        if given is None:
            return [[] for _ in starts]
        if not given.partial_rows:
            return [given.ids for _ in starts]
        columns = self.tokenizer.grid[1]
        requests = [
            # Other seeds than those of the tokens below, which must not repeat these draws.
            Request((start, *given.ids), columns, sampling, seed + 2**96, num_samples=CANDIDATES)
            for start, seed in zip(starts, seeds, strict=True)
        ]
        drawn = [np.array([one.ids for one in made], dtype=np.int64) for made in generate_all(decoder, requests)]
        return [[*given.ids, *nearest_row(rows, given, self.tokenizer)] for rows in drawn]

    def _classes(self, n: int, name: str | None, *, in_turn: bool) -> Sequence[int | None]:
        """Return the class number of each image, None for no class."""
        K = len(self.classes)
        if name is None:
            return [i * K // n if n <= K else i % K for i in range(n)] if K and in_turn else [None] * n
        if not K:
            raise UserError(f"{flag('class_name')} {name}: this run was trained without classes")
        if name not in self.classes:
            hint = did_you_mean(name, self.classes)
            raise UserError(f"{flag('class_name')} {name}: no such class{hint} (there are {some(self.classes, 20)})")
        return [self.classes.index(name)] * n

    def _check_guidance(self, scale: float, classes: Sequence[int | None]) -> None:
        """Raise UserError where guidance, or generating without a class, needs what the run was not trained with."""
        no_dropout = f"this run was trained with {flag('condition_dropout')} 0"
        if scale != 1:
            why = "this run was trained without classes" if not self.classes else ""
            why = why or (f"no class is given ({flag('class_name')})" if None in classes else "")
            why = no_dropout if self.settings.condition_dropout == 0 else why
            if why:
                raise UserError(f"{flag('guidance_scale')} {scale}: needs a class and condition dropout; {why}")
        if None in classes and self.classes and self.settings.condition_dropout == 0:
            raise UserError(f"{flag('complete')} without {flag('class_name')}: {no_dropout}, and needs a class")

    @action(GenerateOptions, name="generate")
    def _generate(self, options: GenerateOptions, show: Show) -> dict[str, Any]:
        """Generate images, of all classes in turn or of one, or complete an image."""
        o = options
        place_of(o.out)
        sampling = Sampling(temperature=o.temperature, top_k=o.top_k, top_p=o.top_p)
        upper, note = (None, None) if o.complete is None else read_upper_half(o.complete, self.image_format)
        pixels, classes = self.generate(
            o.num_images,
            class_name=o.class_name,
            guidance_scale=o.guidance_scale,
            complete=upper,
            sampling=sampling,
            seed=o.seed,
        )
        captions = classes if any(classes) else []
        if upper is not None:
            # The given half first, above gray.
            whole = np.full(self.image_format.shape, 128, dtype=np.uint8)
            whole[:, : upper.shape[1]] = upper
            pixels = np.concatenate((whole[None], pixels))
            captions = ["given", *(name or f"completion {n}" for n, name in enumerate(classes, start=1))]
        draw_sheet(pixels, o.out, captions=captions)
        show(f"{counted(o.num_images, 'image')}: {o.out}\n")
        return {"out": o.out, "num_images": o.num_images, "classes": classes, "notes": [note] if note else []}
