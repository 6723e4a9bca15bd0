"""Exchangeable parts by name: how a config's `"rms"`, or a user's own `"./mine.py:Name"`, becomes a class."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from tokenloom.errors import UserError
from tokenloom.utils.imports import import_file
from tokenloom.utils.names import did_you_mean

Part = TypeVar("Part")


def find_part(what: str, kind: object, known: Mapping[str, Part]) -> Part:
    """Return the part of that kind: an entry of `known`, or what a file defines for `./file.py:Name`.

    what: how messages call it. Raises ValueError for an unknown kind, and for a file that does not define the name.
    """
    if isinstance(kind, str) and kind in known:
        return known[kind]
    path, _, name = str(kind).rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"no {what} {kind!r}: there are {', '.join(known)}; your own is ./file.py:Name")
    try:
        module = _module(path)
    except UserError as error:
        raise ValueError(f"{what} {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{what} {kind}: the file defines no {name}{did_you_mean(name, vars(module))}")
    part: Part = getattr(module, name)
    return part


def _module(path: str) -> ModuleType:
    """The file at `path`, run once per version, so that all layers have the same class."""
    file = Path(path).resolve()
    return _imported(file, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _imported(file: Path, modified: int) -> ModuleType:
    return import_file(file)
