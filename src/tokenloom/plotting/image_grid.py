"""Many small images on one sheet, each enlarged without smoothing, with a caption below."""

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

# Pixels of the sheet: approximate side of an image, the gap between images, and the height of a caption.
SIDE, GAP, LINE = 112, 10, 18
# Pixels of all images on a sheet, about, and the largest number of images.
MAX_PIXELS, MAX_IMAGES = 40_000_000, 10_000


def draw_sheet(
    images: NDArray[np.uint8],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    columns: int | None = None,
    dark: bool = False,
) -> tuple[int, int]:
    """Write images (n, C, H, W) with 1 or 3 channels as one PNG, row by row; return its (rows, columns).

    captions: one per image, truncated to its width. columns: by default about a square. Many images are shown smaller.
    Raise UserError without Pillow, and for a path that cannot be written.
    """
    place = style.place_of(path)
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise UserError("a sheet of images needs Pillow: pip install 'tokenloom[images]'") from None
    n, C, H, W = images.shape
    columns = min(n, columns or math.ceil(math.sqrt(n)))
    rows = -(-n // columns)
    scale = max(1, round(min(SIDE, math.sqrt(MAX_PIXELS / n)) / max(H, W)))
    cell = (W * scale + GAP, H * scale + GAP + (LINE if captions else 0))
    look = style.palette(dark)
    sheet = Image.new("RGB", (columns * cell[0] + GAP, rows * cell[1] + GAP), look.background)
    pen, fonts = ImageDraw.Draw(sheet), _fonts("".join(captions))
    for number, pixels in enumerate(images):
        left, top = GAP + number % columns * cell[0], GAP + number // columns * cell[1]
        image = Image.fromarray(pixels[0] if C == 1 else pixels.transpose(1, 2, 0)).convert("RGB")
        sheet.paste(image.resize((W * scale, H * scale), Image.Resampling.NEAREST), (left, top))
        # A frame, for images that are white at their border.
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
    """Return Pillow's font, and those of matplotlib where it lacks letters."""
    from PIL import ImageFont

    fonts: list[Any] = [ImageFont.load_default(13)]
    if not _has(fonts[0], text):
        # Without matplotlib, missing letters are drawn as boxes.
        with contextlib.suppress(ImportError, OSError):
            from matplotlib.font_manager import findfont

            fonts += [ImageFont.truetype(findfont(family), 13) for family in style.families()]
    return fonts


def _has(font: Any, text: str) -> bool:
    """Return whether a font has every letter of a text: a missing one looks like a code point that no font has."""
    missing = bytes(font.getmask("\U0010fffd"))
    return all(letter.isspace() or bytes(font.getmask(letter)) != missing for letter in set(text))


def _cut(text: str, width: int, font: Any) -> str:
    """Return a text, truncated with an ellipsis to a width."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
