"""All experiments, found in the modules of this room, and those in a user's own file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import tokenloom.lab
from tokenloom.errors import UserError
from tokenloom.lab.experiment import Experiment, order
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
    """The experiments that a module defines."""
    return [value for value in vars(module).values() if isinstance(value, Experiment)]


@cache
def experiments() -> dict[str, Experiment]:
    """id → experiment, in the order of the chapter. Raises ValueError when two have one id."""
    found: dict[str, Experiment] = {}
    for info in pkgutil.iter_modules(tokenloom.lab.__path__):
        for one in experiments_in(importlib.import_module(f"tokenloom.lab.{info.name}")):
            if found.setdefault(one.id, one) is not one:
                raise ValueError(f"two experiments are called {one.id}")
    return {id: found[id] for id in sorted(found, key=order)}


def find(ids: Sequence[str]) -> list[Experiment]:
    """The experiments of these ids, each once; an id that ends in .py is a file of the user's own.

    A lone number is a whole section. Raises UserError naming the nearest for an id that there is not.
    """
    chosen: dict[str, Experiment] = {}
    for id in ids:
        for one in _named(id):
            chosen.setdefault(one.id, one)
    return list(chosen.values())


def _named(id: str) -> list[Experiment]:
    if id.endswith(".py"):
        return own(Path(id))
    known = experiments()
    if id in known:
        return [known[id]]
    if section := [one for one in known.values() if one.section == id]:
        return section
    raise UserError(f"{id}: no such experiment{did_you_mean(id, known)} (tokenloom lab list shows all)")


def own(path: Path) -> list[Experiment]:
    """The experiments in a file. Raises UserError for a file that is not there, does not run, or has none."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; tokenloom lab new NAME writes one to start from")
    module = import_file(path)
    if not (found := experiments_in(module)):
        raise UserError(f"{path}: defines no experiment; tokenloom lab new NAME shows how one looks")
    if taken := next((one.id for one in found if one.id in experiments()), None):
        raise UserError(f"{path}: {taken} is an id of the chapter; give your experiment another")
    return found
