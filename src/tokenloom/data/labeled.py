"""Labeled texts: a table or JSON lines with a text and a label column, a folder per class, or a built-in set.

Rows are numbered as in `tables.py`. What cannot be used is named with its rows.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tokenloom.config import flag
from tokenloom.data import registry
from tokenloom.data.documents import DataSet, Document, Facts, SplitKeys, TextData
from tokenloom.data.report import class_rows
from tokenloom.data.tables import RowCollector, json_any, json_lines, known_column, table_delimiter, table_records
from tokenloom.data.text import (
    JSON_ENDINGS,
    TABLE_ENDINGS,
    no_such,
    printable_path,
    raw_of,
    read_text,
    reason_of,
    shown_path,
)
from tokenloom.data.unicode import Unreadable, check_encoding, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

# Column names that are recognized.
TEXTS = ("text", "sentence", "message", "review", "content", "comment", "tweet", "utterance", "body", "document")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "genre", "topic", "intent", "tag", "y")
_TITLE_WORDS = 5  # Column names have at most so many words.
_PEEK = 1 << 16


@dataclass(frozen=True, slots=True)
class Labeled:
    """A text and its label. `id` is the same at every reading.

    group: examples of one group (the speeches of a play) may be held out together; "" for none.
    """

    id: str
    text: str
    label: str
    group: str = ""


@dataclass(frozen=True)
class LabeledData(DataSet):
    """Labeled texts in reading order; no text and no label is empty."""

    items: list[Labeled]

    @property
    def classes(self) -> list[str]:
        """The labels, sorted: class numbers are indices into this list."""
        return sorted({item.label for item in self.items})

    def as_text(self) -> TextData:
        """Return the texts without their labels, one document each."""
        shared = self.shared_fields()
        if isinstance(self.held_out, tuple):
            shared["held_out"] = tuple(item.id for item in self.items if item.group in self.held_out)
        return TextData([Document(item.id, item.text) for item in self.items], True, **shared)

    def split_keys(self) -> SplitKeys:
        """See `DataSet.split_keys`. A repeat of a text with the same label counts once."""
        first: dict[tuple[str, str], int] = {}
        places = [first.setdefault((item.text, item.label), index) for index, item in enumerate(self.items)]
        return SplitKeys(
            ids=[item.id for item in self.items],
            content=[item.text.strip() for item in self.items],
            labels=[item.label for item in self.items],
            groups=[item.group for item in self.items],
            repeats=[index for index, place in enumerate(places) if place != index],
            noun="text",
            min_labels=2,
        )

    def select(self, indices: Sequence[int]) -> Self:
        return replace(self, items=[self.items[index] for index in indices])

    def counts(self) -> dict[str, int]:
        return {"texts": len(self.items)}

    def facts(self, validation: Self) -> Facts:
        train, held = (Counter(item.label for item in part.items) for part in (self, validation))
        majority = min(train, key=lambda label: (-train[label], label))
        items = [*self.items, *validation.items]
        sizes = sorted(len(item.text) for item in items)
        longest = max(items, key=lambda item: len(item.text))
        counts = {label: (train[label], held[label]) for label in sorted({*train, *held})}
        share = held[majority] / sum(held.values())
        median, most = sizes[len(sizes) // 2], sizes[len(sizes) * 95 // 100]
        lengths = (
            f"{sizes[0]:,} to {sizes[-1]:,} characters, median {median:,}, 95th percentile {most:,}; the longest is"
            f" {longest.id}"
        )
        values = {
            "counts": counts,
            "majority": majority,
            "majority_share": share,
            "lengths": (sizes[0], median, most),
            "longest": (longest.id, len(longest.text)),
        }
        return values, [*class_rows(counts, majority, share), ("lengths", lengths)]


@dataclass(frozen=True)
class LabelColumns:
    """The columns of text and label in a table: names, or numbers from 1 in a table without a header.

    What is None is guessed, and noted. header: whether the first row names the columns. texts: recognized names of the
    text column; text_option: the option that gives it. Both differ for paths of images.
    """

    text: str | None = None
    label: str | None = None
    header: bool | None = None
    texts: tuple[str, ...] = TEXTS
    text_option: str = "text_column"


def read_labeled(source: str, *, columns: LabelColumns | None = None, encoding: str = "utf-8") -> LabeledData:
    """Read labeled texts. source:

    - a built-in data set of labeled texts;
    - `.csv`, `.tsv`, `.jsonl`, `.ndjson`, `.json` (also with `.gz`): one per row, see `LabelColumns`;
    - a folder with one folder per class: every text file (or row of a table) in it is an example.

    Numeric labels are kept as text; white space around a label is removed. Raises UserError, naming the file and the
    row, for what cannot be read, and when no example is left.
    """
    check_encoding(encoding)
    columns = columns or LabelColumns()
    if source in registry.names():
        return _built_in(source, columns)
    path = Path(source)
    if source == "-" or not source:
        raise UserError("labeled texts are read from a file or a folder: give its name")
    if not os.path.lexists(path):
        raise UserError(no_such(source))
    if path.is_dir():
        return _folder(path, columns, encoding)
    name, notes = printable_path(path.name), list[str]()
    try:
        text, ending = _text_of(path, encoding)
        items = _json(text, name, ending, columns, notes) if ending in JSON_ENDINGS else None
        items = items if items is not None else _table(text, name, ending == ".tsv", columns, notes)
    except Unreadable as error:
        raise UserError(f"{shown_path(source)}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {shown_path(source)}: {reason_of(error)}") from None
    return LabeledData(items, name=name, notes=[f"{name}: {note}" for note in notes])


def read_column(source: str, *, column: str | None, encoding: str = "utf-8") -> list[str]:
    """Return texts to be classified: a column of a table or of JSON rows, or the nonblank lines of a plain file."""
    if Path(source).is_file() and Path(source.removesuffix(".gz")).suffix.lower() in JSON_ENDINGS + TABLE_ENDINGS:
        return [document.text for document in read_text(source, encoding=encoding, text_column=column).documents]
    data = read_text(source, encoding=encoding, text_column=column)
    return [line for document in data.documents for line in document.text.split("\n") if line.strip()]


def looks_labeled(source: str) -> str | None:
    """Return why these data look like labeled texts, or None. Reads only the beginning."""
    if source in registry.names():
        return "labeled texts" if registry.find(source).data_class is LabeledData else None
    _, titles = beginning_of_table(Path(source))
    found = [called(names, titles) for names in (TEXTS, LABELS)]
    return "texts with a column of labels" if all(found) else None


def beginning_of_table(path: Path) -> tuple[str, list[str]]:
    """Return the first 64 kB of a table or of JSON rows, and the cells of its first row or fields of its first object.

    Both are empty for other files, and for what cannot be read.
    """
    ending = path.suffix.lower()
    if ending not in JSON_ENDINGS + TABLE_ENDINGS or not path.is_file():
        return "", []
    try:
        with path.open("rb") as file:
            text = file.read(_PEEK).decode("utf-8", "replace").removeprefix("\ufeff")
        if ending in JSON_ENDINGS:
            titles = _json_titles(text)
        else:
            lines = io.StringIO(text, newline="")
            titles = next((cells for _, cells in table_records(lines, table_delimiter(text, ending == ".tsv"))), [])
    except (OSError, ValueError, Unreadable):
        return "", []
    return text, [title.strip() for title in titles]


def _json_titles(text: str) -> list[str]:
    """Return the fields of the first row of JSON."""
    try:
        start = text.index("{")
        row, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return []
    return list(row) if isinstance(row, dict) and not text[:start].strip(" \t\r\n[") else []


def _built_in(name: str, columns: LabelColumns) -> LabeledData:
    if columns != LabelColumns():
        raise UserError(f"{name} is a built-in data set: --text-column, --label-column and --header do not apply to it")
    return registry.load_as(name, LabeledData, "labeled texts")


def _text_of(path: Path, encoding: str) -> tuple[str, str]:
    raw, ending = raw_of(path)
    if ending not in JSON_ENDINGS + TABLE_ENDINGS:
        raise Unreadable(
            "plain text has no labels: give a table (.csv, .tsv, .jsonl, .json) with a text and a label column, or a"
            " folder in which each folder is a class"
        )
    text = decode(raw, encoding, False).removeprefix("\ufeff")
    if not text.strip():
        raise Unreadable(f"empty ({counted(len(raw), 'byte')}): there is no text in it")
    return text, ending


def _folder(root: Path, columns: LabelColumns, encoding: str) -> LabeledData:
    """Read one example per file; the label is the folder directly below the root."""
    if columns.label is not None or columns.header is not None:
        raise UserError(f"{shown_path(str(root))} is a folder, whose folders are the classes: leave out --label-column")
    data = read_text(root, encoding=encoding, text_column=columns.text)
    outside = [document.id for document in data.documents if "/" not in document.id]
    items = [Labeled(d.id, d.text, d.id.split("/")[0]) for d in data.documents if "/" in d.id]
    if not items:
        raise UserError(
            f"{shown_path(str(root))}: no folder in it contains text; give one folder per class with one file per"
            " example, or a table with a label column"
        )
    notes = list(data.notes)
    if outside:
        notes.append(f"left out {counted(len(outside), 'file')} outside of class folders: {some(outside, 5)}")
    known = {item.label for item in items}
    empty = sorted(
        name for one in root.iterdir() if one.is_dir() and (name := printable_path(one.name)) not in known
        if not name.startswith(".")
    )  # fmt: skip
    if empty:
        notes.append(f"{counted(len(empty), 'folder')} without text, not used as a class: {some(empty)}")
    return LabeledData(items, name=data.name, notes=notes, skipped=data.skipped)


# Rows.


def _json(text: str, name: str, ending: str, columns: LabelColumns, notes: list[str]) -> list[Labeled]:
    if columns.header is not None:
        raise Unreadable("the fields of JSON have names: leave out --header")
    text = fold_newlines(text)
    rows = list(json_lines(text.split("\n"))) if ending != ".json" else json_any(text)
    titles = list(dict.fromkeys(key for _, row in rows if isinstance(row, dict) for key in row))
    if not titles:
        raise Unreadable("none of its rows is an object with fields, such as a text and a label")
    cells = [[row.get(title) for title in titles] for _, row in rows if isinstance(row, dict)]
    chosen = _columns(titles, cells, columns, notes)
    picked = [(number, *_fields(row, chosen)) for number, row in rows]
    return _sorted(picked, name, *chosen, [], notes)


def _fields(row: Any, chosen: tuple[str, str]) -> tuple[Any, Any]:
    """Return text and label of a row of JSON; a row that is no object has no label."""
    return (row.get(chosen[0]), row.get(chosen[1])) if isinstance(row, dict) else (row, None)


def _table(text: str, name: str, tabs: bool, columns: LabelColumns, notes: list[str]) -> list[Labeled]:
    records = list(table_records(io.StringIO(text.rstrip("\r\n"), newline=""), table_delimiter(text, tabs)))
    titles = [cell.strip() for cell in records[0][1]]
    body = records[1:]
    if not _has_header(titles, body, columns, notes):
        titles, body = [str(number) for number in range(1, len(titles) + 1)], records
    if not body:
        raise Unreadable("has no rows")
    chosen = _columns(titles, [cells for _, cells in body], columns, notes)
    for title in chosen:
        if titles.count(title) > 1:
            raise Unreadable(f"has {titles.count(title)} columns called {title!r}: rename one of them")
    text_place, label_place = (titles.index(title) for title in chosen)
    ragged = [number for number, cells in body if len(cells) > len(titles)]
    picked = [
        (number, _cell(cells, text_place) if cells else "", _cell(cells, label_place))
        for number, cells in body
        if len(cells) <= len(titles)
    ]
    return _sorted(picked, name, *chosen, ragged, notes, wide=len(titles))


def _cell(cells: list[str], place: int) -> str | None:
    return cells[place] if place < len(cells) else None


def _sorted(
    rows: Iterable[tuple[Any, ...]],
    name: str,
    text_column: str,
    label_column: str,
    ragged: Sequence[int],
    notes: list[str],
    wide: int = 0,
) -> list[Labeled]:
    """Return the examples of rows (number, text, label); notes name those left out, with the reason."""
    collector = RowCollector(name, text_column, True)
    for number in ragged:
        collector.leave(number, f"with more cells than the header's {wide}")
    items, trimmed = [], 0
    for number, text, value in rows:
        label = _label(value)
        if label is None and text != "":
            what = "with an empty label" if value == "" or _blank(value) else "without a label"
            if isinstance(value, list | dict):
                what = "whose label is neither a text nor a number"
            collector.leave(number, f"{what} in {label_column!r}")
            continue
        for document in collector.take(number, text):
            assert label is not None
            trimmed += isinstance(value, str) and value != label
            items.append(Labeled(document.id, document.text, label))
    collector.finish(notes)
    if trimmed:
        notes.append(f"removed white space around the labels of {counted(trimmed, 'row')}")
    return items


def _blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _label(value: Any) -> str | None:
    """Return a label as text, or None where there is none."""
    if isinstance(value, str):
        return value.strip() or None
    return None if value is None or isinstance(value, list | dict) else json.dumps(value)


# Columns.


def _has_header(first: list[str], body: list[tuple[int, list[str]]], columns: LabelColumns, notes: list[str]) -> bool:
    """Return whether the first row names the columns: as given, by known names, or as it looks unlike an example."""
    if columns.header is not None:
        return columns.header
    given = [name for name in (columns.text, columns.label) if name is not None]
    if given:
        return any(name in first for name in given) or not all(name.isdecimal() for name in given)
    if called(columns.texts, first) or called(LABELS, first):
        return True
    again = {cell.strip() for _, cells in body for cell in cells if cell.strip()}
    if any(len(cell.split()) > _TITLE_WORDS for cell in first) or again.intersection(first):
        shown = some((repr(cell[:40]) for cell in first), 5)
        notes.append(
            f"the first row ({shown}) looks like an example: columns are numbered from 1; --header declares it a header"
        )
        return False
    return True


def _columns(
    titles: list[str], rows: Sequence[Sequence[Any]], columns: LabelColumns, notes: list[str]
) -> tuple[str, str]:
    """Return the columns of text and label: as given, by known names, or by their content."""
    if len(titles) < 2:
        raise Unreadable(f"has only the column {titles[0]!r}: a text and a label need two")
    for name in (columns.text, columns.label):
        if name is not None:
            known_column(name, titles)
    if columns.text is not None and columns.text == columns.label:
        raise Unreadable(f"{columns.text!r} cannot be both the text and the label")
    text, label = columns.text, columns.label
    others = [title for title in titles if title not in (text, label)]
    if text is None:
        text = called(columns.texts, others)
    if label is None:
        label = called(LABELS, [title for title in others if title != text])
    if text is None:
        found = [title for title in others if title != label]
        lengths = {title: _mean_length(_values(rows, titles.index(title))) for title in found}
        text = max(lengths, key=lambda title: lengths[title])
    if label is None:
        label = _only_label([title for title in titles if title != text], titles, rows)
    guessed = [
        f"the {what} is taken from {title!r}, a guess; {flag(name)} NAME takes another"
        for what, name, title, given in (
            ("text", columns.text_option, text, columns.text),
            ("label", "label_column", label, columns.label),
        )
        if given is None
    ]
    notes += guessed
    return text, label


def called(names: Iterable[str], titles: Iterable[str]) -> str | None:
    """Return the column with the first of the known names that occurs."""
    by_name = {title.casefold(): title for title in reversed(list(titles))}
    return next((by_name[name] for name in names if name in by_name), None)


def _values(rows: Sequence[Sequence[Any]], place: int) -> list[Any]:
    return [row[place] for row in rows if place < len(row)]


def _mean_length(values: list[Any]) -> float:
    return sum(len(value) for value in values if isinstance(value, str)) / max(1, len(values))


def _only_label(others: list[str], titles: list[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return the only column with repeated values."""
    repeating = []
    for title in others:
        values = [label for value in _values(rows, titles.index(title)) if (label := _label(value)) is not None]
        if 2 <= len(set(values)) <= len(values) // 2:
            repeating.append(title)
    if len(repeating) == 1:
        return repeating[0]
    raise Unreadable(f"which column is the label? Give --label-column NAME: {some(repeating or others)}")
