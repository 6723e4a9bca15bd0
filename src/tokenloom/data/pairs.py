"""Pairs of texts, a source and its target: a table with two columns, or two files aligned line by line.

Rows are numbered as in `tables.py`, lines of aligned files from 1. What cannot be used is named.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tokenloom.data import registry
from tokenloom.data.documents import DataSet, Document, Facts, SplitKeys, TextData
from tokenloom.data.tables import json_any, json_lines, table_delimiter, table_records
from tokenloom.data.text import JSON_ENDINGS, TABLE_ENDINGS, no_such, printable_path, raw_of, reason_of, shown_path
from tokenloom.data.unicode import Unreadable, check_encoding, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, did_you_mean, some

# Column names that are recognized.
SOURCES = ("source", "src", "input", "from", "question")
TARGETS = ("target", "tgt", "trg", "output", "to", "translation", "answer")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?")
_SENTENCE = re.compile(r"[.!?…。！？;:,¿¡]|\s\S+\s|.{31}")  # Does not match column names.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its target. `id` is the same at every reading."""

    id: str
    source: str
    target: str


@dataclass(frozen=True)
class PairData(DataSet):
    """Pairs in reading order; no source and no target is empty."""

    pairs: list[Pair]

    def as_text(self) -> TextData:
        """Return one document per pair, with source and target on a line each."""
        documents = [Document(pair.id, f"{pair.source}\n{pair.target}\n") for pair in self.pairs]
        return TextData(documents, True, **self.shared_fields())

    def split_keys(self) -> SplitKeys:
        """See `DataSet.split_keys`. Pairs with the same source stay on one side."""
        sources = [pair.source for pair in self.pairs]
        first: dict[str, str] = {}
        order = [first.setdefault(pair.source, pair.id) for pair in self.pairs]
        ids, sizes = [pair.id for pair in self.pairs], [1] * len(self.pairs)
        return SplitKeys(
            ids=ids, content=sources, order=order, sizes=sizes, noun="pair", unit="pair", content_name="source"
        )

    def select(self, indices: Sequence[int]) -> Self:
        return replace(self, pairs=[self.pairs[index] for index in indices])

    def counts(self) -> dict[str, int]:
        return {"pairs": len(self.pairs)}

    def facts(self, validation: Self) -> Facts:
        pairs = [*self.pairs, *validation.pairs]
        longest: dict[str, tuple[str, int]] = {}
        unseen: dict[str, list[str]] = {}
        rows: list[tuple[str, str]] = []
        for side in ("source", "target"):
            texts = [getattr(pair, side) for pair in pairs]
            at = max(range(len(texts)), key=lambda i: len(texts[i]))
            longest[side] = (pairs[at].id, len(texts[at]))
            known = set[str]().union(*(getattr(pair, side) for pair in self.pairs))
            unseen[side] = sorted(set[str]().union(*(getattr(pair, side) for pair in validation.pairs)) - known)
            mean = sum(map(len, texts)) / len(texts)
            what = f"{mean:.1f} characters on average, {longest[side][1]:,} at most ({longest[side][0]})"
            rows.append((f"{side}s", f"{what}, {len(known | set(unseen[side])):,} distinct characters"))
            if unseen[side]:
                rows.append(("unseen characters", f"in validation {side}s alone: {some(map(repr, unseen[side]), 10)}"))
        repeats = len(self.pairs) - len({(pair.source, pair.target) for pair in self.pairs})
        if repeats:
            rows.append(("duplicates", f"{counted(repeats, 'training pair')}: exact repeats of another"))
        return {"longest": longest, "unseen_characters": unseen, "duplicates": repeats}, rows


@dataclass(frozen=True)
class PairColumns:
    """The columns of source and target in a table.

    source, target: names of columns, or numbers from 1 in a table without a header; guessed when not given. header:
    whether the first row names the columns; guessed when None.
    """

    source: str | None = None
    target: str | None = None
    header: bool | None = None


def read_pairs(
    source: str, *, target: str | None = None, columns: PairColumns | None = None, encoding: str = "utf-8"
) -> PairData:
    """Read pairs. source:

    - a built-in data set of pairs;
    - `.csv`, `.tsv`, `.jsonl`, `.ndjson`, `.json` (also with `.gz`): a pair per row, see `PairColumns`;
    - with `target`, a text file whose line n is the source of line n of the file `target`.

    Raises UserError, naming the file and the row, for what cannot be read, and for aligned files of unequal length.
    """
    check_encoding(encoding)
    columns = columns or PairColumns()
    if source in registry.names():
        return _built_in(source, target, columns)
    if target is not None:
        if columns != PairColumns():
            raise UserError(
                f"--target-file {target}: two aligned files have no columns; leave out the options of tables"
            )
        return _aligned(source, target, encoding)
    text, ending = _text(source, encoding)
    name = printable_path(Path(source).name)
    try:
        if ending in JSON_ENDINGS:
            collector = _json_pairs(text, name, ending, columns)
        elif ending in TABLE_ENDINGS:
            collector = _table_pairs(text, name, ending == ".tsv", columns)
        else:
            raise Unreadable(
                "plain text contains no pairs: give a table (.csv, .tsv, .jsonl, .json), or with --target-file the"
                " file whose lines are the targets of its lines"
            )
        return collector.data()
    except Unreadable as error:
        raise UserError(f"{shown_path(source)}: {error}") from None


def _built_in(name: str, target: str | None, columns: PairColumns) -> PairData:
    if target is not None or columns != PairColumns():
        raise UserError(f"{name} is a built-in data set: --target-file and the options of tables do not apply to it")
    return registry.load_as(name, PairData, "pairs")


def _text(path: str, encoding: str) -> tuple[str, str]:
    """Return the text of a file with its newlines unchanged, and the ending of its name. Raises UserError."""
    if path == "-" or not path:
        raise UserError("pairs are read from a file: give a table, or two aligned files with --target-file")
    if Path(path).is_dir():
        raise UserError(
            f"{shown_path(path)} is a folder: give a table of pairs, or two aligned files with --target-file"
        )
    if not os.path.lexists(path):
        raise UserError(no_such(path))
    try:
        raw, ending = raw_of(Path(path))
        text = decode(raw, encoding, False).removeprefix("\ufeff")
    except Unreadable as error:
        raise UserError(f"{shown_path(path)}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {shown_path(path)}: {reason_of(error)}") from None
    if not text.strip():
        raise UserError(f"{shown_path(path)}: empty: there is no text in it")
    return text, ending


def _aligned(source: str, target: str, encoding: str) -> PairData:
    sides = []
    for path in (source, target):
        text, ending = _text(path, encoding)
        if ending in JSON_ENDINGS + TABLE_ENDINGS:
            raise UserError(f"{shown_path(path)}: a table; --target-file joins two plain text files, line by line")
        sides.append(fold_newlines(text).removesuffix("\n").split("\n"))
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(
            f"{shown_path(path)} has {counted(len(lines), 'line')}"
            for path, lines in zip((source, target), sides, strict=True)
        )
        raise UserError(f"{counts}: aligned files need equal numbers of lines")
    collector = _PairCollector(f"{printable_path(Path(source).name)} + {printable_path(Path(target).name)}", "line")
    for number, (one, other) in enumerate(zip(*sides, strict=True), start=1):
        collector.take(number, one, other)
    try:
        return collector.data()
    except Unreadable as error:
        raise UserError(f"{shown_path(source)} and {shown_path(target)}: {error}") from None


@dataclass
class _PairCollector:
    """Turns rows into pairs, and counts the rows left out by reason."""

    name: str
    unit: str = "row"
    notes: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    left: dict[str, list[int]] = field(default_factory=dict)

    def take(self, number: int, source: object, target: object) -> None:
        texts: list[str] = []
        for side, value in (("source", source), ("target", target)):
            if value is None:
                return self.leave(number, f"without a {side}")
            if not isinstance(value, str):
                return self.leave(number, f"whose {side} is no text")
            if not value.strip():
                return self.leave(number, f"with an empty {side}")
            if any("\ud800" <= character <= "\udfff" for character in value):
                return self.leave(number, "with half of a surrogate pair, which is no character")
            texts.append(fold_newlines(value))
        self.pairs.append(Pair(f"{self.name}:{number}", *texts))
        return None

    def leave(self, number: int, reason: str) -> None:
        self.left.setdefault(reason, []).append(number)

    def data(self) -> PairData:
        """Return all pairs, with notes on what was left out. Raises Unreadable when there is no pair."""
        left = [f"{counted(len(rows), self.unit)} {reason}: {some(rows, _SHOWN)}" for reason, rows in self.left.items()]
        if not self.pairs:
            raise Unreadable(f"no pair in it; {'; '.join(left)}" if left else "no pair in it")
        notes = [*self.notes, *(f"left out {line}" for line in left)]
        return PairData(self.pairs, name=self.name, notes=notes)


def _json_pairs(text: str, name: str, ending: str, columns: PairColumns) -> _PairCollector:
    if columns.header is not None:
        raise Unreadable("the fields of JSON have names: leave out --header")
    text = fold_newlines(text)
    rows = list(json_lines(text.split("\n"))) if ending != ".json" else json_any(text)
    if rows and all(isinstance(row, list) for _, row in rows):
        rows = [(number, {str(i): cell for i, cell in enumerate(row, start=1)}) for number, row in rows]
    fields = list(dict.fromkeys(key for _, row in rows if isinstance(row, dict) for key in row))
    worded = {key for _, row in rows if isinstance(row, dict) for key, value in row.items() if isinstance(value, str)}
    collector = _PairCollector(name)
    source, target = _sides(fields, [key for key in fields if key in worded], columns, collector.notes)
    for number, row in rows:
        if isinstance(row, dict):
            collector.take(number, row.get(source), row.get(target))
        else:
            collector.leave(number, "that are no objects with fields")
    return collector


def _table_pairs(text: str, name: str, tabs: bool, columns: PairColumns) -> _PairCollector:
    records = list(table_records(io.StringIO(text.rstrip("\r\n"), newline=""), table_delimiter(text, tabs)))
    first = [cell.strip() for cell in records[0][1]]
    collector = _PairCollector(name)
    if _has_header(first, columns, collector.notes):
        records, titles = records[1:], first
        twice = [title for title in dict.fromkeys(titles) if titles.count(title) > 1]
        if twice:
            raise Unreadable(f"has {titles.count(twice[0])} columns called {twice[0]!r}: rename one of them")
    else:
        titles = [str(number) for number in range(1, len(first) + 1)]
    worded = [title for place, title in enumerate(titles) if any(_worded(cells, place) for _, cells in records)]
    source, target = (titles.index(title) for title in _sides(titles, worded, columns, collector.notes))
    for number, cells in records:
        if len(cells) > len(titles):
            collector.leave(number, f"with more cells than the first row's {len(titles)}")
        elif not cells:
            collector.leave(number, "with nothing in it")
        else:
            collector.take(number, *(cells[place] if place < len(cells) else None for place in (source, target)))
    return collector


def _worded(cells: list[str], place: int) -> bool:
    return place < len(cells) and bool(cells[place].strip())


def _has_header(first: list[str], columns: PairColumns, notes: list[str]) -> bool:
    """Return whether the first row names the columns: as given, by a given or known name, or as it is no sentence."""
    if columns.header is not None:
        return columns.header
    given = [name for name in (columns.source, columns.target) if name is not None]
    if given:
        return any(name in first for name in given) or not all(name.isdecimal() for name in given)
    if _known_sides(first) is not None:
        return True
    shown = some(map(repr, first), 5)
    if any(_SENTENCE.search(cell) for cell in first):
        notes.append(f"the first row ({shown}) is read as a pair; --header declares it a header")
        return False
    raise Unreadable(f"is the first row ({shown}) a header or a pair? Give --header or --no-header")


def _known_sides(titles: Iterable[str]) -> tuple[str, str] | None:
    """Return the two columns with known names of source and target, or with names of two languages."""
    by_name = {title.casefold(): title for title in titles}
    source, target = (next((by_name[n] for n in names if n in by_name), None) for names in (SOURCES, TARGETS))
    if source is not None and target is not None:
        return source, target
    languages = [title for title in by_name.values() if _LANGUAGE.fullmatch(title) and title.casefold() != "id"]
    return (languages[0], languages[1]) if len(by_name) == len(languages) == 2 else None


def _sides(titles: list[str], worded: list[str], columns: PairColumns, notes: list[str]) -> tuple[str, str]:
    """Return the columns of source and target: as given, by known names, or the only two with text."""
    for option, name in (("source", columns.source), ("target", columns.target)):
        if name is not None and name not in titles:
            hint = did_you_mean(name, titles)
            raise Unreadable(f"has no column {name!r} among {some(titles)}{hint} (--{option}-column)")
    if columns.source is not None and columns.source == columns.target:
        raise Unreadable(f"{columns.source!r} cannot be the source and the target: give two columns")
    if columns.source is not None and columns.target is not None:
        return columns.source, columns.target
    guess = _known_sides(titles)
    rest = [title for title in worded if title not in (columns.source, columns.target)]
    if columns.source is None and columns.target is None and guess is None and len(rest) == 2:
        guess = (rest[0], rest[1])
    if (columns.source is None) != (columns.target is None) and len(rest) == 1:
        guess = (columns.source or rest[0], columns.target or rest[0])
    if guess is None:
        raise Unreadable(
            f"which columns are the source and the target? Give --source-column and --target-column:"
            f" {some(titles) or 'there are none'}"
        )
    notes.append(f"sources are taken from {guess[0]!r} and targets from {guess[1]!r}, a guess; --source-column and")
    notes[-1] += " --target-column take others"
    return guess


def looks_like_pairs(path: str) -> bool:
    """Return whether a file is a table whose header names a source and a target. Reads only the beginning."""
    ending = Path(path.lower()).suffix
    if ending not in (*TABLE_ENDINGS, ".jsonl", ".ndjson") or not Path(path).is_file():
        return False
    try:
        with open(path, "rb") as file:
            head = file.readline(1 << 16).decode("utf-8-sig")
        if ending not in TABLE_ENDINGS:
            titles = [key for _, row in json_lines([head]) if isinstance(row, dict) for key in row]
        else:
            records: Iterator[tuple[int, list[str]]] = table_records([head], table_delimiter(head, ending == ".tsv"))
            titles = [cell.strip() for _, cells in records for cell in cells]
    except (OSError, UnicodeDecodeError, Unreadable):
        return False
    return _known_sides(titles) is not None
