"""Pictures for the tasks that make pictures: the settings that say how they are read, and the two parts."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.data.picture_files import PictureForm
from tokenloom.data.picture_split import DEFAULT_SHARE, PictureSplit, split_pictures
from tokenloom.data.pictures import PictureData, read_pictures
from tokenloom.errors import UserError
from tokenloom.training.settings import option


@dataclass(frozen=True)
class PictureSettings:
    """How pictures are read, and which of them validate."""

    side: int | None = option(None, "bring every picture to so many pixels a side; as they are when not given")
    skip_broken: bool = option(False, "leave out pictures that cannot be read")
    validation: str | None = option(None, "validate on these pictures instead of a part of the data")
    holdout: float = option(DEFAULT_SHARE, "share of each class kept for validation")
    split: int = option(0, "seed of the split: another number keeps other pictures")

    def check_reading(self) -> None:
        """Raise UserError for values that no reading could have."""
        if self.side is not None and not 4 <= self.side <= 512:
            raise UserError(f"--side {self.side}: must be from 4 to 512 pixels")
        if self.validation is not None and (self.holdout, self.split) != (DEFAULT_SHARE, 0):
            raise UserError("--holdout and --split have no effect with --validation: leave them out")


def read(settings: PictureSettings, source: str, form: PictureForm | None = None) -> PictureData:
    """The pictures of a source, in a form, or in that of the settings."""
    side = settings.side
    wanted = form or PictureForm(size=None if side is None else (side, side))
    return read_pictures(source, wanted, skip_broken=settings.skip_broken)


def read_parts(settings: PictureSettings, source: str, form: PictureForm | None = None) -> PictureSplit:
    """What trains and what validates. form: of the run, where there is one already."""
    data = read(settings, source, form)
    validation = None if settings.validation is None else read(settings, settings.validation, data.form)
    return split_pictures(data, settings.holdout, settings.split, validation=validation)
