"""Pictures for a task: read and split as its settings say."""

from __future__ import annotations

from pathlib import Path

from tokenloom.data.image_files import PictureForm
from tokenloom.data.image_split import PictureSplit, split_pictures
from tokenloom.data.images import PictureData, read_pictures
from tokenloom.tasks._image_settings import PictureSettings, columns_of, form_of


def read(
    settings: PictureSettings, source: str, form: PictureForm | None = None, *, measured: bool = False
) -> PictureData:
    """The pictures of a source, in a form, or in that of the settings. measured: a run is measured on them, whose
    settings are of other data: the columns of its table may apply to a table alone, and no option can be given."""
    columns = None if measured and not Path(source).is_file() else columns_of(settings)
    skip = settings.skip_broken or (None if measured else False)
    return read_pictures(source, form or form_of(settings), columns=columns, skip_broken=skip)


def split(settings: PictureSettings, data: PictureData) -> PictureSplit:
    """What trains and what validates of pictures that were read; those of `--validation` are read in their form."""
    validation = None if settings.validation is None else read(settings, settings.validation, data.form)
    return split_pictures(data, settings.holdout, settings.split, validation=validation)


def read_parts(settings: PictureSettings, source: str, form: PictureForm | None = None) -> PictureSplit:
    """What trains and what validates. form: of the run, where there is one already."""
    return split(settings, read(settings, source, form))
