"""Shared by tests of the command line: settings of a tiny model, a small text, and the output of a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SETTINGS = {"size": "nano", "context": 16, "width": 16, "depth": 1, "heads": 2, "threads": 1, "device": "cpu"}
TINY = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
RHYME = "One, two, buckle my shoe.\nThree, four, knock at the door.\nFive, six, pick up sticks.\n"


@dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line of standard output."""
        result = json.loads(self.out.splitlines()[-1])
        assert isinstance(result, dict)
        return result


Call = Callable[..., Answer]
Refused = Callable[..., str]
