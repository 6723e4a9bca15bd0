"""Image data: a folder per class, a table of paths and labels, a flat folder, or a built-in set.

    data = read_images("mnist-5k")
    data.pixels        # (n, C, H, W) uint8, all of one size and color mode
    data.ids           # a name per image, the same at every reading
    data.labels        # (n,) int64, indices into data.classes; −1 for an image without a class
    data.image_format  # `decode(bytes, data.image_format)` gives another image in the same format

Corrupt files are named before training starts, and left out only with `skip_corrupt`.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.data import registry
from tokenloom.data.documents import DataSet, Facts, SplitKeys
from tokenloom.data.image_decoding import (
    ENDINGS,
    ImageFormat,
    Pixels,
    background_color,
    check_memory,
    convert,
    decode_all,
    pillow,
)
from tokenloom.data.labeled import LABELS, LabelColumns, beginning_of_table, called, read_labeled
from tokenloom.data.report import class_rows
from tokenloom.data.samples import Keys, fingerprint_of, generator_for
from tokenloom.data.text import JSON_ENDINGS, TABLE_ENDINGS, no_such, printable_path, shown_path, walk
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

PATHS = ("path", "file", "file_name", "filename", "image", "picture", "img", "image_path", "filepath", "photo")
_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_SHOWN = 5
_COLUMN_OPTIONS = "--image-column, --label-column and --header"


@dataclass(frozen=True)
class ImageData(DataSet):
    """Images of one size and color mode, in reading order.

    pixels: (n, C, H, W). ids: n names. labels: (n,), indices into `classes`, −1 for none. classes: sorted; one without
    images keeps its number. groups: images of one group belong on one side of a split; empty for none.
    """

    default_fraction: ClassVar[float] = 0.2  # A fifth of the 5,000 images of mnist-5k are 1,000.

    pixels: Pixels
    ids: Sequence[str]
    labels: NDArray[np.int64]
    classes: list[str]
    image_format: ImageFormat
    groups: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.pixels)

    def select(self, indices: Sequence[int]) -> Self:
        places = np.asarray(indices, dtype=np.int64)
        chosen = places.tolist()
        return replace(
            self,
            pixels=self.pixels[places],
            ids=[self.ids[place] for place in chosen],
            labels=self.labels[places],
            groups=[self.groups[place] for place in chosen] if self.groups else (),
        )

    def split_keys(self) -> SplitKeys:
        names = [None if label < 0 else self.classes[label] for label in self.labels.tolist()]
        digests = [hashlib.sha256(image.tobytes()).digest() for image in self.pixels]
        return SplitKeys(ids=self.ids, content=digests, labels=names, groups=self.groups, noun="image")

    def numbered_like(self, train: Self) -> Self:
        """See `DataSet.numbered_like`. Images of a class that training lacks get the label −1, and count as wrong."""
        if self.image_format.shape != train.image_format.shape:
            raise ValueError(
                f"validation images {self.image_format.shape} beside training images {train.image_format.shape}"
            )
        number = {label: place for place, label in enumerate(train.classes)}
        new = np.array([number.get(label, -1) for label in self.classes], dtype=np.int64)
        labels = np.where(self.labels < 0, -1, new[self.labels]) if len(new) else self.labels
        return replace(self, labels=labels, classes=train.classes)

    def counts(self) -> dict[str, int]:
        return {"images": len(self)}

    def facts(self, validation: Self) -> Facts:
        train, held = (Counter(part.labels.tolist()) for part in (self, validation))
        names = {-1: "(not learned)" if self.classes else "(no class)", **dict(enumerate(self.classes))}
        majority = min(train, key=lambda label: (-train[label], label))
        share = held[majority] / len(validation) if self.classes else float("nan")
        counts = {
            names[label]: (train[label], held[label])
            for label in sorted(names)
            if label >= 0 or train[label] or held[label]
        }
        memory = self.pixels.nbytes + validation.pixels.nbytes
        _, H, W = self.image_format.shape
        rows = [("images", f"{W} × {H} pixels, {self.image_format.color_mode}; {memory / 1e6:,.1f} MB")]
        if self.classes:
            rows += class_rows(counts, names[majority], share)
        values = {
            "image_format": self.image_format.as_dict(),
            "counts": counts,
            "majority": names[majority],
            "majority_share": share,
            "memory": memory,
        }
        return values, rows


@dataclass(frozen=True)
class ImageSamples:
    """Images for training or evaluation; the key is the index. `take` returns (pixels, labels)."""

    pixels: Pixels
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pixels)

    def epoch(self, seed: int, epoch: int) -> Keys:
        return generator_for(seed, epoch).permutation(len(self)).astype(np.int64)

    def all(self) -> Keys:
        return np.arange(len(self), dtype=np.int64)

    def take(self, keys: Keys) -> tuple[Pixels, NDArray[np.int64]]:
        return self.pixels[keys], self.labels[keys]

    def fingerprint(self) -> str:
        return fingerprint_of((self.pixels, self.labels))


def from_arrays(
    pixels: Pixels, ids: Sequence[str], labels: NDArray[np.int64], classes: list[str], groups: Sequence[str] = ()
) -> ImageData:
    """Return images of an array."""
    _, C, H, W = pixels.shape
    image_format = ImageFormat((H, W), "gray" if C == 1 else "rgb")
    return ImageData(pixels, ids, labels.astype(np.int64), classes, image_format, groups)


@dataclass
class _Found:
    """Files to be decoded: (id, path, label or None), the classes, and what was noticed."""

    files: list[tuple[str, Path, str | None]]
    classes: list[str]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_images(
    source: str,
    image_format: ImageFormat | None = None,
    *,
    columns: LabelColumns | None = None,
    skip_corrupt: bool | None = False,
) -> ImageData:
    """Read images.

    - a built-in data set that holds such;
    - a folder with one folder per class;
    - a folder of images, without classes;
    - `.csv`, `.tsv`, `.jsonl`, `.ndjson`, `.json` with a path, relative to the table, and a label per row.

    image_format: what is None in it is decided from the files (see `image_decoding.settle`). skip_corrupt: leave out
    corrupt files instead of raising; with None the message of the error suggests no option.

    Raises UserError, naming the files, for corrupt images, and where there are none.
    """
    image_format = image_format or ImageFormat()
    if source in registry.names():
        if columns not in (None, LabelColumns()):
            raise UserError(f"{source} is a built-in data set: {_COLUMN_OPTIONS} do not apply to it")
        return _in_form(registry.load_as(source, ImageData, "images"), image_format)
    path = Path(source)
    if not source or not os.path.lexists(path):
        raise UserError(no_such(source) if source else "no image data given: give a folder or a table")
    if path.is_dir():
        if columns not in (None, LabelColumns()):
            raise UserError(f"{shown_path(source)} is a folder: {_COLUMN_OPTIONS} do not apply to it")
        found = _folder(path)
    elif path.suffix.lower() in JSON_ENDINGS + TABLE_ENDINGS:
        found = _table(path, columns or LabelColumns())
    else:
        raise UserError(
            f"{shown_path(source)}: images are read from a folder, or from a table (.csv, .tsv, .jsonl) of paths and"
            " labels"
        )
    name = printable_path(path.resolve().name or source)
    return _decoded(found, image_format, name, skip_corrupt)


def looks_like_images(source: str) -> str | None:
    """Return why these data look like images, or None. Reads file names, and the beginning of a table."""
    if source in registry.names():
        return "images" if registry.find(source).data_class is ImageData else None
    path = Path(source)
    text, titles = beginning_of_table(path)
    if called(PATHS, titles) and called(LABELS, titles) and any(ending in text.lower() for ending in ENDINGS):
        return "a table of images with a column of labels"
    if not path.is_dir():
        return None
    seen = images = 0
    for relative, problem in walk(path):
        if problem is None:
            seen += 1
            images += Path(relative).suffix.lower() in ENDINGS
            if seen >= 200:
                break
    return "a folder of images" if 2 * images > seen else None


# Finding files.


def _folder(root: Path) -> _Found:
    inside: list[tuple[str, Path]] = []
    outside: list[tuple[str, Path]] = []
    skipped: list[tuple[str, str]] = []
    for relative, problem in sorted(walk(root), key=lambda found: Path(found[0]).parts):
        name = printable_path(relative)
        if problem is None and Path(relative).suffix.lower() not in ENDINGS:
            problem = f"no image ({Path(relative).suffix.lower() or 'a name without ending'})"
        if problem is not None:
            skipped.append((name, problem))
        else:
            (inside if "/" in relative else outside).append((name, root / relative))
    folders = sorted(
        printable_path(one.name) for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")
    )
    if len(folders) > 1 and set(map(str.casefold, folders)) <= _PARTS:
        raise UserError(
            f"{shown_path(str(root))}: its folders are called {some(folders)}, which are parts and not classes: give"
            f" {root / folders[0]} as the data, and another with --val-data"
        )
    if not inside and not outside:
        reasons = f": {some((f'{name} ({reason})' for name, reason in skipped), 3)}" if skipped else ""
        raise UserError(f"{shown_path(str(root))}: contains no images{reasons}")
    if not inside:
        return _Found([(name, path, None) for name, path in outside], [], skipped)
    found = _Found([(name, path, name.split("/")[0]) for name, path in inside], folders, skipped)
    if outside:
        names = some((name for name, _ in outside), _SHOWN)
        found.notes.append(f"left out {counted(len(outside), 'image')} outside of class folders: {names}")
    return found


def _table(path: Path, columns: LabelColumns) -> _Found:
    """Read a table of one image per row; a repeat of a path with the same label counts once."""
    data = read_labeled(str(path), columns=replace(columns, texts=PATHS, text_option="image_column"))
    files: dict[tuple[str, str], tuple[str, Path, str | None]] = {}
    paths, repeats = set[str](), []
    for item in data.items:
        if (item.text, item.label) in files:
            repeats.append(item.id)
            continue
        id = f"{item.text} ({item.label})" if item.text in paths else item.text
        files[item.text, item.label] = (id, path.parent / item.text, item.label)
        paths.add(item.text)
    notes = list(data.notes)
    if repeats:
        what = counted(len(repeats), "row")
        notes.append(f"left out {what} whose path and label stand in another too: {some(repeats, _SHOWN)}")
    return _Found(list(files.values()), data.classes, list(data.skipped), notes)


def _decoded(found: _Found, image_format: ImageFormat, name: str, skip_corrupt: bool | None) -> ImageData:
    pillow()
    background_color(image_format.background_color)
    read = decode_all([(id, path) for id, path, _ in found.files], image_format)
    if read.corrupt:
        listed = some((f"{id} ({reason})" for id, reason in read.corrupt), _SHOWN)
        what = f"{len(read.corrupt):,} of {counted(len(found.files), 'image')} cannot be read: {listed}"
        if len(read.corrupt) == len(found.files):
            raise UserError(f"{name}: {what}")
        if not skip_corrupt:
            raise UserError(f"{name}: {what}" + ("" if skip_corrupt is None else "; --skip-corrupt leaves them out"))
    gone = {id for id, _ in read.corrupt}
    files = [file for file in found.files if file[0] not in gone]
    number = {label: place for place, label in enumerate(found.classes)}
    labels = np.array([-1 if label is None else number[label] for _, _, label in files], dtype=np.int64)
    return ImageData(
        pixels=read.pixels,
        ids=[id for id, _, _ in files],
        labels=labels,
        classes=found.classes,
        image_format=read.image_format,
        name=name,
        skipped=[*read.corrupt, *found.skipped],
        notes=[*found.notes, *read.notes, *_doubtful_classes(found.classes, labels)],
    )


def _in_form(data: ImageData, image_format: ImageFormat) -> ImageData:
    """Convert a built-in set to a format."""
    background_color(image_format.background_color)
    settled = replace(
        image_format,
        size=image_format.size or data.image_format.size,
        color_mode=image_format.color_mode or data.image_format.color_mode,
    )
    check_memory(len(data), settled)
    return replace(data, pixels=convert(data.pixels, settled), image_format=settled)


def _doubtful_classes(classes: list[str], labels: NDArray[np.int64]) -> list[str]:
    counts = np.bincount(labels[labels >= 0], minlength=len(classes))
    empty = [label for label, n in zip(classes, counts, strict=True) if n == 0]
    if not empty:
        return []
    return [f"{counted(len(empty), 'class', 'classes')} without images, which keep their numbers: {some(empty)}"]
