"""Classify images: a vision transformer or a small convolutional network gives each image one class."""

# Longer than other tasks: two architectures, sizes derived from the images, and fine-tuning at another image size.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.config import Options, flag, option, options
from tokenloom.data.augment import Augmentation, augment_each
from tokenloom.data.image_decoding import ImageFormat, Pixels, decode
from tokenloom.data.images import ImageData, ImageSamples, looks_like_images
from tokenloom.data.report import data_report
from tokenloom.data.text import reason_of, shown_path
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.svm import MAX_IMAGES, block_size, svm_accuracy
from tokenloom.inspection.attention import image_attention
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.convolutional import ConvolutionalConfig, ConvolutionalNetwork
from tokenloom.models.vision import VisionConfig, VisionTransformer, resized_positions
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import device_of, eval_mode
from tokenloom.plotting.heatmaps import draw_overlays
from tokenloom.plotting.style import place_of
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._classification import check_labels, classification_metrics, metric_terms
from tokenloom.tasks._images import ImageInput, parse_size
from tokenloom.tasks._settings import TransformerParts
from tokenloom.tasks.base import (
    NO_SAMPLES,
    Initialization,
    Match,
    PreparedData,
    Show,
    Task,
    action,
    need_data,
)
from tokenloom.tokenizers.patches import Patches
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, cross_entropy_term
from tokenloom.utils.names import with_article

# Images seen in training, in all: small data sets are repeated more often.
IMAGES_SEEN, MIN_EPOCHS, MAX_EPOCHS, MIN_STEPS, BATCH = 300_000, 8, 60, 200, 64
# Images of up to this many pixels per side get a smaller model, which needs fewer epochs.
SMALL, SMALL_MAX_EPOCHS = 12, 36
_VIT_ONLY = {"model": "vit"}


@dataclass(frozen=True)
class ImageClassificationSettings(Augmentation, TransformerParts, ImageInput):
    """Which images, their augmentation, and the model; None is derived from the images."""

    group: ClassVar[str] = "Model"

    model: Literal["vit", "cnn"] = option("vit", "vit: vision transformer; cnn: small convolutional network")
    patch_size: str | None = option(None, "pixels per side of a patch, 7 or HEIGHTxWIDTH", only=_VIT_ONLY)
    width: int | None = option(None, "features per patch; cnn: channels of the first block", low=1)
    depth: int | None = option(None, "number of layers; cnn: of blocks, each of which halves the sides", low=1)
    heads: int | None = option(None, "attention heads per layer", low=1, only=_VIT_ONLY)
    dropout: float | None = option(None, "fraction of activations set to zero in training", low=0, below=1)
    pool: Literal["cls", "mean"] | None = option(
        None, "input of the classification head: class token, or mean over the patches", only=_VIT_ONLY
    )
    label_smoothing: float = option(0.05, "probability spread over all classes in the training targets", low=0, below=1)

    def check(self) -> None:
        """Raise UserError for parts of a transformer with `model` cnn."""
        super().check()
        for name in (one.name for one in options(TransformerParts)):
            if self.model == "cnn" and getattr(self, name) is not None:
                raise UserError(f"{flag(name)} {getattr(self, name)} has no effect with {flag('model')} cnn")


@dataclass(frozen=True)
class PredictOptions(Options):
    """Which images are classified."""

    files: list[str] = option([], "image files", positional=True)
    num_answers: int = option(3, "classes shown per image, for several files", low=1)


@dataclass(frozen=True)
class AttentionOptions(Options):
    """Which image and layer, and the figure to write."""

    file: str | None = option(None, "image file", positional=True)
    layer: int | None = option(None, "layer whose attention is shown, from 1 [default: the last]", low=1)
    out: str | None = option(None, "PNG to write")
    dark: bool = option(False, "dark background")


def recognize(source: str) -> Match | None:
    """Match folders and tables of images, and built-in image data sets."""
    reason = looks_like_images(source)
    return None if reason is None else Match(reason)


def _epochs(n: int) -> float:
    """Return the number of epochs for n training images."""
    return min(max(IMAGES_SEEN / n, MIN_EPOCHS), MAX_EPOCHS)


class ImageClassification(Task):
    """Train a model to give images one of several labels, from folders or a table."""

    name = "image-classification"
    Settings = ImageClassificationSettings
    metrics = classification_metrics("image")

    def __init__(self, settings: ImageClassificationSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self.classes: list[str] = []
        self.image_format: ImageFormat | None = None
        self._patches: Patches | None = None
        self._init_patches: Patches | None = None

    # Data.

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: ImageClassificationSettings = self.settings
        source = need_data(self, source)
        images = s.read(source, self.image_format, other_data=for_evaluation)
        if for_evaluation:
            check_labels(source, images.classes, self.classes)
            return PreparedData(NO_SAMPLES, self._samples(images))
        if len(set(images.labels.tolist()) - {-1}) < 2:
            raise UserError(
                f"{source}: images of at least two classes are needed, one folder per class, or a table of paths and"
                f" labels; there are {len(images)} images of {', '.join(images.classes) or 'no class'}"
                + ("" if images.classes else " (--task image-generation needs no classes)")
            )
        self.image_format = images.image_format
        parts = s.split(images)
        self.classes = self.classes or parts.train.classes
        if self._patches is None:
            self._patches = Patches.train(torch.from_numpy(parts.train.pixels), self._patch_size())
            if self._init_patches is not None:
                # Normalize pixels as the run of --init-from did.
                mean, std = self._init_patches.mean, self._init_patches.std
                self._patches = Patches(self._patches.shape, self._patches.patch_size, mean, std)
        self._set_sizes()
        # Images that are repeated less often need less augmentation to look new each time.
        strength = math.sqrt(_epochs(len(parts.train)) / MAX_EPOCHS)
        self.settings = self.settings.with_default_augmentation(strength)
        train, val = self._samples(parts.train), self._samples(parts.validation)
        c, vit = self.model_config, s.model == "vit"
        height, width = self.patches.patch_size
        tokens = {"tokens": f"{self.patches.num_patches} per image, patches of {height} × {width} pixels"}
        rows, columns = c["grid"] if vit else c["shape"][1:]
        auto = ("width", "depth", "heads", "pool", "positions") if vit else ("width", "depth")
        return PreparedData(
            train,
            val,
            data_report(parts, tokens if vit else {}),
            recipe=self._recipe(len(train)),
            auto_settings=({"tokens": self.patches.num_patches} if vit else {})
            | {name: c[name] for name in auto}
            | {"classes": len(self.classes)},
            sequence_length=int(rows * columns),
            baseline=lambda: _svm_baseline(train, val),
        )

    def _samples(self, data: ImageData) -> ImageSamples:
        """Return samples with the class numbers of this model; classes are matched by name."""
        number = {label: i for i, label in enumerate(self.classes)}
        numbers = np.array([number.get(label, IGNORE) for label in data.classes] + [IGNORE], dtype=np.int64)
        return ImageSamples(data.pixels, numbers[data.labels])

    @property
    def patches(self) -> Patches:
        """The tokenizer. Raise UserError before there is one."""
        if self._patches is None:
            raise UserError("there is no tokenizer yet: train on images, or load a run")
        return self._patches

    def _patch_size(self) -> tuple[int, int]:
        """Return the patch size: as given, else about a quarter of the sides, for images above 32 pixels an eighth."""
        s: ImageClassificationSettings = self.settings
        assert self.image_format is not None
        assert self.image_format.size is not None
        if s.model == "cnn":
            return 1, 1
        if s.patch_size is not None:
            return parse_size("patch_size", s.patch_size)
        H, W = (_nearest_divisor(side, side / (4 if side <= 32 else 8)) for side in self.image_format.size)
        return H, W

    # Initialization from another run.

    def init_from(self, origin: Task) -> Initialization:
        """Take over the sizes and the pixel normalization of a run. At another image size, positions are resized."""
        init_from = flag("init_from")
        if not isinstance(origin, ImageClassification):
            raise UserError(f"{init_from}: {with_article(origin.name)} run has no image backbone")
        s, default, theirs = self.settings, self.Settings(), origin.settings
        assert origin.image_format is not None
        assert origin.image_format.size is not None
        names = ("model", "patch_size", "width", "depth", "heads", "pool", "positions")
        adopted = {name: getattr(theirs, name) for name in names}
        adopted["color_mode"] = origin.image_format.color_mode
        if (
            s.patch_size is not None
            and theirs.patch_size is not None
            and parse_size("patch_size", s.patch_size) == parse_size("patch_size", theirs.patch_size)
        ):
            s = replace(s, patch_size=theirs.patch_size)
        for name, value in adopted.items():
            if getattr(s, name) not in (getattr(default, name), value):
                raise UserError(f"{flag(name)} {getattr(s, name)}: the run of {init_from} has {value}; leave it out")
        H, W = origin.image_format.size
        self._init_patches = origin.patches
        size = None if s.image_size is None else parse_size("image_size", s.image_size)
        h, w = origin.patches.patch_size
        if size is not None and (size[0] % h or size[1] % w):
            raise UserError(
                f"{flag('image_size')} {s.image_size}: must be a multiple of the patches of {h} × {w} pixels of the run"
                f" of {init_from}"
            )
        self.settings = replace(s, **adopted, image_size=s.image_size or f"{H}x{W}")

        def adapt(name: str, tensor: Tensor) -> Tensor:
            if name != "backbone.positions.table":
                return tensor
            old, new = (tuple(task.model_config["grid"]) for task in (origin, self))
            return resized_positions(tensor, old, new)

        return Initialization(same_head=lambda: self.classes == origin.classes, adapt=adapt)

    # Model and loss.

    def _set_sizes(self) -> None:
        """Derive every size that was not given."""
        if self.model_config:
            return
        s: ImageClassificationSettings = self.settings
        _, H, W = shape = self.patches.shape
        small = max(H, W) <= SMALL
        if s.model == "cnn":
            width, depth = s.width or 32, s.depth or max(1, min(3, min(H, W).bit_length() - 2))
            dropout = 0.2 if s.dropout is None else s.dropout
            self.settings = replace(s, width=width, depth=depth, dropout=dropout)
            self.model_config = ConvolutionalConfig(shape, len(self.classes), width, depth, dropout).as_dict()
            return
        width, depth, heads = s.width or (64 if small else 96), s.depth or (3 if small else 4), s.heads or 4
        pool, dropout = s.pool or "mean", s.dropout or 0.0
        if width % heads:
            raise UserError(f"{flag('width')} {width}: must be divisible by {flag('heads')} {heads}")
        height, side = self.patches.patch_size
        sizes: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "pool": pool}
        self.settings = replace(s, **sizes, dropout=dropout, patch_size=f"{height}x{side}")
        self.model_config = VisionConfig(
            self.patches.grid,
            self.patches.patch_dim,
            len(self.classes),
            **sizes,
            **s.parts(VisionConfig),
            dropout=dropout,
        ).as_dict()
        try:
            self.build_model(0)
        except ValueError as error:
            raise UserError(str(error)) from error

    def _recipe(self, n: int) -> dict[str, Any]:
        """Return training settings for n training images."""
        batch = max(1, min(BATCH, n // 4))
        max_epochs = SMALL_MAX_EPOCHS if max(self.patches.shape[1:]) <= SMALL else MAX_EPOCHS
        steps = max(MIN_STEPS, round(min(_epochs(n), max_epochs) * -(-n // batch)))
        rates: dict[str, Any] = {"muon_lr": 0.02, "lr": 3e-3, "weight_decay": 0.05}
        if self.settings.model == "cnn":
            rates = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.05, "weight_decay_on": "all"}
        return {**rates, "batch_size": batch, "steps": steps, "decay_fraction": 1.0}

    def build_model(self, seed: int) -> nn.Module:
        c = self.model_config
        if self.settings.model == "cnn":
            return ConvolutionalNetwork(ConvolutionalConfig(**{**c, "shape": tuple(c["shape"])}), seed)
        return VisionTransformer(VisionConfig(**{**c, "grid": tuple(c["grid"])}), seed)

    def collate(self, samples: tuple[Pixels, NDArray[np.int64]], context: BatchContext) -> Batch:
        pixels, labels = torch.from_numpy(samples[0]), torch.from_numpy(samples[1])
        if context.training:
            pixels = augment_each(pixels, self.settings, (context.random(row) for row in range(len(pixels))))
        return Batch({"image": Stream(features=self.patches.encode(pixels))}, {"loss": labels})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        # Label smoothing in training only.
        smoothing = self.settings.label_smoothing if logits.requires_grad else 0.0
        terms = {"loss": cross_entropy_term(logits, targets, smoothing)}
        return terms if logits.requires_grad else {**terms, **metric_terms(logits, targets)}

    # Prediction.

    def read_files(self, files: Sequence[str]) -> Tensor:
        """Return image files as (n, C, H, W) uint8 in the run's format. Raise UserError naming the first that fails."""
        assert self.image_format is not None
        images = []
        for name in files:
            try:
                images.append(decode(Path(name).read_bytes(), self.image_format))
            except (OSError, ValueError) as error:
                raise UserError(f"cannot read {shown_path(name)}: {reason_of(error)}") from None
            except Unreadable as error:
                raise UserError(f"{shown_path(name)}: {error}") from None
        return torch.from_numpy(np.stack(images))

    def logits(self, pixels: Tensor, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, classes) for images (B, C, H, W) uint8."""
        with eval_mode(self.model) as model, torch.no_grad():
            batch = Batch({"image": Stream(features=self.patches.encode(pixels))})
            logits: Tensor = model(batch.to(device_of(self.model)), hooks=hooks)
        return logits

    def predict(self, files: str | Sequence[str]) -> list[dict[str, Any]]:
        """Return for each image file the most likely class, and the probability of each class in descending order.

        Raise UserError for a file that is no complete image.
        """
        files = [files] if isinstance(files, str) else list(files)
        answers = []
        for start in range(0, len(files), 64):
            logits = self.logits(self.read_files(files[start : start + 64]))
            for probabilities in logits.double().softmax(-1).tolist():
                ranked = sorted(zip(self.classes, probabilities, strict=True), key=lambda one: -one[1])
                answers.append({"label": ranked[0][0], "probabilities": dict(ranked)})
        return answers

    @action(PredictOptions, name="predict")
    def _predict(self, options: PredictOptions, show: Show) -> dict[str, Any]:
        """Classify image files."""
        if not options.files:
            raise UserError("nothing to classify: give image files")
        answers = self.predict(options.files)
        best = [list(answer["probabilities"].items()) for answer in answers]
        if len(answers) == 1:
            rows = [[label, f"{p:.1%}"] for label, p in best[0]]
            show(plain_table(rows, ["label", "probability"]) + "\n")
        else:
            rows = [
                [file, ", ".join(f"{label} {p:.1%}" for label, p in top[: options.num_answers])]
                for file, top in zip(options.files, best, strict=True)
            ]
            show(plain_table(rows, ["file", "label and probability"]) + "\n")
        return {"predictions": [{"file": file, **one} for file, one in zip(options.files, answers, strict=True)]}

    @action(AttentionOptions, name="inspect attention")
    def _inspect_attention(self, options: AttentionOptions, show: Show) -> dict[str, Any]:
        """Draw an image with the attention of each head, their mean, and attention rollout."""
        o = options
        if not isinstance(self.model, VisionTransformer):
            raise UserError(f"attention over an image needs a vision transformer ({flag('model')} vit)")
        if o.file is None:
            raise UserError("no image to inspect: give an image file")
        layers = self.model.config.depth
        layer = layers if o.layer is None else o.layer
        if layer > layers:
            raise UserError(f"{flag('layer')} {layer}: the model has layers 1 to {layers}")
        out = place_of(o.out or f"{Path(o.file).stem}-attention.png")
        pixels = self.read_files([o.file])
        with eval_mode(self.model):
            found = image_attention(self.model, self.patches.encode(pixels).to(device_of(self.model)), layer - 1)
        maps = {f"layer {layer}, mean": found.heads.mean(0), "rollout": found.rollout}
        maps |= {f"head {number}": head for number, head in enumerate(found.heads, start=1)}
        shown = {name: values.tolist() for name, values in maps.items()}
        probabilities = found.logits.double().softmax(-1)
        best = int(probabilities.argmax())
        label, probability = self.classes[best], float(probabilities[best])
        title = f"{label} {probability:.1%}"
        draw_overlays(pixels[0].numpy(), shown, out, title=title, dark=o.dark)
        show(f"{title}\n{out}\n")
        grid = list(self.model.config.grid)
        return {"label": label, "probability": probability, "grid": grid, "maps": shown, "out": str(out)}

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        assert self.image_format is not None
        self.patches.save(folder / "tokenizer.json")
        return {
            "classes": self.classes,
            "image_format": self.image_format.as_dict(),
            "tokenizer": self.patches.fingerprint(),
        }

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        self._patches = Patches.load(folder / "tokenizer.json")
        if self._patches.fingerprint() != saved.get("tokenizer"):
            raise UserError(f"{folder / 'tokenizer.json'}: is not the tokenizer that the run was trained with")
        config = folder / "config.json"
        try:
            self.image_format = ImageFormat.from_dict(saved["image_format"])
            self.classes = [str(label) for label in saved["classes"]]
            fits = self.image_format.shape == self._patches.shape
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{config}: assets have no image_format or no classes ({error})") from None
        if not fits or len(self.classes) < 2:
            raise UserError(f"{config}: its image_format and classes do not fit the tokenizer")


def _svm_baseline(train: ImageSamples, val: ImageSamples) -> Baseline | None:
    """Return the accuracy of a support-vector machine on the pixels, on the same split."""
    if (found := svm_accuracy(train.pixels, train.labels, val.pixels, val.labels)) is None:
        return None
    accuracy, C, scale = found
    note = f"C = {C:g}, γ = {scale:g} times scikit-learn's default, chosen on a fifth of the training images"
    if len(train) > MAX_IMAGES:
        note += f"; trained on {MAX_IMAGES:,} of {len(train):,} images"
    if (side := block_size(train.pixels.shape)) > 1:
        note += f"; pixels averaged over {side} × {side}"
    return Baseline("support-vector machine on pixels", accuracy, "accuracy", note, "accuracy")


def _nearest_divisor(side: int, wanted: float) -> int:
    """Return the divisor of a side that is nearest to a number, the larger of two."""
    return min((n for n in range(1, side + 1) if side % n == 0), key=lambda n: (abs(n - wanted), -n))
