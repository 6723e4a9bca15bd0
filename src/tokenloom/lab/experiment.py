"""An experiment of the lab: a question, a protocol, measurements compared with published values, and plots."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tokenloom.plotting.svg import Plot

T = TypeVar("T")


@dataclass(frozen=True)
class Measurement:
    """A measured value and the published one. passed: whether it is within its tolerance; None for a value without
    one."""

    name: str
    published: str
    measured: str
    tolerance: str
    passed: bool | None


def exact(name: str, published: str, measured: str) -> Measurement:
    """Require the published text, digit by digit."""
    return Measurement(name, published, measured, "exact", measured == published)


def near(name: str, published: float, measured: float, tolerance: float, digits: int = 4) -> Measurement:
    """Require |measured − published| ≤ tolerance."""
    passed = math.isfinite(measured) and abs(measured - published) <= tolerance
    return Measurement(name, f"{published:.{digits}f}", f"{measured:.{digits}f}", f"± {tolerance:g}", passed)


def between(name: str, low: float, high: float, measured: float, published: str = "") -> Measurement:
    """Require low ≤ measured ≤ high."""
    bounds = f"{low:.4g} … {high:.4g}"
    return Measurement(name, published or bounds, f"{measured:.4g}", bounds, low <= measured <= high)


def at_most(name: str, limit: float, measured: float, published: str = "") -> Measurement:
    """Require measured ≤ limit."""
    return Measurement(name, published or f"≤ {limit:g}", f"{measured:.3g}", f"≤ {limit:g}", measured <= limit)


def at_least(name: str, limit: float, measured: float, published: str = "") -> Measurement:
    """Require measured ≥ limit."""
    return Measurement(name, published or f"≥ {limit:g}", f"{measured:.4g}", f"≥ {limit:g}", measured >= limit)


def holds(name: str, published: str, measured: str, passed: bool) -> Measurement:
    """Require a statement to be true; `measured` is the value on which it rests."""
    return Measurement(name, published, measured, "must hold", passed)


def shown(name: str, measured: str, published: str = "own figure") -> Measurement:
    """Report a value without a tolerance."""
    return Measurement(name, published, measured, "–", None)


@dataclass(frozen=True)
class Outcome:
    """The results of one run of an experiment. notes: deviations from the protocol, such as loaded weights."""

    measurements: Sequence[Measurement]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether every value that has a tolerance is within it; False if none has."""
        results = [measurement.passed for measurement in self.measurements if measurement.passed is not None]
        return bool(results) and all(results)


@dataclass
class ExperimentContext:
    """The seed, form and cache of a run, which every experiment gets as its argument.

    default_seed: whether `seed` is the experiment's own, with which the published digits are compared exactly. quick:
    smaller budgets and coarse bounds. report_progress: called with the fraction of a training that is done. cache:
    values that experiments of one run share, such as trained models.
    """

    seed: int
    default_seed: bool = True
    quick: bool = False
    report_progress: Callable[[float], None] = lambda fraction: None
    cache: dict[Any, Any] = field(default_factory=dict)

    def generator(self) -> torch.Generator:
        """Return a new generator G(seed)."""
        return torch.Generator().manual_seed(self.seed)

    def cached(self, key: Any, create: Callable[[], T]) -> T:
        """Return the cached value of a key, created at its first use. The key must contain the seed if that matters."""
        if key not in self.cache:
            self.cache[key] = create()
        value: T = self.cache[key]
        return value

    def digits(
        self, name: str, published: float, measured: float, digits: int, other_seed_tolerance: float
    ) -> Measurement:
        """Require the published digits with the default seed, and a tolerance with another."""
        if self.default_seed:
            return exact(name, f"{published:.{digits}f}", f"{measured:.{digits}f}")
        return near(name, published, measured, other_seed_tolerance, digits)

    def near(
        self,
        name: str,
        published: float,
        measured: float,
        tolerance: float,
        other_seed_tolerance: float,
        digits: int = 4,
    ) -> Measurement:
        """Require a tolerance with the default seed, and another one with any other seed."""
        return near(name, published, measured, tolerance if self.default_seed else other_seed_tolerance, digits)


@dataclass(frozen=True)
class Experiment:
    """An experiment: one row of the lab.

    dataset: built-in data set. requires: a package that it is compared with (import name) and the extra that installs
    it. quick: whether there is a quick form. quick_dataset: data set of the quick form, if another. seconds: typical
    duration on one core, for the ETA.
    """

    id: str
    title: str
    question: str
    protocol: str
    explanation: str
    run: Callable[[ExperimentContext], Outcome]
    seed: int = 0
    quick: bool = False
    dataset: str | None = None
    requires: tuple[str, str] | None = None
    quick_dataset: str | None = None
    seconds: float = 0.5

    @property
    def section(self) -> str:
        """The id up to its first point."""
        return self.id.partition(".")[0]

    def dataset_for(self, quick: bool) -> str | None:
        """Return the built-in data set that is read."""
        return self.quick_dataset or self.dataset if quick and self.quick else self.dataset


def experiment(id: str, title: str, **fields: Any) -> Callable[[Callable[[ExperimentContext], Outcome]], Experiment]:
    """Return a decorator that makes a function an `Experiment`; fields: its other fields."""

    def decorate(run: Callable[[ExperimentContext], Outcome]) -> Experiment:
        return Experiment(id, title, run=run, **fields)

    return decorate


def sort_key(id: str) -> tuple[Any, ...]:
    """Return a key that sorts 1.2 before 1.10, and 1.12 before 1.12b."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|[^\d.]+", id))
