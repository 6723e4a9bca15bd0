"""Built-in data sets: none is shipped; each is downloaded on first use, checked, and then usable offline.

A recipe is a name, a license, sources of its files, and a loader. Every module of `tokenloom.data.sets` lists its own
in `RECIPES`, so that a new data set is one new file there.
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
from tokenloom.data.download import DownloadError, Source, cached, store
from tokenloom.data.download import download as download_file
from tokenloom.errors import UserError
from tokenloom.utils.files import file_sha256
from tokenloom.utils.names import did_you_mean

D = TypeVar("D", bound=DataSet)
Notify = Callable[[str], None]
"""Called with a line for the user."""


@dataclass(frozen=True)
class Recipe:
    """How a built-in data set is downloaded and read.

    description: one line. sources: alternatives, tried in order; each is all files that the loader needs. A data set
    that comes with Python has none. loader: from the paths of these files to the data, of the class `data_class`.
    held_out: see `DataSet`.
    """

    name: str
    description: str
    license: str
    loader: Callable[[Sequence[Path]], DataSet]
    sources: tuple[tuple[Source, ...], ...] = ()
    held_out: HeldOut = None
    data_class: type[DataSet] = TextData

    @property
    def offline(self) -> bool:
        """Whether nothing has to be downloaded."""
        return not self.sources


@dataclass(frozen=True)
class RecipeStatus:
    """A line of the catalog. size: bytes to download; None where nothing is."""

    name: str
    description: str
    license: str
    cached: bool
    size: int | None
    origin: str


@dataclass(frozen=True)
class Checked:
    """The result of checking one cached file; path: None for what comes with Python."""

    name: str
    state: Literal["intact", "damaged", "not downloaded", "comes with Python"]
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
    """Return the names of all built-in data sets, sorted."""
    return list(_recipes())


def find(name: str) -> Recipe:
    """Return the recipe of a name. Raises UserError, with a suggestion, if there is none."""
    if name not in _recipes():
        hint = did_you_mean(name, names())
        raise UserError(f"there is no built-in data set {name!r}{hint} (there are {', '.join(names())})")
    return _recipes()[name]


def catalog() -> list[RecipeStatus]:
    """Return all built-in data sets, whether they are in the cache, and their sizes. Hashes nothing."""
    return [_status(recipe) for recipe in _recipes().values()]


def _status(recipe: Recipe) -> RecipeStatus:
    cached_files = next((way for way in recipe.sources if all(cached(source).is_file() for source in way)), None)
    way = cached_files or (recipe.sources[0] if recipe.sources else ())
    return RecipeStatus(
        name=recipe.name,
        description=recipe.description,
        license=recipe.license,
        cached=recipe.offline or cached_files is not None,
        size=sum(source.size for source in way) if way else None,
        origin=" + ".join(source.origin for source in way) or "comes with Python",
    )


def download(name: str, progress: bool = True, notify: Notify | None = None) -> list[Path]:
    """Return the files of a data set, downloaded if they are not in the cache, with their hashes checked.

    progress: show a bar on standard error, if it is a terminal. notify: called when a damaged file was downloaded
    again; by default it prints to standard error.

    Raises UserError when no source delivers, naming what was tried and how to add a copy by hand.
    """
    return _files(find(name), progress, notify or _to_stderr)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _files(recipe: Recipe, progress: bool, notify: Notify) -> list[Path]:
    damaged: list[Path] = []
    for way in recipe.sources:
        states = [_state(source) for source in way]
        if all(state == "intact" for state in states):
            return [cached(source) for source in way]
        damaged += [cached(source) for source, state in zip(way, states, strict=True) if state == "damaged"]
    tried: list[str] = []
    for way in recipe.sources:
        try:
            paths = [cached(s) if _state(s) == "intact" else download_file(s, progress=progress) for s in way]
        except DownloadError as error:
            tried.append(str(error))
            continue
        for path in (path for path in paths if path in damaged):
            notify(f"{path} was damaged (wrong SHA-256) and was downloaded again")
        return paths
    if not tried:
        return []
    broken = (
        f": the cached file {damaged[0]} is damaged and cannot be downloaded again"
        if damaged
        else ": cannot be downloaded"
    )
    again = f"with a network, tokenloom data download {recipe.name}; " if damaged else ""
    raise UserError(
        f"{recipe.name}{broken}; tried {', then '.join(tried)}; {again}"
        f"with a copy of the file, tokenloom data add {recipe.name} FILE"
    )


def _state(source: Source) -> Literal["intact", "damaged", "not downloaded"]:
    path = cached(source)
    try:
        return "intact" if file_sha256(path) == source.sha256 else "damaged"
    except FileNotFoundError:
        return "not downloaded"
    except OSError as error:
        raise UserError(f"the cached file {path} cannot be read ({error.strerror})") from None


def add(name: str, file: str | Path) -> Path:
    """Copy a file of the user's into the cache, and return its path there.

    Its SHA-256 must be that of a file of the recipe. Raises UserError, with both hashes, otherwise.
    """
    recipe = find(name)
    if recipe.offline:
        raise UserError(f"{name} comes with Python: there is no file to add")
    path = Path(file)
    try:
        found = file_sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror}") from None
    sources = [source for way in recipe.sources for source in way]
    for source in sources:
        if source.sha256 == found:
            try:
                return store(source, lambda beside: _copy(path, beside))
            except DownloadError as error:
                raise UserError(f"{file} changed while it was read: {error}") from None
    expected = " or ".join(f"{source.sha256} ({source.origin})" for source in sources)
    raise UserError(f"{file} is not the file of {name}: its SHA-256 is {found}, expected {expected}")


def _copy(path: Path, target: Path) -> None:
    target.write_bytes(path.read_bytes())


def check(name: str | None = None) -> list[Checked]:
    """Check the hashes of the cached files of one data set, or of all."""
    checked: list[Checked] = []
    for recipe in [find(name)] if name is not None else _recipes().values():
        if recipe.offline:
            checked.append(Checked(recipe.name, "comes with Python", None, None))
        for source in (source for way in recipe.sources for source in way):
            checked.append(Checked(recipe.name, _state(source), cached(source), source.sha256))
    return checked


def load(name: str, progress: bool = True) -> TextData:
    """Return a built-in data set as text, downloaded on first use; of other kinds of data, the text in them.

    Raises UserError as `find` and `download` do, and for a data set without text.
    """
    data = load_data(name, progress)
    as_text = getattr(data, "as_text", None)
    if as_text is not None:
        data = as_text()
    if not isinstance(data, TextData):
        raise UserError(f"{name} contains no text ({find(name).description})")
    return data


def load_data(name: str, progress: bool = True) -> DataSet:
    """Return a built-in data set. Raises UserError as `find` and `download` do."""
    recipe = find(name)
    notes: list[str] = []
    data = recipe.loader(_files(recipe, progress, notes.append))
    if os.path.lexists(name):
        notes.append(f"{name!r} is the built-in data set; the file or folder of that name is ./{name}")
    return replace(
        data, name=recipe.name, license=recipe.license, held_out=recipe.held_out, notes=[*notes, *data.notes]
    )


def load_as(name: str, kind: type[D], what: str) -> D:
    """Return a built-in data set of one class. what: what such data contain. Raises UserError for another class."""
    data = load_data(name)
    if not isinstance(data, kind):
        raise UserError(f"{name} contains no {what} ({find(name).description})")
    return data
