"""An experiment of the lab: a question, a protocol, measures beside published values, and plots from plain data."""

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
class Measure:
    """One measured figure beside the published one. `good` is None for a figure that is only shown."""

    name: str
    published: str
    measured: str
    tolerance: str
    good: bool | None


def exact(name: str, published: str, measured: str) -> Measure:
    """The printed digits, or the printed text, must come out as they are."""
    return Measure(name, published, measured, "exact", measured == published)


def near(name: str, published: float, measured: float, tolerance: float, digits: int = 4) -> Measure:
    """|measured − published| ≤ tolerance."""
    good = math.isfinite(measured) and abs(measured - published) <= tolerance
    return Measure(name, f"{published:.{digits}f}", f"{measured:.{digits}f}", f"± {tolerance:g}", good)


def between(name: str, low: float, high: float, measured: float, published: str = "") -> Measure:
    """low ≤ measured ≤ high."""
    bounds = f"{low:.4g} … {high:.4g}"
    return Measure(name, published or bounds, f"{measured:.4g}", bounds, low <= measured <= high)


def at_most(name: str, limit: float, measured: float, published: str = "") -> Measure:
    """measured ≤ limit: differences of two ways that should agree."""
    return Measure(name, published or f"≤ {limit:g}", f"{measured:.3g}", f"≤ {limit:g}", measured <= limit)


def at_least(name: str, limit: float, measured: float, published: str = "") -> Measure:
    """measured ≥ limit."""
    return Measure(name, published or f"≥ {limit:g}", f"{measured:.4g}", f"≥ {limit:g}", measured >= limit)


def holds(name: str, published: str, measured: str, good: bool) -> Measure:
    """A statement that is true or not; `measured` says what was found."""
    return Measure(name, published, measured, "must hold", good)


def shown(name: str, measured: str, published: str = "own figure") -> Measure:
    """A figure without a bound."""
    return Measure(name, published, measured, "–", None)


@dataclass(frozen=True)
class Outcome:
    """What one run of an experiment gives. notes: how this run departs from the protocol, such as weights built from
    the protocol's draws and loaded."""

    measures: Sequence[Measure]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """Whether every figure with a bound is within it; one at least must have a bound."""
        bounded = [measure.good for measure in self.measures if measure.good is not None]
        return bool(bounded) and all(bounded)


@dataclass
class Bench:
    """What a run hands to its experiments.

    seed: the row's own, or that of --seed. own_seed: whether it is the row's, so that the published digits hold.
    quick: a smaller budget, held against a coarse bound of its own. Things made by `shared` live as long as the run.
    """

    seed: int
    own_seed: bool = True
    quick: bool = False
    tell: Callable[[float], None] = lambda share: None
    made: dict[Any, Any] = field(default_factory=dict)

    def generator(self) -> torch.Generator:
        """A fresh G(seed)."""
        return torch.Generator().manual_seed(self.seed)

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, once a run for each key: a trained model, by its settings (which hold the seed)."""
        if key not in self.made:
            self.made[key] = make()
        thing: T = self.made[key]
        return thing

    def digits(self, name: str, published: float, measured: float, digits: int, second: float) -> Measure:
        """The published digits with the row's seed; ± second with another."""
        if self.own_seed:
            return exact(name, f"{published:.{digits}f}", f"{measured:.{digits}f}")
        return near(name, published, measured, second, digits)

    def near(
        self, name: str, published: float, measured: float, first: float, second: float, digits: int = 4
    ) -> Measure:
        """± first with the row's seed, ± second with another."""
        return near(name, published, measured, first if self.own_seed else second, digits)


@dataclass(frozen=True)
class Experiment:
    """One row of the chapter. needs: the built-in data set that it reads. beside: the package that it is held
    against, as it is imported, and the extra that brings it. quick: whether it has a shorter form, and quick_needs:
    what that reads, where it is another set.

    seconds: about how long it takes on one core, for the time left.
    """

    id: str
    title: str
    asked: str
    protocol: str
    explanation: str
    run: Callable[[Bench], Outcome]
    seed: int = 0
    quick: bool = False
    needs: str | None = None
    beside: tuple[str, str] | None = None
    quick_needs: str | None = None
    seconds: float = 0.5

    @property
    def section(self) -> str:
        """What stands before the first point of the id."""
        return self.id.partition(".")[0]

    def data(self, quick: bool) -> str | None:
        """The built-in data set that is read."""
        return self.quick_needs or self.needs if quick and self.quick else self.needs


def experiment(id: str, title: str, **about: Any) -> Callable[[Callable[[Bench], Outcome]], Experiment]:
    """Make a function that measures an `Experiment`; about: its other fields."""

    def made(run: Callable[[Bench], Outcome]) -> Experiment:
        return Experiment(id, title, run=run, **about)

    return made


def order(id: str) -> tuple[Any, ...]:
    """A key that sorts 1.2 before 1.10, and 1.12 before 1.12b."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|[^\d.]+", id))
