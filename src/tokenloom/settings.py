"""Settings by flat names, from keyword arguments, a config file or flags: one strict way in for all three."""

from __future__ import annotations

import dataclasses
import difflib
import re
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
    try:
        return _fitted(value, hint)
    except TypeError:
        raise UserError(f"{name}: {value!r} is not {_described(hint)}") from None


def _fitted(value: Any, hint: Any) -> Any:
    """The value as the type has it. Raises TypeError when it is of another type, however close (True is no number)."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for one in get_args(hint):
            try:
                return _fitted(value, one)
            except TypeError:
                continue
    elif origin is Literal:
        if any(type(value) is type(one) and value == one for one in get_args(hint)):
            return value
    elif origin in (list, tuple):
        if isinstance(value, list | tuple):
            return origin(_fitted(one, get_args(hint)[0]) for one in value)
    elif hint is float:
        if type(value) in (int, float):
            return float(value)
    elif hint is Any or type(value) is hint or (hint is None and value is None):
        return value
    raise TypeError


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
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: not UTF-8 (byte {error.start})") from error
    if path.suffix in (".yaml", ".yml"):
        data = _read_yaml(text, path)
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


def _read_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UserError(f"--config {path}: reading YAML needs pip install 'tokenloom[yaml]'") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a key given twice, where YAML's own takes the last; reads 3e-3 as the number that it is."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise UserError(f"--config {path}: {key} is given twice")
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: {' '.join(str(error).split())}") from error


def _spread(data: dict[str, Any], flat: dict[str, Any], path: Path) -> None:
    for key, value in data.items():
        if isinstance(value, dict):
            _spread(value, flat, path)
            continue
        name = str(key).replace("-", "_")
        if name in flat:
            raise UserError(f"--config {path}: {name} is given twice")
        flat[name] = value
