"""From image files to one array: `decode` is the only way from a file to what a model sees, in training and in use.

`decode_all` reads many files once: it finds what the format leaves open, names corrupt files, and caches the result.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.samples import fingerprint_of
from tokenloom.data.text import reason_of
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.utils.cache import cache_folder
from tokenloom.utils.files import atomic_path
from tokenloom.utils.names import counted, some
from tokenloom.utils.progress import track_progress

if TYPE_CHECKING:
    from PIL.Image import Image

ColorMode = Literal["gray", "rgb"]
ResizeMode = Literal["crop", "pad", "stretch"]
Pixels = NDArray[np.uint8]

# Endings of file names taken for images; Pillow decides whether they are.
ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".jp2", ".avif", ".pcx"}
)
CHANNELS: dict[ColorMode, int] = {"gray": 1, "rgb": 3}
_GRAY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")

# Images of different sizes, or larger than MAX_SIDE, are resized to squares of this side.
DEFAULT_SIDE, MAX_SIDE = 64, 128
# Fewer files are not worth caching.
_MIN_CACHED_FILES = 200
_MAX_CACHE_ENTRIES = 16
_VERSION = 3  # Of the decoder: entries of other versions are not used.
_SHOWN = 5


@dataclass(frozen=True)
class ImageFormat:
    """The format that every image is converted to. size: (height, width); None for size or color_mode: see `settle`.

    resize_mode: for another aspect ratio, `crop` keeps the center, `pad` adds borders of the background color,
    `stretch` distorts. background_color: behind transparent pixels, a name or #rrggbb. max_pixels: most pixels of a
    decoded file, since a file of a few kilobytes can decode to gigabytes (a decompression bomb).
    """

    size: tuple[int, int] | None = None
    color_mode: ColorMode | None = None
    resize_mode: ResizeMode = "crop"
    background_color: str = "white"
    max_pixels: int = 100_000_000

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image. Raises ValueError while size or color mode is open."""
        if self.size is None or self.color_mode is None:
            raise ValueError("the image format is not settled yet")
        return CHANNELS[self.color_mode], *self.size

    def as_dict(self) -> dict[str, Any]:
        """Return the format as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> ImageFormat:
        """Return the format from values for JSON. Raises TypeError for unknown fields."""
        size = kept.get("size")
        return cls(**{**kept, "size": None if size is None else (int(size[0]), int(size[1]))})


@dataclass(frozen=True)
class Header:
    """The header of an image file: (height, width) after rotation, color mode, and whether there are several frames."""

    size: tuple[int, int]
    color_mode: ColorMode
    animated: bool


def pillow() -> Any:
    """Return the module PIL. Raises UserError with the package to install."""
    try:
        import PIL.Image
        import PIL.ImageColor
        import PIL.ImageOps
    except ImportError:
        raise UserError("images need Pillow: pip install 'tokenloom[images]'") from None
    return PIL


def background_color(name: str) -> tuple[int, int, int]:
    """Return (red, green, blue) of a color name. Raises UserError for an unknown name."""
    try:
        red, green, blue = pillow().ImageColor.getrgb(name)[:3]
    except ValueError:
        raise UserError(f"--background-color {name}: no such color: give a name such as white, or #rrggbb") from None
    return red, green, blue


def header(raw: bytes, image_format: ImageFormat) -> Header:
    """Read the header of a file without decoding it. Raises Unreadable."""
    with _opened(raw, image_format) as image:
        turned = _orientation(image) >= 5
        width, height = image.size[::-1] if turned else image.size
        gray = image.mode in _GRAY_MODES
        return Header((height, width), "gray" if gray else "rgb", bool(getattr(image, "is_animated", False)))


def decode(raw: bytes, image_format: ImageFormat) -> Pixels:
    """Decode an image file to (C, H, W): the first frame, upright, over the background, in the format's size and mode.

    16-bit values are scaled to 8 bits. Raises Unreadable, with the reason, for a file that is no image or truncated.
    """
    with _opened(raw, image_format) as image:
        image.load()
        upright = pillow().ImageOps.exif_transpose(image)
        return to_array(_flattened(upright, image_format.background_color), image_format)


def to_array(image: Image, image_format: ImageFormat) -> Pixels:
    """Convert an image without transparency to (C, H, W) of the format."""
    C, H, W = image_format.shape
    image = image.convert("L" if C == 1 else "RGB")
    if image.size != (W, H):
        ops, smooth = pillow().ImageOps, pillow().Image.Resampling.BICUBIC
        if image_format.resize_mode == "stretch":
            image = image.resize((W, H), smooth)
        elif image_format.resize_mode == "pad":
            behind = background_color(image_format.background_color)
            image = ops.pad(image, (W, H), smooth, color=_gray(behind) if C == 1 else behind)
        else:
            image = ops.fit(image, (W, H), smooth)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).reshape(H, W, C).transpose(2, 0, 1))


def convert(pixels: Pixels, image_format: ImageFormat) -> Pixels:
    """Convert decoded images (n, C, H, W) to another format."""
    if pixels.shape[1:] == image_format.shape:
        return pixels
    image = pillow().Image
    gray = pixels.shape[1] == 1
    flat = [image.fromarray(one[0] if gray else one.transpose(1, 2, 0)) for one in pixels]
    return np.stack([to_array(one, image_format) for one in flat])


def _gray(color: tuple[int, int, int]) -> int:
    return int(pillow().Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0)))


@contextmanager
def _opened(raw: bytes, image_format: ImageFormat) -> Iterator[Image]:
    if not raw:
        raise Unreadable("empty (0 bytes)")
    module = pillow().Image
    # Pillow's own limit warns, and refuses at twice as much; ours names the option.
    before, module.MAX_IMAGE_PIXELS = module.MAX_IMAGE_PIXELS, None
    try:
        with module.open(io.BytesIO(raw)) as image:
            width, height = image.size
            if width * height > image_format.max_pixels:
                most = f"{image_format.max_pixels / 1e6:,.6g} million"
                raise Unreadable(f"{width:,} × {height:,} pixels are more than the {most} that --max-megapixels allows")
            yield image
    except Unreadable:
        raise
    except pillow().UnidentifiedImageError:
        raise Unreadable(f"no image of a known format ({_beginning(raw)})") from None
    except Exception as error:  # The decoders of some thirty formats raise nearly anything for a corrupt file.
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
    except Exception:  # A corrupt tag is no reason to refuse an image.
        return 1


def _flattened(image: Image, background: str) -> Image:
    """Return an image of 8 bits per value without transparency."""
    if image.mode.startswith(("I", "F")):
        return _scaled(image)
    if image.has_transparency_data:
        module, behind = pillow().Image, (*background_color(background), 255)
        whole = image.convert("RGBA")
        over: Image = module.alpha_composite(module.new("RGBA", whole.size, behind), whole).convert("RGB")
        return over
    return image


def _scaled(image: Image) -> Image:
    """Scale integers from 0 … 65,535, and floats from 0 … 1, to 0 … 255."""
    values = np.asarray(image)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    most = 1.0 if image.mode == "F" else 65_535.0
    if not (low >= 0 and high <= most):
        raise Unreadable(f"values from {low:g} to {high:g}, where 0 to {most:,.0f} can be read: save it with 8 bits")
    scaled = np.rint(values.astype(np.float64) * (255.0 / most)).astype(np.uint8)
    result: Image = pillow().Image.fromarray(scaled)
    return result


# Many files.

Files = Sequence[tuple[str, Path]]


@dataclass(frozen=True)
class Decoded:
    """pixels: (n, C, H, W) of the readable files, in order. corrupt: (id, reason) of the others."""

    pixels: Pixels
    corrupt: list[tuple[str, str]]
    image_format: ImageFormat
    notes: list[str]


def decode_all(files: Files, image_format: ImageFormat) -> Decoded:
    """Decode all files to one format. What the format leaves open is decided from the files, and noted.

    The result is cached under the names, sizes and modification times of the files.
    """
    entry = _cache_entry(files, image_format) if len(files) >= _MIN_CACHED_FILES else None
    if entry is not None and (cached := _load(entry)) is not None:
        return cached
    decoded = _decode(files, image_format)
    if entry is not None:
        _store(entry, decoded)
    return decoded


def _decode(files: Files, image_format: ImageFormat) -> Decoded:
    corrupt: list[tuple[str, str]] = []
    headers: dict[str, Header] = {}
    for id, path in track_progress(files, "images inspected", len(files)):
        try:
            headers[id] = header(_bytes(path), image_format)
        except Unreadable as error:
            corrupt.append((id, str(error)))
    notes: list[str] = []
    settled = settle(list(headers.values()), image_format, notes)
    check_memory(len(headers), settled)
    pixels = np.empty((len(headers), *settled.shape), dtype=np.uint8)
    n = 0
    for id, path in track_progress(files, "images decoded", len(files)):
        if id in headers:
            try:
                pixels[n] = decode(_bytes(path), settled)
                n += 1
            except Unreadable as error:
                corrupt.append((id, str(error)))
    pixels = pixels[:n]
    if image_format.color_mode is None and settled.color_mode == "rgb" and n and (pixels == pixels[:, :1]).all():
        settled, pixels = replace(settled, color_mode="gray"), np.ascontiguousarray(pixels[:, :1])
        notes.append("no image has color: they are read as gray (--color-mode rgb keeps three channels)")
    animated = [id for id, found in headers.items() if found.animated]
    if animated:
        notes.append(f"only the first frame is read of {counted(len(animated), 'animation')}: {some(animated, _SHOWN)}")
    order = {id: number for number, (id, _) in enumerate(files)}
    return Decoded(pixels, sorted(corrupt, key=lambda one: order[one[0]]), settled, notes)


def check_memory(n: int, image_format: ImageFormat) -> None:
    """Raise UserError where n images, and the parts that they are split into, do not fit into memory."""
    C, H, W = image_format.shape
    need, there = 3 * n * C * H * W, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > there:
        raise UserError(
            f"{n:,} images of {W} × {H} pixels need {need / 1e9:,.1f} GB of memory, and this machine has"
            f" {there / 1e9:,.1f}; a smaller --image-size needs less"
        )


def settle(headers: Sequence[Header], image_format: ImageFormat, notes: list[str]) -> ImageFormat:
    """Return the format with a size and a color mode, decided from the headers where they are open; add notes."""
    sizes = Counter(found.size for found in headers)
    size = image_format.size
    if size is None:
        size = next(iter(sizes), (DEFAULT_SIDE, DEFAULT_SIDE))
        if len(sizes) > 1 or max(size) > MAX_SIDE:
            size = (DEFAULT_SIDE, DEFAULT_SIDE)
    mode = image_format.color_mode or ("gray" if all(found.color_mode == "gray" for found in headers) else "rgb")
    if any(found != size for found in sizes):
        how = {"crop": "cropped", "pad": "padded", "stretch": "stretched"}[image_format.resize_mode]
        smallest, largest = (choose(sizes, key=lambda size: size[0] * size[1]) for choose in (min, max))
        have = f"{_shown(smallest)} pixels" if len(sizes) == 1 else f"{_shown(smallest)} to {_shown(largest)} pixels"
        notes.append(f"images of {have} are resized to {_shown(size)}, {how} (--image-size, --resize-mode)")
    return replace(image_format, size=size, color_mode=mode)


def _shown(size: tuple[int, int]) -> str:
    return f"{size[1]} × {size[0]}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None


# The cache.


def _cache_entry(files: Files, image_format: ImageFormat) -> Path | None:
    """Return the file of the cache, named by a hash of all that the result depends on; None where a file is missing."""
    try:
        stats = [(id, os.path.abspath(path), path.stat()) for id, path in files]
    except (OSError, ValueError):
        return None
    content = [[id, path, stat.st_size, stat.st_mtime_ns] for id, path, stat in stats]
    return cache_folder() / "images" / f"{fingerprint_of([_VERSION, asdict(image_format), content])[:32]}.safetensors"


def _load(entry: Path) -> Decoded | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(entry, framework="numpy") as file:
            meta, pixels = json.loads(file.metadata()["decoded"]), file.get_tensor("pixels")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    with contextlib.suppress(OSError):
        os.utime(entry)
    corrupt = [(id, reason) for id, reason in meta["corrupt"]]
    return Decoded(pixels, corrupt, ImageFormat.from_dict(meta["image_format"]), meta["notes"])


def _store(entry: Path, decoded: Decoded) -> None:
    """Write to the cache, and remove the oldest entries. A cache that cannot be written is no error."""
    from safetensors.numpy import save_file

    meta = {
        "corrupt": decoded.corrupt,
        "image_format": decoded.image_format.as_dict(),
        "notes": decoded.notes,
    }
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(entry, shared=True) as part:
            save_file({"pixels": decoded.pixels}, part, metadata={"decoded": json.dumps(meta)})
        oldest = sorted(entry.parent.glob("*.safetensors"), key=lambda path: -path.stat().st_mtime)
        for path in oldest[_MAX_CACHE_ENTRIES:]:
            path.unlink(missing_ok=True)
