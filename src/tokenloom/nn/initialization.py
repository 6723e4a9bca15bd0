"""One table a model that says how each parameter starts.

A parameter that no row of the table names is an error, and so is a row that names nothing: a renamed part cannot
silently keep a default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Generator, Tensor, nn

Rule = Callable[[Tensor, nn.Module, Generator], None]
Table = Sequence[tuple[str, Rule]]


def initialize(model: nn.Module, table: Table, generator: Generator) -> None:
    """Set every parameter by the first row of the table whose pattern matches its name, in the model's order.

    A pattern that ends in `?` may go unused: it serves a part that a config can leave out.

    Draws come from `generator` alone, on the CPU. Raises ValueError naming the parameters that no row names, and
    the rows that name no parameter.
    """
    used: set[str] = set()
    missing: list[str] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            row = next((row for row in table if fnmatchcase(name, row[0].removesuffix("?"))), None)
            if row is None:
                missing.append(name)
                continue
            used.add(row[0])
            row[1](parameter, model.get_submodule(name.rpartition(".")[0]), generator)
    if missing:
        raise ValueError(f"the initialization table does not name: {', '.join(missing)}")
    idle = [pattern for pattern, _ in table if pattern not in used and not pattern.endswith("?")]
    if idle:
        raise ValueError(f"the initialization table names no parameter with: {', '.join(idle)}")


def normal(std: float) -> Rule:
    """N(0, std²)."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        parameter.normal_(0.0, std, generator=generator)

    return rule


def normal_by_inputs(gain: float = 1.0) -> Rule:
    """gain · N(0, 1) / √inputs for a map of (outputs, inputs), drawn as the textbook writes it: inputs × outputs."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        outputs, inputs = parameter.shape
        drawn = torch.randn(inputs, outputs, generator=generator, dtype=parameter.dtype)
        parameter.copy_((gain / math.sqrt(inputs)) * drawn.T)

    return rule


def constant(value: float) -> Rule:
    """The same number everywhere."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        parameter.fill_(value)

    return rule


def framework_linear(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
    """What `torch.nn.Linear` does by itself: weight and bias uniform in ±1/√inputs."""
    weight = owner.weight
    assert isinstance(weight, Tensor)
    bound = 1.0 / math.sqrt(weight.shape[1])
    if parameter is weight:
        nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
    else:
        parameter.uniform_(-bound, bound, generator=generator)
