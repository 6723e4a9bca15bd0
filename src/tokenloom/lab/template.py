"""The template of a user's experiment."""

from __future__ import annotations

import re
from pathlib import Path

from tokenloom.errors import UserError

TEMPLATE = '''"""An experiment of my own: tokenloom lab run ./{name}.py"""

import torch

from tokenloom.lab.experiment import ExperimentContext, Outcome, experiment, near
from tokenloom.plotting.svg import Line, Plot


@experiment(
    "{name}",
    "Convergence of the mean of dice",
    question="Is the mean of n dice close to 3.5?",
    protocol="10,000 dice from G(seed); the mean of the first n.",
    explanation="The standard deviation of a mean falls with the square root of n. Change it and run it again.",
    seed=1,
)
def {name}(ctx: ExperimentContext) -> Outcome:
    rolls = torch.randint(1, 7, (10_000,), generator=ctx.generator()).double()
    counts = [10, 100, 1_000, 10_000]
    means = [float(rolls[:n].mean()) for n in counts]
    plot = Plot(
        "The mean of n dice",
        "The mean approaches 3.5 as n grows.",
        x="dice",
        y="mean",
        lines=[Line("mean", counts, means), Line("expected", counts, [3.5] * len(counts))],
        log_x=True,
    )
    return Outcome([near("mean of 10,000 dice", 3.5, means[-1], 0.05)], [plot])
'''


def write_template(name: str, folder: str | Path = ".") -> Path:
    """Write NAME.py into a folder; return its path. Raise UserError for an invalid name and for an existing file."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UserError(f"{name}: use lower-case letters, digits and underscores, with no digit at the beginning")
    path = Path(folder) / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(name=name))
    except FileExistsError:
        raise UserError(f"{path} exists; choose another name") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    return path
