"""What every reader gives: data sets, and text as documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from tokenloom.utils.names import counted, some

DEFAULT_FRACTION = 0.1

HeldOut = tuple[str, ...] | Literal["tail"] | None
"""The part that a data set itself keeps for validation: groups (or ids) by name, the tail of the text, or none."""

Facts = tuple[dict[str, Any], list[tuple[str, str]]]
"""What a report says of a data set: values for JSON, and lines as (label, text)."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with borders of its own: a file, a row of a table, a play.

    `id` is the same at every reading: the path relative to the source, or `path:row`. Splits depend on it.
    """

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SplitKeys:
    """What a split into training and validation data depends on, one entry per example.

    content: examples of equal content never stand on both sides. labels: where given, every class is split by itself.
    groups: the names that `held_out` refers to; the ids when empty. sizes: without labels, what the validation
    fraction is measured in (`unit`s). order: where given, used instead of the ids for the hash order. repeats: indices
    of examples left out since an equal one came earlier. content_name: what the content is, if not the whole example.
    """

    ids: Sequence[str]
    content: Sequence[str | bytes | int]
    labels: Sequence[str | None] | None = None
    groups: Sequence[str] = ()
    sizes: Sequence[int] = ()
    order: Sequence[str] = ()
    repeats: Sequence[int] = ()
    noun: str = "document"
    unit: str = "character"
    content_name: str = ""
    min_distinct: int = 2
    min_labels: int = 0


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What all kinds of data have once they are read.

    skipped: (path, reason) of files that were left out. notes: lines for the report, such as guesses and rows left
    out. held_out: what the data set itself keeps for validation. Data that contain texts also have `as_text()`.
    """

    default_fraction: ClassVar[float] = DEFAULT_FRACTION

    name: str = "text"
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    license: str | None = None
    held_out: HeldOut = None

    def shared_fields(self) -> dict[str, Any]:
        """Return the fields of every data set, to be passed on to another kind."""
        return {one.name: getattr(self, one.name) for one in fields(DataSet)}

    def split_keys(self) -> SplitKeys:
        """Return what a split depends on."""
        raise NotImplementedError

    def select(self, indices: Sequence[int]) -> Self:
        """Return the examples at some indices."""
        raise NotImplementedError

    def numbered_like(self, train: Self) -> Self:
        """Return validation data whose classes are numbered like those of the training data."""
        return self

    def counts(self) -> dict[str, int]:
        """Return how much there is, by unit in the plural."""
        raise NotImplementedError

    def facts(self, validation: Self) -> Facts:
        """Return what the data report says of this as training data, and of its validation data."""
        return {}, []


@dataclass(frozen=True)
class TextData(DataSet):
    """Text as it was read.

    documents: in reading order, none of them empty. documented: whether the borders between documents mean something
    (a folder, a table, plays).
    """

    documents: list[Document]
    documented: bool = False

    @property
    def characters(self) -> int:
        """Unicode code points in all documents."""
        return sum(len(document.text) for document in self.documents)

    def split_keys(self) -> SplitKeys:
        texts = [document.text for document in self.documents]
        return SplitKeys(ids=[d.id for d in self.documents], content=texts, sizes=[len(text) for text in texts])

    def select(self, indices: Sequence[int]) -> Self:
        return replace(self, documents=[self.documents[index] for index in indices])

    def counts(self) -> dict[str, int]:
        """See `DataSet.counts`. Lines are line feeds, and a last line without one."""
        return {
            "documents": len(self.documents),
            "characters": self.characters,
            "bytes": sum(len(document.text.encode()) for document in self.documents),
            "lines": sum(d.text.count("\n") + (not d.text.endswith("\n")) for d in self.documents),
        }

    def facts(self, validation: Self) -> Facts:
        documents = [*self.documents, *validation.documents]
        longest = max(documents, key=lambda document: len(document.text))
        seen: set[str] = set()
        repeats: list[int] = []
        for document in documents:
            if document.text in seen:
                repeats.append(len(document.text))
            seen.add(document.text)
        known = set[str]().union(*(document.text for document in self.documents))
        found: Counter[str] = Counter()
        for document in validation.documents:
            found.update(document.text)
        return text_facts(
            distinct_characters=len(known | set(found)),
            unseen_characters={character: n for character, n in sorted(found.items()) if character not in known},
            longest=(longest.id, len(longest.text)),
            duplicates=len(repeats),
            duplicate_share=sum(repeats) / sum(len(document.text) for document in documents),
        )


def text_facts(
    *,
    distinct_characters: int,
    unseen_characters: dict[str, int],
    longest: tuple[str, int],
    duplicates: int,
    duplicate_share: float,
) -> Facts:
    """Return what a report says of a text, from its counts.

    unseen_characters: those of the validation data that the training data lack, with their counts. longest: id and
    characters. duplicates: documents equal to an earlier one; duplicate_share: their share of all characters.
    """
    values = {
        "distinct_characters": distinct_characters,
        "unseen_characters": unseen_characters,
        "longest": longest,
        "duplicates": duplicates,
        "duplicate_share": duplicate_share,
    }
    rows = [("characters", f"{distinct_characters:,} distinct")]
    if unseen_characters:
        listed = some((f"{printable_character(character)} ({n:,}×)" for character, n in unseen_characters.items()), 10)
        rows.append(("unseen characters", f"in validation but not in training data: {listed}"))
    rows.append(("longest", f"{longest[0]} with {counted(longest[1], 'character')}"))
    if duplicates:
        what = f"{counted(duplicates, 'document')} ({duplicate_share:.1%} of the characters)"
        rows.append(("duplicates", f"{what}: exact repeats of another"))
    return values, rows


def printable_character(character: str) -> str:
    """Return a character, or its code point where it would not be visible."""
    return character if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
