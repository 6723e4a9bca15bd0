"""What image tasks share: the options that say which images are read, and reading and splitting by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tokenloom.config import flag, option
from tokenloom.data.image_decoding import ImageFormat
from tokenloom.data.images import ImageData, read_images
from tokenloom.data.labeled import LabelColumns
from tokenloom.data.split import Split, split
from tokenloom.errors import UserError
from tokenloom.tasks._settings import ValidationSplit

_MAX_SIDE = 4096


@dataclass(frozen=True)
class ImageInput(ValidationSplit):
    """Which images are read, the format they are converted to, and how they are split."""

    group: ClassVar[str] = "Data"

    image_size: str | None = option(None, "pixels per side, 28 or HEIGHTxWIDTH [default: that of the images, or 64]")
    color_mode: Literal["gray", "rgb"] | None = option(None, "channels [default: gray when no image has color]")
    resize_mode: Literal["crop", "pad", "stretch"] = option("crop", "how images of another aspect ratio are resized")
    background_color: str = option("white", "color behind transparent pixels and of borders: a name, or #rrggbb")
    max_megapixels: float = option(100.0, "largest image file that is decoded, in million pixels", above=0)
    skip_corrupt: bool = option(False, "leave out images that cannot be read instead of stopping")
    image_column: str | None = option(None, "table column or JSON field with the image's path")
    label_column: str | None = option(None, "table column or JSON field with the label")
    header: bool | None = option(None, "the first row of a table names its columns [default: guessed]")
    val_fraction: float = option(
        0.2, "fraction of each class used for validation", above=0, below=1, only={"val_data": None}
    )

    def check(self) -> None:
        """Raise UserError for an image size that cannot be read."""
        super().check()
        _ = self.image_format

    @property
    def image_format(self) -> ImageFormat:
        """The format that images are converted to; its size and mode are None where the images decide."""
        size = None if self.image_size is None else parse_size("image_size", self.image_size)
        return ImageFormat(
            size, self.color_mode, self.resize_mode, self.background_color, int(self.max_megapixels * 1e6)
        )

    def read(self, source: str, image_format: ImageFormat | None = None, *, other_data: bool = False) -> ImageData:
        """Read images in a format, by default that of the settings.

        other_data: evaluation on data that the settings were not given for. Their columns then apply to a table only,
        and error messages suggest no option.
        """
        columns = LabelColumns(self.image_column, self.label_column, self.header)
        return read_images(
            source,
            image_format or self.image_format,
            columns=None if other_data and not Path(source).is_file() else columns,
            skip_corrupt=self.skip_corrupt or (None if other_data else False),
        )

    def split(self, data: ImageData) -> Split[ImageData]:
        """Split images into training and validation data. `val_data` are read in the format of the images."""
        val_data = None if self.val_data is None else self.read(self.val_data, data.image_format)
        return split(data, self.val_fraction, self.split_seed, validation=val_data)


def parse_size(name: str, text: str) -> tuple[int, int]:
    """Return "28" or "28x20" as (height, width). Raise UserError, naming the option, for anything else."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"{flag(name)} {text}: give pixels such as 28, or HEIGHTxWIDTH such as 28x20")
    height, width = int(parts[0]), int(parts[-1])
    if height * width > _MAX_SIDE**2:
        raise UserError(f"{flag(name)} {text}: at most {_MAX_SIDE} pixels per side")
    return height, width
