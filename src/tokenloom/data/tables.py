"""Text from rows: JSON lines, JSON lists, and tables with a delimiter.

Row numbers are the line in JSON lines, the position from 1 in a JSON list, and the row of a spreadsheet in a table, so
that its header is row 1. Rows without text are left out, counted, and named in the notes.
"""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tokenloom.data.documents import Document
from tokenloom.data.unicode import Unreadable, fold_newlines
from tokenloom.utils.names import counted, did_you_mean, some

_DELIMITERS = (",", ";", "\t")
_NO_DELIMITER = "\x1f"  # A control character that does not occur in text: a table of one column.
_SHOWN = 20  # Number of left out rows that are named.
_BLANK = ""  # The text of a blank line among the rows.


@dataclass
class _LeftOut:
    """The number of rows left out for one reason, and the first of them."""

    count: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass
class RowCollector:
    """Turns rows into documents, and counts the rows left out by reason."""

    name: str
    column: str | None
    normalize_newlines: bool
    found: int = 0
    textless: int = 0
    left_out: dict[str, _LeftOut] = field(default_factory=dict)

    def take(self, row: int, value: object) -> Iterator[Document]:
        """Yield the document of a row, or note why it has none."""
        if not isinstance(value, str):
            what = f"with something other than text in {self.column!r}" if self.column else "without text"
            self.leave(row, what, textless=True)
        elif not value.strip():
            self.leave(row, "with empty text", textless=True)
        elif not _encodable(value):
            self.leave(row, "with half of a surrogate pair, which is no character")
        else:
            self.found += 1
            yield Document(f"{self.name}:{row}", fold_newlines(value) if self.normalize_newlines else value)

    def leave(self, row: int, reason: str, *, textless: bool = False) -> None:
        """Leave out a row. textless: because its text column has no text."""
        self.textless += textless
        left = self.left_out.setdefault(reason, _LeftOut())
        left.count += 1
        if len(left.rows) < _SHOWN:
            left.rows.append(row)

    def finish(self, notes: list[str]) -> None:
        """Add notes on what was left out. Raises Unreadable when nothing is left."""
        if not self.found:
            where = f" in {self.column!r}" if self.column else ""
            seen = sum(left.count for left in self.left_out.values())
            if not seen:
                raise Unreadable("has no rows")
            if self.textless == seen:
                raise Unreadable(
                    f"no text{where} in any of its {counted(seen, 'row')}; --text-column NAME takes another"
                )
            why = ", ".join(f"{counted(left.count, 'row')} {reason}" for reason, left in self.left_out.items())
            raise Unreadable(f"none of its rows can be used: {why}")
        for reason, left in self.left_out.items():
            more = f" and {left.count - _SHOWN:,} more" if left.count > _SHOWN else ""
            notes.append(f"left out {counted(left.count, 'row')} {reason}: {some(left.rows)}{more}")


def read_json(
    text: str, name: str, *, lines: bool, column: str | None, normalize_newlines: bool, notes: list[str]
) -> list[Document]:
    """Return the text column of JSON rows.

    lines: whether these are JSON lines; otherwise the file may also contain one list, or one object. A row is an object
    with the column, or a string. column: when None, the field `text` or the only one with strings, which is noted.
    Raises Unreadable for broken JSON, with its line.
    """
    # Newlines within JSON strings are escaped, so these are only the ends of lines.
    text = fold_newlines(text).removeprefix("\ufeff")
    numbered = list(json_lines(text.split("\n"))) if lines else json_any(text)
    column = json_column(numbered, column, notes)
    return list(json_documents(numbered, name, column=column, normalize_newlines=normalize_newlines, notes=notes))


def json_documents(
    rows: Iterable[tuple[int, Any]], name: str, *, column: str | None, normalize_newlines: bool, notes: list[str]
) -> Iterator[Document]:
    """Yield the documents of numbered JSON rows; column: as `json_column` returns it."""
    collector = RowCollector(name, column, normalize_newlines)
    for number, row in rows:
        if not isinstance(row, dict):
            yield from collector.take(number, row)
        elif column in row:
            yield from collector.take(number, row[column])
        else:
            collector.leave(number, f"without {column!r}", textless=True)
    collector.finish(notes)


def json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of JSON lines with their numbers. Raises Unreadable for broken JSON, with its line."""
    # Only LF ends a line: strings may contain U+2028 and similar characters.
    blank = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip(" \t\n"):
            blank += 1
            continue
        yield from ((number - back, _BLANK) for back in range(blank, 0, -1))  # Blank lines at the end are not rows.
        blank = 0
        yield number, _parse(line, number)


def json_any(text: str) -> list[tuple[int, Any]]:
    """Return the numbered rows of a file of JSON lines, one list, or one object. Raises Unreadable."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        first = next((line for line in text.split("\n") if line.strip()), "")
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            _parse(text, 1)  # Not JSON lines either: this raises, with the line of the error.
        return list(json_lines(text.split("\n")))
    return list(enumerate(whole, start=1)) if isinstance(whole, list) else [(1, whole)]


def _parse(text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1:,}, column {error.colno:,}"
        raise Unreadable(f"broken JSON at {place}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # A number of thousands of digits, or too deep nesting.
        reason = str(error).split(";")[0]
        raise Unreadable(f"broken JSON at line {line:,}: {reason}") from None


def json_column(rows: Iterable[tuple[int, Any]], column: str | None, notes: list[str]) -> str | None:
    """Return the text field of JSON rows, checked if given, else guessed; None without objects."""
    textual: dict[str, bool] = {}
    any_row = any_object = False
    for _, row in rows:
        any_row = True
        if isinstance(row, dict):
            any_object = True
            for key, value in row.items():
                textual[key] = textual.get(key, False) or isinstance(value, str)
    if any_object:
        if column is not None:
            return known_column(column, list(textual))
        return _guess([key for key, text in textual.items() if text], list(textual), notes)
    if column is not None and any_row:
        raise Unreadable(f"has no field {column!r}: none of its rows is an object with fields; leave out --text-column")
    return column


def read_table(
    text: str, name: str, *, column: str | None, normalize_newlines: bool, notes: list[str], tabs: bool = False
) -> list[Document]:
    """Return the text column of a table with a header; fields may be quoted and contain newlines.

    The delimiter is the most frequent of comma, semicolon and tab in the header (tabs: only tab); without any the table
    has one column. column: when None, the column `text` or the only one whose values are not all numbers, which is
    noted. Raises Unreadable for quotes that are not closed, with the line.
    """
    text = text.removeprefix("\ufeff")
    lines = io.StringIO(text.rstrip("\r\n"), newline="")
    records = list(table_records(lines, table_delimiter(text, tabs)))
    column = table_column(records, column, notes)
    return list(table_documents(records, name, column=column, normalize_newlines=normalize_newlines, notes=notes))


Records = Iterable[tuple[int, list[str]]]


def table_column(records: Records, column: str | None, notes: list[str]) -> str:
    """Return the text column of a table, checked if given, else guessed."""
    rows = iter(records)
    first, second = next(rows, None), next(rows, None)
    if first is None or second is None:
        raise Unreadable("has no rows")
    header = [cell.strip() for cell in first[1]]
    if column is not None:
        known_column(column, header)
    else:
        worded: set[int] = set()
        for _, cells in chain([second], rows):
            worded.update(place for place, cell in enumerate(cells) if cell.strip() and not _number(cell))
        column = _guess([title for place, title in enumerate(header) if place in worded], header, notes)
    if header.count(column) > 1:
        raise Unreadable(f"has {header.count(column)} columns called {column!r}: rename one of them")
    return column


def table_documents(
    records: Records, name: str, *, column: str, normalize_newlines: bool, notes: list[str]
) -> Iterator[Document]:
    """Yield the documents of the records of a table; column: as `table_column` returns it."""
    rows = iter(records)
    header = [cell.strip() for cell in next(rows)[1]]
    place = header.index(column)
    collector = RowCollector(name, column, normalize_newlines)
    for number, cells in rows:
        if len(cells) > len(header):
            collector.leave(number, f"with more cells than the header's {len(header)}")
        elif not cells:
            yield from collector.take(number, _BLANK)
        elif place < len(cells):
            yield from collector.take(number, cells[place])
        else:
            collector.leave(number, f"without {column!r}")
    collector.finish(notes)


def table_delimiter(text: str, tabs: bool) -> str:
    """Return the delimiter of a table, found in its header."""
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


def table_records(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbered records of a table from its lines; blank ones before the header are left out."""
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # The default limit is 131,072 characters per field.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    begin, header = 1, False
    try:
        for number, cells in enumerate(reader, start=1):
            begin = reader.line_num + 1
            header = header or bool(cells)
            if header:
                yield number, cells
    except csv.Error as error:
        what = "a quote is not closed" if "end of data" in str(error) else str(error)
        raise Unreadable(f"broken table in the row that begins at line {begin:,}: {what}") from None
    finally:
        csv.field_size_limit(limit)


def known_column(column: str, columns: list[str]) -> str:
    """Return the column if it exists. Raises Unreadable, with a suggestion, otherwise."""
    if column not in columns:
        raise Unreadable(f"has no column {column!r} among {some(columns)}{did_you_mean(column, columns)}")
    return column


def _guess(textual: list[str], columns: list[str], notes: list[str]) -> str:
    candidates = dict.fromkeys(textual)
    called_text = [title for title in candidates if title.casefold() == "text"]
    if len(called_text or candidates) == 1:
        column = next(iter(called_text or candidates))
    elif candidates:
        raise Unreadable(f"which column is the text? Give --text-column NAME: {some(candidates)}")
    else:
        raise Unreadable(f"none of its columns contains text: {some(columns)}")
    if len(columns) > 1:
        notes.append(f"the text is taken from {column!r}, a guess; --text-column NAME takes another")
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
