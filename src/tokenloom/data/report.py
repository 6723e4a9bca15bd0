"""The report before training: what was read, what was left out, how it was split. Check before you spend."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from tokenloom.data.documents import TextData
from tokenloom.data.split import Split
from tokenloom.utils.names import counted, some

_TOP_REASONS = 5
_TOP_NOTES = 20
_REASON_LENGTH = 60


@dataclass(frozen=True)
class Part:
    """The counts of one side of a split. `lines` counts line feeds, and a last line without one."""

    documents: int
    characters: int
    bytes: int
    lines: int

    @classmethod
    def of(cls, data: TextData) -> "Part":
        """Count a text."""
        lines = sum(d.text.count("\n") + (not d.text.endswith("\n")) for d in data.documents)
        return cls(len(data.documents), data.characters, data.bytes, lines)


@dataclass(frozen=True)
class TextReport:
    """What a person should know before training on a text.

    distinct_characters: in both parts together. unseen: characters of the validation part that training never shows,
    with how often they occur. longest: (id, characters) of the longest document. duplicates: documents that repeat an
    earlier one exactly; duplicate_share: their share of all characters. extra: lines that the task adds, such as the
    number of tokens or the memory needed, by their label.
    """

    name: str
    license: str | None
    training: Part
    validation: Part
    distinct_characters: int
    unseen: dict[str, int]
    longest: tuple[str, int]
    duplicates: int
    duplicate_share: float
    how: str
    skipped: list[tuple[str, str]]
    notes: list[str]
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, split: Split, extra: dict[str, str] | None = None) -> "TextReport":
        """The report on both parts of a split."""
        documents = [*split.training.documents, *split.validation.documents]
        longest = max(documents, key=lambda document: len(document.text))
        repeated = repeated_characters = 0
        seen: set[str] = set()
        for document in documents:
            if document.text in seen:
                repeated += 1
                repeated_characters += len(document.text)
            seen.add(document.text)
        known = _characters(split.training)
        held = _counts(split.validation)
        return cls(
            name=split.training.name,
            license=split.training.license,
            training=Part.of(split.training),
            validation=Part.of(split.validation),
            distinct_characters=len(known | set(held)),
            unseen={character: n for character, n in sorted(held.items()) if character not in known},
            longest=(longest.id, len(longest.text)),
            duplicates=repeated,
            duplicate_share=repeated_characters / sum(len(document.text) for document in documents),
            how=split.how,
            skipped=[*split.training.skipped, *split.validation.skipped],
            notes=[*split.training.notes, *split.validation.notes, *split.notes],
            extra=dict(extra or {}),
        )

    def lines(self) -> list[str]:
        """The report as plain lines, `label: what`, in the order in which a person wants them."""
        rows = [("data", self.name + (f" ({self.license})" if self.license else ""))]
        rows += [("training", _part(self.training)), ("validation", _part(self.validation)), ("split", self.how)]
        rows.append(("characters", f"{self.distinct_characters:,} different ones"))
        if self.unseen:
            listed = some((f"{_shown(character)} ({n:,}×)" for character, n in self.unseen.items()), 10)
            rows.append(("never seen", f"characters in validation that training never shows: {listed}"))
        rows.append(("longest", f"{self.longest[0]} with {counted(self.longest[1], 'character')}"))
        if self.duplicates:
            what = f"{counted(self.duplicates, 'document')} ({self.duplicate_share:.1%} of the characters)"
            rows.append(("duplicates", f"{what}: exact repeats of another"))
        rows += [("skipped", line) for line in self._skipped()]
        rows += [("note", note) for note in self.notes[:_TOP_NOTES]]
        if len(self.notes) > _TOP_NOTES:
            rows.append(("note", f"{len(self.notes) - _TOP_NOTES:,} more like these"))
        rows += list(self.extra.items())
        width = max(len(label) for label, _ in rows) + 1
        return [f"{label + ':':<{width}} {what}" for label, what in rows]

    def _skipped(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.skipped:
            # The reason's first words are its kind; offsets and numbers after them differ from file to file.
            kind = reason.split(":")[0].split(";")[0].split(" (")[0][:_REASON_LENGTH]
            by_reason.setdefault(kind, []).append(path)
        ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
        lines = [f"{len(paths):,} × {kind}: {some(paths, 5)}" for kind, paths in ordered[:_TOP_REASONS]]
        if rest := sum(len(paths) for _, paths in ordered[_TOP_REASONS:]):
            lines.append(f"{rest:,} more for other reasons")
        return lines

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, ready for JSON; every skipped file is in it."""
        return asdict(self)


def _characters(data: TextData) -> set[str]:
    return set().union(*(document.text for document in data.documents))


def _counts(data: TextData) -> Counter[str]:
    counts: Counter[str] = Counter()
    for document in data.documents:
        counts.update(document.text)
    return counts


def _part(part: Part) -> str:
    return (
        f"{counted(part.documents, 'document')}, {counted(part.characters, 'character')},"
        f" {counted(part.bytes, 'byte')}, {counted(part.lines, 'line')}"
    )


def _shown(character: str) -> str:
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
