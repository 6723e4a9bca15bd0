"""Images as rows of token ids: what tokenizes them, the training samples, and completing an image."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.config import flag
from tokenloom.data.augment import Augmentation, augment_each
from tokenloom.data.image_decoding import ImageFormat, Pixels, decode, header
from tokenloom.data.samples import Keys, fingerprint_of, generator_for
from tokenloom.data.text import reason_of
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.models.vqvae import VQVAE, VQVAEConfig
from tokenloom.tokenizers import vq
from tokenloom.tokenizers.palette import Palette
from tokenloom.tokenizers.vq import VQTokenizer
from tokenloom.training.checkpoints import load_weights, save_weights
from tokenloom.utils.files import write_json
from tokenloom.utils.progress import track_progress

Ids = NDArray[np.int64]
FORMAT = 1
# How the augmented copies of a training image are changed.
_AUGMENTATION = Augmentation(translate=0.05, rotate=7.0, scale=0.08, elastic=0.03)
# Images that are augmented and encoded at a time.
CHUNK = 500


class ImageTokenizer(Protocol):
    """Images (n, C, H, W) of bytes to ids (n, tokens) in raster order, and back."""

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        ...

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        ...

    @property
    def token_size(self) -> int:
        """Pixels per side of a token; the last row and column may extend beyond the image."""
        ...

    def encode(self, pixels: Pixels) -> Ids:
        """Return the ids of images."""
        ...

    def decode(self, ids: Ids, /) -> Pixels:
        """Return the images of ids."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of all that decides both."""
        ...


def save_tokenizer(tokenizer: ImageTokenizer, folder: Path) -> None:
    """Write a tokenizer into a run folder, which then needs no other run."""
    if isinstance(tokenizer, Palette):
        tokenizer.save(folder / "tokenizer.json")
    elif isinstance(tokenizer, VQTokenizer):
        save_weights(tokenizer.model, folder / "tokenizer.safetensors")
        content = {"format": FORMAT, "kind": vq.KIND, "model": tokenizer.config.as_dict()}
        write_json(folder / "tokenizer.json", content)
    else:
        raise TypeError(f"a {type(tokenizer).__name__} cannot be saved")


def load_tokenizer(folder: Path, fingerprint: str | None) -> ImageTokenizer:
    """Read the tokenizer of a run. Raise UserError, naming the file, when it is not the one that was saved."""
    path = folder / "tokenizer.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        tokenizer = _load_vq(content, folder) if content["kind"] == vq.KIND else Palette.load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a tokenizer ({type(error).__name__}: {error})") from error
    if tokenizer.fingerprint() != fingerprint:
        raise UserError(f"{path}: is not the tokenizer that this run was trained with")
    return tokenizer


def _load_vq(content: dict[str, Any], folder: Path) -> ImageTokenizer:
    model = VQVAE(VQVAEConfig(**content["model"]))
    load_weights(model, folder / "tokenizer.safetensors")
    return VQTokenizer(model.eval())


@dataclass(frozen=True)
class TokenizedImages:
    """Samples of images as ids; the key is the index. `take` gives (ids (B, copies, tokens), labels (B,)).

    pixels: (n, C, H, W). labels: (n,), −1 for no class. encode: images to ids (n, tokens), called when ids are first
    needed. name: a hash of the tokenizer. copies: versions of each image, of which all but the first are augmented.
    """

    pixels: Pixels
    labels: NDArray[np.int64]
    encode: Callable[[Pixels], Ids]
    name: str
    copies: int = 1

    def __len__(self) -> int:
        return len(self.pixels)

    def epoch(self, seed: int, epoch: int) -> Keys:
        return generator_for(seed, epoch).permutation(len(self)).astype(np.int64)

    def all(self) -> Keys:
        return np.arange(len(self), dtype=np.int64)

    @cached_property
    def ids(self) -> NDArray[np.int32]:
        """(n, copies, tokens); copy 0 is the image itself."""
        chunks = [(copy, start) for copy in range(self.copies) for start in range(0, len(self), CHUNK)]
        encoded: list[list[Ids]] = [[] for _ in range(self.copies)]
        size = min(CHUNK, len(self))
        for copy, start in track_progress(chunks, "images encoded", self.copies * len(self), size):
            pixels = self.pixels[start : start + CHUNK]
            encoded[copy].append(self.encode(augmented_copy(pixels, copy, start) if copy else pixels))
        return np.stack([np.concatenate(one) for one in encoded], 1).astype(np.int32)

    def take(self, keys: Keys) -> tuple[Ids, NDArray[np.int64]]:
        return self.ids[keys].astype(np.int64), self.labels[keys]

    def fingerprint(self) -> str:
        return fingerprint_of((self.pixels, self.labels, self.name, self.copies))


def augmented_copy(pixels: Pixels, copy: int, first: int = 0) -> Pixels:
    """Return images (n, C, H, W) slightly augmented, each by its copy number and index. first: index of the first."""
    generators = [generator_for(copy, first + row) for row in range(len(pixels))]
    changed = augment_each(torch.from_numpy(pixels), _AUGMENTATION, generators)
    return changed.round().clamp(0, 255).to(torch.uint8).numpy()


# Completing an image whose upper half is given.


@dataclass(frozen=True)
class UpperHalf:
    """pixels: (C, H', W), given. ids: of the rows of tokens that lie completely in it. partial_rows: rows of pixels of
    the next row of tokens that lie in it too."""

    pixels: Pixels
    ids: list[int]
    partial_rows: int


def read_upper_half(path: str, image_format: ImageFormat) -> tuple[Pixels, str | None]:
    """Return the upper half (C, H', W) of an image file, and a note where the image had to be resized.

    The file is a whole image of the run's size or aspect ratio, or an upper half of the run's size. Raise UserError
    for a file that cannot be read, or has another size.
    """
    name = f"{flag('complete')} {path}"
    _, H, W = image_format.shape
    half = H // 2
    if not half:
        raise UserError(f"{name}: images of one row of pixels have no upper half")
    try:
        raw = Path(path).read_bytes()
        h, w = header(raw, image_format).size
        whole = h * W == w * H
        if not whole and (h, w) != (half, W):
            raise UserError(
                f"{name}: has {w} × {h} pixels; this run generates images of {W} × {H}: give an image of this size or"
                f" aspect ratio, or its upper half of {W} × {half}"
            )
        pixels = decode(raw, replace(image_format, size=(H, W) if whole else (half, W)))
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: cannot be read ({reason_of(error)})") from error
    except Unreadable as error:
        raise UserError(f"{name}: {error}") from error
    resized = whole and (h, w) != (H, W)
    return pixels[:, :half], f"{path} has {w} × {h} pixels: resized to {W} × {H}" if resized else None


def encode_upper_half(pixels: Pixels, tokenizer: ImageTokenizer, image_format: ImageFormat) -> UpperHalf:
    """Return the ids that the upper part (C, H', W) of an image determines.

    The part below is filled with the last given row of pixels. Only rows of tokens that lie completely in the given
    part count, although VQ codes depend on a few pixels beyond their own. Raise UserError for another width or height.
    """
    C, H, W = image_format.shape
    if pixels.ndim != 3 or pixels.shape[0] != C or pixels.shape[2] != W or not 1 <= pixels.shape[1] < H:
        raise UserError(f"an upper half of shape {pixels.shape}: images of this run are {C} × {H} × {W}")
    height = pixels.shape[1]
    filled = np.concatenate((pixels, np.repeat(pixels[:, -1:], H - height, axis=1)), axis=1)
    rows, partial_rows = divmod(height, tokenizer.token_size)
    ids = tokenizer.encode(filled[None])[0, : rows * tokenizer.grid[1]]
    return UpperHalf(pixels, ids.tolist(), partial_rows)


def nearest_row(rows: Ids, given: UpperHalf, tokenizer: ImageTokenizer) -> list[int]:
    """Return the sampled row of tokens (of m, (m, columns)) whose decoded pixels are nearest to the given ones.

    For the row of tokens of which only the upper pixels are given. The rows below hardly matter for decoding, and are
    filled with the same row.
    """
    count, (total, columns) = len(rows), tokenizer.grid
    known = len(given.ids) // columns
    ids = np.concatenate((np.tile(given.ids, (count, 1)).astype(np.int64), np.tile(rows, (1, total - known))), axis=1)
    first = known * tokenizer.token_size
    part = slice(first, first + given.partial_rows)
    decoded, wanted = tokenizer.decode(ids)[:, :, part], given.pixels[:, part]
    best = int(np.square(decoded.astype(np.float64) - wanted).sum((1, 2, 3)).argmin())
    chosen: list[int] = rows[best].tolist()
    return chosen
