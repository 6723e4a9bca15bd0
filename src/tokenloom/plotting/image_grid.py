"""Many small pictures on one sheet, each enlarged without smoothing, with a caption below."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import UserError
from tokenloom.plotting import style

# Pixels of the sheet: about how large a picture is shown, between pictures, and for a line of text.
SHOWN, GAP, LINE = 112, 10, 18
# All pictures together on a sheet, about, and how many there may be.
MOST_PIXELS, MOST = 40_000_000, 10_000


def draw_sheet(
    pictures: NDArray[np.uint8],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    columns: int | None = None,
    dark: bool = False,
) -> tuple[int, int]:
    """Write pictures (n, C, H, W) with 1 or 3 channels onto one PNG, row by row; returns its (rows, columns).

    captions: one each, cut where it is wider than its picture. columns: about a square when not given. Many pictures
    are shown smaller. Raises UserError without Pillow, and for a path that cannot be written.
    """
    place = style.place_of(path)
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise UserError("a sheet of pictures needs Pillow: pip install 'tokenloom[images]'") from None
    n, C, H, W = pictures.shape
    columns = min(n, columns or math.ceil(math.sqrt(n)))
    rows = -(-n // columns)
    scale = max(1, round(min(SHOWN, math.sqrt(MOST_PIXELS / n)) / max(H, W)))
    cell = (W * scale + GAP, H * scale + GAP + (LINE if captions else 0))
    look = style.palette(dark)
    sheet = Image.new("RGB", (columns * cell[0] + GAP, rows * cell[1] + GAP), look.background)
    pen, fonts = ImageDraw.Draw(sheet), _fonts("".join(captions))
    for number, picture in enumerate(pictures):
        left, top = GAP + number % columns * cell[0], GAP + number // columns * cell[1]
        image = Image.fromarray(picture[0] if C == 1 else picture.transpose(1, 2, 0)).convert("RGB")
        sheet.paste(image.resize((W * scale, H * scale), Image.Resampling.NEAREST), (left, top))
        # Else a picture that is white at its border has no border on white.
        pen.rectangle((left - 1, top - 1, left + W * scale, top + H * scale), outline=look.grid)
        if captions:
            font = next((one for one in fonts if _has(one, captions[number])), fonts[0])
            text = _cut(captions[number], W * scale, font)
            pen.text((left + W * scale / 2, top + H * scale + 3), text, fill=look.ink, font=font, anchor="ma")
    raw = io.BytesIO()
    sheet.save(raw, "PNG")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)  # where that fails, writing says why
    style.write_png(raw.getvalue(), place)
    return rows, columns


def _fonts(text: str) -> list[Any]:
    """Pillow's own font, and those that matplotlib finds where letters are lacking in it."""
    from PIL import ImageFont

    fonts: list[Any] = [ImageFont.load_default(13)]
    if not _has(fonts[0], text):
        # Without matplotlib there is no other font to be relied on, and a letter that is lacking is a box.
        with contextlib.suppress(ImportError, OSError):
            from matplotlib.font_manager import findfont

            fonts += [ImageFont.truetype(findfont(family), 13) for family in style.families()]
    return fonts


def _has(font: Any, text: str) -> bool:
    """Whether a font has every letter of a text: one that it lacks looks like a code point that no font has."""
    lacking = bytes(font.getmask("\U0010fffd"))
    return all(letter.isspace() or bytes(font.getmask(letter)) != lacking for letter in set(text))


def _cut(text: str, width: int, font: Any) -> str:
    """A text, or its beginning and an ellipsis, that is no wider than that."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
