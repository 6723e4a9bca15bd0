"""All experiments: those in the modules of this package, and those in a user's file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import tokenloom.lab
from tokenloom.errors import UserError
from tokenloom.lab.experiment import Experiment, sort_key
from tokenloom.utils.imports import import_file
from tokenloom.utils.names import did_you_mean

SECTIONS = {
    "1": "Attention",
    "2": "Language before transformers",
    "3": "Transformer language models",
    "4": "Other kinds of data",
    "own": "Your own",
}


def experiments_in(module: ModuleType) -> list[Experiment]:
    """Return the experiments that a module defines."""
    return [value for value in vars(module).values() if isinstance(value, Experiment)]


@cache
def experiments() -> dict[str, Experiment]:
    """Return id → experiment, sorted by id. Raise ValueError when two have the same id."""
    found: dict[str, Experiment] = {}
    for info in pkgutil.iter_modules(tokenloom.lab.__path__):
        for one in experiments_in(importlib.import_module(f"tokenloom.lab.{info.name}")):
            if found.setdefault(one.id, one) is not one:
                raise ValueError(f"two experiments have the id {one.id}")
    return {id: found[id] for id in sorted(found, key=sort_key)}


def find(ids: Sequence[str]) -> list[Experiment]:
    """Return the experiments of some ids, each once: an experiment, a section such as "1", or a user's .py file.

    Raise UserError with the nearest id for an unknown one.
    """
    chosen: dict[str, Experiment] = {}
    for id in ids:
        for one in _find_one(id):
            chosen.setdefault(one.id, one)
    return list(chosen.values())


def _find_one(id: str) -> list[Experiment]:
    if id.endswith(".py"):
        return experiments_in_file(Path(id))
    known = experiments()
    if id in known:
        return [known[id]]
    if section := [one for one in known.values() if one.section == id]:
        return section
    raise UserError(f"{id}: no such experiment{did_you_mean(id, known)} (tokenloom lab list shows all)")


def experiments_in_file(path: Path) -> list[Experiment]:
    """Return the experiments that a file defines. Raise UserError if it is missing, fails, or defines none."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; tokenloom lab new NAME writes a template")
    module = import_file(path)
    if not (found := experiments_in(module)):
        raise UserError(f"{path}: defines no experiment; tokenloom lab new NAME writes a template")
    if taken := next((one.id for one in found if one.id in experiments()), None):
        raise UserError(f"{path}: {taken} is the id of a built-in experiment; choose another")
    return found
