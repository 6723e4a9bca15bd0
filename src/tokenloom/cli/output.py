"""How commands print their results."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

JSON = Annotated[bool, Parameter(name="--json", negative="", help="end standard output with one JSON object")]
QUIET = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="no reports and no progress")]


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
