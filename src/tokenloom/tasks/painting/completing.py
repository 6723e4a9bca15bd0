"""Completing a picture of which the upper half is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenloom.data.picture_files import PictureForm, Pixels, decode, header
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.tasks.image_codes import ImageCodes
from tokenloom.tasks.images.settings import form_of
from tokenloom.tasks.painting.settings import ImageGenerationSettings
from tokenloom.tasks.painting.tokenisers import PictureTokenizer


def form_of_codes(settings: ImageGenerationSettings, theirs: PictureForm) -> PictureForm:
    """What the pictures are brought to for codes that are there already: that of the codes.

    Raises UserError where the settings ask for another mode, or another way of getting there.
    """
    own, plain = form_of(settings), PictureForm()
    for name in ("mode", "fit", "background", "limit"):
        asked, usual, there = (getattr(form, name) for form in (own, plain, theirs))
        if asked not in (usual, there):
            given = getattr(settings, name)
            raise UserError(f"--{name} {given}: the codes of --tokens {settings.tokens} are for {there}: leave it out")
    return theirs if own.size is None else replace(theirs, size=own.size)


def check_whole(tokenizer: PictureTokenizer | None, form: PictureForm, tokens: str) -> None:
    """Raise UserError where codes are for other pictures than the data's."""
    if isinstance(tokenizer, ImageCodes) and tokenizer.form.shape != form.shape:
        (C, H, W), (c, h, w) = tokenizer.form.shape, form.shape
        raise UserError(
            f"--tokens {tokens}: its codes are for pictures of {W} × {H} pixels with {C} channel(s), and these have"
            f" {w} × {h} with {c}"
        )


def read_top(path: str, form: PictureForm) -> Pixels:
    """The upper half (C, H', W) of a picture file, which is a whole picture of the run's size, or a half of one.

    Raises UserError for a file that cannot be read, or has another size.
    """
    _, H, W = form.shape
    half = H // 2
    try:
        raw = Path(path).read_bytes()
        size = header(raw, form).size
        if size not in ((H, W), (half, W)):
            raise UserError(
                f"--top {path}: has {size[1]} × {size[0]} pixels; this run makes pictures of {W} × {H}: give one of"
                f" these, or its upper half of {W} × {half}"
            )
        found = decode(raw, PictureForm(size, form.mode, form.fit, form.background, form.limit))
    except OSError as error:
        raise UserError(f"--top {path}: cannot be read ({error.strerror})") from error
    except Unreadable as error:
        raise UserError(f"--top {path}: {error}") from error
    return found[:, :half]


def upper_half(top: Pixels, tokenizer: PictureTokenizer, form: PictureForm) -> tuple[list[int], Pixels]:
    """The cells that an upper half (C, H', W) decides, and the pixels that are kept.

    What is below is made from the last row that is known: only rows of cells that lie wholly in the given part count,
    though codes look a little beyond their own pixels. Raises UserError for another width or height.
    """
    C, H, W = form.shape
    if top.ndim != 3 or top.shape[0] != C or top.shape[2] != W or not 1 <= top.shape[1] < H:
        raise UserError(f"an upper half of shape {top.shape}: pictures here are {C} × {H} × {W}")
    known = top.shape[1]
    whole = np.concatenate((top, np.repeat(top[:, -1:], H - known, axis=1)), axis=1)
    rows, columns = tokenizer.grid
    sure = known * rows // H
    ids = tokenizer.encode(whole[None])[0, : sure * columns]
    return ids.tolist(), top
