"""Built-in data sets as recipes: none of them is shipped, each can be had, checked and used offline afterwards.

A recipe is a name, a license, ways to get its files, and a loader. Every module of `tokenloom.data.sets` lists its
own in `RECIPES`, so a new data set is one new file there.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from tokenloom.data.documents import DataSet, HeldOut, TextData
from tokenloom.data.download import FetchError, Source, cached, fetch, store
from tokenloom.errors import UserError
from tokenloom.utils.files import file_sha256
from tokenloom.utils.names import did_you_mean

Held = TypeVar("Held", bound=DataSet)
Tell = Callable[[str], None]
"""Called with a line that the user should see."""


@dataclass(frozen=True)
class Recipe:
    """How a built-in data set is had and read.

    what: what it is, in one line. ways: the ways to get it, tried in order; a way is all the files that the loader
    needs. A data set that comes with Python has no ways. loader: from the paths of a way's files to the data, which
    are of the class `holds`.
    held_out: the part kept for validation: documents by id, `tail`, or None for whole documents chosen by the seed.
    """

    name: str
    what: str
    license: str
    loader: Callable[[Sequence[Path]], DataSet]
    ways: tuple[tuple[Source, ...], ...] = ()
    held_out: HeldOut = None
    holds: type[DataSet] = TextData

    @property
    def offline(self) -> bool:
        """Whether it needs no fetching at all."""
        return not self.ways


@dataclass(frozen=True)
class RecipeStatus:
    """A line of the catalog. `size` is that of the files to fetch, in bytes; None where nothing is fetched."""

    name: str
    what: str
    license: str
    cached: bool
    size: int | None
    origin: str


@dataclass(frozen=True)
class Checked:
    """What the check of one file in the cache found; `path` is None for what comes with Python."""

    name: str
    state: Literal["good", "damaged", "not fetched", "comes with Python"]
    path: Path | None
    sha256: str | None


@cache
def _recipes() -> dict[str, Recipe]:
    from tokenloom.data import sets as builtin

    found: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(builtin.__path__):
        for recipe in importlib.import_module(f"{builtin.__name__}.{module.name}").RECIPES:
            found[recipe.name] = recipe
    return dict(sorted(found.items()))


def names() -> list[str]:
    """The names of all built-in data sets, sorted."""
    return list(_recipes())


def find(name: str) -> Recipe:
    """The recipe of that name. Raises UserError, with the nearest, if there is none."""
    if name not in _recipes():
        hint = did_you_mean(name, names())
        raise UserError(f"there is no built-in data set {name!r}{hint} (there are {', '.join(names())})")
    return _recipes()[name]


def catalog() -> list[RecipeStatus]:
    """All built-in data sets, whether they are in the cache, and how large they are. Hashes nothing."""
    return [_status(recipe) for recipe in _recipes().values()]


def _status(recipe: Recipe) -> RecipeStatus:
    here = next((way for way in recipe.ways if all(cached(source).is_file() for source in way)), None)
    way = here or (recipe.ways[0] if recipe.ways else ())
    return RecipeStatus(
        name=recipe.name,
        what=recipe.what,
        license=recipe.license,
        cached=recipe.offline or here is not None,
        size=sum(source.size for source in way) if way else None,
        origin=" + ".join(source.origin for source in way) or "comes with Python",
    )


def get(name: str, progress: bool = True, tell: Tell | None = None) -> list[Path]:
    """The files of a data set, fetched if they are not in the cache, with their hashes checked.

    progress: a bar on standard error while something is fetched (only in a terminal). tell: called with a line when
    a cached file was found damaged and has been fetched again; by default it goes to standard error.

    Raises UserError when no way delivers, naming what was tried and how to give a copy by hand.
    """
    return _files(find(name), progress, tell or _to_stderr)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _files(recipe: Recipe, progress: bool, tell: Tell) -> list[Path]:
    damaged: list[Path] = []
    for way in recipe.ways:
        states = [_state(source) for source in way]
        if all(state == "good" for state in states):
            return [cached(source) for source in way]
        damaged += [cached(source) for source, state in zip(way, states, strict=True) if state == "damaged"]
    tried: list[str] = []
    for way in recipe.ways:
        try:
            paths = [cached(s) if _state(s) == "good" else fetch(s, progress=progress) for s in way]
        except FetchError as error:
            tried.append(str(error))
            continue
        for path in (path for path in paths if path in damaged):
            tell(f"{path} was damaged (its sha256 was another) and has been fetched again")
        return paths
    if not tried:
        return []
    broken = (
        f": the cached file {damaged[0]} is damaged and cannot be fetched again" if damaged else ": cannot be fetched"
    )
    again = f"with a network, tokenloom data get {recipe.name}; " if damaged else ""
    raise UserError(
        f"{recipe.name}{broken}; tried {', then '.join(tried)}; {again}"
        f"with a copy of the file, tokenloom data add {recipe.name} FILE"
    )


def _state(source: Source) -> Literal["good", "damaged", "not fetched"]:
    path = cached(source)
    try:
        return "good" if file_sha256(path) == source.sha256 else "damaged"
    except FileNotFoundError:
        return "not fetched"
    except OSError as error:
        raise UserError(f"the cached file {path} cannot be read ({error.strerror})") from None


def add(name: str, file: str | Path) -> Path:
    """Take the user's own copy of a data set's file into the cache; returns where it lies there.

    The copy must be the very file that the recipe names (its sha256 decides; nothing overrides it). Raises UserError,
    with both hashes, when it is another.
    """
    recipe = find(name)
    if recipe.offline:
        raise UserError(f"{name} comes with Python: there is no file to add")
    path = Path(file)
    try:
        found = file_sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror}") from None
    sources = [source for way in recipe.ways for source in way]
    for source in sources:
        if source.sha256 == found:
            try:
                return store(source, lambda beside: _copy(path, beside))
            except FetchError as error:
                raise UserError(f"{file} changed while it was read: {error}") from None
    expected = " or ".join(f"{source.sha256} ({source.origin})" for source in sources)
    raise UserError(f"{file} is not the file of {name}: its sha256 is {found}, expected {expected}")


def _copy(path: Path, target: Path) -> None:
    target.write_bytes(path.read_bytes())


def check(name: str | None = None) -> list[Checked]:
    """Compare the cached files of one data set, or of all, with the hashes of their recipes."""
    checked: list[Checked] = []
    for recipe in [find(name)] if name is not None else _recipes().values():
        if recipe.offline:
            checked.append(Checked(recipe.name, "comes with Python", None, None))
        for source in (source for way in recipe.ways for source in way):
            checked.append(Checked(recipe.name, _state(source), cached(source), source.sha256))
    return checked


def load(name: str, progress: bool = True) -> TextData:
    """A built-in data set as text, fetched on first use; of one that holds other things, the text in them.

    Raises UserError as `find` and `get` do, and for a data set without text.
    """
    data = load_data(name, progress)
    as_text = getattr(data, "as_text", None)
    if as_text is not None:
        data = as_text()
    if not isinstance(data, TextData):
        raise UserError(f"{name} holds no text to be read as such ({find(name).what})")
    return data


def load_data(name: str, progress: bool = True) -> DataSet:
    """A built-in data set, as the class that its recipe names. Raises UserError as `find` and `get` do."""
    recipe = find(name)
    notes: list[str] = []
    data = recipe.loader(_files(recipe, progress, notes.append))
    if os.path.lexists(name):
        notes.append(f"{name!r} is the built-in data set; the file or folder of that name is ./{name}")
    return replace(
        data, name=recipe.name, license=recipe.license, held_out=recipe.held_out, notes=[*notes, *data.notes]
    )


def load_as(name: str, kind: type[Held], what: str) -> Held:
    """A built-in data set of one class. what: what such data hold. Raises UserError when it holds something else."""
    data = load_data(name)
    if not isinstance(data, kind):
        raise UserError(f"{name} holds no {what} ({find(name).what})")
    return data
