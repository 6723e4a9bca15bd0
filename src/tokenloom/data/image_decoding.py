"""Decoding many picture files once: what they are brought to, which are broken, and the cache of the result."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tokenloom.data.image_files import Header, ImageFormat, Pixels, decode, header
from tokenloom.data.samples import fingerprint_of
from tokenloom.data.text import reason_of
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.utils.cache import cache_folder
from tokenloom.utils.files import atomic_path
from tokenloom.utils.names import counted, some
from tokenloom.utils.progress import track_progress

# Pictures of different sizes, or large ones, become squares of so many pixels a side.
USUAL_SIDE, LARGEST_SIDE = 64, 128
# Fewer files are decoded again sooner than the cache is worth it.
_WORTH_KEEPING = 200
_KEPT = 16
_VERSION = 2  # Of how files are decoded: another number, and nothing that is cached is used.
_SHOWN = 5

Files = Sequence[tuple[str, Path]]


@dataclass(frozen=True)
class Decoded:
    """pixels: (n, C, H, W), those that could be read, in order. broken: (id, reason) of the others. form: settled."""

    pixels: Pixels
    broken: list[tuple[str, str]]
    form: ImageFormat
    notes: list[str]


def decode_all(files: Files, form: ImageFormat) -> Decoded:
    """All files in one form. What the form leaves open is found in them; what is found is noted.

    Each file is decoded once: the result stays in the cache, under the names, sizes and times of the files.
    """
    place = _place(files, form) if len(files) >= _WORTH_KEEPING else None
    if place is not None and (kept := _load(place)) is not None:
        return kept
    decoded = _decode(files, form)
    if place is not None:
        _store(place, decoded)
    return decoded


def _decode(files: Files, form: ImageFormat) -> Decoded:
    broken: list[tuple[str, str]] = []
    headers: dict[str, Header] = {}
    for id, path in track_progress(files, "images inspected", len(files)):
        try:
            headers[id] = header(_bytes(path), form)
        except Unreadable as error:
            broken.append((id, str(error)))
    notes: list[str] = []
    settled = settle(list(headers.values()), form, notes)
    check_memory(len(headers), settled)
    pixels = np.empty((len(headers), *settled.shape), dtype=np.uint8)
    n = 0
    for id, path in track_progress(files, "images decoded", len(files)):
        if id in headers:
            try:
                pixels[n] = decode(_bytes(path), settled)
                n += 1
            except Unreadable as error:
                broken.append((id, str(error)))
    pixels = pixels[:n]
    if form.mode is None and settled.mode == "rgb" and n and (pixels == pixels[:, :1]).all():
        settled, pixels = replace(settled, mode="gray"), np.ascontiguousarray(pixels[:, :1])
        notes.append("none of the pictures has color: they are read as gray (--color-mode rgb keeps three channels)")
    moving = [id for id, found in headers.items() if found.animated]
    if moving:
        notes.append(f"the first frame alone is read of {counted(len(moving), 'animation')}: {some(moving, _SHOWN)}")
    order = {id: number for number, (id, _) in enumerate(files)}
    return Decoded(pixels, sorted(broken, key=lambda one: order[one[0]]), settled, notes)


def check_memory(n: int, form: ImageFormat) -> None:
    """Raise UserError where n pictures of a form, and the parts that they are split into, would not fit into memory."""
    C, H, W = form.shape
    need, there = 3 * n * C * H * W, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > there:
        raise UserError(
            f"{n:,} pictures of {W} × {H} pixels need {need / 1e9:,.1f} GB of memory, and this machine has"
            f" {there / 1e9:,.1f}: --image-size brings them to fewer pixels"
        )


def settle(headers: Sequence[Header], form: ImageFormat, notes: list[str]) -> ImageFormat:
    """The form with nothing left open, and notes on what had to be decided."""
    sizes = Counter(found.size for found in headers)
    size = form.size
    if size is None:
        size = next(iter(sizes), (USUAL_SIDE, USUAL_SIDE))
        if len(sizes) > 1 or max(size) > LARGEST_SIDE:
            size = (USUAL_SIDE, USUAL_SIDE)
    mode = form.mode or ("gray" if all(found.mode == "gray" for found in headers) else "rgb")
    if any(found != size for found in sizes):
        how = {"crop": "cut to the middle", "pad": "with borders", "stretch": "stretched"}[form.fit]
        smallest, largest = (choose(sizes, key=lambda size: size[0] * size[1]) for choose in (min, max))
        have = f"{_shown(smallest)} pixels" if len(sizes) == 1 else f"{_shown(smallest)} to {_shown(largest)} pixels"
        notes.append(f"pictures of {have} are brought to {_shown(size)}, {how} (--image-size, --resize-mode)")
    return replace(form, size=size, mode=mode)


def _shown(size: tuple[int, int]) -> str:
    return f"{size[1]} × {size[0]}"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None


# The cache.


def _place(files: Files, form: ImageFormat) -> Path | None:
    """Where the result is kept: its name is a hash of all that it depends on. None where a file is not there."""
    try:
        stats = [(id, os.path.abspath(path), path.stat()) for id, path in files]
    except (OSError, ValueError):
        return None
    content = [[id, path, stat.st_size, stat.st_mtime_ns] for id, path, stat in stats]
    return cache_folder() / "pictures" / f"{fingerprint_of([_VERSION, asdict(form), content])[:32]}.safetensors"


def _load(place: Path) -> Decoded | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place, framework="numpy") as file:
            kept, pixels = json.loads(file.metadata()["kept"]), file.get_tensor("pixels")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    broken = [(id, reason) for id, reason in kept["broken"]]
    return Decoded(pixels, broken, ImageFormat.from_dict(kept["form"]), kept["notes"])


def _store(place: Path, decoded: Decoded) -> None:
    """Keep it, all or nothing, and only so many of its kind. A cache that cannot be written is no fault."""
    from safetensors.numpy import save_file

    kept = {"broken": decoded.broken, "form": decoded.form.as_dict(), "notes": decoded.notes}
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(place, shared=True) as beside:
            save_file({"pixels": decoded.pixels}, beside, metadata={"kept": json.dumps(kept)})
        oldest = sorted(place.parent.glob("*.safetensors"), key=lambda path: -path.stat().st_mtime)[_KEPT:]
        for path in oldest:
            path.unlink(missing_ok=True)
