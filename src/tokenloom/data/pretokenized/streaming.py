"""Read text of any size in blocks: what `read_text` reads, without ever loading a large file whole.

A source can be read more than once. What must fit in memory is one document of a table or of JSON lines, a JSON file
that is one list, and the built-in data sets.
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
from typing import BinaryIO, Protocol, cast

from tokenloom.data import registry
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
    ReadOptions,
    no_such,
    printable_path,
    read_text,
    reason_of,
    shown_path,
    walk,
)
from tokenloom.data.unicode import Unreadable, check_encoding, decode, decode_blocks
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

BLOCK = 1 << 20
MAX_JSON_BYTES = 1 << 26
_HEADER = 1 << 16  # The header of a table is within so many characters.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")

Advance = Callable[[int], None]
"""Called with the number of bytes just read."""
Texts = Iterator[tuple[str, Iterator[str]]]
"""Documents as (id, blocks of text); the blocks must be read before the next document."""


class Source(Protocol):
    """A file, or a built-in data set."""

    @property
    def name(self) -> str:
        """The prefix of its document ids and notes."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    def documents(self, notes: list[str], advance: Advance) -> Texts:
        """Yield all documents. Raises Unreadable, perhaps after some of them, when it is no text."""
        ...


@dataclass
class StreamedText:
    """Text that is read in blocks. The fields are those of `TextData`; skipped files are known after the first pass."""

    entries: list[Source]
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
        """Size in bytes."""
        return sum(entry.size for entry in self.entries)


def open_text(
    source: str | os.PathLike[str],
    *,
    encoding: str = "utf-8",
    normalize_newlines: bool = True,
    text_column: str | None = None,
    standard_input: Path | None = None,
) -> StreamedText:
    """Return what `read_text` reads, to be read in blocks. Raises UserError for what does not exist.

    standard_input: a file with its content, for the source `-`.
    """
    check_encoding(encoding)
    how = ReadOptions(encoding, normalize_newlines, text_column)
    given = os.fspath(source)
    if given == "-":
        if text_column is not None or standard_input is None:
            raise UserError(
                f"--text-column {text_column} does not apply to standard input, which is read as plain text"
            )
        return StreamedText([_File(standard_input, "-", how)], "standard input", False, given="standard input")
    if isinstance(source, str) and given in registry.names():
        data = read_text(given, encoding=encoding, normalize_newlines=normalize_newlines, text_column=text_column)
        kept: list[Source] = [_Loaded(data.name, data.documents)]
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
        raise UserError(
            f"{shown_path(given)}: not a regular file, and it must be read more than once; - is standard input"
        )
    file = _File(path, printable_path(path.name), how)
    return StreamedText([file], file.name, file.rows, given=shown_path(given))


def _folder(root: Path, how: ReadOptions) -> StreamedText:
    shown = shown_path(str(root))
    entries: list[Source] = []
    skipped: list[tuple[str, str]] = []
    for relative, problem in sorted(walk(root), key=lambda found: Path(found[0]).parts):
        if problem is None:
            # In a folder with tables, plain files may have no columns.
            entries.append(_File(root / relative, printable_path(relative), how, strict_column=False))
        else:
            skipped.append((printable_path(relative), problem))
    if how.text_column is not None and entries and not any(cast(_File, entry).rows for entry in entries):
        raise UserError(
            f"--text-column {how.text_column} does not apply: {shown} contains plain text and no table with that column"
        )
    name = printable_path(root.resolve().name or str(root))
    return StreamedText(entries, name, True, skipped=skipped, given=shown, folder=True)


def empty_folder_error(text: StreamedText) -> UserError:
    """Return the error for a folder without readable text."""
    if not text.skipped:
        return UserError(f"{text.given} is an empty folder")
    reasons = some((f"{name} ({reason})" for name, reason in text.skipped), 3)
    entries = counted(len(text.skipped), "entry", "entries")
    return UserError(f"{text.given} contains no readable text: {entries} skipped: {reasons}")


@dataclass
class _Loaded:
    """Documents in memory."""

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
    """A file of text or of rows, perhaps compressed."""

    def __init__(self, path: Path, name: str, how: ReadOptions, *, strict_column: bool = True) -> None:
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
            if self.how.text_column is not None and self._strict:
                raise Unreadable(
                    f"plain text has no column {self.how.text_column!r}: leave out --text-column, or give a file"
                    " that ends in .jsonl, .json, .csv or .tsv"
                )
            yield (
                self.name,
                self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, self.how.normalize_newlines)),
            )
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
            self._column = (json_column(json_lines(self._lines(lambda n: None)), how.text_column, notes),)
        rows = json_lines(self._lines(advance))
        return json_documents(
            rows, self.name, column=self._column[0], normalize_newlines=how.normalize_newlines, notes=notes
        )

    def _lines(self, advance: Advance) -> Iterator[str]:
        rest = ""
        for piece in self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, True)):
            *lines, rest = (rest + piece).split("\n")
            yield from lines
        yield rest

    def _json(self, notes: list[str], advance: Advance) -> Iterable[Document]:
        how = self.how
        if self.size > MAX_JSON_BYTES:
            raise Unreadable(
                f"a JSON file of {self.size:,} bytes; at most {MAX_JSON_BYTES:,} are read; JSON lines (.jsonl) may be"
                " of any size"
            )
        raw = b"".join(self._blocks(advance))
        text = "".join(self._some_text(iter([decode(raw, how.encoding, False)])))
        return read_json(
            text, self.name, lines=False, column=how.text_column, normalize_newlines=how.normalize_newlines, notes=notes
        )

    def _table(self, notes: list[str], advance: Advance) -> Iterator[Document]:
        how = self.how
        if self._column is None:
            self._column = (table_column(self._records(lambda n: None), how.text_column, notes),)
        column = cast(str, self._column[0])
        return table_documents(
            self._records(advance), self.name, column=column, normalize_newlines=how.normalize_newlines, notes=notes
        )

    def _records(self, advance: Advance) -> Iterator[tuple[int, list[str]]]:
        pieces = self._some_text(decode_blocks(self._blocks(advance), self.how.encoding, False))
        head = ""
        while len(head) < _HEADER and (piece := next(pieces, None)) is not None:
            head += piece
        head = head.removeprefix("\ufeff")

        def whole() -> Iterator[str]:
            yield head
            yield from pieces

        return table_records(_table_lines(whole()), table_delimiter(head, self._ending == ".tsv"))

    def _some_text(self, pieces: Iterator[str]) -> Iterator[str]:
        """Yield the blocks; raise Unreadable at the end if there was no text in them."""
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
                raise Unreadable(f"damaged, or not a gzip file: {error}") from None
            raise Unreadable(f"cannot be read: {reason_of(error)}") from None
        except (EOFError, zlib.error) as error:
            raise Unreadable(f"damaged, or not a gzip file: {error}") from None


def _table_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends (LF, CR or CRLF), without blank ones at the end of the text."""
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
class TextChunk:
    """A part of a document that is encoded by itself. first, last: whether the document starts, or ends, here."""

    text: str
    first: bool
    last: bool


Cut = Callable[[str], int]
"""Where a text may be cut, as `TextTokenizer.safe_split` has it."""
CHUNK_CHARACTERS = 1 << 16
MAX_UNCUT = 1 << 26


def document_chunks(blocks: Iterable[str], cut: Cut, border: int | None = None) -> Iterator[TextChunk]:
    """Cut a document into chunks of about `CHUNK_CHARACTERS`; the ids of the chunks, joined, are those of the document.

    border: a position at which it is divided into two documents. Raises UserError where no position to cut is found.
    """
    if border is None:
        yield from _chunks(blocks, cut)
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

    yield from _chunks(before(), cut)
    yield from _chunks(chain(rest, stream), cut)


def _chunks(blocks: Iterable[str], cut: Cut) -> Iterator[TextChunk]:
    pending, first, enough = "", True, CHUNK_CHARACTERS
    for block in blocks:
        pending += block
        while len(pending) > enough:
            if place := cut(pending[:enough]):
                yield TextChunk(pending[:place], first, False)
                pending, first, enough = pending[place:], False, CHUNK_CHARACTERS
            elif enough > MAX_UNCUT:
                raise UserError(
                    f"{enough:,} characters without white space cannot be cut for this tokenizer;"
                    " --tokenizer byte-bpe or char can"
                )
            else:
                enough *= 2
    yield TextChunk(pending, first, True)
