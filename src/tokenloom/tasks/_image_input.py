"""Pictures for a task: read and split as its settings say."""

from __future__ import annotations

from pathlib import Path

from tokenloom.data.image_files import ImageFormat
from tokenloom.data.image_split import ImageSplit, split_images
from tokenloom.data.images import ImageData, read_images
from tokenloom.tasks._image_settings import ImageInputSettings, columns_of, form_of


def read(
    settings: ImageInputSettings, source: str, form: ImageFormat | None = None, *, measured: bool = False
) -> ImageData:
    """The pictures of a source, in a form, or in that of the settings. measured: a run is measured on them, whose
    settings are of other data: the columns of its table may apply to a table alone, and no option can be given."""
    columns = None if measured and not Path(source).is_file() else columns_of(settings)
    skip = settings.skip_broken or (None if measured else False)
    return read_images(source, form or form_of(settings), columns=columns, skip_broken=skip)


def split(settings: ImageInputSettings, data: ImageData) -> ImageSplit:
    """What trains and what validates of pictures that were read; those of `--validation` are read in their form."""
    validation = None if settings.validation is None else read(settings, settings.validation, data.form)
    return split_images(data, settings.val_fraction, settings.split, validation=validation)


def read_parts(settings: ImageInputSettings, source: str, form: ImageFormat | None = None) -> ImageSplit:
    """What trains and what validates. form: of the run, where there is one already."""
    return split(settings, read(settings, source, form))
