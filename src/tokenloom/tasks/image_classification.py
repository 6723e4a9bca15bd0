"""Label pictures: a vision transformer, or a small convolutional network, that gives each picture one class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.data.augment import Augmentation, Draws, augment
from tokenloom.data.image_files import ImageFormat, Pixels, decode
from tokenloom.data.image_split import ImageReport
from tokenloom.data.images import ImageData, ImageSamples, looks_like_images
from tokenloom.data.text import reason_of, shown_path
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.svm import MOST, block, support_vector_accuracy, why_no_machine
from tokenloom.inspection.image_attention import look_at
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.convolutional import ConvolutionalConfig, ConvolutionalNetwork
from tokenloom.models.vision import VisionConfig, VisionTransformer, resized_positions
from tokenloom.nn.hooks import Hooks
from tokenloom.plotting.tables import plain_table
from tokenloom.tasks._classification import Classification, measured_terms
from tokenloom.tasks._image_examples import stripes
from tokenloom.tasks._image_input import read, split
from tokenloom.tasks._image_settings import (
    ImageClassificationSettings,
    LookOptions,
    PredictOptions,
    check_reading,
    nearest_divisor,
    pair,
)
from tokenloom.tasks._paths import STEPWISE, every_path
from tokenloom.tasks.base import Example, PreparedData, Show, Task
from tokenloom.tokenizers.patches import Patches
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, cross_entropy_term
from tokenloom.utils.names import with_article

# About so many pictures are seen in all: few pictures many times, many pictures fewer times.
SEEN, FEWEST_EPOCHS, MOST_EPOCHS, LEAST_STEPS, BATCH = 300_000, 8, 60, 200, 64
# Pictures of up to so many pixels a side are small: a smaller model, which has learned them after fewer passes.
SMALL, SMALL_EPOCHS = 12, 36
_TRANSFORMER_ONLY = ("patch", "heads", "read", "positions")


def _epochs(n: int) -> float:
    """How often each of n pictures is seen."""
    return min(max(SEEN / n, FEWEST_EPOCHS), MOST_EPOCHS)


class ImageClassification(Classification):
    """One class a picture."""

    name = "image-classification"
    summary = "train a model to give pictures one of several labels, from folders or a table"
    Settings = ImageClassificationSettings
    models: ClassVar[Mapping[str, str]] = {
        "vit": "vision transformer: patches as tokens of an encoder",
        "cnn": "small convolutional network",
    }
    uses: ClassVar[Mapping[str, type]] = {"predict": PredictOptions, "inspect attention": LookOptions}
    things: ClassVar[str] = "pictures"
    unit: str = "nats a picture"
    head: ClassVar[str] = "head."

    def __init__(self, settings: ImageClassificationSettings | None = None) -> None:
        super().__init__(settings)
        self.classes: list[str] = []
        self.form: ImageFormat | None = None
        self._patches: Patches | None = None
        self._origin: Patches | None = None
        self._check()

    def _check(self) -> None:
        s: ImageClassificationSettings = self.settings
        check_reading(s)
        for name in ("width", "depth", "heads"):
            if (value := getattr(s, name)) is not None and value < 1:
                raise UserError(f"--{name} {value}: must be at least 1")
        limits = {"dropout": 1.0, "smoothing": 1.0, "shift": 1.0, "scale": 1.0, "elastic": 1.0, "color": 1.0}
        for name, below in limits.items():
            value = getattr(s, name)
            if value is not None and not 0 <= value < below:
                raise UserError(f"--{name} {value}: must be from 0 up to, but not including, 1")
        for name, most in {"flip": 1, "rotate": 180}.items():
            value = getattr(s, name)
            if value is not None and not 0 <= value <= most:
                raise UserError(f"--{name} {value}: must be from 0 to {most}")
        for name in _TRANSFORMER_ONLY:
            if s.model == "cnn" and getattr(s, name) is not None:
                raise UserError(f"--{name} has no effect with --model cnn: leave it out")

    # Data.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return looks_like_images(data)

    def prepare(self, data: str | None) -> PreparedData:
        s: ImageClassificationSettings = self.settings
        assert data is not None
        found = read(s, data, self.form)
        if len(set(found.labels.tolist()) - {-1}) < 2:
            raise UserError(
                f"{data}: pictures of two classes are needed, a folder each, or a table of paths and labels; there"
                f" are {len(found)} pictures of {', '.join(found.classes) or 'no class'}"
                + ("" if found.classes else " (--task image-generation needs none)")
            )
        self.form = found.form
        parts = split(s, found)
        self.classes = self.classes or parts.classes
        if self._patches is None:
            self._patches = self._learn(parts.training.pixels)
        self._settle()
        # A picture that is seen less often needs less change to look new each time.
        self.settings = self.settings.with_changes(math.sqrt(_epochs(len(parts.training)) / MOST_EPOCHS))
        tokens = f"{self.patches.count} a picture, patches of {self.patches.patch[0]} × {self.patches.patch[1]} pixels"
        report = ImageReport.of(parts, ({"tokens": tokens} if s.model == "vit" else {}) | why_no_machine())
        training, held = self._samples(parts.training), self._samples(parts.validation)
        return PreparedData(training, held, report.lines(), report.as_dict())

    def _samples(self, data: ImageData) -> ImageSamples:
        """With the class numbers of this model, which knows classes by name."""
        number = {label: place for place, label in enumerate(self.classes)}
        own = np.array([number.get(label, IGNORE) for label in data.classes] + [IGNORE], dtype=np.int64)
        return ImageSamples(data.pixels, own[data.labels])

    def load_samples(self, data: str) -> ImageSamples:
        found = read(self.settings, data, self.form, measured=True)
        self.check_known(data, found.classes)
        return self._samples(found)

    @property
    def patches(self) -> Patches:
        """Between pictures and tokens. Raises UserError before there is one."""
        if self._patches is None:
            raise UserError("there is no tokenizer yet: train on pictures, or load a run")
        return self._patches

    def _learn(self, pixels: Pixels) -> Patches:
        """The tokenizer; values are scaled as those of the run of `--init` were."""
        found = Patches.learn(torch.from_numpy(pixels), self._patch())
        if self._origin is not None:
            return Patches(found.shape, found.patch, self._origin.mean, self._origin.deviation)
        return found

    # Starting from another run.

    def adopt_config(self, origin: Task) -> None:
        """Patches and sizes of the run; the resolution may be another, for which positions are stretched."""
        if not isinstance(origin, ImageClassification):
            raise UserError(f"--init: {with_article(origin.name)} run has no body for pictures")
        s, plain, theirs = self.settings, self.Settings(), origin.settings
        assert origin.form is not None
        assert origin.form.size is not None
        told = {
            name: getattr(theirs, name) for name in ("model", "patch", "width", "depth", "heads", "read", "positions")
        }
        told["mode"] = origin.form.mode
        if s.patch is not None and theirs.patch is not None and pair("patch", s.patch) == pair("patch", theirs.patch):
            s = replace(s, patch=theirs.patch)
        for name, value in told.items():
            if getattr(s, name) not in (getattr(plain, name), value):
                raise UserError(f"--{name} {getattr(s, name)}: the run that --init names has {value}; leave it out")
        H, W = origin.form.size
        self._origin = origin.patches
        asked = None if s.resolution is None else pair("resolution", s.resolution)
        if asked is not None and any(side % part for side, part in zip(asked, origin.patches.patch, strict=True)):
            h, w = origin.patches.patch
            raise UserError(
                f"--resolution {s.resolution}: the run that --init names has patches of {h} × {w} pixels, which do not"
                " fit into that a whole number of times"
            )
        self.settings = replace(s, **told, resolution=s.resolution or f"{H}x{W}")

    def adapt_tensor(self, name: str, value: Tensor, origin: Task) -> Tensor:
        if name != "backbone.positions.table":
            return value
        old, new = (tuple(task.model_config["grid"]) for task in (origin, self))
        return resized_positions(value, old, new)

    def output_meaning(self) -> object:
        return self.name, self.classes

    def _patch(self) -> tuple[int, int]:
        """As given; else a quarter of a small picture's sides, and an eighth of a larger one's, or near that."""
        s: ImageClassificationSettings = self.settings
        assert self.form is not None
        assert self.form.size is not None
        if s.model == "cnn":
            return 1, 1
        if s.patch is not None:
            return pair("patch", s.patch)
        H, W = self.form.size
        return nearest_divisor(H, H / (4 if H <= 32 else 8)), nearest_divisor(W, W / (4 if W <= 32 else 8))

    # The model and its loss.

    def _settle(self) -> None:
        """Decide every size that was not given."""
        if self.model_config:
            return
        s: ImageClassificationSettings = self.settings
        _, H, W = shape = self.patches.shape
        small = max(H, W) <= SMALL
        if s.model == "cnn":
            blocks = s.depth or max(1, min(3, min(H, W).bit_length() - 2))
            dropout = 0.2 if s.dropout is None else s.dropout
            self.settings = replace(s, width=s.width or 32, depth=blocks, dropout=dropout)
            self.model_config = ConvolutionalConfig(shape, len(self.classes), s.width or 32, blocks, dropout).as_dict()
            return
        width, depth, heads = s.width or (64 if small else 96), s.depth or (3 if small else 4), s.heads or 4
        if width % heads:
            raise UserError(f"--width {width}: cannot be shared evenly among --heads {heads}")
        if s.positions == "sinusoidal" and width % 4:
            raise UserError(f"--width {width}: --positions sinusoidal needs a width that 4 divides")
        patch = self.patches.patch
        self.settings = replace(
            s,
            patch=f"{patch[0]}x{patch[1]}",
            width=width,
            depth=depth,
            heads=heads,
            dropout=s.dropout or 0.0,
            read=s.read or "mean",
            positions=s.positions or "learned",
        )
        s = self.settings
        assert s.read is not None
        assert s.positions is not None
        assert s.dropout is not None
        self.model_config = VisionConfig(
            grid=self.patches.grid,
            inputs=self.patches.features,
            outputs=len(self.classes),
            width=width,
            depth=depth,
            heads=heads,
            read=s.read,
            positions=s.positions,
            dropout=s.dropout,
        ).as_dict()

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        n = len(material.training)
        batch = max(1, min(BATCH, n // 4))
        most = SMALL_EPOCHS if max(self.patches.shape[1:]) <= SMALL else MOST_EPOCHS
        steps = max(LEAST_STEPS, round(min(_epochs(n), most) * -(-n // batch)))
        rates: dict[str, Any] = {"muon_lr": 0.02, "lr": 3e-3, "weight_decay": 0.05}
        if self.settings.model == "cnn":
            rates = {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.05, "decay": "all"}
        return {**rates, "batch": batch, "steps": steps, "decay_fraction": 1.0}

    def derived(self) -> dict[str, Any]:
        c = self.model_config
        names = ("width", "depth") if self.settings.model == "cnn" else ("width", "depth", "heads", "read", "positions")
        tokens = {} if self.settings.model == "cnn" else {"tokens": self.patches.count}
        return tokens | {name: c[name] for name in names} | {"classes": len(self.classes)}

    @property
    def sequence(self) -> int:
        """Patches of a picture; a convolutional network reads pixels."""
        c = self.model_config
        rows, columns = c["shape"][1:] if self.settings.model == "cnn" else c["grid"]
        return int(rows * columns)

    def build(self, seed: int) -> nn.Module:
        c = self.model_config
        if self.settings.model == "cnn":
            return ConvolutionalNetwork(ConvolutionalConfig(**{**c, "shape": tuple(c["shape"])}), seed)
        return VisionTransformer(VisionConfig(**{**c, "grid": tuple(c["grid"])}), seed)

    @property
    def augmentation(self) -> Augmentation:
        """How pictures are changed in training."""
        s: ImageClassificationSettings = self.settings.with_changes(1.0)
        return Augmentation(s.shift, s.rotate, s.scale, s.elastic, s.flip, s.color)  # type: ignore[arg-type]

    def collate(self, samples: tuple[Pixels, NDArray[np.int64]], moment: BatchContext) -> Batch:
        pixels, labels = torch.from_numpy(samples[0]), torch.from_numpy(samples[1])
        if moment.training and not self.augmentation.nothing:
            draws = Draws.of([moment.random(row) for row in range(len(pixels))], pixels.shape[1])
            pixels = augment(pixels, self.augmentation, draws)
        return Batch({"image": Stream(features=self.patches.encode(pixels))}, {"loss": labels})

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        # Smoothed where it is trained on, and plain where it is measured.
        smoothing = self.settings.smoothing if logits.requires_grad else 0.0
        terms = {"loss": cross_entropy_term(logits, targets, smoothing)}
        return terms if logits.requires_grad else {**terms, **measured_terms(logits, targets)}

    def baseline(self, material: PreparedData) -> Baseline | None:
        """A support-vector machine on the pixels, on the same split."""
        training, held = material.training, material.validation
        assert isinstance(training, ImageSamples)
        assert isinstance(held, ImageSamples)
        if (found := support_vector_accuracy(training.pixels, training.labels, held.pixels, held.labels)) is None:
            return None
        accuracy, C, scale = found
        note = f"C = {C:g}, γ = {scale:g} of the usual, chosen on a fifth of the training pictures"
        if len(training) > MOST:
            note += f"; learned from {MOST:,} pictures of {len(training):,}"
        if (side := block(training.pixels.shape)) > 1:
            note += f"; pixels averaged over {side} × {side}"
        return Baseline("support-vector machine on pixels", accuracy, "accuracy", note, "accuracy")

    # Use.

    def pixels_of(self, files: Sequence[str]) -> Tensor:
        """Picture files as the model is given them: (n, C, H, W) uint8. Raises UserError naming the first that is
        none."""
        assert self.form is not None
        found = []
        for name in files:
            try:
                found.append(decode(Path(name).read_bytes(), self.form))
            except (OSError, ValueError) as error:
                raise UserError(f"cannot read {shown_path(name)}: {reason_of(error)}") from None
            except Unreadable as error:
                raise UserError(f"{shown_path(name)}: {error}") from None
        return torch.from_numpy(np.stack(found))

    def logits(self, pixels: Tensor, hooks: Hooks | None = None) -> Tensor:
        """(B, C, H, W) uint8 → logits (B, classes)."""
        with self.ready() as model, torch.no_grad():
            batch = Batch({"image": Stream(features=self.patches.encode(pixels))})
            logits: Tensor = model(batch.to(self.device), hooks=hooks)
        return logits

    def predict(self, files: str | Sequence[str]) -> list[dict[str, Any]]:
        """For each picture file its likeliest class, and the probability of each class, the likeliest first.

        Raises UserError for a file that is no whole picture.
        """
        files = [files] if isinstance(files, str) else list(files)
        answers = []
        for start in range(0, len(files), 64):
            logits = self.logits(self.pixels_of(files[start : start + 64]))
            for found in logits.double().softmax(-1).tolist():
                ranked = sorted(zip(self.classes, found, strict=True), key=lambda one: -one[1])
                answers.append({"label": ranked[0][0], "probabilities": dict(ranked)})
        return answers

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        if verb == "inspect attention":
            return look_at(self, options, show)
        assert isinstance(options, PredictOptions)
        if not options.files:
            raise UserError("nothing to label: give picture files")
        if options.top < 1:
            raise UserError(f"--top {options.top}: must be at least 1")
        found = self.predict(options.files)
        if len(found) == 1:
            rows = [[label, f"{p:.1%}"] for label, p in found[0]["probabilities"].items()]
            show(plain_table(rows, ["label", "probability"]) + "\n")
        else:
            best = [list(answer["probabilities"].items())[: options.top] for answer in found]
            rows = [
                [file, ", ".join(f"{label} {p:.1%}" for label, p in top)]
                for file, top in zip(options.files, best, strict=True)
            ]
            show(plain_table(rows, ["file", "label and probability"]) + "\n")
        return {"predictions": [{"file": file, **one} for file, one in zip(options.files, found, strict=True)]}

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        assert self.form is not None
        self.patches.save(folder / "tokenizer.json")
        return {"classes": self.classes, "form": self.form.as_dict(), "tokenizer": self.patches.fingerprint()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        self._patches = Patches.load(folder / "tokenizer.json")
        if self._patches.fingerprint() != kept.get("tokenizer"):
            raise UserError(f"{folder / 'tokenizer.json'}: is not the tokenizer that the run was trained with")
        try:
            self.form = ImageFormat.from_dict(kept["form"])
            self.classes = [str(label) for label in kept["classes"]]
            fits = self.form.shape == self._patches.shape
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / 'config.json'}: parts has no form or no classes ({error})") from None
        if not fits or len(self.classes) < 2:
            raise UserError(f"{folder / 'config.json'}: its form and classes do not fit the tokenizer")

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        {
            **dict.fromkeys(STEPWISE, "a picture is read at once, and nothing grows step by step"),
            "packed = alone": "a row has one label, so that it cannot hold several pictures",
        }
    )

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        table = stripes(folder)
        tiny = {"width": 16, "depth": 2, "batch": 4}
        no_padding = dict.fromkeys(
            ("padded left = unpadded", "padded right = unpadded"), "a convolutional network reads whole pictures alone"
        )
        cnn = {**tiny, "width": 8, "model": "cnn", "shift": 0.0}
        return {
            "vit": Example(table, {**tiny, "heads": 2, "patch": "2x4"}),
            "vit, mean": Example(
                table, {**tiny, "heads": 2, "read": "mean", "positions": "sinusoidal", "dropout": 0.1, "flip": 0.5}
            ),
            "cnn": Example(table, cnn, {**no_padding, "fused = explicit": "a convolutional network has no attention"}),
        }
