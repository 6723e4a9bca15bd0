"""Initialization: one table per model says how each parameter is drawn.

A parameter that no row of the table names is an error, and so is a row that names nothing: a renamed part cannot
silently keep another initialization. A part may bring a table of its own as the class attribute `init_table`, with the
names of its parameters; that of the innermost such module takes precedence over the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Generator, Tensor, nn

# Sets a parameter in place, given the module that owns it.
Rule = Callable[[Tensor, nn.Module, Generator], None]
# Pattern of parameter names → rule; the first match counts. A pattern that ends in `?` may match nothing.
InitTable = Sequence[tuple[str, Rule]]


def initialize(model: nn.Module, table: InitTable, generator: Generator) -> None:
    """Set every parameter by the first row of the table whose pattern matches its name, in the model's order.

    Draws come from `generator` alone, on the CPU; parameters on the meta device are left as they are. Raises ValueError
    naming the parameters that no row matches, and the rows that match no parameter.
    """
    used: set[str] = set()
    missing: list[str] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            row = _own_row(model, name) or _row(table, name)
            if row is None:
                missing.append(name)
                continue
            used.add(row[0])
            if not parameter.is_meta:
                row[1](parameter, model.get_submodule(name.rpartition(".")[0]), generator)
    if missing:
        note = "a part may set `init_table`"
        raise ValueError(f"the initialization table does not name: {', '.join(missing)} ({note})")
    idle = [pattern for pattern, _ in table if pattern not in used and not pattern.endswith("?")]
    if idle:
        raise ValueError(f"the initialization table names no parameter with: {', '.join(idle)}")


def _row(table: InitTable, name: str) -> tuple[str, Rule] | None:
    return next((row for row in table if fnmatchcase(name, row[0].removesuffix("?"))), None)


def _own_row(model: nn.Module, name: str) -> tuple[str, Rule] | None:
    """The row of the innermost module around a parameter that has an `init_table`."""
    path = name.split(".")
    for depth in range(len(path) - 1, 0, -1):
        own: InitTable | None = getattr(model.get_submodule(".".join(path[:depth])), "init_table", None)
        if own is not None:
            return _row(own, ".".join(path[depth:]))
    return None


def transformer_init(init: str) -> InitTable:
    """Return the table of the stacks of a model: attention, MLPs and norms, wherever they are.

    init: "modern", in which the last map of each sub-layer is zero, so that every layer starts as the identity; or
    "classic", as the textbook and torch draw them. Raises ValueError for another.
    """
    inputs, zero = normal_by_inputs(), constant(0.0)
    if init == "modern":
        maps: InitTable = [
            ("*.W_[qkv].weight", inputs),
            ("*.W_o.weight", zero),
            ("*.mlp.W_in.weight?", inputs),
            ("*.mlp.W_gate.weight?", inputs),
            ("*.mlp.W_out.weight?", zero),
            ("*.mlp.*.bias?", zero),
        ]
    elif init == "classic":
        maps = [("*.W_[qkvo].weight", inputs), ("*.mlp.W_*?", framework_linear)]
    else:
        raise ValueError(f"no initialization {init!r}: there are modern, classic")
    return [*maps, ("*.W_[qkvo].bias?", zero), ("*norm*.weight?", constant(1.0)), ("*norm*.bias?", zero)]


def embedding_init(position_std: float = 0.02) -> InitTable:
    """Return the table of token embeddings and learned positions. position_std: of the learned positions."""
    return [("*tokens.weight", normal(1.0)), ("*positions.table?", normal(position_std))]


def head_init(init: str, name: str = "lm_head") -> InitTable:
    """Return the table of the linear map from features to logits."""
    if init == "classic":
        return [(f"{name}.*", framework_linear)]
    return [(f"{name}.weight", normal_by_inputs(0.5)), (f"{name}.bias", constant(0.0))]


def normal(std: float) -> Rule:
    """N(0, std²)."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        parameter.normal_(0.0, std, generator=generator)

    return rule


def normal_by_inputs(gain: float = 1.0) -> Rule:
    """gain · N(0, 1) / √inputs for a weight (outputs, inputs), drawn in the textbook's layout inputs × outputs."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        outputs, inputs = parameter.shape
        values = torch.randn(inputs, outputs, generator=generator, dtype=parameter.dtype)
        parameter.copy_((gain / math.sqrt(inputs)) * values.T)

    return rule


def constant(value: float) -> Rule:
    """The same value everywhere."""

    def rule(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
        parameter.fill_(value)

    return rule


def framework_linear(parameter: Tensor, owner: nn.Module, generator: Generator) -> None:
    """The initialization of `torch.nn.Linear`: weight and bias uniform in ±1/√inputs."""
    weight = owner.weight
    assert isinstance(weight, Tensor)
    bound = 1.0 / math.sqrt(weight.shape[1])
    if parameter is weight:
        nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
    else:
        parameter.uniform_(-bound, bound, generator=generator)
