"""Train an image tokenizer: a VQ-VAE that turns an image into a few codes, and codes into an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, flag, option
from tokenloom.data.image_decoding import ImageFormat, Pixels
from tokenloom.data.images import ImageSamples
from tokenloom.data.report import data_report
from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.vqvae import VQVAE, VQVAEConfig
from tokenloom.nn.vector_quantizer import kmeans, perplexity, sums_by
from tokenloom.plotting.image_grid import MAX_IMAGES, draw_sheet
from tokenloom.plotting.style import place_of
from tokenloom.tasks._images import ImageInput
from tokenloom.tasks.base import NO_SAMPLES, PreparedData, Show, Task, action, need_data
from tokenloom.tokenizers.vq import VQTokenizer, as_sequence
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.training.metrics import Metric
from tokenloom.utils.names import counted

# Weight of the commitment loss (van den Oord et al. 2017).
COMMITMENT = 0.25
# Training images from whose features the codebook is initialized.
_INIT_IMAGES = 256
STEPS = 1200


@dataclass(frozen=True)
class ImageTokenizerSettings(ImageInput):
    """Which images, and the sizes of the VQ-VAE."""

    group: ClassVar[str] = "Model"

    codebook_size: int = option(128, "number of codes", low=2, high=65_536)
    downsample_factor: Literal[2, 4, 8, 16, 32] | None = option(
        None, "pixels per side of a code [default: 4, for images below 16 pixels 2]"
    )
    hidden_channels: int = option(64, "channels of the hidden layers", low=1)
    code_dim: int = option(16, "features of a code vector", low=1)


@dataclass(frozen=True)
class ReconstructOptions(Options):
    """Which images are encoded and decoded."""

    num_images: int = option(16, "number of validation images", low=1, high=MAX_IMAGES // 2)
    out: str = option("sheet.png", "PNG to write: each image beside its reconstruction")


class ImageTokenizerTask(Task):
    """Train an image tokenizer, a VQ-VAE; image-generation trains one by itself."""

    name = "image-tokenizer"
    Settings = ImageTokenizerSettings
    metrics = (
        Metric("loss", "squared error/value", "lower"),
        Metric("mse", "", "lower", compute=lambda task, sums: sums["loss"].value),
        Metric("commitment"),
        Metric("perplexity", label="codebook perplexity", compute=lambda task, sums: perplexity(_code_counts(sums))),
        Metric("codebook_usage", "", "higher", "percent", compute=lambda task, sums: _usage(_code_counts(sums))),
    )

    def __init__(self, settings: ImageTokenizerSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.image_format = ImageFormat()
        self._init_images: Pixels | None = None

    # Data.

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: ImageTokenizerSettings = self.settings
        source = need_data(self, source)
        if for_evaluation:
            images = s.read(source, self.image_format, other_data=True)
            return PreparedData(NO_SAMPLES, ImageSamples(images.pixels, images.labels))
        parts = s.split(s.read(source, self.image_format if self.model_config else None))
        self.image_format = parts.train.image_format
        if not self.model_config:
            self._set_sizes(parts.train.pixels)
        c = self.config
        rows, columns = c.grid
        train, val = (ImageSamples(part.pixels, part.labels) for part in (parts.train, parts.validation))
        return PreparedData(
            train,
            val,
            data_report(parts, {"codes": f"{rows} × {columns} per image, codebook of {c.codebook_size}"}),
            recipe={"steps": STEPS, "batch_size": 64, "lr": 3e-3, "weight_decay": 0.0, "optimizer": "adamw"},
            auto_settings={
                "grid": f"{rows} × {columns}",
                "downsample_factor": c.downsample_factor,
                "codebook_size": c.codebook_size,
                "code_dim": c.code_dim,
            },
            sequence_length=c.height * c.width,
            baseline=lambda: _mean_image(train, val),
            analyze=lambda folder: self._analyze(val, folder),
        )

    def _set_sizes(self, pixels: Pixels) -> None:
        s: ImageTokenizerSettings = self.settings
        C, H, W = self.image_format.shape
        factor = s.downsample_factor or (4 if min(H, W) >= 16 else 2)
        if min(H, W) < factor:
            raise UserError(
                f"{flag('downsample_factor')} {factor}: too large for images of {W} × {H} pixels; {flag('image_size')}"
                " resizes them"
            )
        self.model_config = VQVAEConfig(H, W, C, factor, s.codebook_size, s.hidden_channels, s.code_dim).as_dict()
        self._init_images = pixels[:: max(1, len(pixels) // _INIT_IMAGES)][:_INIT_IMAGES]

    def save_assets(self, folder: Path) -> dict[str, Any]:
        return {"image_format": self.image_format.as_dict()}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        self.image_format = ImageFormat.from_dict(saved["image_format"])

    # Model and loss.

    @property
    def config(self) -> VQVAEConfig:
        """The sizes of the model."""
        return VQVAEConfig(**self.model_config)

    @property
    def tokenizer(self) -> VQTokenizer:
        """The trained model as a tokenizer."""
        assert isinstance(self.model, VQVAE)
        return VQTokenizer(self.model)

    def build_model(self, seed: int) -> VQVAE:
        model = VQVAE(self.config, seed)
        if self._init_images is not None:
            # Initialize the codebook with k-means centers of the untrained encoder's features.
            with torch.no_grad():
                points = model.features(as_sequence(self._init_images)).flatten(0, 1)
            K = self.config.codebook_size
            try:
                model.codebook.begin(kmeans(points, K, torch.Generator().manual_seed(seed)))
            except ValueError as error:
                raise UserError(
                    f"{flag('codebook_size')} {K}: the images have too few different parts ({error})"
                ) from error
        return model

    def collate(self, samples: tuple[Pixels, NDArray[np.int64]], context: BatchContext) -> Batch:
        pixels, _ = samples
        X = as_sequence(pixels)  # (B, H·W, C)
        targets = {
            "loss": (X * 255).round().long().flatten(1),
            "commitment": torch.zeros(len(X), self.config.grid[0] * self.config.grid[1], dtype=torch.int64),
        }
        return Batch({"image": Stream(features=X)}, targets)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """Return the mean squared error over all values, and the commitment loss of each code."""
        output = model(batch)
        evaluating = not output.images.requires_grad
        values, asked = batch.targets["loss"], batch.targets["commitment"] != IGNORE
        counted = values != IGNORE
        images = output.images.flatten(1)
        errors = ((images.clamp(0, 1) if evaluating else images) - values / 255).square() * counted
        terms = {
            "loss": LossTerm(errors.sum(1), counted.sum(1)),
            "commitment": LossTerm((output.commitment * asked).sum(1), asked.sum(1), weight=COMMITMENT),
        }
        if evaluating:
            # How often each image uses each code, (B, K).
            B, K = len(values), self.config.codebook_size
            index = torch.arange(B, device=output.codes.device)[:, None] * K + output.codes
            counts = sums_by(index.flatten(), torch.ones_like(index.flatten(), dtype=errors.dtype), B * K)
            terms["codes"] = LossTerm(counts.view(B, K), torch.ones_like(counts[:B]), weight=0.0)
        return terms

    # After training.

    def _analyze(self, samples: Samples, folder: Path | None) -> dict[str, Any]:
        if folder is not None:
            self._draw(samples, 16, folder / "reconstructions.png")
        return {}

    def _draw(self, samples: Samples, n: int, path: Path | str) -> int:
        """Draw up to n images beside their reconstructions; return how many."""
        # Evenly spaced, because samples may be in the order of their classes.
        keys = samples.all()
        pixels: Pixels = samples.take(keys[np.linspace(0, len(keys) - 1, min(n, len(keys))).astype(np.int64)])[0]
        tokenizer = self.tokenizer
        pairs = np.stack((pixels, tokenizer.decode(tokenizer.encode(pixels))), 1).reshape(-1, *pixels.shape[1:])
        draw_sheet(pairs, path, captions=["image", "reconstruction"] * len(pixels), columns=8)
        return len(pixels)

    @action(ReconstructOptions)
    def _reconstruct(self, options: ReconstructOptions, show: Show) -> dict[str, Any]:
        """Draw validation images beside their reconstructions."""
        place_of(options.out)
        n = self._draw(self.load(self._source).validation, options.num_images, options.out)
        show(f"{counted(n, 'image')}, each beside its reconstruction: {options.out}\n")
        return {"out": options.out, "num_images": n}


def _mean_image(train: ImageSamples, val: ImageSamples) -> Baseline:
    """Return the error of the mean training image."""
    train_values, val_values = train.pixels / 255.0, val.pixels / 255.0
    return Baseline("mean image", float(np.square(val_values - train_values.mean(0)).mean()), "mse")


def _code_counts(sums: Mapping[str, MetricSum]) -> torch.Tensor:
    """Return how often each code is used, (K,)."""
    return sums["codes"].samples[0].sum(0)


def _usage(counts: torch.Tensor) -> float:
    return float((counts > 0).sum()) / len(counts)
