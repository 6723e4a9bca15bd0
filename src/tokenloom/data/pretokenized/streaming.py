"""Reading text of any size in pieces: what `read_text` reads, without ever holding a large file whole.

A source can be gone through more than once, and gives the same each time. What must fit in memory is one document of a
table or of JSON lines, a JSON file that is one list, and the built-in data sets, which are small.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from tokenloom.data import registry as recipes
from tokenloom.data.documents import Document, HeldOut
from tokenloom.data.tables import (
    json_column,
    json_documents,
    json_lines,
    read_json,
    table_column,
    table_delimiter,
    table_documents,
    table_records,
)
from tokenloom.data.text import (
    JSON_ENDINGS,
    TABLE_ENDINGS,
    How,
    no_such,
    printable_path,
    read_text,
    reason_of,
    shown_path,
    walk,
)
from tokenloom.data.unicode import Unreadable, check_encoding, check_newlines, decode, decode_blocks
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

BLOCK = 1 << 20
LARGEST_JSON = 1 << 26
_HEADER = 1 << 16  # A table's header is looked for in so many characters.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")

Advance = Callable[[int], None]
"""Called with the number of bytes that have just been read from a file."""
Texts = Iterator[tuple[str, Iterator[str]]]
"""Documents, each as its id and its text in blocks, which must be taken before the next document is asked for."""


class Entry(Protocol):
    """One file, or what stands for one."""

    @property
    def name(self) -> str:
        """The name that its documents and remarks begin with."""
        ...

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        ...

    def documents(self, notes: list[str], advance: Advance) -> Texts:
        """All its documents. Raises Unreadable, after some of them perhaps, when it is no text."""
        ...


@dataclass
class StreamedText:
    """Text that is read in pieces; the fields are those of `TextData`, but what was left out is only known later."""

    entries: list[Entry]
    name: str
    documented: bool
    license: str | None = None
    held_out: HeldOut = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    given: str = ""
    folder: bool = False

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(entry.size for entry in self.entries)


def open_text(
    source: str | os.PathLike[str],
    *,
    encoding: str = "utf-8",
    newlines: str = "fold",
    column: str | None = None,
    standard_input: Path | None = None,
) -> StreamedText:
    """What `read_text` reads, to be read in pieces. Raises UserError for what is not there.

    standard_input: the file that holds what came from there, for the source `-`.
    """
    check_encoding(encoding)
    check_newlines(newlines)
    how = How(encoding, cast(Any, newlines), column)
    given = os.fspath(source)
    if given == "-":
        if column is not None or standard_input is None:
            raise UserError(f"--column {column} does not apply to standard input, which is read as plain text")
        return StreamedText([_File(standard_input, "-", how)], "standard input", False, given="standard input")
    if isinstance(source, str) and given in recipes.names():
        data = read_text(given, encoding=encoding, newlines=how.newlines, column=column)
        kept: list[Entry] = [_Kept(data.name, data.documents)]
        return StreamedText(kept, data.name, data.documented, data.license, data.held_out, data.skipped, data.notes)
    path = Path(given)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(no_such(given)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {shown_path(given)}: {reason_of(error)}") from None
    if stat.S_ISDIR(mode):
        return _folder(path, how)
    if not stat.S_ISREG(mode):
        raise UserError(f"{shown_path(given)}: no plain file, and it must be read more than once; - is standard input")
    file = _File(path, printable_path(path.name), how)
    return StreamedText([file], file.name, file.rows, given=shown_path(given))


def _folder(root: Path, how: How) -> StreamedText:
    shown = shown_path(str(root))
    entries: list[Entry] = []
    skipped: list[tuple[str, str]] = []
    for relative, problem in sorted(walk(root), key=lambda found: Path(found[0]).parts):
        if problem is None:
            # Plain files have no columns, and that is no mistake in a folder that also holds tables.
            entries.append(_File(root / relative, printable_path(relative), how, strict_column=False))
        else:
            skipped.append((printable_path(relative), problem))
    if how.column is not None and entries and not any(cast(_File, entry).rows for entry in entries):
        raise UserError(f"--column {how.column} does not apply: {shown} holds plain text and no table that has it")
    name = printable_path(root.resolve().name or str(root))
    return StreamedText(entries, name, True, skipped=skipped, given=shown, folder=True)


def none_left(text: StreamedText) -> UserError:
    """What to say when no entry of a folder could be read."""
    if not text.skipped:
        return UserError(f"{text.given} is an empty folder")
    reasons = some((f"{name} ({reason})" for name, reason in text.skipped), 3)
    entries = counted(len(text.skipped), "entry", "entries")
    return UserError(f"{text.given} holds no text that can be read: {entries} skipped: {reasons}")


@dataclass
class _Kept:
    """Documents that are in memory already."""

    name: str
    content: list[Document]

    @property
    def size(self) -> int:
        return sum(len(document.text) for document in self.content)

    def documents(self, notes: list[str], advance: Advance) -> Texts:
        for document in self.content:
            yield document.id, iter([document.text])
            advance(len(document.text))


class _File:
    """One file of text, of rows, or of either compressed."""

    def __init__(self, path: Path, name: str, how: How, *, strict_column: bool = True) -> None:
        self.path, self.name, self.how = path, name, how
        self._strict = strict_column
        bare = path.name.lower()
        self._zipped = bare.endswith(".gz")
        self._ending = os.path.splitext(bare.removesuffix(".gz"))[1]
        self.rows = self._ending in JSON_ENDINGS + TABLE_ENDINGS
        self._column: tuple[str | None] | None = None

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def documents(self, notes: list[str], advance: Advance) -> Texts:
        if not self.rows:
            if self.how.column is not None and self._strict:
                raise Unreadable(
                    f"plain text has no column {self.how.column!r}: leave --column away, or give a file that ends in"
                    " .jsonl, .json, .csv or .tsv"
                )
            yield self.name, self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, self.how.newlines))
            return
        for document in self._documents(notes, advance):
            yield document.id, iter([document.text])

    def _documents(self, notes: list[str], advance: Advance) -> Iterable[Document]:
        if self._ending in TABLE_ENDINGS:
            return self._table(notes, advance)
        if self._ending == ".json":
            return self._json(notes, advance)
        return self._json_lines(notes, advance)

    def _json_lines(self, notes: list[str], advance: Advance) -> Iterable[Document]:
        how = self.how
        if self._column is None:
            self._column = (json_column(json_lines(self._lines(lambda n: None)), how.column, notes),)
        rows = json_lines(self._lines(advance))
        return json_documents(rows, self.name, column=self._column[0], newlines=how.newlines, notes=notes)

    def _lines(self, advance: Advance) -> Iterator[str]:
        rest = ""
        for piece in self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, "fold")):
            *lines, rest = (rest + piece).split("\n")
            yield from lines
        yield rest

    def _json(self, notes: list[str], advance: Advance) -> Iterable[Document]:
        how = self.how
        if self.size > LARGEST_JSON:
            raise Unreadable(
                f"a JSON file of {self.size:,} bytes, which is read whole: at most {LARGEST_JSON:,}; as JSON lines"
                " (.jsonl) it may be of any size"
            )
        raw = b"".join(self._blocks(advance))
        text = "".join(self._some_text(iter([decode(raw, how.encoding, "keep")])))
        return read_json(text, self.name, lines=False, column=how.column, newlines=how.newlines, notes=notes)

    def _table(self, notes: list[str], advance: Advance) -> Iterator[Document]:
        how = self.how
        if self._column is None:
            self._column = (table_column(self._records(lambda n: None), how.column, notes),)
        column = cast(str, self._column[0])
        return table_documents(self._records(advance), self.name, column=column, newlines=how.newlines, notes=notes)

    def _records(self, advance: Advance) -> Iterator[tuple[int, list[str]]]:
        pieces = self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, "keep"))
        head = ""
        while len(head) < _HEADER and (piece := next(pieces, None)) is not None:
            head += piece
        head = head.removeprefix("\ufeff")

        def whole() -> Iterator[str]:
            yield head
            yield from pieces

        return table_records(_table_lines(whole()), table_delimiter(head, self._ending == ".tsv"))

    def _some_text(self, pieces: Iterator[str]) -> Iterator[str]:
        """The same pieces; raises Unreadable in the end if there was no text in them."""
        blank = True
        for piece in pieces:
            blank = blank and not piece.strip().strip("\ufeff")
            yield piece
        if blank:
            size = sum(len(block) for block in self._blocks(lambda n: None))
            if not size:
                raise Unreadable("empty (0 bytes): there is no text in it")
            raise Unreadable(f"nothing but white space ({counted(size, 'byte')}): there is no text in it")

    def _blocks(self, advance: Advance) -> Iterator[bytes]:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise Unreadable("neither a file nor a folder")
            with self.path.open("rb") as raw:
                file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self._zipped else raw
                before = 0
                while block := file.read(BLOCK):
                    here = raw.tell()
                    advance(here - before)
                    before = here
                    yield block
        except OSError as error:
            if isinstance(error, gzip.BadGzipFile):
                raise Unreadable(f"a damaged gzip file, or none at all: {error}") from None
            raise Unreadable(f"cannot be read: {reason_of(error)}") from None
        except (EOFError, zlib.error) as error:
            raise Unreadable(f"a damaged gzip file, or none at all: {error}") from None


def _table_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines with their ends, LF, CR or CRLF; without the blank ones at the end."""
    blank: list[str] = []
    for line in _split_lines(pieces):
        if line.strip("\r\n"):
            yield from blank
            blank.clear()
            yield line
        else:
            blank.append(line)


def _split_lines(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        rest += piece
        held = rest.endswith("\r")  # A line feed may follow.
        start = 0
        for found in _LINE.finditer(rest, 0, len(rest) - held):
            yield found[0]
            start = found.end()
        rest = rest[start:]
    yield from _LINE.findall(rest)
    if tail := _LINE.sub("", rest):
        yield tail


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document, to be encoded by itself. first, last: whether the document begins, or ends, here."""

    text: str
    first: bool
    last: bool


Cut = Callable[[str], int]
"""Where a text may be cut, as `TextTokenizer.safe_split` has it."""
PIECE = 1 << 16
LONGEST_UNCUT = 1 << 26


def pieces_of(blocks: Iterable[str], cut: Cut, border: int | None = None) -> Iterator[Piece]:
    """A document in pieces of about `PIECE` characters; what each encodes to, joined, is what the whole does.

    border: a place at which it is cut into two documents. Raises UserError where no place to cut is found.
    """
    if border is None:
        yield from _whole(blocks, cut)
        return
    stream, rest = iter(blocks), [""]

    def before() -> Iterator[str]:
        left = border
        for block in stream:
            yield block[:left]
            if len(block) >= left:
                rest[0] = block[left:]
                return
            left -= len(block)

    yield from _whole(before(), cut)
    yield from _whole(chain(rest, stream), cut)


def _whole(blocks: Iterable[str], cut: Cut) -> Iterator[Piece]:
    waiting, first, enough = "", True, PIECE
    for block in blocks:
        waiting += block
        while len(waiting) > enough:
            if place := cut(waiting[:enough]):
                yield Piece(waiting[:place], first, False)
                waiting, first, enough = waiting[place:], False, PIECE
            elif enough > LONGEST_UNCUT:
                raise UserError(
                    f"{enough:,} characters without white space cannot be cut for this tokenizer;"
                    " --tokenizer byte-bpe or char can"
                )
            else:
                enough *= 2
    yield Piece(waiting, first, True)
