"""What commands share: options of their own, and how values are printed."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter, Token

from tokenloom.config import Options, option
from tokenloom.plotting.tables import plain_table

STDIN = "<standard input>"  # Replaces a lone - before parsing, which would take it for a flag.


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Return the value of a flag as a whole number: 1e6 is one, 1.5 is not. Raise ValueError."""
    text = tokens[0].value
    for read in (int, float):
        with suppress(ValueError):
            number = read(text)
            if math.isfinite(number) and number == int(number):
                return int(number)
    raise ValueError(f"{text} is not a whole number")


AS_JSON, IN_SILENCE = "end standard output with one JSON object", "no reports and no progress"


@dataclass(frozen=True)
class JsonOptions(Options):
    """The option of every command that has a result."""

    json: bool = option(False, AS_JSON)


@dataclass(frozen=True)
class OutputOptions(JsonOptions):
    """The options of commands that also report progress."""

    quiet: bool = option(False, IN_SILENCE)


@dataclass(frozen=True)
class RunOptions(OutputOptions):
    """The options of commands that use a trained run."""

    device: str = option("cpu", "cpu, cuda, mps or auto")


JSON = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help=AS_JSON)]
QUIET = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", show_default=False, help=IN_SILENCE)]


def is_main_process(*, machine: bool = False) -> bool:
    """Return whether this process prints for all that torchrun started; with `machine`, for those on its machine."""
    return "MASTER_ADDR" not in os.environ or os.environ.get("LOCAL_RANK" if machine else "RANK", "0") == "0"


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object as the last line of standard output; NaN and infinity become null."""
    sys.stdout.flush()
    print(json.dumps(_finite(result), ensure_ascii=False, default=str), flush=True)


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Print a table; a terminal wraps long cells, a file or a pipe gets each row on one line."""
    print(plain_table(rows, header, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def quantity(value: float, unit: str = "") -> str:
    """Return a number with three digits: 1.23k, 3.40M, 512; with a unit, 1.23 kB, 512 B."""
    letter = ""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            value, letter = value / factor, prefix
            break
    digits = f"{value:.0f}" if float(value).is_integer() and not letter else f"{value:#.3g}".rstrip(".")
    return f"{digits} {letter}{unit}" if unit else f"{digits}{letter}"


def plain(value: Any) -> str:
    """Return a setting as it is shown: 1,024, 0.003, yes, –, rotary, plain (activation relu2, bias no)."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"
    if isinstance(value, dict):
        rest = ", ".join(f"{key} {plain(inner)}" for key, inner in value.items() if key != "kind")
        return f"{value['kind']} ({rest})" if "kind" in value and rest else str(value.get("kind", rest))
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return str(value)
