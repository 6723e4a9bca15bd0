"""What every reader of text gives: documents, and what was noticed while reading them."""

from dataclasses import dataclass, field
from typing import Literal

HeldOut = tuple[str, ...] | Literal["tail"] | None
"""Which part of a text is kept for validation: documents by id, the contiguous tail, or no preference."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with borders of its own: a file, a row of a table, a play.

    `id` stays the same from one reading to the next: the path relative to what was asked for, `path:row` for a
    row. Splits go by it.
    """

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What all data have, of whatever kind, once they are read.

    skipped: (path, reason) of files that were left out.
    notes: lines for the report: guesses that were made, rows that were left out.
    held_out: what the data set itself keeps for validation, where it says so.

    Data that hold texts beside other things have a method `as_text()`, which gives these as `TextData`.
    """

    name: str = "text"
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    license: str | None = None
    held_out: HeldOut = None


@dataclass(frozen=True)
class TextData(DataSet):
    """Text as it was read.

    documents: in reading order, none of them empty.
    documented: True where the borders between documents mean something (a folder, a table, plays).
    """

    documents: list[Document]
    documented: bool = False

    @property
    def characters(self) -> int:
        """Unicode code points in all documents."""
        return sum(len(document.text) for document in self.documents)

    @property
    def bytes(self) -> int:
        """Bytes of all documents in UTF-8."""
        return sum(len(document.text.encode()) for document in self.documents)
