"""What trains and what validates of pictures, and the report on both."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.images import ImageData
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

# Of each class; a fifth of mnist-5k's 5,000 are 1,000.
DEFAULT_SHARE = 0.2
_SHOWN = 5
_TOP_CLASSES = 20


@dataclass(frozen=True)
class ImageSplit:
    """The two parts, how they were told apart, and what was noticed doing so. Both have the same classes and form."""

    training: ImageData
    validation: ImageData
    how: str
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """The classes by number: those of the training data."""
        return self.training.classes


def split_images(
    data: ImageData, share: float = DEFAULT_SHARE, seed: int = 0, *, validation: ImageData | None = None
) -> ImageSplit:
    """Keep a part of the pictures for validation, so that no picture stands on both sides.

    In this order: `validation`, data of their own, read in the form of `data`; the groups that the data set itself
    holds out, with the default share and seed; else `share` of the pictures of each class (or of all, without
    classes), one at least, in the order of a hash of (seed, pixels), so that a new picture does not shuffle the
    others. Pictures of equal pixels stay on one side. A class of one picture trains.

    A class of the validation data that training lacks gets the label −1: its pictures count as wrong. Raises UserError
    where one side would be empty.
    """
    if not 0 < share < 1:
        raise UserError(f"--val-fraction {share}: must be above 0 and below 1")
    digests = _digests(data)
    notes: list[str] = []
    if validation is not None:
        parts = _given(data, digests, validation, notes)
    elif isinstance(data.held_out, tuple) and data.groups and (share, seed) == (DEFAULT_SHARE, 0):
        held = np.array([group in data.held_out for group in data.groups])
        parts = _parted(data, digests, held, f"held out by the data set itself: {some(data.held_out)}", notes)
    else:
        held, what = _chosen(data, digests, share, seed, notes), "each class" if data.classes else "all"
        parts = _parted(data, digests, held, f"{share:.3g} of {what}, chosen by the pictures with seed {seed}", notes)
    for part, side in ((parts.training, "train"), (parts.validation, "validate")):
        if not len(part):
            different = len(set(digests))
            have = counted(len(data), "picture") + (f", {different:,} different" if different < len(data) else "")
            raise UserError(
                f"{data.name}: {have}: none is left to {side}; more different ones are needed, or another --val-fraction"
            )
    return parts


def _digests(data: ImageData) -> list[bytes]:
    return [hashlib.sha256(one.tobytes()).digest() for one in data.pixels]


def _chosen(data: ImageData, digests: list[bytes], share: float, seed: int, notes: list[str]) -> NDArray[np.bool_]:
    """Which pictures validate."""
    by_class: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
    counted_once: set[bytes] = set()
    for place, (digest, label) in enumerate(zip(digests, data.labels.tolist(), strict=True)):
        if digest not in counted_once:
            counted_once.add(digest)
            by_class[label][digest] = place
    held: set[bytes] = set()
    for label in sorted(by_class):
        found = by_class[label]
        ordered = sorted(found, key=lambda digest: hashlib.sha256(f"{seed} ".encode() + digest).digest())
        if len(ordered) == 1 and label >= 0:
            name, id = data.classes[label], data.ids[found[ordered[0]]]
            notes.append(f"class {name!r} has one picture alone, {id}: it trains, and nothing measures it")
        else:
            held |= set(ordered[: max(1, round(share * len(ordered)))])
    return np.array([digest in held for digest in digests])


def _parted(data: ImageData, digests: list[bytes], held: NDArray[np.bool_], how: str, notes: list[str]) -> ImageSplit:
    """By a mask. What stands on both sides is measured, and not learned."""
    measured = {digest for digest, out in zip(digests, held, strict=True) if out}
    both = np.array([digest in measured for digest in digests]) & ~held
    if both.any():
        ids = [data.ids[place] for place in np.flatnonzero(both).tolist()]
        notes.append(f"left out {counted(len(ids), 'training picture')} that is held out too: {some(ids, _SHOWN)}")
    _name_repeats(data, digests, notes)
    training, validation = np.flatnonzero(~held & ~both), np.flatnonzero(held)
    # What was noticed while reading belongs to the whole, and is told once, with the training part.
    measured_part = replace(data.part(validation), skipped=[], notes=[])
    parts = ImageSplit(data.part(training), measured_part, how, notes)
    _name_lacking(parts, notes)
    return parts


def _given(data: ImageData, digests: list[bytes], validation: ImageData, notes: list[str]) -> ImageSplit:
    if validation.form.shape != data.form.shape:
        raise ValueError(f"validation pictures {validation.form.shape} beside training pictures {data.form.shape}")
    number = {label: place for place, label in enumerate(data.classes)}
    new = np.array([number.get(label, -1) for label in validation.classes], dtype=np.int64)
    labels = np.where(validation.labels < 0, -1, new[validation.labels]) if len(new) else validation.labels
    for place, label in enumerate(validation.classes):
        if label not in number and (validation.labels == place).any():
            n = int((validation.labels == place).sum())
            ids = [validation.ids[i] for i in np.flatnonzero(validation.labels == place).tolist()]
            what = counted(n, "validation picture")
            notes.append(f"class {label!r} is in no training picture: {what}, counted as wrong: {some(ids, _SHOWN)}")
    held = set(_digests(validation))
    both = np.array([digest in held for digest in digests])
    if both.any():
        ids = [data.ids[place] for place in np.flatnonzero(both).tolist()]
        what = counted(len(ids), "training picture")
        notes.append(f"left out {what} that the validation data hold too: {some(ids, _SHOWN)}")
    _name_repeats(data, digests, notes)
    notes += [f"{validation.name}: {note}" for note in validation.notes]
    notes += [f"{validation.name}: skipped {path}: {reason}" for path, reason in validation.skipped[:_SHOWN]]
    measured = replace(validation, labels=labels, classes=data.classes)
    return ImageSplit(
        data.part(np.flatnonzero(~both)), measured, f"validation on {validation.name}, which was given", notes
    )


def _name_repeats(data: ImageData, digests: list[bytes], notes: list[str]) -> None:
    """Note pictures of equal pixels, above all those with several classes."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for place, digest in enumerate(digests):
        places[digest].append(place)
    repeated = [found for found in places.values() if len(found) > 1]
    doubtful = [found for found in repeated if len({int(data.labels[place]) for place in found}) > 1]
    if repeated:
        n = sum(len(found) - 1 for found in repeated)
        rows = [" = ".join(data.ids[place] for place in found) for found in repeated]
        notes.append(f"{counted(n, 'exact repeat')} of another picture, kept on its side: {some(rows, 3)}")
    if doubtful:
        rows = [" = ".join(f"{data.ids[p]} ({data.classes[data.labels[p]]})" for p in found) for found in doubtful]
        notes.append(f"{counted(len(doubtful), 'picture')} in several classes, all kept: {some(rows, 3)}")


def _name_lacking(parts: ImageSplit, notes: list[str]) -> None:
    trained = set(parts.training.labels.tolist())
    lacking = {int(label) for label in parts.validation.labels if label >= 0} - trained
    for label in sorted(lacking):
        notes.append(f"class {parts.classes[label]!r} is measured and not trained")


@dataclass(frozen=True)
class ImageReport:
    """What a person should know before training on pictures.

    form: size and mode. counts: class → (training, validation); "(not learned)" for classes that only the validation
    part has, "(no class)" for pictures without one. majority_share: the share of the validation part that the
    commonest class of the training part has; NaN without classes. memory: bytes of all pixels.
    """

    name: str
    license: str | None
    form: dict[str, Any]
    counts: dict[str, tuple[int, int]]
    majority: str
    majority_share: float
    memory: int
    how: str
    skipped: list[tuple[str, str]]
    notes: list[str]
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, split: ImageSplit, extra: dict[str, str] | None = None) -> ImageReport:
        """The report on both parts of a split."""
        train, held = (Counter(part.labels.tolist()) for part in (split.training, split.validation))
        none = "(not learned)" if split.classes else "(no class)"
        names = {-1: none, **dict(enumerate(split.classes))}
        majority = min((label for label in train), key=lambda label: (-train[label], label))
        return cls(
            name=split.training.name,
            license=split.training.license,
            form=split.training.form.as_dict(),
            counts={
                names[label]: (train[label], held[label])
                for label in sorted(names)
                if label >= 0 or train[label] or held[label]
            },
            majority=names[majority],
            majority_share=held[majority] / len(split.validation) if split.classes else float("nan"),
            memory=split.training.pixels.nbytes + split.validation.pixels.nbytes,
            how=split.how,
            skipped=split.training.skipped,
            notes=[*split.training.notes, *split.notes],
            extra=dict(extra or {}),
        )

    def lines(self) -> list[str]:
        """The report as plain lines, `label: what`, in the order in which a person wants them."""
        trained, held = (sum(pair[side] for pair in self.counts.values()) for side in (0, 1))
        height, width = self.form["size"]
        rows = [("data", self.name + (f" ({self.license})" if self.license else ""))]
        rows.append(("samples", f"{counted(trained, 'picture')} to train, {held:,} to validate"))
        rows.append(("pictures", f"{width} × {height} pixels, {self.form['mode']}; {self.memory / 1e6:,.1f} MB"))
        rows.append(("split", self.how))
        if self.majority_share == self.majority_share:
            ordered = sorted(self.counts.items(), key=lambda item: (-sum(item[1]), item[0]))
            listed = some((f"{label} {a:,} + {b:,}" for label, (a, b) in ordered), _TOP_CLASSES)
            rows.append(("classes", f"{len(self.counts)} (to train + to validate): {listed}"))
            rows.append(("majority", f"{self.majority}: {self.majority_share:.1%} of the validation part"))
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.skipped:
            by_reason.setdefault(reason.split(":")[0].split(" (")[0], []).append(path)
        rows += [("skipped", f"{len(paths):,} × {kind}: {some(paths, _SHOWN)}") for kind, paths in by_reason.items()]
        rows += [("note", note) for note in self.notes]
        rows += list(self.extra.items())
        width = max(len(label) for label, _ in rows) + 1
        return [f"{label + ':':<{width}} {what}" for label, what in rows]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, ready for JSON."""
        return asdict(self)
