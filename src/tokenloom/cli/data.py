"""`tokenloom data …`: the built-in data sets, and text that is tokenized before training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tokenloom.cli.output import JSON, QUIET, STDIN, print_json, quantity, whole_number
from tokenloom.errors import UserError
from tokenloom.plotting.tables import plain_table

NAME = Annotated[str, Parameter(help="a data set, as tokenloom data list names it")]
ANY_NAME = Annotated[str | None, Parameter(help="a data set, or a folder of tokenized text; all sets when not given")]
FILE = Annotated[str, Parameter(help="the file, as its source gives it: its hash decides")]


def list_all(*, json: JSON = False) -> None:
    """List the built-in data sets: what they are, their license, and whether they are here already."""
    from tokenloom.data.registry import catalog

    rows = catalog()
    if json:
        print_json({"data": [asdict(row) for row in rows]})
        return
    shown: list[list[object]] = []
    for row in rows:
        size = None if row.size is None else quantity(row.size, "B")
        shown.append([row.name, "yes" if row.cached else "no", size, row.what])
        shown.append([None, None, None, f"license: {row.license}"])
    print(plain_table(shown, ["name", "here", "size", "what it is"]))


def get(name: NAME, /, *, json: JSON = False) -> None:
    """Fetch a data set into the cache, and check it."""
    from tokenloom.data import registry as recipes

    paths = [str(path) for path in recipes.get(name)]
    if json:
        print_json({"name": name, "files": paths})
    else:
        print("\n".join(paths) or f"{name} comes with Python: nothing to fetch")


def add(name: NAME, file: FILE, /, *, json: JSON = False) -> None:
    """Take your own copy of a data set's file into the cache."""
    from tokenloom.data import registry as recipes

    path = recipes.add(name, file)
    if json:
        print_json({"name": name, "files": [str(path)]})
    else:
        print(path)


def check(name: ANY_NAME = None, /, *, json: JSON = False) -> None:
    """Hold the files of one data set, of all, or of a folder of tokenized text against their hashes."""
    from tokenloom.data import registry as recipes
    from tokenloom.data.pretokenized.shards import open_pretokenized

    if name is not None and name not in recipes.names() and (tokenized := open_pretokenized(name)) is not None:
        shards = tokenized.check()
        if json:
            print_json({"data": name, "shards": shards, "state": "good"})
        else:
            print(f"{name}: all {shards:,} shards are as they were written")
        return

    rows = recipes.check(name)
    if json:
        print_json({"data": [asdict(row) for row in rows]})
    else:
        print(plain_table([[row.name, row.state, row.path] for row in rows], ["name", "state", "file"]))
    damaged = [row for row in rows if row.state == "damaged"]
    if damaged:
        raise UserError(f"{damaged[0].path} is damaged; tokenloom data get {damaged[0].name} fetches it again")


SOURCE = Annotated[str, Parameter(help="a file, a folder, - for standard input, or a built-in data set")]
OUT = Annotated[str, Parameter(help="the folder to write")]
TOKENIZER = Annotated[
    str, Parameter(help="auto, char, word, bpe or byte-bpe; or the tokenizer.json of a run or of such a folder")
]
VOCAB = Annotated[int | None, Parameter(converter=whole_number, help="ids of a word, bpe or byte-bpe tokenizer")]
BORDERS = Annotated[
    bool | None, Parameter(help="keep documents apart with an end token; by default where there are several")
]
HOLDOUT = Annotated[
    float | None, Parameter(help="share kept for validation; by default a tenth, at most 10 million characters")
]
COLUMN = Annotated[str | None, Parameter(help="column of a table, or field of JSON lines, that holds the text")]
ENCODING = Annotated[str, Parameter(help="encoding of the text")]
NEWLINES = Annotated[Literal["fold", "keep"], Parameter(help="fold: every kind of line end becomes a line feed; keep")]
WORKERS = Annotated[int | None, Parameter(converter=whole_number, help="processes; one a core when not given")]
OVERWRITE = Annotated[bool, Parameter(negative="", show_default=False, help="start anew in a folder that is there")]


def tokenize(
    source: SOURCE,
    /,
    *,
    out: OUT,
    tokenizer: TOKENIZER = "auto",
    vocab_size: VOCAB = None,
    borders: BORDERS = None,
    val_fraction: HOLDOUT = None,
    column: COLUMN = None,
    encoding: ENCODING = "utf-8",
    newlines: NEWLINES = "fold",
    workers: WORKERS = None,
    overwrite: OVERWRITE = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Tokenize text of any size into a folder that tokenloom train takes: read in pieces, in parallel.

    The same command goes on with what an interruption has left.
    """
    import sys

    from tokenloom.data.pretokenized.build import TokenizationRequest, tokenize
    from tokenloom.tasks._text_corpus import manifest_baseline

    def tell(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr)

    began = time.perf_counter()
    wish = TokenizationRequest(tokenizer, vocab_size, borders, val_fraction, column, encoding, newlines)
    try:
        made = tokenize(
            "-" if source == STDIN else source,
            out,
            wish,
            workers=workers,
            overwrite=overwrite,
            progress=_silent if quiet else _bar,
            tell=tell,
            extra=manifest_baseline,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; the same command goes on with {out}") from None
    _tell_made(made, time.perf_counter() - began, json)


def _tell_made(made: Any, seconds: float, as_json: bool) -> None:
    counts = {
        part: {what: made.total(part, what) for what in ("documents", "bytes", "tokens")} | {"shards": len(shards)}
        for part, shards in ((part, made.shards(part)) for part in ("training", "validation"))
    }
    if as_json:
        kept = {key: made.content[key] for key in ("tokenizer", "dtype", "borders", "split")}
        print_json({"out": str(made.folder), **counts, **kept, "seconds": seconds})
        return
    size = sum(part["bytes"] for part in counts.values())
    for part, of in counts.items():
        shards = f"{of['shards']:,} shard{'' if of['shards'] == 1 else 's'}"
        print(f"{part + ':':<12}{of['tokens']:,} tokens from {quantity(of['bytes'], 'B')} in {shards}")
    print(f"tokenizer:  {made.content['tokenizer']['kind']}: {made.content['tokenizer']['why']}")
    print(f"split:      {made.content['split']}")
    print(f"speed:      {quantity(size, 'B')} in {seconds:.1f} s, {quantity(size / seconds, 'B')}/s")
    print(f"go on with: tokenloom train {Path(made.folder)}")


@contextmanager
def _silent(what: str, size: int) -> Iterator[Any]:
    yield lambda done: None


@contextmanager
def _bar(what: str, size: int) -> Iterator[Any]:
    """A bar on standard error with bytes, rate and time left; where that is no terminal, a line in the end."""
    import sys

    if not sys.stderr.isatty():
        began = time.perf_counter()
        yield lambda done: None
        print(f"{what}: {quantity(size, 'B')} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=size)
        yield lambda done: bar.advance(task, done)


COMMANDS = (list_all, get, add, check, tokenize)
