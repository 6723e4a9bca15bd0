"""The train/validation split of all kinds of data: no content stands on both sides.

parts = split(read_text("shakespeare"), 0.1)
parts.train, parts.validation     # two data sets of the same kind
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from tokenloom.data.documents import DataSet, Document, SplitKeys, TextData
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

D = TypeVar("D", bound=DataSet)
K = TypeVar("K")

TRAIN, VALIDATION, LEFT_OUT = 0, 1, 2
# With fewer distinct documents, whole ones rarely come near the fraction: the text is cut instead.
MIN_DOCUMENTS = 5
_SHOWN = 5


@dataclass(frozen=True)
class Split(Generic[D]):
    """Training and validation data; how: how they were chosen; notes: what was noticed."""

    train: D
    validation: D
    how: str
    notes: list[str] = field(default_factory=list)


@dataclass
class Sides:
    """The side of every example (TRAIN, VALIDATION or LEFT_OUT).

    cut: (index, position): that example is divided there; what comes before trains, the rest validates.
    """

    side: bytearray
    how: str
    notes: list[str] = field(default_factory=list)
    cut: tuple[int, int] | None = None

    def indices(self, side: int) -> list[int]:
        """Return the indices of the examples on one side."""
        return [index for index, one in enumerate(self.side) if one == side]


def split(data: D, fraction: float | None = None, seed: int = 0, *, validation: D | None = None) -> Split[D]:
    """Choose validation data.

    1. `validation`, data of their own, where given. Training examples that occur in them are left out if the data
       have labels, and reported otherwise.
    2. What the data set itself holds out (`held_out`), with the default fraction and seed.
    3. Data with labels: `fraction` of the distinct contents of each class, at least one, in the order of a hash of
       (seed, content). A class with a single content trains.
    4. Data without labels: whole examples in the order of a hash of (seed, id), each taken if it brings the share
       nearer to `fraction`. A text of fewer than `MIN_DOCUMENTS` documents is cut at int((1 − fraction) · characters).

    The hash order means that a new example does not shuffle the others. fraction: by default that of the kind of data.
    Raises UserError, with the counts, when a side would be empty.
    """
    fraction = data.default_fraction if fraction is None else fraction
    if not 0 < fraction < 1:
        raise UserError(f"--val-fraction {fraction}: must be above 0 and below 1")
    keys = data.split_keys()
    if validation is not None:
        sides, held = _given(data, keys, validation)
        held = held.numbered_like(data)
    else:
        sides = _choose(data, keys, fraction, seed)
        # What was noticed while reading concerns the whole, and is reported once, with the training data.
        held = replace(data.select(sides.indices(VALIDATION)), skipped=[], notes=[])
    train = data.select(sides.indices(TRAIN))
    if sides.cut is not None:
        train, held = _cut(train, held, *sides.cut)  # type: ignore[assignment,arg-type]
    return Split(train, held, sides.how, sides.notes)


def _choose(data: DataSet, keys: SplitKeys, fraction: float, seed: int) -> Sides:
    own = data.held_out if (fraction, seed) == (data.default_fraction, 0) else None
    distinct = len(set(keys.content))
    few = isinstance(data, TextData) and (not data.documented or distinct < MIN_DOCUMENTS)
    if own == "tail" or (few and not isinstance(own, tuple)):
        return tail(data.name, keys, fraction)
    notes = _repeats(keys)
    if isinstance(own, tuple):
        named = [group in own for group in keys.groups or keys.ids]
        chosen = {content for content, one in zip(keys.content, named, strict=True) if one}
        side = side_of(keys, chosen)
        if keys.labels is not None:  # What also stands elsewhere is measured where it is held out.
            both = [i for i, one in enumerate(side) if one == VALIDATION and not named[i]]
            for index in both:
                side[index] = LEFT_OUT
            if both:
                what = counted(len(both), f"training {keys.noun}")
                notes.append(f"left out {what} that are also held out: {_ids(keys, both)}")
        return finish(data.name, keys, side, f"held out by name ({some(own, 8)})", notes)
    if keys.labels is not None:
        how = f"{fraction:.3g} of each class" if any(keys.labels) else f"{fraction:.3g} of the {keys.noun}s"
        chosen = _choose_by_class(keys, fraction, seed, notes)
    else:
        if distinct < keys.min_distinct:
            raise UserError(
                f"{data.name}: {counted(len(keys.ids), keys.noun)}, {distinct:,} different: at least"
                f" {keys.min_distinct} different ones are needed to split; --val-data gives validation data"
            )
        first_id: dict[str | bytes | int, str] = {}
        sizes: Counter[str | bytes | int] = Counter()
        for id, content, size in zip(keys.order or keys.ids, keys.content, keys.sizes, strict=True):
            first_id[content] = min(first_id.get(content, id), id)
            sizes[content] += size
        how = f"{keys.noun}s grouped by {keys.content_name}" if keys.content_name else f"whole {keys.noun}s"
        chosen = choose_by_size(sizes, first_id, fraction, seed)
    return finish(data.name, keys, side_of(keys, chosen), f"{how}, by a hash with seed {seed}", notes)


def choose_by_size(sizes: Mapping[K, int], ids: Mapping[K, str], fraction: float, seed: int) -> set[K]:
    """Return the contents that validate, of contents with such sizes and ids: see `split`."""
    target = fraction * sum(sizes.values())
    chosen: set[K] = set()
    taken = 0
    for content in sorted(sizes, key=lambda content: hashlib.sha256(f"{seed}:{ids[content]}".encode()).digest()):
        last_one_left = len(chosen) == len(sizes) - 1
        if not last_one_left and abs(taken + sizes[content] - target) < abs(taken - target):
            chosen.add(content)
            taken += sizes[content]
    if not chosen:  # Every one is more than twice the target.
        chosen.add(min(sizes, key=lambda content: (sizes[content], ids[content])))
    return chosen


def _choose_by_class(keys: SplitKeys, fraction: float, seed: int, notes: list[str]) -> set[str | bytes | int]:
    """Return the contents that validate; a content belongs to the class of its first example."""
    assert keys.labels is not None
    by_class: defaultdict[str | None, dict[str | bytes | int, int]] = defaultdict(dict)
    seen: set[str | bytes | int] = set()
    for index, (content, label) in enumerate(zip(keys.content, keys.labels, strict=True)):
        if content not in seen:
            seen.add(content)
            by_class[label][content] = index

    def order(content: str | bytes | int) -> bytes:
        raw = content if isinstance(content, bytes) else str(content).encode()
        return hashlib.sha256(f"{seed} ".encode() + raw).digest()

    chosen: set[str | bytes | int] = set()
    for label in sorted(by_class, key=str):
        contents = by_class[label]
        if len(contents) == 1 and label is not None:
            id = keys.ids[next(iter(contents.values()))]
            notes.append(f"class {label!r} has a single {keys.noun}, {id}: it trains and is not validated")
        else:
            chosen |= set(sorted(contents, key=order)[: max(1, round(fraction * len(contents)))])
    return chosen


def tail(name: str, keys: SplitKeys, fraction: float) -> Sides:
    """Let the last `fraction` of the characters validate; repeated documents are left out first."""
    side = bytearray(len(keys.sizes))
    seen: set[str | bytes | int] = set()
    for index in reversed(range(len(side))):  # The last of equal ones stays.
        side[index] = LEFT_OUT if keys.content[index] in seen else TRAIN
        seen.add(keys.content[index])
    total = sum(size for size, one in zip(keys.sizes, side, strict=True) if one == TRAIN)
    left = border = int((1 - fraction) * total)
    if not 0 < border < total:
        raise UserError(
            f"{name} is too short to split: of {counted(total, 'character')}, {border:,} would train and"
            f" {total - border:,} validate; give a longer text, or validation data (--val-data)"
        )
    cut: tuple[int, int] | None = None
    for index, size in enumerate(keys.sizes):
        if side[index] == TRAIN:
            if 0 < left < size:
                cut = (index, left)
            elif left <= 0:
                side[index] = VALIDATION
            left -= size
    how = f"the last {fraction:.3g} of the characters validate: {border:,} train, {total - border:,} validate"
    repeats = side.count(LEFT_OUT)
    notes = [f"left out {counted(repeats, 'exact repeat')} of another document before the cut"] if repeats else []
    return Sides(side, how, notes, cut)


def _cut(train: TextData, validation: TextData, index: int, position: int) -> tuple[TextData, TextData]:
    """Divide the last training document; the ids of the halves say where."""
    *whole, last = train.documents
    before = Document(f"{last.id}[:{position}]", last.text[:position])
    after = Document(f"{last.id}[{position}:]", last.text[position:])
    return replace(train, documents=[*whole, before]), replace(validation, documents=[after, *validation.documents])


def side_of(keys: SplitKeys, chosen: Set[Any]) -> bytearray:
    """Return the sides where the chosen contents validate."""
    side = bytearray(VALIDATION if content in chosen else TRAIN for content in keys.content)
    for index in keys.repeats:
        side[index] = LEFT_OUT
    return side


def finish(name: str, keys: SplitKeys, side: bytearray, how: str, notes: list[str]) -> Sides:
    """Describe a split. Raises UserError when a side is empty, or too few labels would be trained."""
    train, held = side.count(TRAIN), side.count(VALIDATION)
    if not train or not held:
        raise UserError(
            f"{name}: of {counted(len(side), keys.noun)} ({len(set(keys.content)):,} different), {train:,} would train"
            f" and {held:,} validate; give more different ones, another --val-fraction, or --val-data"
        )
    notes += _label_notes(name, keys, side, keys)
    how = f"{how}: {train:,} {keys.noun}s train, {held:,} validate"
    if keys.sizes and keys.unit != keys.noun:
        share = sum(size for size, one in zip(keys.sizes, side, strict=True) if one == VALIDATION) / sum(keys.sizes)
        how += f" ({share:.1%} of the {keys.unit}s)"
    return Sides(side, how, notes)


def _given(data: D, keys: SplitKeys, validation: D) -> tuple[Sides, D]:
    """Return the sides of the training data beside validation data of their own."""
    theirs = validation.split_keys()
    notes = _repeats(keys)
    side = side_of(keys, set())
    if theirs.repeats:
        what = counted(len(theirs.repeats), "exact repeat")
        notes.append(f"left out {what} in the validation data: {_ids(theirs, theirs.repeats)}")
        repeats = set(theirs.repeats)
        validation = validation.select([index for index in range(len(theirs.ids)) if index not in repeats])
    if keys.labels is None:
        known = set(keys.content)
        shared = [index for index, content in enumerate(theirs.content) if content in known]
        if shared:
            of = counted(len(theirs.ids), f"validation {keys.noun}")
            notes.append(f"in the training data too: {len(shared):,} of {of}: {_ids(theirs, shared)}")
        elif isinstance(data, TextData) and isinstance(validation, TextData) and _inside(validation, data):
            notes.append(f"the validation text {validation.name} is a part of the training text {data.name}")
    else:
        held = set(theirs.content)
        both = [index for index, content in enumerate(keys.content) if content in held and not side[index]]
        for index in both:
            side[index] = LEFT_OUT
        if both:
            what = counted(len(both), f"training {keys.noun}")
            notes.append(f"left out {what} also in the validation data: {_ids(keys, both)}")
    if not side.count(TRAIN):
        raise UserError(f"{data.name}: every {keys.noun} is in the validation data too; none is left to train on")
    notes += _label_notes(data.name, keys, side, theirs)
    return Sides(side, f"validation data given: {validation.name}", notes), validation


def _inside(inner: TextData, outer: TextData) -> bool:
    if inner.documented or outer.documented:
        return False
    whole = "".join(document.text for document in outer.documents)
    return all(document.text in whole for document in inner.documents)


def _repeats(keys: SplitKeys) -> list[str]:
    """Return notes on examples of equal content, and on labels that differ only in case."""
    notes = []
    if keys.repeats:
        notes.append(f"left out {counted(len(keys.repeats), 'exact repeat')}: {_ids(keys, keys.repeats)}")
    places: defaultdict[str | bytes | int, list[int]] = defaultdict(list)
    left_out = set(keys.repeats)
    for index, content in enumerate(keys.content):
        if index not in left_out:
            places[content].append(index)
    equal = [found for found in places.values() if len(found) > 1]
    if equal:
        n = sum(len(found) - 1 for found in equal)
        rows = some((_equal(keys.ids[index] for index in found) for found in equal), 3)
        what = counted(n, "repeat") + f" of another {keys.noun}"
        if keys.content_name:
            what = f"{counted(n, keys.noun)} with the {keys.content_name} of another"
        notes.append(f"{what}, kept on the same side: {rows}")
    if keys.labels is not None:
        labels = keys.labels
        doubtful = [found for found in equal if len({labels[index] for index in found}) > 1]
        if doubtful:
            rows = some((_equal(f"{keys.ids[i]} ({labels[i]})" for i in found) for found in doubtful), 3)
            notes.append(f"{counted(len(doubtful), keys.noun)} with several labels, all kept: {rows}")
        folded: defaultdict[str, set[str]] = defaultdict(set)
        for label in set(labels):
            folded[str(label).casefold()].add(str(label))
        notes += [
            f"labels that differ only in case are different classes: {some(map(repr, sorted(same)))}"
            for _, same in sorted(folded.items())
            if len(same) > 1
        ]
    return notes


def _label_notes(name: str, keys: SplitKeys, side: bytearray, validation: SplitKeys) -> list[str]:
    """Return notes on labels that are validated and not trained. Raises UserError when too few are trained.

    validation: `keys` themselves where validation data are a part of them.
    """
    if keys.labels is None or validation.labels is None:
        return []
    known = {label for label, one in zip(keys.labels, side, strict=True) if one == TRAIN}
    if len(known) < keys.min_labels:
        raise UserError(f"{name}: all training data have the label {some(map(str, known))!r}: two are needed")
    lacking: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(validation.labels):
        if label is not None and label not in known and (validation is not keys or side[index] == VALIDATION):
            lacking[label].append(index)
    return [
        f"label {label!r} is in no training {keys.noun}: {counted(len(found), f'validation {keys.noun}')}, counted as"
        f" wrong: {_ids(validation, found)}"
        for label, found in sorted(lacking.items())
    ]


def _equal(names: Iterable[str]) -> str:
    listed = list(names)
    return " = ".join(listed if len(listed) <= _SHOWN else [*listed[: _SHOWN - 1], "…"])


def _ids(keys: SplitKeys, indices: Sequence[int]) -> str:
    return some([keys.ids[index] for index in indices], _SHOWN)
