"""Options declared once: one dataclass field gives a flag, a config key, a keyword argument, its help and its checks.

A settings class inherits from `Options` and declares its options as fields:

    @dataclass(frozen=True)
    class TransformerSizes(Options):
        group: ClassVar[str] = "Model"
        width: int | None = option(None, "features per token", low=1)
        dropout: float = option(0.0, "fraction of activations set to zero in training", low=0, below=1)

Classes that several tasks share are combined by inheritance. A field whose type is a settings class itself is
flattened: its options are named without a prefix. None stands for a value that is derived later.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean

T = TypeVar("T")

# The groups in which `--help` shows options, in this order.
GROUPS = ("Data", "Model", "Optimization", "Evaluation and saving", "Machine")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | None = None,
    group: str = "",
    excludes: str | tuple[str, ...] = (),
    needs: str | tuple[str, ...] = (),
    only: Mapping[str, Any] | None = None,
    positional: bool = False,
) -> Any:
    """Return a dataclass field that declares an option.

    low, high: inclusive bounds. above, below: exclusive bounds. NaN and infinity are always refused. choices: the
    values of a text option; a Literal type gives them itself. group: where `--help` shows the option; that of the class
    when not given. positional: an argument of the command line instead of a flag.

    The rules between options, where an option is given when it differs from its default:

    excludes="minutes": cannot be given together with `minutes`.
    needs="file": has no effect unless `file` is given.
    only={"model": ("rnn", "lstm")}: has an effect only with these values of `model`, or with the one that is not in a
    tuple. A `model` of None is not decided yet, and nothing is refused. `fill` expects `model` to be declared before
    this option.
    only={"val_data": None}: has an effect only while `val_data` is None.
    """
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "choices": None if choices is None else tuple(choices),
        "group": group,
        "excludes": _as_tuple(excludes),
        "needs": _as_tuple(needs),
        "only": {name: _as_tuple(values) for name, values in (only or {}).items()},
        "positional": positional,
    }
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Return several values, or a single one, as a tuple."""
    return tuple(values) if isinstance(values, list | tuple) else (values,)


@dataclass(frozen=True)
class Option:
    """One declared option: what `option` was given, with the field's name, type and default."""

    name: str
    type: Any
    default: Any
    help: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    group: str = ""
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    positional: bool = False

    def checked(self, value: Any) -> Any:
        """Return the value as the option's type has it. Raise UserError for a value that the option cannot have."""
        if self.choices is None or self.is_list or isinstance(value, list | tuple):
            value = fitting(self.name, value, self.type)
        for item in value if isinstance(value, list | tuple) else [value]:
            self._check(item)
        return value

    @property
    def is_list(self) -> bool:
        """Whether the option has several values."""
        return get_origin(without_none(self.type)) in (list, tuple)

    def _check(self, value: Any) -> None:
        """Check one value: the whole, or an item of a list."""
        if value is None and _accepts_none(self.type):
            return
        hint = ""
        if self.choices is not None:
            # 1 and True are equal, and only one of them is a choice.
            allowed = any(type(value) is type(choice) and value == choice for choice in self.choices)
            hint = did_you_mean(value, map(str, self.choices)) if isinstance(value, str) else ""
        elif isinstance(value, float) and not math.isfinite(value):
            allowed = False
        else:
            allowed = (
                (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
            )
        if not allowed:
            raise UserError(f"{_with_value(self.name, value)}: must be {self._limits()}{hint}")

    def _limits(self) -> str:
        """Return in words which values are allowed."""
        if self.choices is not None:
            *others, last = map(str, self.choices)
            return f"{', '.join(others)} or {last}" if others else last
        low, high, above, below = (
            None if bound is None else f"{bound:,}" for bound in (self.low, self.high, self.above, self.below)
        )
        if low is not None and high is not None:
            return f"from {low} to {high}"
        if low is not None and below is not None:
            return f"from {low} up to, but not including, {below}"
        words = {"at least": low, "above": above, "at most": high, "below": below}
        return (
            " and ".join(f"{word} {bound}" for word, bound in words.items() if bound is not None) or "a finite number"
        )

    def without_effect(self, values: Mapping[str, Any], given: Container[str]) -> str:
        """Return what takes the option's effect away, such as "with --model gpt"; empty when it has an effect.

        values: of the options by name; an option that is not among them decides nothing. given: names of the options
        that differ from their defaults.
        """
        for other in self.needs:
            if other in values and other not in given:
                return f"without {flag(other)}"
        for other, allowed in self.only.items():
            value = values.get(other)
            if value is not None and value not in allowed:
                return f"with {_with_value(other, value)}"
        return ""


def flag(name: str) -> str:
    """Return the flag of an option: `--kv-heads` for kv_heads."""
    return f"--{name.replace('_', '-')}"


def _with_value(name: str, value: Any) -> str:
    """Return a flag with its value, on one line whatever the value holds."""
    if isinstance(value, bool):
        return flag(name) if value else flag(f"no_{name}")
    text = str(value)
    return f"{flag(name)} {text if text.isprintable() else repr(text)}"


@dataclass(frozen=True)
class Options:
    """The base of settings classes. Every value is checked when a settings class is constructed.

    group: where `--help` shows the options that the class itself declares; subclasses do not inherit it.
    """

    group: ClassVar[str] = ""

    def __post_init__(self) -> None:
        declared = {one.name: one for one in options(type(self))}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            # A settings class inside this one has checked its own values.
            if not dataclasses.is_dataclass(value):
                object.__setattr__(self, f.name, declared[f.name].checked(value))
        _check_together(type(self), flatten(self))
        self.check()

    def check(self) -> None:
        """Check rules between options that `option` cannot express. Raise UserError.

        A class with such rules overrides this, and calls `super().check()`.
        """


def options(cls: type) -> Iterator[Option]:
    """Yield the options of a settings class; those of settings classes inside it stand beside its own."""
    yield from _options(cls)


@functools.cache
def _options(cls: type) -> tuple[Option, ...]:
    hints = get_type_hints(cls)
    found: list[Option] = []
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found += _options(hint)
            continue
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        declared = dict(f.metadata)
        declared["group"] = declared.get("group") or _group(cls, f.name)
        declared["choices"] = declared.get("choices") or _literal_values(hint)
        found.append(Option(f.name, hint, default, **declared))
    return tuple(found)


def _group(cls: type, name: str) -> str:
    """Return the group of the class that declares a field, or of the next base that declares it and has a group."""
    for base in cls.__mro__:
        if name in vars(base).get("__annotations__", {}) and (group := vars(base).get("group")):
            return str(group)
    return ""


def _literal_values(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a type that is a Literal, None or a Literal, or a list of a Literal."""
    hint = without_none(hint)
    if get_origin(hint) in (list, tuple):
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else None


def without_none(hint: Any) -> Any:
    """Return a type without None: int for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(one for one in get_args(hint) if one is not type(None))]  # noqa: UP007
    return hint


def _accepts_none(hint: Any) -> bool:
    return hint is Any or hint is None or type(None) in get_args(hint)


def _given_names(cls: type, values: Mapping[str, Any]) -> set[str]:
    """Return the names of the options whose values differ from their defaults."""
    return {one.name for one in options(cls) if values[one.name] != one.default}


def _check_together(cls: type, values: Mapping[str, Any]) -> None:
    """Raise UserError for the first option that was given and cannot be, or has no effect, beside the others."""
    given = _given_names(cls, values)
    for one in options(cls):
        if one.name not in given:
            continue
        for other in one.excludes:
            if other in given:
                raise UserError(f"{flag(one.name)} and {flag(other)}: give one of them")
        if where := one.without_effect(values, given):
            raise UserError(f"{flag(one.name)} has no effect {where}: leave it out")


def fill(settings: T, recipe: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Return the settings with every None that the recipe knows replaced, and what was taken from the recipe.

    What was given holds: nothing is taken that a given option excludes, or that would have no effect. Of two values of
    the recipe that exclude each other, the one declared first is taken. Raise ValueError for a name in the recipe that
    the settings do not have, and UserError when a given option has no effect beside what was taken.
    """
    cls = type(settings)
    values = flatten(settings)
    if unknown := sorted(set(recipe) - set(values)):
        raise ValueError(f"the recipe names options that {cls.__name__} does not have: {', '.join(unknown)}")
    taken: dict[str, Any] = {}
    for one in options(cls):
        value = recipe.get(one.name)
        if value is None or values[one.name] is not None:
            continue
        given = _given_names(cls, values)
        if not given & excluded_by([one.name], [cls]) and not one.without_effect(values, given):
            values[one.name] = taken[one.name] = value
    return build(cls, values), taken


def excluded_by(names: Iterable[str], classes: Iterable[type]) -> set[str]:
    """Return the names of the options that exclude one of these, or that one of these excludes."""
    pairs = [(one.name, other) for cls in classes for one in options(cls) for other in one.excludes]
    chosen = set(names)
    return {b for a, b in pairs if a in chosen} | {a for a, b in pairs if b in chosen}


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return a settings class from values by name; names it does not have are ignored (see `refuse_unknown`)."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hints[f.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            arguments[f.name] = build(hint, values)
        elif f.name in values:
            arguments[f.name] = values[f.name]
    return cls(**arguments)


def flatten(settings: Any) -> dict[str, Any]:
    """Return the values by name: the inverse of `build`."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {f.name: value})
    return flat


def refuse_unknown(values: Mapping[str, Any], classes: Iterable[type], where: str = "") -> None:
    """Raise UserError for the first name that none of the classes has, with the nearest that one has."""
    known = {one.name for cls in classes for one in options(cls)}
    for name in values:
        if name not in known:
            raise UserError(f"{where}no setting {name!r}{did_you_mean(name, known)}")


def fitting(name: str, value: Any, hint: Any) -> Any:
    """Return the value as the type has it; an int becomes a float. Raise UserError when it is of another type."""
    try:
        return _fitted(value, hint)
    except TypeError:
        raise UserError(f"{name}: {value!r} is not {_described(hint)}") from None


def _fitted(value: Any, hint: Any) -> Any:
    """Return the value as the type has it. Raise TypeError when it is of another type; True is not a number."""
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
    """Return a type in words."""
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
    """Return the settings of a TOML or YAML file. Tables only group them; their names are ignored.

    Raise UserError for a missing or broken file, and for a name given twice.
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
    _flatten_tables(data, flat, path)
    return flat


def _read_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UserError(f"--config {path}: reading YAML needs pip install 'tokenloom[yaml]'") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuse a key given twice, where PyYAML takes the last; read 3e-3 as a number, where PyYAML reads a text."""

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


def _flatten_tables(data: dict[str, Any], flat: dict[str, Any], path: Path) -> None:
    for key, value in data.items():
        if isinstance(value, dict):
            _flatten_tables(value, flat, path)
            continue
        name = str(key).replace("-", "_")
        if name in flat:
            raise UserError(f"--config {path}: {name} is given twice")
        flat[name] = value
