"""`tokenloom data …`: the built-in data sets, and text that is tokenized before training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.output import JSON, OutputOptions, print_json, quantity
from tokenloom.cli.parameters import with_options
from tokenloom.config import build, option, options
from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.errors import UserError
from tokenloom.plotting.tables import plain_table
from tokenloom.utils.names import counted

NAME = Annotated[str, Parameter(help="name of a data set (tokenloom data list)")]
ANY_NAME = Annotated[str | None, Parameter(help="a data set, or a folder of tokenized text [default: all data sets]")]
FILE = Annotated[str, Parameter(help="the unchanged file of its source")]


def list_all(*, json: JSON = False) -> None:
    """List the built-in data sets: description, license, size, and whether they are in the cache."""
    from tokenloom.data.registry import catalog

    rows = catalog()
    if json:
        print_json({"data": [asdict(row) for row in rows]})
        return
    shown: list[list[object]] = []
    for row in rows:
        size = None if row.size is None else quantity(row.size, "B")
        shown.append([row.name, "yes" if row.cached else "no", size, row.description])
        shown.append([None, None, None, f"license: {row.license}"])
    print(plain_table(shown, ["name", "cached", "size", "description"]))


def download(name: NAME, /, *, json: JSON = False) -> None:
    """Download a built-in data set into the cache, and check its hash."""
    from tokenloom.data import registry

    paths = [str(path) for path in registry.download(name)]
    if json:
        print_json({"name": name, "files": paths})
    else:
        print("\n".join(paths) or f"{name} comes with Python: nothing to download")


def add(name: NAME, file: FILE, /, *, json: JSON = False) -> None:
    """Copy your own file of a built-in data set into the cache, if its hash is right."""
    from tokenloom.data import registry

    path = registry.add(name, file)
    if json:
        print_json({"name": name, "files": [str(path)]})
    else:
        print(path)


def check(name: ANY_NAME = None, /, *, json: JSON = False) -> None:
    """Check the hashes of the cached files of a data set or of all, or of a folder of tokenized text."""
    from tokenloom.data import registry
    from tokenloom.data.pretokenized.shards import open_pretokenized

    if name is not None and name not in registry.names() and (corpus := open_pretokenized(name)) is not None:
        shards = corpus.check()
        if json:
            print_json({"data": name, "shards": shards, "state": "good"})
        else:
            print(f"{name}: all {shards:,} shards are intact")
        return

    rows = registry.check(name)
    if json:
        print_json({"data": [asdict(row) for row in rows]})
    else:
        print(plain_table([[row.name, row.state, row.path] for row in rows], ["name", "state", "file"]))
    damaged = [row for row in rows if row.state == "damaged"]
    if damaged:
        raise UserError(f"{damaged[0].path} is damaged; tokenloom data download {damaged[0].name} downloads it again")


@dataclass(frozen=True)
class TokenizeOptions(OutputOptions):
    """The options of `data tokenize` beside those of `TokenizationSettings`."""

    out: str | None = option(None, "folder to write [required]")
    workers: int | None = option(None, "number of processes [default: one per core]", low=1)
    overwrite: bool = option(False, "start again in a folder that exists")


def tokenize(
    source: Annotated[str, Parameter(help="a file, a folder, - for standard input, or a built-in data set")],
    /,
    **given: Any,
) -> None:
    """Tokenize text of any size into a folder that tokenloom train reads: in blocks, in parallel.

    After an interruption the same command continues.
    """
    import sys

    from tokenloom.data.pretokenized.build import tokenize
    from tokenloom.tasks._text_corpus import manifest_baseline

    own_names = {one.name for one in options(TokenizeOptions)}
    own = build(TokenizeOptions, {name: value for name, value in given.items() if name in own_names})
    settings = build(TokenizationSettings, {name: value for name, value in given.items() if name not in own_names})
    if own.out is None:
        raise UserError("--out: give the name of the folder to write")

    def notify(line: str) -> None:
        if not own.quiet:
            print(line, file=sys.stderr)

    began = time.perf_counter()
    try:
        corpus = tokenize(
            source,
            own.out,
            settings,
            workers=own.workers,
            overwrite=own.overwrite,
            progress=_silent if own.quiet else _bar,
            notify=notify,
            extra=manifest_baseline,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; the same command continues with {own.out}") from None
    _show_corpus(corpus, time.perf_counter() - began, own.json)


def _show_corpus(corpus: Any, seconds: float, as_json: bool) -> None:
    counts = {
        part: {what: corpus.total(part, what) for what in ("documents", "bytes", "tokens")} | {"shards": len(shards)}
        for part, shards in ((part, corpus.shards(part)) for part in ("training", "validation"))
    }
    if as_json:
        kept = {key: corpus.content[key] for key in ("tokenizer", "dtype", "separate_documents", "split")}
        print_json({"out": str(corpus.folder), **counts, **kept, "seconds": seconds})
        return
    size = sum(part["bytes"] for part in counts.values())
    for part, of in counts.items():
        shards = counted(of["shards"], "shard")
        print(f"{part + ':':<12}{of['tokens']:,} tokens from {quantity(of['bytes'], 'B')} in {shards}")
    print(f"tokenizer:  {corpus.content['tokenizer']['kind']}: {corpus.content['tokenizer']['reason']}")
    print(f"split:      {corpus.content['split']}")
    print(f"speed:      {quantity(size, 'B')} in {seconds:.1f} s, {quantity(size / seconds, 'B')}/s")
    print(f"next:       tokenloom train {Path(corpus.folder)}")


@contextmanager
def _silent(what: str, size: int) -> Iterator[Any]:
    yield lambda done: None


@contextmanager
def _bar(what: str, size: int) -> Iterator[Any]:
    """Show a progress bar on standard error; where that is no terminal, print a line at the end."""
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


COMMANDS = (list_all, download, add, check, with_options(tokenize, [TokenizationSettings, TokenizeOptions]))
