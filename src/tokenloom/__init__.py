"""tokenloom: train, evaluate, use and look inside small transformers for any data.

    import tokenloom

    run = tokenloom.train("poems.txt", out="runs/poems", minutes=2)
    print(run.generate("The moon "))

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenloom.errors import UserError
from tokenloom.version import VERSION as __version__

if TYPE_CHECKING:
    from tokenloom.runs.folder import load
    from tokenloom.runs.session import start_session, train
    from tokenloom.tasks.base import Task

__all__ = ["Task", "UserError", "__version__", "load", "start_session", "train"]

_WHERE = {
    "start_session": "tokenloom.runs.session",
    "train": "tokenloom.runs.session",
    "load": "tokenloom.runs.folder",
    "Task": "tokenloom.tasks.base",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tokenloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
