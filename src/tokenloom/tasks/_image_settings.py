"""Settings of tasks that read pictures, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from tokenloom.config import Options, option
from tokenloom.data.image_files import ImageFormat
from tokenloom.data.image_split import DEFAULT_SHARE
from tokenloom.data.labeled import LabelColumns
from tokenloom.errors import UserError


@dataclass(frozen=True)
class ImageInputSettings(Options):
    """Which pictures, and what they are brought to."""

    resolution: str | None = option(None, "pixels a picture is brought to, 28 or HEIGHTxWIDTH; found in the data")
    mode: Literal["gray", "color"] | None = option(None, "gray or color; gray where no picture has color")
    fit: Literal["crop", "pad", "stretch"] = option("crop", "how another shape becomes this one")
    background: str = option("white", "what is behind transparent pixels: a color's name, or #rrggbb")
    limit: float = option(100.0, "most million pixels that a file may unpack to")
    skip_broken: bool = option(False, "go on without pictures that cannot be read")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the path")
    label: str | None = option(None, "column of a table, or field of JSON lines, that holds the label")
    header: bool | None = option(None, "the first row of a table names its columns; guessed when not given")
    validation: str | None = option(None, "validate on these data instead of a part of the data")
    val_fraction: float = option(DEFAULT_SHARE, "share of each class kept for validation")
    split: int = option(0, "seed of the split: another number keeps other pictures")


@dataclass(frozen=True)
class ImageClassificationSettings(ImageInputSettings):
    """The pictures, the model, and how they are changed in training; None = derived from the pictures."""

    model: Literal["vit", "cnn"] = option("vit", "vit: a vision transformer; cnn: a small convolutional network")
    patch: str | None = option(None, "pixels of a patch, 7 or HEIGHTxWIDTH")
    width: int | None = option(None, "features of a patch inside the model; cnn: channels of the first block")
    depth: int | None = option(None, "layers; cnn: blocks, each of which halves the sides")
    heads: int | None = option(None, "attention heads a layer")
    dropout: float | None = option(None, "share of activations dropped in training")
    read: Literal["class", "mean"] | None = option(None, "what is read: a class token, or the mean of the patches")
    positions: Literal["learned", "sinusoidal"] | None = option(None, "learned, or sinusoidal in two dimensions")
    smoothing: float = option(0.05, "share of the target spread over all classes (label smoothing)")
    shift: float | None = option(None, "training: shifted by up to so much of a side [default: 0.07, of many less]")
    rotate: float | None = option(None, "training: turned by up to so many degrees [default: 10, of many less]")
    scale: float | None = option(None, "training: larger or smaller by up to so much [default: 0.1, of many less]")
    elastic: float | None = option(None, "training: bent by about so much of a side [default: 0.04, of many less]")
    flip: float = option(0.0, "training: share of the pictures mirrored; 0.5 where left and right mean nothing")
    color: float = option(0.0, "training: brightness, contrast and colors changed by up to so much")

    def with_changes(self, share: float) -> Self:
        """With so much of the usual changes where none was given."""
        usual = {"shift": 0.07, "rotate": 10.0, "scale": 0.1, "elastic": 0.04}
        found: dict[str, Any] = {
            name: float(f"{share * most:.2g}") for name, most in usual.items() if getattr(self, name) is None
        }
        return replace(self, **found)


@dataclass(frozen=True)
class PredictOptions(Options):
    """Which pictures are to be labeled."""

    files: list[str] = option([], "picture files to be labeled", positional=True)
    top: int = option(3, "how many classes to show of each, where there are several files")


@dataclass(frozen=True)
class LookOptions(Options):
    """Which picture, which layer, and where the drawing goes."""

    file: str | None = option(None, "a picture file", positional=True)
    layer: int | None = option(None, "the layer whose attention is shown, from 1; the last")
    out: str | None = option(None, "the drawing to write, a PNG")
    dark: bool = option(False, "light on dark")


def form_of(s: ImageInputSettings) -> ImageFormat:
    """What pictures are brought to. Raises UserError for a value out of range."""
    if not s.limit > 0:
        raise UserError(f"--limit {s.limit}: must be above 0 (million pixels)")
    size = None if s.resolution is None else pair("resolution", s.resolution)
    return ImageFormat(size, s.mode, s.fit, s.background, int(s.limit * 1e6))


def pair(name: str, text: str) -> tuple[int, int]:
    """ "28" or "28x20" as (height, width). Raises UserError for anything else."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--{name} {text}: give pixels such as 28, or HEIGHTxWIDTH such as 28x20")
    if int(parts[0]) * int(parts[-1]) > 4096 * 4096:
        raise UserError(f"--{name} {text}: at most 4096 pixels a side")
    return int(parts[0]), int(parts[-1])


def columns_of(s: ImageInputSettings) -> LabelColumns:
    """Where a table holds paths and labels."""
    return LabelColumns(s.column, s.label, s.header)


def check_reading(s: ImageInputSettings) -> None:
    """Raise UserError for values that no reading could have, and where the split has no effect."""
    form_of(s)
    if not 0 < s.val_fraction < 1:
        raise UserError(f"--val-fraction {s.val_fraction}: must be above 0 and below 1")
    if s.validation is not None and (s.val_fraction, s.split) != (DEFAULT_SHARE, 0):
        raise UserError("--val-fraction and --split have no effect with --validation: leave them out")


def nearest_divisor(side: int, wanted: float) -> int:
    """The divisor of a side that is nearest to what is wanted, the larger of two."""
    return min((n for n in range(1, side + 1) if side % n == 0), key=lambda n: (abs(n - wanted), -n))
