"""A tokenizer of pictures that is learned: a run of this task turns a picture into a few codes, and codes into one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, option
from tokenloom.data.image_files import ImageFormat, Pixels
from tokenloom.data.image_split import ImageReport
from tokenloom.data.images import ImageSamples
from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.vqvae import VQVAE as Autoencoder
from tokenloom.models.vqvae import VQVAEConfig
from tokenloom.nn.vector_quantizer import kmeans, perplexity, sums_by
from tokenloom.plotting.image_grid import MOST, draw_sheet
from tokenloom.plotting.style import place_of
from tokenloom.tasks._image_input import read, read_parts
from tokenloom.tasks._image_settings import ImageInputSettings, check_reading
from tokenloom.tasks._paths import STEPWISE, every_path
from tokenloom.tasks.base import Example, PreparedData, Show, Task
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerm, LossTerms, MetricSum
from tokenloom.utils.names import counted

# The weight of the commitment, as van den Oord et al. 2017 have it.
COMMITMENT = 0.25
# Pictures that the codebook starts from, and those that are encoded at a time.
FIRST, TOGETHER = 256, 500
STEPS = 1200


@dataclass(frozen=True)
class ImageCodesSettings(ImageInputSettings):
    """How pictures are read, and the sizes of the autoencoder."""

    codes: int = option(128, "different codes")
    factor: int | None = option(None, "pixels along the side of a code: 2, 4, 8, … [default: 4, of small pictures 2]")
    features: int = option(64, "channels inside the network")
    depth: int = option(16, "features of a code's vector")

    def check(self) -> None:
        """Raise UserError for values that no model could have."""
        check_reading(self)
        if not 2 <= self.codes <= 65_536:
            raise UserError(f"--codes {self.codes}: must be from 2 to 65,536")
        if self.factor is not None and self.factor not in (2, 4, 8, 16, 32):
            raise UserError(f"--factor {self.factor}: must be 2, 4, 8, 16 or 32")
        for name in ("features", "depth"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: must be at least 1")


@dataclass(frozen=True)
class ReconstructOptions(Options):
    """Which pictures are to go through the codes and back."""

    count: int = option(16, "how many of the validation pictures")
    out: str = option("sheet.png", "the sheet to be written: each picture, and what comes back")


class ImageTokenizerTask(Task):
    """Pictures through a codebook."""

    name = "image-tokenizer"
    summary = "learn a tokenizer of pictures: an autoencoder with a codebook; image-generation trains it by itself"
    Settings = ImageCodesSettings
    models: ClassVar[Mapping[str, str]] = {
        "autoencoder": "convolutions, and a codebook of moving averages between them"
    }
    uses: ClassVar[Mapping[str, type]] = {"reconstruct": ReconstructOptions}
    things: ClassVar[str] = "values"
    unit: str = "squared error and commitment"

    def __init__(self, settings: ImageCodesSettings | None = None) -> None:
        super().__init__(settings)
        self.form = ImageFormat()
        self._first: Pixels | None = None
        self.settings.check()

    # Data.

    def prepare(self, data: str | None) -> PreparedData:
        s: ImageCodesSettings = self.settings
        assert data is not None
        parts = read_parts(s, data, self.form if self.model_config else None)
        self.form = parts.training.form
        C, H, W = self.form.shape
        if not self.model_config:
            factor = s.factor or (4 if min(H, W) >= 16 else 2)
            config = VQVAEConfig(H, W, C, factor, s.codes, s.features, s.depth)
            if min(H, W) < factor:
                raise UserError(
                    f"--factor {factor}: a picture of {W} × {H} pixels is too small; --resolution makes it larger"
                )
            self.model_config = config.as_dict()
            self._first = parts.training.pixels[:: max(1, len(parts.training) // FIRST)][:FIRST]
        rows, columns = self.grid
        report = ImageReport.of(parts, {"codes": f"{rows} × {columns} a picture, {self.vocab_size} different ones"})
        training, held = (ImageSamples(p.pixels, p.labels) for p in (parts.training, parts.validation))
        return PreparedData(training, held, report.lines(), report.as_dict())

    def load_samples(self, data: str) -> Samples:
        pixels = read(self.settings, data, self.form, measured=True)
        return ImageSamples(pixels.pixels, pixels.labels)

    def save_parts(self, folder: Path) -> dict[str, Any]:
        return {"form": self.form.as_dict()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        self.form = ImageFormat.from_dict(kept["form"])

    # The model and its loss.

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        return {"steps": STEPS, "batch": 64, "lr": 3e-3, "weight_decay": 0.0, "optimizer": "adamw"}

    def derived(self) -> dict[str, Any]:
        return {"grid": "{} × {}".format(*self.grid), **{k: self.model_config[k] for k in ("factor", "codes", "depth")}}

    @property
    def sequence(self) -> int:
        """Pixels."""
        return int(self.model_config["height"] * self.model_config["width"])

    def build(self, seed: int) -> Autoencoder:
        model = Autoencoder(VQVAEConfig(**self.model_config), seed)
        if self._first is not None:
            # What is loaded has a codebook; a fresh one starts at the centers of what the fresh encoder makes.
            with torch.no_grad():
                points = model.features(_rasters(self._first)).flatten(0, 1)
            try:
                model.codebook.begin(kmeans(points, self.vocab_size, torch.Generator().manual_seed(seed)))
            except ValueError as error:
                raise UserError(
                    f"--codes {self.vocab_size}: the pictures have too few different parts ({error})"
                ) from error
        return model

    def collate(self, samples: tuple[Pixels, NDArray[np.int64]], moment: BatchContext) -> Batch:
        pixels, _ = samples
        X = _rasters(pixels)
        targets = (X * 255).round().long()
        codes = torch.zeros(len(X), self.grid[0] * self.grid[1], dtype=torch.int64)
        return Batch({"picture": Stream(features=X)}, {"loss": targets.flatten(1), "commitment": codes})

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """The mean square over all values between picture and what comes back, and the commitment of each code."""
        coded = model(batch)
        values, asked = batch.targets["loss"], batch.targets["commitment"]
        counted = values != IGNORE
        measured = not coded.pictures.requires_grad
        back = coded.pictures.flatten(1)
        errors = ((back.clamp(0, 1) if measured else back) - values / 255).square() * counted
        commitment = coded.commitment * (asked != IGNORE)
        terms = {
            "loss": LossTerm(errors.sum(1), counted.sum(1)),
            "commitment": LossTerm(commitment.sum(1), (asked != IGNORE).sum(1), weight=COMMITMENT),
        }
        if measured:
            # How often each picture has each code, (B, K): summed up, how the codes are used.
            B, K = len(values), self.vocab_size
            places = torch.arange(B, device=coded.codes.device)[:, None] * K + coded.codes
            counts = sums_by(places.flatten(), torch.ones_like(places.flatten(), dtype=errors.dtype), B * K)
            terms["codes"] = LossTerm(counts.view(B, K), torch.ones_like(counts[:B]), weight=0.0)
        return terms

    # Metrics.

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        squared, commitment = totals["loss"].value, totals["commitment"].value
        counts = totals["codes"].samples[0].sum(0)
        return {
            "loss": squared + COMMITMENT * commitment,
            "squared_error": squared,
            "commitment": commitment,
            "perplexity": perplexity(counts),
            "codes_used": float((counts > 0).sum()),
        }

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        used, K = int(metrics["codes_used"]), self.vocab_size
        return [
            f"squared error:     {metrics['squared_error']:.5f} a value in 0 … 1, of pictures that were held out",
            f"codes:             {used} of {K} used, as {metrics['perplexity']:.1f} used alike would be (perplexity)",
            f"loss:              {metrics['loss']:.5f}",
        ]

    def baseline(self, material: PreparedData) -> Baseline | None:
        """The mean picture, whatever is asked."""
        training, held = (part.take(part.all())[0] / 255.0 for part in (material.training, material.validation))
        value = float(np.square(held - training.mean(0)).mean())
        return Baseline("the mean picture", value, "squared error")

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        if folder is not None:
            self._draw(material.validation, 16, folder / "pictures.png")
        return {}

    def _draw(self, samples: Samples, count: int, path: Path | str) -> Pixels:
        # From all over the samples, which may be in the order of their classes.
        keys = samples.all()
        pixels: Pixels = samples.take(keys[np.linspace(0, len(keys) - 1, min(count, len(keys))).astype(np.int64)])[0]
        back = self.decode(self.encode(pixels))
        pairs = np.stack((pixels, back), 1).reshape(-1, *pixels.shape[1:])
        draw_sheet(pairs, path, captions=["picture", "from codes"] * len(pixels), columns=8)
        return back

    # Use: as a tokenizer.

    @property
    def vocab_size(self) -> int:
        """K, the number of codes."""
        return int(self.model_config["codes"])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes of a picture."""
        return VQVAEConfig(**self.model_config).grid

    @property
    def cell(self) -> int:
        """Pixels along the side of what a code stands for."""
        return int(self.model_config["factor"])

    def encode(self, pixels: Pixels) -> NDArray[np.int64]:
        """The codes (n, rows · columns) of pictures (n, C, H, W), row by row. Raises ValueError for another size."""
        if pixels.shape[1:] != self.form.shape:
            raise ValueError(f"pictures of {pixels.shape[1:]}, and codes for {self.form.shape}")
        with self.ready() as model:
            assert isinstance(model, Autoencoder)
            parts = [model.encode(_rasters(part).to(self.device)).cpu() for part in _parts(pixels)]
        return torch.cat(parts).numpy()

    def decode(self, codes: NDArray[np.int64]) -> Pixels:
        """Pictures (n, C, H, W) of codes (n, rows · columns)."""
        with self.ready() as model:
            assert isinstance(model, Autoencoder)
            parts = [model.decode(torch.from_numpy(part).to(self.device)).cpu() for part in _parts(codes)]
        values = (torch.cat(parts) * 255).round().to(torch.uint8).transpose(1, 2)
        return values.reshape(len(codes), *self.form.shape).numpy()

    def fingerprint(self) -> str:
        """A hash of all that decides codes and pictures."""
        digest = hashlib.sha256(repr((sorted(self.model_config.items()), self.form.as_dict())).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def use(self, verb: str, options: ReconstructOptions, show: Show) -> dict[str, Any]:
        if options.count < 1:
            raise UserError(f"--count {options.count}: must be at least 1")
        if 2 * options.count > MOST:
            raise UserError(f"--count {options.count}: a sheet has room for {MOST // 2:,} and what comes back of them")
        place_of(options.out)
        samples = self.prepare(self.source).validation
        back = self._draw(samples, options.count, options.out)
        show(f"{counted(len(back), 'picture')}, each beside what comes back of it: {options.out}\n")
        return {"out": options.out, "count": len(back)}

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        {
            **dict.fromkeys(STEPWISE, "a picture is read at once, and nothing grows step by step"),
            **dict.fromkeys(
                ("padded left = unpadded", "padded right = unpadded", "packed = alone"),
                "all pictures have one size, and each stands alone",
            ),
            "fused = explicit": "it has no attention",
        }
    )

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        settings = {"codes": 8, "features": 8, "depth": 4, "batch": 8}
        return {"autoencoder": Example("digits", settings)}


def _rasters(pixels: Pixels) -> torch.Tensor:
    """(n, H·W, C) in 0 … 1 of pictures (n, C, H, W) of bytes."""
    return torch.from_numpy(pixels.astype(np.float32) / 255).flatten(2).transpose(1, 2)


def _parts(array: NDArray[Any]) -> list[NDArray[Any]]:
    return [array[start : start + TOGETHER] for start in range(0, len(array), TOGETHER)]
