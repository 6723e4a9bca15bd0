"""`tokenloom data …`: the built-in data sets."""

from __future__ import annotations

from dataclasses import asdict

from tokenloom.cli.output import JSON, print_json
from tokenloom.drawing.tables import plain_table
from tokenloom.errors import UserError


def list_all(*, json: JSON = False) -> None:
    """List the built-in data sets: what they are, their licence, and whether they are here already."""
    from tokenloom.data.recipes import catalogue

    rows = catalogue()
    if json:
        print_json({"data": [asdict(row) for row in rows]})
        return
    shown = [[row.name, "yes" if row.cached else "no", row.size, row.licence, row.what] for row in rows]
    print(plain_table(shown, ["name", "here", "bytes", "licence", "what it is"]))


def get(name: str, /, *, json: JSON = False) -> None:
    """Fetch the data set NAME into the cache, and check it."""
    from tokenloom.data import recipes

    paths = [str(path) for path in recipes.get(name)]
    if json:
        print_json({"name": name, "files": paths})
    else:
        print("\n".join(paths) or f"{name} comes with Python: nothing to fetch")


def add(name: str, file: str, /, *, json: JSON = False) -> None:
    """Take your own copy of the file of the data set NAME into the cache."""
    from tokenloom.data import recipes

    path = recipes.add(name, file)
    if json:
        print_json({"name": name, "files": [str(path)]})
    else:
        print(path)


def check(name: str | None = None, /, *, json: JSON = False) -> None:
    """Hold the cached files of NAME, or of all data sets, against their hashes."""
    from tokenloom.data import recipes

    rows = recipes.check(name)
    if json:
        print_json({"data": [asdict(row) for row in rows]})
    else:
        print(plain_table([[row.name, row.state, row.path] for row in rows], ["name", "state", "file"]))
    damaged = [row for row in rows if row.state == "damaged"]
    if damaged:
        raise UserError(f"{damaged[0].path} is damaged; tokenloom data get {damaged[0].name} fetches it again")
