"""What trains and what validates of labeled texts, and the report on both."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tokenloom.data.labeled import Labeled, LabeledData
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

DEFAULT_FRACTION = 0.1
_SHOWN = 5
_TOP_CLASSES = 20


@dataclass(frozen=True)
class LabeledSplit:
    """The two parts, how they were told apart, and what was noticed doing so.

    The classes are those of the training part; a class number is a place in `classes`.
    """

    training: LabeledData
    validation: LabeledData
    how: str
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """The labels that are learned, sorted."""
        return self.training.classes


def split_labeled(
    data: LabeledData,
    fraction: float = DEFAULT_FRACTION,
    seed: int = 0,
    *,
    validation: LabeledData | None = None,
) -> LabeledSplit:
    """Keep a part of labeled texts for validation, so that no text stands on both sides.

    In this order: `validation`, data of their own; the groups that the data set itself holds out, with the default
    fraction and seed; else `fraction` of the texts of each class, one at least, in the order of a hash of (seed,
    text), so that a new text does not shuffle the others. A class of one text trains. Exact repeats count once; a
    text with several labels stays on one side.

    Raises UserError where there are fewer than two classes, or one side would be empty.
    """
    if not 0 < fraction < 1:
        raise UserError(f"a validation fraction of {fraction} is not between 0 and 1 (both excluded)")
    notes: list[str] = []
    data = _once(data, notes)
    _name_doubtful(data, notes)
    if validation is not None:
        parts = _given(data, _once(validation, notes), notes)
    elif isinstance(data.held_out, tuple) and fraction == DEFAULT_FRACTION and seed == 0:
        parts = _groups(data, data.held_out, notes)
    else:
        parts = _stratified(data, fraction, seed, notes)
    if not parts.training.items:
        raise UserError(f"{data.name}: every text stands in the validation data too; none is left to train on")
    if len(parts.classes) < 2:
        raise UserError(f"{data.name}: all samples to train on have the label {some(parts.classes)!r}: two are needed")
    if not parts.validation.items:
        raise UserError(
            f"{data.name}: {counted(len(data.items), 'sample')} leave none to validate on (--val-fraction, --validation)"
        )
    unseen = [item for item in parts.validation.items if item.label not in set(parts.classes)]
    for label, n in Counter(item.label for item in unseen).items():
        rows = some([item.id for item in unseen if item.label == label], _SHOWN)
        what = counted(n, "validation text")
        notes.append(f"label {label!r} is in no training sample: {what}, counted as wrong: {rows}")
    return parts


def _once(data: LabeledData, notes: list[str]) -> LabeledData:
    """Each (text, label) at its first place."""
    first: dict[tuple[str, str], Labeled] = {}
    repeats = []
    for item in data.items:
        if first.setdefault((item.text, item.label), item) is not item:
            repeats.append(item.id)
    if repeats:
        what = counted(len(repeats), "exact repeat")
        notes.append(f"left out {what} of a text with the same label, which counts once: {some(repeats, _SHOWN)}")
    return replace(data, items=list(first.values()))


def _name_doubtful(data: LabeledData, notes: list[str]) -> None:
    """Note texts with several labels, and labels that differ in the case of letters alone."""
    labels: defaultdict[str, list[Labeled]] = defaultdict(list)
    for item in data.items:
        labels[item.text.strip()].append(item)
    doubtful = [items for items in labels.values() if len(items) > 1]
    if doubtful:
        rows = [" = ".join(f"{item.id} ({item.label})" for item in items) for items in doubtful]
        notes.append(
            f"{counted(len(doubtful), 'text')} with several labels, all kept, on one side of the split:"
            f" {some(rows, _SHOWN)}"
        )
    folded: defaultdict[str, list[str]] = defaultdict(list)
    for label in data.classes:
        folded[label.casefold()].append(label)
    notes += [
        f"labels that differ in the case of letters alone are different classes: {some(map(repr, same))}"
        for same in folded.values()
        if len(same) > 1
    ]


def _given(data: LabeledData, validation: LabeledData, notes: list[str]) -> LabeledSplit:
    held = {item.text.strip() for item in validation.items}
    shared = [item.id for item in data.items if item.text.strip() in held]
    if shared:
        what = counted(len(shared), "training text")
        notes.append(f"left out {what} that the validation data hold too: {some(shared, _SHOWN)}")
        data = replace(data, items=[item for item in data.items if item.text.strip() not in held])
    notes += [*validation.notes, *(f"skipped {path}: {reason}" for path, reason in validation.skipped[:_SHOWN])]
    return _parts(data, data.items, validation.items, f"validation on {validation.name}, which was given", notes)


def _groups(data: LabeledData, groups: tuple[str, ...], notes: list[str]) -> LabeledSplit:
    held = {item.text.strip() for item in data.items if item.group in groups}
    validation = [item for item in data.items if item.group in groups]
    # A text that also stands elsewhere is measured where it is held out, and not learned.
    shared = [item.id for item in data.items if item.group not in groups and item.text.strip() in held]
    if shared:
        notes.append(f"left out {counted(len(shared), 'training text')} that is held out too: {some(shared, _SHOWN)}")
    training = [item for item in data.items if item.text.strip() not in held]
    return _parts(data, training, validation, f"held out by name: {some(groups, 8)}", notes)


def _stratified(data: LabeledData, fraction: float, seed: int, notes: list[str]) -> LabeledSplit:
    by_class: defaultdict[str, list[str]] = defaultdict(list)
    seen: set[str] = set()
    for item in data.items:
        if (text := item.text.strip()) not in seen:
            seen.add(text)
            by_class[item.label].append(text)
    held: set[str] = set()
    for label in sorted(by_class):
        texts = sorted(by_class[label], key=lambda text: hashlib.sha256(f"{seed} {text}".encode()).digest())
        if len(texts) == 1:
            row = next(item.id for item in data.items if item.text.strip() == texts[0])
            notes.append(f"class {label!r} has one text alone, {row}: it trains, and nothing measures it")
        else:
            held |= set(texts[: max(1, round(fraction * len(texts)))])
    training = [item for item in data.items if item.text.strip() not in held]
    validation = [item for item in data.items if item.text.strip() in held]
    return _parts(data, training, validation, f"{fraction:.3g} of each class, chosen by text with seed {seed}", notes)


def _parts(
    data: LabeledData, training: Sequence[Labeled], validation: Sequence[Labeled], how: str, notes: list[str]
) -> LabeledSplit:
    # What was noticed while reading belongs to the whole, and is told once, with the training part.
    held = replace(data, items=list(validation), skipped=[], notes=[])
    return LabeledSplit(replace(data, items=list(training)), held, how, notes)


@dataclass(frozen=True)
class LabeledReport:
    """What a person should know before training on labeled texts.

    counts: class → (training, validation); also those that only the validation part has. majority: the commonest
    label of the training part; majority_share: its share of the validation part. lengths: characters of the shortest,
    the median, and the 95th percentile; longest: (id, characters). extra: lines that the task adds, by their label.
    """

    name: str
    license: str | None
    counts: dict[str, tuple[int, int]]
    majority: str
    majority_share: float
    lengths: tuple[int, int, int]
    longest: tuple[str, int]
    how: str
    skipped: list[tuple[str, str]]
    notes: list[str]
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, split: LabeledSplit, extra: dict[str, str] | None = None) -> LabeledReport:
        """The report on both parts of a split."""
        train, held = (Counter(item.label for item in part.items) for part in (split.training, split.validation))
        majority = min(train, key=lambda label: (-train[label], label))
        items = [*split.training.items, *split.validation.items]
        sizes = sorted(len(item.text) for item in items)
        longest = max(items, key=lambda item: len(item.text))
        return cls(
            name=split.training.name,
            license=split.training.license,
            counts={label: (train[label], held[label]) for label in sorted({*train, *held})},
            majority=majority,
            majority_share=held[majority] / sum(held.values()),
            lengths=(sizes[0], sizes[len(sizes) // 2], sizes[len(sizes) * 95 // 100]),
            longest=(longest.id, len(longest.text)),
            how=split.how,
            skipped=split.training.skipped,
            notes=[*split.training.notes, *split.notes],
            extra=dict(extra or {}),
        )

    def lines(self) -> list[str]:
        """The report as plain lines, `label: what`, in the order in which a person wants them."""
        trained, held = (sum(pair[side] for pair in self.counts.values()) for side in (0, 1))
        rows = [("data", self.name + (f" ({self.license})" if self.license else ""))]
        rows.append(("samples", f"{counted(trained, 'text')} to train, {held:,} to validate"))
        rows.append(("split", self.how))
        ordered = sorted(self.counts.items(), key=lambda item: (-sum(item[1]), item[0]))
        listed = some((f"{label} {a:,} + {b:,}" for label, (a, b) in ordered), _TOP_CLASSES)
        rows.append(("classes", f"{len(self.counts)} (to train + to validate): {listed}"))
        rows.append(("majority", f"{self.majority}: {self.majority_share:.1%} of the validation part"))
        shortest, median, most = self.lengths
        rows.append(
            (
                "lengths",
                f"{shortest:,} to {self.longest[1]:,} characters, half of them up to {median:,}, 95 % up to {most:,};"
                f" the longest is {self.longest[0]}",
            )
        )
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
