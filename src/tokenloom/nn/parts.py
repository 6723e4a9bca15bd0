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

    what: how messages call it. Raises ValueError for an unknown kind, and UserError for a file that cannot be imported
    or does not define the name.
    """
    if isinstance(kind, str) and kind in known:
        return known[kind]
    path, _, name = str(kind).rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"no {what} {kind!r}: there are {', '.join(known)}; your own is ./file.py:Name")
    file = Path(path).resolve()
    module = _import(file, file.stat().st_mtime_ns if file.is_file() else 0, f"{what} {path}")
    if not hasattr(module, name):
        raise UserError(f"{what} {kind}: the file defines no {name}{did_you_mean(name, vars(module))}")
    part: Part = getattr(module, name)
    return part


@functools.cache
def _import(file: Path, modified: int, label: str) -> ModuleType:
    # Run once per version of the file, so that all layers have the same class.
    return import_file(file, label)
