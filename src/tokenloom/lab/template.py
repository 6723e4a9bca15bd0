"""A file to start an experiment of one's own from."""

from __future__ import annotations

import re
from pathlib import Path

from tokenloom.errors import UserError

TEXT = '''"""An experiment of my own: tokenloom lab run ./{name}.py"""

import torch

from tokenloom.plotting.svg import Line, Plot
from tokenloom.lab.experiment import Bench, Outcome, experiment, near


@experiment(
    "{name}",
    "How fast the mean of dice settles",
    asked="Does the mean of n dice come near 3.5?",
    protocol="10,000 dice from G(seed); the mean of the first n.",
    explanation="The spread of a mean falls with the square root of n. Change the protocol, and run it again.",
    seed=1,
)
def {name}(bench: Bench) -> Outcome:
    rolls = torch.randint(1, 7, (10_000,), generator=bench.generator()).double()
    counts = [10, 100, 1_000, 10_000]
    means = [float(rolls[:n].mean()) for n in counts]
    plot = Plot(
        "The mean of n dice",
        "The mean comes near 3.5 as n grows.",
        x="dice",
        y="mean",
        lines=[Line("mean", counts, means), Line("expected", counts, [3.5] * len(counts))],
        log_x=True,
    )
    return Outcome([near("mean of 10,000 dice", 3.5, means[-1], 0.05)], [plot])
'''


def write(name: str, folder: str | Path = ".") -> Path:
    """Write NAME.py into a folder. Raises UserError for a name that is no word, and for a file that is there."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UserError(f"{name}: a name has small letters, digits and underscores, and begins with no digit")
    path = Path(folder) / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEXT.format(name=name))
    except FileExistsError:
        raise UserError(f"{path} is there already; give another name") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    return path
