"""`tokenloom data …`: the built-in data sets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from tokenloom.cli.output import JSON, print_json, quantity
from tokenloom.drawing.tables import plain_table
from tokenloom.errors import UserError

NAME = Annotated[str, Parameter(help="a data set, as tokenloom data list names it")]
ANY_NAME = Annotated[str | None, Parameter(help="a data set; all of them when not given")]
FILE = Annotated[str, Parameter(help="the file, as its source gives it: its hash decides")]


def list_all(*, json: JSON = False) -> None:
    """List the built-in data sets: what they are, their licence, and whether they are here already."""
    from tokenloom.data.recipes import catalogue

    rows = catalogue()
    if json:
        print_json({"data": [asdict(row) for row in rows]})
        return
    shown: list[list[object]] = []
    for row in rows:
        size = None if row.size is None else quantity(row.size, "B")
        shown.append([row.name, "yes" if row.cached else "no", size, row.what])
        shown.append([None, None, None, f"licence: {row.licence}"])
    print(plain_table(shown, ["name", "here", "size", "what it is"]))


def get(name: NAME, /, *, json: JSON = False) -> None:
    """Fetch a data set into the cache, and check it."""
    from tokenloom.data import recipes

    paths = [str(path) for path in recipes.get(name)]
    if json:
        print_json({"name": name, "files": paths})
    else:
        print("\n".join(paths) or f"{name} comes with Python: nothing to fetch")


def add(name: NAME, file: FILE, /, *, json: JSON = False) -> None:
    """Take your own copy of a data set's file into the cache."""
    from tokenloom.data import recipes

    path = recipes.add(name, file)
    if json:
        print_json({"name": name, "files": [str(path)]})
    else:
        print(path)


def check(name: ANY_NAME = None, /, *, json: JSON = False) -> None:
    """Hold the cached files of one data set, or of all, against their hashes."""
    from tokenloom.data import recipes

    rows = recipes.check(name)
    if json:
        print_json({"data": [asdict(row) for row in rows]})
    else:
        print(plain_table([[row.name, row.state, row.path] for row in rows], ["name", "state", "file"]))
    damaged = [row for row in rows if row.state == "damaged"]
    if damaged:
        raise UserError(f"{damaged[0].path} is damaged; tokenloom data get {damaged[0].name} fetches it again")
