"""The data report before training: what was read, what was left out, how it was split."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.data.documents import DataSet
from tokenloom.data.split import Split
from tokenloom.utils.names import counted, some

_TOP_REASONS = 5
_TOP_NOTES = 20
_REASON_LENGTH = 60


@dataclass(frozen=True)
class DataReport:
    """What to know before training, as values and as lines.

    train, validation: counts by unit in the plural. split: how they were chosen. facts, rows: what the kind of data
    reports (see `DataSet.facts`). extra: lines that the task adds, such as the number of tokens, by their label.
    """

    name: str
    license: str | None
    train: dict[str, int]
    validation: dict[str, int]
    split: str
    facts: dict[str, Any]
    rows: list[tuple[str, str]]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report as lines `label: text`."""
        rows = [
            ("data", self.name + (f" ({self.license})" if self.license else "")),
            ("training", _counts(self.train)),
            ("validation", _counts(self.validation)),
            ("split", self.split),
            *self.rows,
            *(("skipped", line) for line in self._skipped()),
            *(("note", note) for note in self.notes[:_TOP_NOTES]),
        ]
        if len(self.notes) > _TOP_NOTES:
            rows.append(("note", f"{len(self.notes) - _TOP_NOTES:,} more like these"))
        rows += self.extra.items()
        width = max(len(label) for label, _ in rows) + 1
        return [f"{label + ':':<{width}} {text}" for label, text in rows]

    def _skipped(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.skipped:
            # The first words of a reason are its kind; offsets and numbers after them differ from file to file.
            kind = reason.split(":")[0].split(";")[0].split(" (")[0][:_REASON_LENGTH]
            by_reason.setdefault(kind, []).append(path)
        ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
        lines = [f"{len(paths):,} × {kind}: {some(paths, 5)}" for kind, paths in ordered[:_TOP_REASONS]]
        if rest := sum(len(paths) for _, paths in ordered[_TOP_REASONS:]):
            lines.append(f"{rest:,} more for other reasons")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON, with every skipped file."""
        plain = asdict(self)
        del plain["rows"]
        return {**plain, **plain.pop("facts")}


def data_report(parts: Split[Any], extra: dict[str, str] | None = None) -> DataReport:
    """Report on both parts of a split."""
    train: DataSet = parts.train
    held: DataSet = parts.validation
    facts, rows = train.facts(held)
    return DataReport(
        name=train.name,
        license=train.license,
        train=train.counts(),
        validation=held.counts(),
        split=parts.how,
        facts=facts,
        rows=rows,
        skipped=[*train.skipped, *held.skipped],
        notes=[*train.notes, *held.notes, *parts.notes],
        extra=dict(extra or {}),
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(counted(n, unit.removesuffix("s"), unit) for unit, n in counts.items())


def class_rows(counts: dict[str, tuple[int, int]], majority: str, majority_share: float) -> list[tuple[str, str]]:
    """Return the lines on classes: counts of (training, validation) examples, and the majority class."""
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1]), item[0]))
    listed = some((f"{label} {a:,} + {b:,}" for label, (a, b) in ordered), 20)
    return [
        ("classes", f"{len(counts)} (training + validation): {listed}"),
        ("majority", f"{majority}: {majority_share:.1%} of the validation data"),
    ]
