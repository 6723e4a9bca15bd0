"""Text from rows: JSON lines, JSON lists, and tables with a delimiter.

A row is counted as a person sees it: in JSON lines the number of its line, in a JSON list its place from 1, in a table
the row of a spreadsheet, so the header is row 1. Rows without text are left out, counted, and named in the notes.
"""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenloom.data.documents import Document
from tokenloom.data.names import counted, did_you_mean, some
from tokenloom.data.unicode import Newlines, Unreadable, fold_newlines

_DELIMITERS = (",", ";", "\t")
_NO_DELIMITER = "\x1f"  # A control character that text does not hold: a table of one column.
_BLANK = ""  # What a blank line among the rows stands for: a row whose text is empty.


@dataclass
class _Rows:
    """Sorts rows into documents and reasons for leaving them out."""

    name: str
    column: str | None
    newlines: Newlines
    documents: list[Document] = field(default_factory=list)
    left_out: dict[str, list[int]] = field(default_factory=dict)

    def take(self, row: int, value: object) -> None:
        """One row's text, or a reason for which it has none."""
        if not isinstance(value, str):
            self.leave(row, f"with something other than text in {self.column!r}" if self.column else "without text")
        elif not value.strip():
            self.leave(row, "with empty text")
        elif not _encodable(value):
            self.leave(row, "with half of a surrogate pair, which is no character")
        else:
            text = fold_newlines(value) if self.newlines == "fold" else value
            self.documents.append(Document(f"{self.name}:{row}", text))

    def leave(self, row: int, reason: str) -> None:
        """A row that is left out, and why."""
        self.left_out.setdefault(reason, []).append(row)

    def finish(self, notes: list[str]) -> list[Document]:
        """The documents; says in `notes` what was left out. Raises Unreadable when nothing is left."""
        if not self.documents:
            where = f" in {self.column!r}" if self.column else ""
            seen = sum(len(rows) for rows in self.left_out.values())
            if not seen:
                raise Unreadable("has no rows")
            raise Unreadable(f"no text{where} in any of its {counted(seen, 'row')}; --column NAME takes another")
        for reason, rows in self.left_out.items():
            notes.append(f"left out {counted(len(rows), 'row')} {reason}: {some(rows)}")
        return self.documents


def read_json(
    text: str, name: str, *, lines: bool, column: str | None, newlines: Newlines, notes: list[str]
) -> list[Document]:
    """The text column of JSON rows.

    lines: True for JSON lines; False for a file that may also hold one list, or one object. A row is an object with
    the column, or a bare string. Without `column` it is guessed (and the guess noted): the only field that holds
    strings, or the one called `text`. Raises Unreadable for broken JSON, with its line.
    """
    # Inside JSON a line end within a string is always escaped, so these are only the ends of the lines.
    text = fold_newlines(text).removeprefix("\ufeff")
    numbered = _json_lines(text) if lines else _json_any(text)
    objects = [row for _, row in numbered if isinstance(row, dict)]
    if objects:
        column = _json_column(objects, column, notes)
    elif column is not None and numbered:
        raise Unreadable(f"has no field {column!r}: none of its rows is an object with fields; leave --column away")
    rows = _Rows(name, column, newlines)
    for number, row in numbered:
        if not isinstance(row, dict):
            rows.take(number, row)
        elif column in row:
            rows.take(number, row[column])
        else:
            rows.leave(number, f"without {column!r}")
    return rows.finish(notes)


def _json_lines(text: str) -> list[tuple[int, Any]]:
    # Only LF ends a line here: a string may hold U+2028 and its like as they are.
    lines = enumerate(text.rstrip(" \t\n").split("\n"), start=1)
    return [(number, _parse(line, number) if line.strip(" \t") else _BLANK) for number, line in lines]


def _json_any(text: str) -> list[tuple[int, Any]]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        first = next((line for line in text.split("\n") if line.strip()), "")
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            _parse(text, 1)  # No JSON lines either: this raises, with the line where the whole breaks.
        return _json_lines(text)
    return list(enumerate(whole, start=1)) if isinstance(whole, list) else [(1, whole)]


def _parse(text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1:,}, column {error.colno:,}"
        raise Unreadable(f"broken JSON at {place}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # A number of thousands of digits; nesting without end.
        reason = str(error).split(";")[0]
        raise Unreadable(f"broken JSON at line {line:,}: {reason}") from None


def _json_column(objects: list[dict[str, Any]], column: str | None, notes: list[str]) -> str:
    fields = list(dict.fromkeys(key for row in objects for key in row))
    if column is not None:
        return _known(column, fields)
    textual = [key for key in fields if any(isinstance(row.get(key), str) for row in objects)]
    return _guess(textual, fields, notes)


def read_table(
    text: str, name: str, *, column: str | None, newlines: Newlines, notes: list[str], tabs: bool = False
) -> list[Document]:
    """The text column of a table with a header; fields may be quoted and hold line ends.

    The delimiter is the commonest of comma, semicolon and tab in the header (tabs: only tab); a header without any
    is a table of one column. Without `column` it is guessed (and the guess noted): the column called `text`, or the
    only one whose values are not all numbers. Raises Unreadable for quotes that do not close, with the line.
    """
    text = text.removeprefix("\ufeff")
    delimiter = _delimiter(text, tabs)
    records = list(enumerate(_records(text.rstrip("\r\n"), delimiter), start=1))
    while records and not records[0][1]:
        del records[0]
    if len(records) < 2:
        raise Unreadable("has a header at most, and no rows")
    header = [cell.strip() for cell in records[0][1]]
    body = records[1:]
    column = _known(column, header) if column is not None else _table_column(header, body, notes)
    if header.count(column) > 1:
        raise Unreadable(f"has {header.count(column)} columns called {column!r}: rename one of them")
    place = header.index(column)
    rows = _Rows(name, column, newlines)
    for number, cells in body:
        if len(cells) > len(header):
            rows.leave(number, f"with more cells than the header's {len(header)}")
        elif not cells:
            rows.take(number, _BLANK)
        elif place < len(cells):
            rows.take(number, cells[place])
        else:
            rows.leave(number, f"without {column!r}")
    return rows.finish(notes)


def _delimiter(text: str, tabs: bool) -> str:
    header: list[str] = []
    quoted = False
    for character in text.lstrip("\r\n"):
        if character == '"':
            quoted = not quoted
        elif character in "\r\n" and not quoted:
            break
        elif not quoted:
            header.append(character)
    counts = Counter(character for character in header if character in _DELIMITERS)
    if tabs:
        return "\t" if counts["\t"] else _NO_DELIMITER
    return max(_DELIMITERS, key=lambda delimiter: counts[delimiter]) if counts else _NO_DELIMITER


def _records(text: str, delimiter: str) -> Iterator[list[str]]:
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # The module's own limit is 131,072 characters a field.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for cells in reader:
            begin = reader.line_num + 1
            yield cells
    except csv.Error as error:
        what = "a quote is not closed" if "end of data" in str(error) else str(error)
        raise Unreadable(f"broken table in the row that begins at line {begin:,}: {what}") from None
    finally:
        csv.field_size_limit(limit)


def _table_column(header: list[str], body: Iterable[tuple[int, list[str]]], notes: list[str]) -> str:
    worded: set[int] = set()
    for _, cells in body:
        worded.update(place for place, cell in enumerate(cells) if cell.strip() and not _number(cell))
    textual = [title for place, title in enumerate(header) if place in worded]
    return _guess(textual, header, notes)


def _known(column: str, columns: list[str]) -> str:
    if column not in columns:
        raise Unreadable(f"has no column {column!r} among {some(columns)}{did_you_mean(column, columns)}")
    return column


def _guess(textual: list[str], columns: list[str], notes: list[str]) -> str:
    candidates = dict.fromkeys(textual)
    called_text = [title for title in candidates if title.casefold() == "text"]
    if len(called_text or candidates) == 1:
        column = next(iter(called_text or candidates))
    elif candidates:
        raise Unreadable(f"which column is the text? --column NAME says it: {some(candidates)}")
    else:
        raise Unreadable(f"none of its columns holds text: {some(columns)}")
    if len(columns) > 1:
        notes.append(f"the text is taken from {column!r}, a guess; --column NAME takes another")
    return column


def _number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
