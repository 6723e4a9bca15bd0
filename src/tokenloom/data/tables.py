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
from itertools import chain
from typing import Any

from tokenloom.data.documents import Document
from tokenloom.data.unicode import Unreadable, fold_newlines
from tokenloom.utils.names import counted, did_you_mean, some

_DELIMITERS = (",", ";", "\t")
_NO_DELIMITER = "\x1f"  # A control character that text does not hold: a table of one column.
_SHOWN = 20  # Rows left out that are named.
_BLANK = ""  # What a blank line among the rows stands for: a row whose text is empty.


@dataclass
class _LeftOut:
    """How many rows were left out for one reason, and the first of them."""

    count: int = 0
    rows: list[int] = field(default_factory=list)


@dataclass
class RowSorter:
    """Sorts rows into documents and reasons for leaving them out."""

    name: str
    column: str | None
    normalize_newlines: bool
    found: int = 0
    textless: int = 0
    left_out: dict[str, _LeftOut] = field(default_factory=dict)

    def take(self, row: int, value: object) -> Iterator[Document]:
        """One row's text, or a reason for which it has none."""
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
        """A row that is left out, and why. textless: since there is no text in it, where it was looked for."""
        self.textless += textless
        left = self.left_out.setdefault(reason, _LeftOut())
        left.count += 1
        if len(left.rows) < _SHOWN:
            left.rows.append(row)

    def finish(self, notes: list[str]) -> None:
        """Says in `notes` what was left out. Raises Unreadable when nothing is left."""
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
    """The text column of JSON rows.

    lines: True for JSON lines; False for a file that may also hold one list, or one object. A row is an object with
    the column, or a bare string. Without `column` it is guessed (and the guess noted): the only field that holds
    strings, or the one called `text`. Raises Unreadable for broken JSON, with its line.
    """
    # Inside JSON a line end within a string is always escaped, so these are only the ends of the lines.
    text = fold_newlines(text).removeprefix("\ufeff")
    numbered = list(json_lines(text.split("\n"))) if lines else json_any(text)
    column = json_column(numbered, column, notes)
    return list(json_documents(numbered, name, column=column, normalize_newlines=normalize_newlines, notes=notes))


def json_documents(
    rows: Iterable[tuple[int, Any]], name: str, *, column: str | None, normalize_newlines: bool, notes: list[str]
) -> Iterator[Document]:
    """The documents of numbered JSON rows, whose column `json_column` has found."""
    sorter = RowSorter(name, column, normalize_newlines)
    for number, row in rows:
        if not isinstance(row, dict):
            yield from sorter.take(number, row)
        elif column in row:
            yield from sorter.take(number, row[column])
        else:
            sorter.leave(number, f"without {column!r}", textless=True)
    sorter.finish(notes)


def json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The rows of JSON lines with their numbers. Raises Unreadable for broken JSON, with its line."""
    # Only LF ends a line here: a string may hold U+2028 and its like as they are.
    blank = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip(" \t\n"):
            blank += 1
            continue
        yield from ((number - back, _BLANK) for back in range(blank, 0, -1))  # Those at the end are no rows.
        blank = 0
        yield number, _parse(line, number)


def json_any(text: str) -> list[tuple[int, Any]]:
    """The numbered rows of a file that holds JSON lines, one list, or one object. Raises Unreadable."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        first = next((line for line in text.split("\n") if line.strip()), "")
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            _parse(text, 1)  # No JSON lines either: this raises, with the line where the whole breaks.
        return list(json_lines(text.split("\n")))
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


def json_column(rows: Iterable[tuple[int, Any]], column: str | None, notes: list[str]) -> str | None:
    """The field of JSON rows that holds the text: checked where it is given, else guessed; None without objects."""
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
        raise Unreadable(
            f"has no field {column!r}: none of its rows is an object with fields; leave --text-column away"
        )
    return column


def read_table(
    text: str, name: str, *, column: str | None, normalize_newlines: bool, notes: list[str], tabs: bool = False
) -> list[Document]:
    """The text column of a table with a header; fields may be quoted and hold line ends.

    The delimiter is the commonest of comma, semicolon and tab in the header (tabs: only tab); a header without any
    is a table of one column. Without `column` it is guessed (and the guess noted): the column called `text`, or the
    only one whose values are not all numbers. Raises Unreadable for quotes that do not close, with the line.
    """
    text = text.removeprefix("\ufeff")
    lines = io.StringIO(text.rstrip("\r\n"), newline="")
    records = list(table_records(lines, table_delimiter(text, tabs)))
    column = table_column(records, column, notes)
    return list(table_documents(records, name, column=column, normalize_newlines=normalize_newlines, notes=notes))


Records = Iterable[tuple[int, list[str]]]


def table_column(records: Records, column: str | None, notes: list[str]) -> str:
    """The column of a table that holds the text: checked where it is given, else guessed."""
    rows = iter(records)
    first, second = next(rows, None), next(rows, None)
    if first is None or second is None:
        raise Unreadable("has a header at most, and no rows")
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
    """The documents of a table's records, whose column `table_column` has found."""
    rows = iter(records)
    header = [cell.strip() for cell in next(rows)[1]]
    place = header.index(column)
    sorter = RowSorter(name, column, normalize_newlines)
    for number, cells in rows:
        if len(cells) > len(header):
            sorter.leave(number, f"with more cells than the header's {len(header)}")
        elif not cells:
            yield from sorter.take(number, _BLANK)
        elif place < len(cells):
            yield from sorter.take(number, cells[place])
        else:
            sorter.leave(number, f"without {column!r}")
    sorter.finish(notes)


def table_delimiter(text: str, tabs: bool) -> str:
    """The delimiter of a table, which its header decides."""
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
    """The records of a table from its lines with their ends, numbered; blank ones before the header are left out."""
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # The module's own limit is 131,072 characters a field.
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
    """The column, if it is there. Raises Unreadable, with the nearest, if not."""
    if column not in columns:
        raise Unreadable(f"has no column {column!r} among {some(columns)}{did_you_mean(column, columns)}")
    return column


def _guess(textual: list[str], columns: list[str], notes: list[str]) -> str:
    candidates = dict.fromkeys(textual)
    called_text = [title for title in candidates if title.casefold() == "text"]
    if len(called_text or candidates) == 1:
        column = next(iter(called_text or candidates))
    elif candidates:
        raise Unreadable(f"which column is the text? --text-column NAME says it: {some(candidates)}")
    else:
        raise Unreadable(f"none of its columns holds text: {some(columns)}")
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
