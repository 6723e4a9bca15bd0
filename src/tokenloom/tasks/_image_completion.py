"""Completing a picture of which the upper half is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.image_files import ImageFormat, Pixels, decode, header
from tokenloom.data.text import reason_of
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.tasks._image_generation_settings import ImageGenerationSettings
from tokenloom.tasks._image_settings import form_of
from tokenloom.tasks._image_tokenizers import PictureTokenizer
from tokenloom.tasks.image_tokenizer import ImageTokenizerTask

Ids = NDArray[np.int64]


def form_of_codes(settings: ImageGenerationSettings, theirs: ImageFormat) -> ImageFormat:
    """What the pictures are brought to for codes that are there already: that of the codes.

    Raises UserError where the settings ask for another mode, or another way of getting there.
    """
    own, plain = form_of(settings), ImageFormat()
    for name in ("mode", "fit", "background", "limit"):
        asked, usual, there = (getattr(form, name) for form in (own, plain, theirs))
        if asked not in (usual, there):
            given = getattr(settings, name)
            raise UserError(f"--{name} {given}: the codes of --tokens {settings.tokens} are for {there}: leave it out")
    return theirs if own.size is None else replace(theirs, size=own.size)


def check_whole(tokenizer: PictureTokenizer | None, form: ImageFormat, tokens: str) -> None:
    """Raise UserError where codes are for other pictures than the data's."""
    if isinstance(tokenizer, ImageTokenizerTask) and tokenizer.form.shape != form.shape:
        (C, H, W), (c, h, w) = tokenizer.form.shape, form.shape
        raise UserError(
            f"--tokens {tokens}: its codes are for pictures of {W} × {H} pixels with {C} channel(s), and these have"
            f" {w} × {h} with {c}"
        )


def read_top(path: str, form: ImageFormat) -> tuple[Pixels, str | None]:
    """The upper half (C, H', W) of a picture file, and a note where the picture had to be resized.

    The file is a whole picture, of the run's size or proportions, or an upper half of the run's size. Raises UserError
    for a file that cannot be read, or has another size.
    """
    _, H, W = form.shape
    half = H // 2
    if not half:
        raise UserError(f"--top {path}: pictures of one row of pixels have no upper half")
    try:
        raw = Path(path).read_bytes()
        h, w = header(raw, form).size
        whole = h * W == w * H
        if not whole and (h, w) != (half, W):
            raise UserError(
                f"--top {path}: has {w} × {h} pixels; this run makes pictures of {W} × {H}: give one of this size or"
                f" these proportions, or its upper half of {W} × {half}"
            )
        found = decode(raw, replace(form, size=(H, W) if whole else (half, W)))
    except (OSError, ValueError) as error:
        raise UserError(f"--top {path}: cannot be read ({reason_of(error)})") from error
    except Unreadable as error:
        raise UserError(f"--top {path}: {error}") from error
    resized = whole and (h, w) != (H, W)
    return found[:, :half], f"{path} has {w} × {h} pixels: brought to {W} × {H}" if resized else None


@dataclass(frozen=True)
class UpperHalf:
    """pixels: (C, H', W), which are kept. known: the ids of the rows of cells that lie wholly in it. partly: how many
    rows of pixels of the next row of cells lie in it too."""

    pixels: Pixels
    known: list[int]
    partly: int


def upper_half(top: Pixels, tokenizer: PictureTokenizer, form: ImageFormat) -> UpperHalf:
    """What an upper part (C, H', W) of a picture decides.

    What is below is taken to be like the last row that is known: only rows of cells that lie wholly in the given part
    count, though codes look a little beyond their own pixels. Raises UserError for another width or height.
    """
    C, H, W = form.shape
    if top.ndim != 3 or top.shape[0] != C or top.shape[2] != W or not 1 <= top.shape[1] < H:
        raise UserError(f"an upper half of shape {top.shape}: pictures here are {C} × {H} × {W}")
    height = top.shape[1]
    whole = np.concatenate((top, np.repeat(top[:, -1:], H - height, axis=1)), axis=1)
    sure, partly = divmod(height, tokenizer.cell)
    ids = tokenizer.encode(whole[None])[0, : sure * tokenizer.grid[1]]
    return UpperHalf(top, ids.tolist(), partly)


def nearest_row(rows: Ids, given: UpperHalf, tokenizer: PictureTokenizer) -> list[int]:
    """Of several rows of cells (m, columns), the one under whose decoded pixels the given ones lie nearest, in squares.

    For the row of cells that is given in part: it was drawn by the model as often as it takes, not knowing the pixels.
    What follows below it does not matter much, and is taken to be the same row again.
    """
    count, (total, columns) = len(rows), tokenizer.grid
    known = len(given.known) // columns
    ids = np.concatenate((np.tile(given.known, (count, 1)).astype(np.int64), np.tile(rows, (1, total - known))), axis=1)
    first = known * tokenizer.cell
    seen = slice(first, first + given.partly)
    made, wanted = tokenizer.decode(ids)[:, :, seen], given.pixels[:, seen]
    best = int(np.square(made.astype(np.float64) - wanted).sum((1, 2, 3)).argmin())
    chosen: list[int] = rows[best].tolist()
    return chosen
