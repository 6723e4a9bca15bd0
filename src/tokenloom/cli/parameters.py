"""Command-line parameters from settings classes.

The options of a command may depend on the task, and the task on the command line. `peek` therefore reads the words
once with the options of all tasks; the command is then built with the options of the right task, and parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any, get_args

from cyclopts import App, Group, Parameter

from tokenloom.cli.output import STDIN, JsonOptions, plain, whole_number
from tokenloom.config import GROUPS, Option, flag, options, without_none

POSITIONAL, REST = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL
FLAG, KEYWORDS = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
# Options that also have a flag of one letter.
SHORT = {"quiet": "-q"}


def parameters(cls: type) -> Iterator[inspect.Parameter]:
    """Yield one parameter per option, with a flag unless it is positional. None stands for "not given".

    A positional list takes all remaining arguments, wherever flags stand between them. The settings class checks
    choices, with a message that names the nearest; they are only shown here. Settings, which a config file may give,
    also have a flag `--no-…`; options of a command itself do not.
    """
    for option in options(cls):
        type_ = _parsed_type(option)
        # A group of None would hide the option.
        grouped: dict[str, Any] = {"group": group(option.group)} if option.group and not option.positional else {}
        info = Parameter(
            name=None if option.positional else _flags(option.name),
            help=option.help + _choices_and_default(option),
            show_default=False,
            **grouped,
            negative=None if type_ is bool and not issubclass(cls, JsonOptions) else "",
            converter=whole_number if type_ is int else None,
            metavar="CHOICE" if option.choices else None,
        )
        if not option.positional:
            yield _flag(option.name, type_, info)
        elif option.is_list:
            yield inspect.Parameter(option.name, REST, annotation=_annotated(get_args(type_)[0], info))
        else:
            yield inspect.Parameter(option.name, POSITIONAL, default=None, annotation=_annotated(type_ | None, info))


def _flags(name: str) -> list[str]:
    return [flag(name), SHORT[name]] if name in SHORT else [flag(name)]


def _flag(name: str, type_: Any, info: Parameter) -> inspect.Parameter:
    return inspect.Parameter(name, FLAG, default=None, annotation=_annotated(type_ | None, info))


def _annotated(type_: Any, info: Parameter) -> Any:
    return Annotated.__class_getitem__((type_, info))  # type: ignore[attr-defined]


def group(name: str) -> Group:
    """Return the group of that name, at the place where `--help` shows it."""
    place = GROUPS.index(name) if name in GROUPS else len(GROUPS)
    return Group(name, sort_key=place)


def _choices_and_default(option: Option) -> str:
    """Return what `--help` says after the help text."""
    parts = [f"choices: {', '.join(map(str, option.choices))}"] if option.choices else []
    if option.default is not None and option.default is not False and option.default != []:
        parts.append(f"default: {plain(option.default)}")
    return f" [{'; '.join(parts)}]" if parts else ""


def _parsed_type(option: Option) -> Any:
    """Return the type that the command line reads: without None, and a text or a number where there are choices."""
    if not option.choices:
        return without_none(option.type)
    scalar = type(option.choices[0])
    return list[scalar] if option.is_list else scalar  # type: ignore[valid-type]


def with_options(function: Callable[..., Any], classes: Iterable[type]) -> Callable[..., Any]:
    """Return a command that calls the function, which takes **given, with the options that were given, by name."""
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not KEYWORDS]
    positional = [p for p in own if p.kind is POSITIONAL]
    signature = _signature([*own, *(p for cls in classes for p in parameters(cls))])

    def command(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        given = {name: _dash(value) for name, value in bound.items() if value is not None and value != ()}
        first = [given.pop(p.name, p.default) for p in positional]
        return function(*first, **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return _with_signature(command, signature)


def _dash(value: Any) -> Any:
    """Return what was given, with the - that stands for standard input, and a list for several arguments."""
    if isinstance(value, list | tuple):
        return [_dash(one) for one in value]
    return "-" if value == STDIN else value


def _signature(of: Iterable[inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature(sorted(of, key=lambda p: p.kind))


def _with_signature(command: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return command


def peek(tokens: Sequence[str], classes: Iterable[type]) -> dict[str, Any]:
    """Return what a command line gives, by name, before the task is known whose options it may have.

    classes: all options that may be given. They decide which flags take a value, and so which words are arguments:
    those up to the first unknown flag are in the list `arguments`. Values of options are unchecked texts. `--help` is
    ignored. STDIN stands for -. Raise CycloptsError for what no task could read, such as a flag without its value.
    """
    rest = Annotated[str, Parameter(allow_leading_hyphen=True)]
    found = {
        "arguments": inspect.Parameter("arguments", REST, annotation=rest),
        "help": _flag("help", bool, Parameter(name=["--help", "-h"], negative="")),
    }
    for option in (option for cls in classes for option in options(cls) if not option.positional):
        type_ = _parsed_type(option)
        read: Any = bool if type_ is bool else list[str] if option.is_list else str
        found[option.name] = _flag(option.name, read, Parameter(name=_flags(option.name)))

    def command(*args: Any, **kwargs: Any) -> None: ...

    app = App(help_flags=[], version_flags=[])
    app.default(_with_signature(command, _signature(found.values())))
    _, bound, _, _ = app.parse_known_args(list(tokens))
    given = {name: _dash(value) for name, value in bound.arguments.items() if value is not None}
    words = takewhile(lambda word: word == "-" or not word.startswith("-"), given.pop("arguments", ()))
    return {**given, "arguments": list(words)}
