"""Settings by flat names, from keyword arguments, a config file or flags: one strict way in for all three."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tokenloom.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """One setting: its name, its type, what it is when not given, what it is for, and whether it needs no flag."""

    name: str
    type: Any
    default: Any
    help: str
    positional: bool = False


def options(cls: type) -> Iterator[Option]:
    """The settings of a dataclass; those of dataclasses inside it stand beside its own, without a prefix."""
    hints = get_type_hints(cls)
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from options(hint)
            continue
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        yield Option(f.name, hint, default, f.metadata.get("help", ""), f.metadata.get("positional", False))


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean x?" for the known word that is nearest, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """A settings dataclass from flat values; names it does not have are ignored (see `refuse_unknown`)."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            arguments[f.name] = build(hint, values)
        elif f.name in values:
            arguments[f.name] = fitting(f.name, values[f.name], hint)
    return cls(**arguments)


def flatten(settings: Any) -> dict[str, Any]:
    """The inverse of `build`."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {f.name: value})
    return flat


def refuse_unknown(values: Mapping[str, Any], classes: Iterable[type], where: str = "") -> None:
    """Raise UserError for the first name that none of the dataclasses has, with the nearest that one has."""
    known = {option.name for cls in classes for option in options(cls)}
    for name in values:
        if name not in known:
            raise UserError(f"{where}no setting {name!r}{nearest(name, known)}")


def fitting(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the type; an int passes for a float. Raises UserError otherwise."""
    if _fits(value, hint):
        return float(value) if _wants_float(hint) and type(value) is int else value
    raise UserError(f"{name}: {value!r} is not {_described(hint)}")


def _wants_float(hint: Any) -> bool:
    return hint is float or (get_origin(hint) in (Union, types.UnionType) and float in get_args(hint))


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(one, get_args(hint)[0]) for one in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (int, float)
    if hint is Any:
        return True
    return type(value) is hint


def _described(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_described(one) for one in get_args(hint) if one is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (list, tuple):
        return f"a list, each {_described(get_args(hint)[0])}"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def read_config(path: str | Path) -> dict[str, Any]:
    """Settings from a TOML or YAML file; tables only group, their names mean nothing.

    Raises UserError for a missing or broken file, and for a name given twice.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: cannot be read ({error})") from error
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError as error:
            raise UserError(f"--config {path}: reading YAML needs pip install 'tokenloom[yaml]'") from error
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--config {path}: {' '.join(str(error).split())}") from error
    else:
        import tomllib

        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"--config {path}: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"--config {path}: holds no settings")
    flat: dict[str, Any] = {}
    _spread(data, flat, path)
    return flat


def _spread(data: dict[str, Any], flat: dict[str, Any], path: Path) -> None:
    for key, value in data.items():
        if isinstance(value, dict):
            _spread(value, flat, path)
            continue
        name = str(key).replace("-", "_")
        if name in flat:
            raise UserError(f"--config {path}: {name} is given twice")
        flat[name] = value
