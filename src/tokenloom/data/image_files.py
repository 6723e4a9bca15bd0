"""One picture file, whatever its kind, as a tensor of one agreed size and mode.

`decode` is the only way from a file to what a model sees: in training, in measuring and in use.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["gray", "rgb"]
Fit = Literal["crop", "pad", "stretch"]
Pixels = NDArray[np.uint8]

# Names of files that are taken for pictures; whether they are is for Pillow to say.
ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".jp2", ".avif", ".pcx"}
)
CHANNELS: dict[Mode, int] = {"gray": 1, "rgb": 3}
_GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")


@dataclass(frozen=True)
class ImageFormat:
    """What every picture is brought to. size: (height, width) in pixels, and mode; None = found in the pictures.

    fit: how another shape becomes this one: `crop` keeps the middle, `pad` adds borders of the background, `stretch`
    changes the shape. background: the color behind transparent pixels, a name or #rrggbb. limit: the most pixels that
    a file may unpack to; a few kilobytes can ask for all memory (a decompression bomb).
    """

    size: tuple[int, int] | None = None
    mode: Mode | None = None
    fit: Fit = "crop"
    background: str = "white"
    limit: int = 100_000_000

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a picture. Raises ValueError while size or mode is still to be found."""
        if self.size is None or self.mode is None:
            raise ValueError("the form of the pictures is not settled yet")
        return CHANNELS[self.mode], *self.size

    def as_dict(self) -> dict[str, Any]:
        """The form as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> ImageFormat:
        """A form back from plain values. Raises TypeError for other fields than its own."""
        size = kept.get("size")
        return cls(**{**kept, "size": None if size is None else (int(size[0]), int(size[1]))})


@dataclass(frozen=True)
class Header:
    """What the beginning of a file says: (height, width) as a person sees it, mode, and whether more frames follow."""

    size: tuple[int, int]
    mode: Mode
    animated: bool


def pillow() -> Any:
    """The module PIL. Raises UserError, with what to install, where it is missing."""
    try:
        import PIL.Image
        import PIL.ImageColor
        import PIL.ImageOps
    except ImportError:
        raise UserError("pictures need Pillow: pip install 'tokenloom[images]'") from None
    return PIL


def background_color(name: str) -> tuple[int, int, int]:
    """(red, green, blue) of a color's name. Raises UserError for one that there is not."""
    try:
        red, green, blue = pillow().ImageColor.getrgb(name)[:3]
    except ValueError:
        raise UserError(f"--background-color {name}: no such color: give a name such as white, or #rrggbb") from None
    return red, green, blue


def header(raw: bytes, form: ImageFormat) -> Header:
    """Look at a file without unpacking it. Raises Unreadable."""
    with _opened(raw, form) as image:
        turned = _orientation(image) >= 5
        width, height = image.size[::-1] if turned else image.size
        gray = image.mode in _GREY_MODES
        return Header((height, width), "gray" if gray else "rgb", bool(getattr(image, "is_animated", False)))


def decode(raw: bytes, form: ImageFormat) -> Pixels:
    """A picture file as (C, H, W): upright, its first frame, over the background, in the form's size and mode.

    16 bits a value are scaled to 8. Raises Unreadable, saying why, for what is no picture or not a whole one.
    """
    with _opened(raw, form) as image:
        image.load()
        upright = pillow().ImageOps.exif_transpose(image)
        return fitted(_flattened(upright, form.background), form)


def fitted(image: Image, form: ImageFormat) -> Pixels:
    """A picture without transparency as (C, H, W) of the form."""
    C, H, W = form.shape
    image = image.convert("L" if C == 1 else "RGB")
    if image.size != (W, H):
        ops, smooth = pillow().ImageOps, pillow().Image.Resampling.BICUBIC
        if form.fit == "stretch":
            image = image.resize((W, H), smooth)
        elif form.fit == "pad":
            behind = background_color(form.background)
            image = ops.pad(image, (W, H), smooth, color=_gray(behind) if C == 1 else behind)
        else:
            image = ops.fit(image, (W, H), smooth)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).reshape(H, W, C).transpose(2, 0, 1))


def refitted(pixels: Pixels, form: ImageFormat) -> Pixels:
    """Pictures (n, C, H, W) that are decoded already, in another form."""
    if pixels.shape[1:] == form.shape:
        return pixels
    image = pillow().Image
    gray = pixels.shape[1] == 1
    flat = [image.fromarray(one[0] if gray else one.transpose(1, 2, 0)) for one in pixels]
    return np.stack([fitted(one, form) for one in flat])


def _gray(color: tuple[int, int, int]) -> int:
    return int(pillow().Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0)))


@contextmanager
def _opened(raw: bytes, form: ImageFormat) -> Iterator[Image]:
    if not raw:
        raise Unreadable("empty (0 bytes)")
    module = pillow().Image
    # The module's own limit warns, and refuses at twice as much; ours says which option changes it.
    before, module.MAX_IMAGE_PIXELS = module.MAX_IMAGE_PIXELS, None
    try:
        with module.open(io.BytesIO(raw)) as image:
            width, height = image.size
            if width * height > form.limit:
                most = f"{form.limit / 1e6:,.6g} million"
                raise Unreadable(f"{width:,} × {height:,} pixels are more than the {most} that --max-megapixels allows")
            yield image
    except Unreadable:
        raise
    except pillow().UnidentifiedImageError:
        raise Unreadable(f"no picture of a known kind ({_beginning(raw)})") from None
    except Exception as error:  # Readers of some thirty formats raise nearly anything where a file is broken.
        raise Unreadable(f"damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    finally:
        module.MAX_IMAGE_PIXELS = before


def _beginning(raw: bytes) -> str:
    start = raw[:200].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "it is a web page"
    if start.startswith((b"<svg", b"<?xml")):
        return "it is SVG or XML: save it as PNG"
    return f"{len(raw):,} bytes that begin {raw[:8]!r}"


def _orientation(image: Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # A damaged tag is no reason to refuse a picture.
        return 1


def _flattened(image: Image, background: str) -> Image:
    """8 bits a value, and nothing transparent."""
    if image.mode.startswith(("I", "F")):
        return _scaled(image)
    if image.has_transparency_data:
        module, behind = pillow().Image, (*background_color(background), 255)
        whole = image.convert("RGBA")
        over: Image = module.alpha_composite(module.new("RGBA", whole.size, behind), whole).convert("RGB")
        return over
    return image


def _scaled(image: Image) -> Image:
    """0 … 65,535 to 0 … 255; numbers with a point from 0 … 1."""
    values = np.asarray(image)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    most = 1.0 if image.mode == "F" else 65_535.0
    if not (low >= 0 and high <= most):
        raise Unreadable(f"values from {low:g} to {high:g}, where 0 to {most:,.0f} can be read: save it with 8 bits")
    scaled = np.rint(values.astype(np.float64) * (255.0 / most)).astype(np.uint8)
    brought: Image = pillow().Image.fromarray(scaled)
    return brought
