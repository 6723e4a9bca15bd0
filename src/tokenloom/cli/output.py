"""What the commands share: some of their parameters, and how they print."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from cyclopts import Parameter, Token

STDIN = "<standard input>"  # What a lone - becomes before the command line is parsed.


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """The value of a flag as a whole number; 1e6 is one, and 1.5 is not rounded to one. Raises ValueError."""
    text = tokens[0].value
    for read in (int, float):
        with suppress(ValueError):
            number = read(text)
            if math.isfinite(number) and number == int(number):
                return int(number)
    raise ValueError(f"{text} is not a whole number")


def _flag(name: list[str], help: str) -> Parameter:
    return Parameter(name=name, negative="", show_default=False, help=help)


JSON = Annotated[bool, _flag(["--json"], "end standard output with one JSON object")]
QUIET = Annotated[bool, _flag(["--quiet", "-q"], "no reports and no progress")]
DEVICE = Annotated[str, Parameter(help="cpu, cuda, mps or auto")]
DATA = Annotated[
    str | None, Parameter(help="a file, a folder, - for standard input, or a built-in data set (tokenloom data list)")
]
RUN = Annotated[str, Parameter(help="a run folder, as tokenloom train makes it")]


def leads(*, machine: bool = False) -> bool:
    """Whether this process speaks for all that torchrun started; with `machine`, for those on its machine."""
    return "MASTER_ADDR" not in os.environ or os.environ.get("LOCAL_RANK" if machine else "RANK", "0") == "0"


def print_json(result: dict[str, Any]) -> None:
    """One JSON object on the last line of standard output; what is no number becomes null."""
    sys.stdout.flush()
    print(json.dumps(_finite(result), ensure_ascii=False, default=str), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def quantity(value: float, unit: str = "") -> str:
    """Three digits: 1.23k, 3.40M, 512; with a unit, 1.23 kB, 512 B."""
    letter = ""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            value, letter = value / factor, prefix
            break
    digits = f"{value:.0f}" if float(value).is_integer() and not letter else f"{value:#.3g}".rstrip(".")
    return f"{digits} {letter}{unit}" if unit else f"{digits}{letter}"


def duration(seconds: float) -> str:
    """1:05:09, 3:20, 0:08."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plain(value: Any) -> str:
    """A setting as a person reads it: 1,024, 0.003, yes, –, rotary, plain (activation relu2, bias no)."""
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
