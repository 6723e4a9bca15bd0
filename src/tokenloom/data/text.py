"""Read text: a file, a folder, standard input, rows of a table, or a built-in data set."""

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tokenloom.data import registry
from tokenloom.data.documents import Document, TextData
from tokenloom.data.tables import read_json, read_table
from tokenloom.data.unicode import (
    Unreadable,
    check_encoding,
    decode,
    fold_newlines,
)
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, did_you_mean, some

__all__ = ["Document", "TextData", "read_text"]

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
TABLE_ENDINGS = (".csv", ".tsv")


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read_text`."""

    encoding: str
    normalize_newlines: bool
    text_column: str | None


def read_text(
    source: str | os.PathLike[str],
    *,
    encoding: str = "utf-8",
    normalize_newlines: bool = True,
    text_column: str | None = None,
) -> TextData:
    """Read text. source:

    - the name of a built-in data set (`shakespeare`; a file of that name is `./shakespeare`);
    - `-`: standard input, one document;
    - a file of plain text, with any ending: one document;
    - `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`: a document per row, from `text_column` (when not given, the column
      `text` or the only one with text, which is noted);
    - any of these compressed with gzip (`.gz`);
    - a folder: all its text files, recursively, sorted by path. Hidden files, links to folders, binaries, empty files
      and other files without text are left out, and listed in `skipped`.

    encoding: of files and standard input. normalize_newlines: convert CRLF and CR to LF and remove a byte-order mark;
    otherwise every character is kept.

    Raises UserError, naming the file, for a path that does not exist, no text, undecodable bytes (with the offset),
    binaries, broken rows (with the line), and an unknown encoding or column.
    """
    check_encoding(encoding)
    how = ReadOptions(encoding, normalize_newlines, text_column)
    given = os.fspath(source)
    if given == "-":
        return _standard_input(how)
    if isinstance(source, str) and given in registry.names():
        return _built_in(given, how)
    if not given:
        raise UserError("no data given: give a file, a folder, - or a built-in data set")
    path = Path(given)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(no_such(given)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {shown_path(given)}: {reason_of(error)}") from None
    if stat.S_ISDIR(mode):
        return _folder(path, how)
    name = printable_path(path.name)
    notes: list[str] = []
    try:
        documents, documented = _file(path, name, how, notes)
    except Unreadable as error:
        raise UserError(f"{shown_path(given)}: {error}") from None
    return TextData(documents, documented, name=name, notes=[f"{name}: {note}" for note in notes])


def _standard_input(how: ReadOptions) -> TextData:
    if how.text_column is not None:
        raise UserError(
            f"--text-column {how.text_column} does not apply to standard input, which is read as plain text"
        )
    try:
        text = _plain(sys.stdin.buffer.read(), how)
    except Unreadable as error:
        raise UserError(f"standard input: {error}") from None
    return TextData([Document("-", text)], name="standard input")


def _built_in(name: str, how: ReadOptions) -> TextData:
    for option, value in (("text-column", how.text_column), ("encoding", how.encoding)):
        if value not in (None, "utf-8"):
            raise UserError(f"--{option} {value} does not apply to the built-in data set {name!r}")
    data = registry.load(name)
    documents = data.documents
    if how.normalize_newlines:
        documents = [Document(document.id, fold_newlines(document.text)) for document in documents]
    return replace(data, documents=documents)


def no_such(given: str) -> str:
    """Return the message for a name under which nothing is found."""
    parent = Path(given).parent
    try:
        beside = {str(parent / name): name for name in os.listdir(parent)}
    except OSError:
        near = _nearest_folder(parent)
        return (
            f"there is no file or folder {shown_path(given)}: {str(near)!r} has no {_next_part(near, parent)!r} in it"
        )
    known = [*beside, *registry.names()]
    hint = did_you_mean(str(Path(given)), known)
    if not hint:
        hint = " (tokenloom data list names the built-in ones)"
    return f"there is no file, folder or built-in data set {shown_path(given)}{hint}"


def _nearest_folder(path: Path) -> Path:
    return next((folder for folder in path.parents if folder.is_dir()), Path())


def _next_part(folder: Path, path: Path) -> str:
    return path.parts[len(folder.parts)] if len(path.parts) > len(folder.parts) else str(path)


def _folder(root: Path, how: ReadOptions) -> TextData:
    documents: list[Document] = []
    skipped: list[tuple[str, str]] = []
    notes: dict[str, list[str]] = {}
    tables = 0
    # Sorted by the parts of the path, so that the files of a folder stay together.
    for relative, problem in sorted(walk(root), key=lambda found: Path(found[0]).parts):
        name = printable_path(relative)
        if problem is not None:
            skipped.append((name, problem))
            continue
        remarks: list[str] = []
        try:
            # In a folder with tables, plain files may have no columns.
            found, rows = _file(root / relative, name, how, remarks, strict_column=False)
        except Unreadable as error:
            skipped.append((name, str(error)))
        else:
            documents += found
            tables += rows
            for remark in remarks:
                notes.setdefault(remark, []).append(name)
    if how.text_column is not None and not tables and documents:
        raise UserError(
            f"--text-column {how.text_column} does not apply: {shown_path(str(root))} contains plain text and no"
            " table with that column"
        )
    if not documents:
        if not skipped:
            raise UserError(f"{shown_path(str(root))} is an empty folder")
        reasons = some((f"{name} ({reason})" for name, reason in skipped), 3)
        entries = counted(len(skipped), "entry", "entries")
        raise UserError(f"{shown_path(str(root))} contains no readable text: {entries} skipped: {reasons}")
    all_notes = [f"{some(files, 3)}: {remark}" for remark, files in notes.items()]
    name = printable_path(root.resolve().name or str(root))
    return TextData(documents, True, name=name, skipped=skipped, notes=all_notes)


def walk(root: Path) -> Iterator[tuple[str, str | None]]:
    """Yield (relative path, None) for every file, and (relative path, reason) for what is left out."""
    errors: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=errors.append):
        here = Path(folder).relative_to(root)
        for name in sorted(folders):
            relative = (here / name).as_posix() + "/"
            if name.startswith("."):
                folders.remove(name)
                yield relative, "hidden"
            elif os.path.islink(os.path.join(folder, name)):
                yield relative, "a link to a folder"  # os.walk does not follow it.
        for name in files:
            # Reading a pipe would block, and a link may be broken.
            problem = None if os.path.isfile(os.path.join(folder, name)) else "neither a file nor a folder"
            yield (here / name).as_posix(), "hidden" if name.startswith(".") else problem
    for error in errors:
        yield os.path.relpath(str(error.filename), root), f"cannot be read: {reason_of(error)}"


def _file(
    path: Path, name: str, how: ReadOptions, notes: list[str], *, strict_column: bool = True
) -> tuple[list[Document], bool]:
    """Return the documents of a file, and whether the borders between them mean something. Raises Unreadable."""
    raw, ending = raw_of(path)
    if ending not in JSON_ENDINGS + TABLE_ENDINGS:
        if how.text_column is not None and strict_column:
            raise Unreadable(
                f"plain text has no column {how.text_column!r}: leave out --text-column, or give a file that ends in"
                " .jsonl, .json, .csv or .tsv"
            )
        return [Document(name, _plain(raw, how))], False
    text = _some_text(decode(raw, how.encoding, False), raw)
    if ending in JSON_ENDINGS:
        lines = ending != ".json"
        return read_json(
            text, name, lines=lines, column=how.text_column, normalize_newlines=how.normalize_newlines, notes=notes
        ), True
    tabs = ending == ".tsv"
    return read_table(
        text, name, tabs=tabs, column=how.text_column, normalize_newlines=how.normalize_newlines, notes=notes
    ), True


def _plain(raw: bytes, how: ReadOptions) -> str:
    return _some_text(decode(raw, how.encoding, how.normalize_newlines), raw)


def _some_text(text: str, raw: bytes) -> str:
    if not raw:
        raise Unreadable("empty (0 bytes): there is no text in it")
    if not text.strip().strip("\ufeff"):
        raise Unreadable(f"nothing but white space ({counted(len(raw), 'byte')}): there is no text in it")
    return text


def raw_of(path: Path) -> tuple[bytes, str]:
    """Return the decompressed bytes of a file, and the ending of its name without .gz. Raises Unreadable."""
    raw, bare = _bytes(path), path.name.lower()
    if bare.endswith(".gz"):
        bare, raw = bare.removesuffix(".gz"), _unzipped(raw)
    return raw, os.path.splitext(bare)[1]


def _bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise Unreadable("neither a file nor a folder")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None


def _unzipped(raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"damaged, or not a gzip file: {error}") from None


def reason_of(error: OSError | ValueError) -> str:
    """Return the reason of an error of a file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown_path(path: str) -> str:
    """Return a path as messages show it: on one line, abbreviated."""
    short = path if len(path) <= 200 else f"{path[:100]} … {path[-60:]}"
    return repr(short)


def printable_path(path: str) -> str:
    """Return a path as valid Unicode; bytes that are not UTF-8 become \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
