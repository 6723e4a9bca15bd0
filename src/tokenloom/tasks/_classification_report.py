"""Measures of labels as a person reads them: lines, tables, and the pictures in a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenloom.errors import UserError
from tokenloom.plotting.confusion_matrix import confusion_table, draw_confusion
from tokenloom.plotting.tables import plain_table

# A matrix of more classes than this is drawn, but is too wide for a terminal: then the commonest confusions are listed.
WIDEST = 12
_TOP_CONFUSED = 10


def summary_lines(metrics: dict[str, Any], things: str = "texts") -> list[str]:
    """The single numbers. things: what is labeled."""
    m = metrics
    return [
        f"accuracy:    {m['accuracy']:.2%} (95 % interval {m['accuracy_low']:.2%} to {m['accuracy_high']:.2%})",
        f"macro F1:    {m['macro_f1']:.4f}",
        f"loss:        {m['loss']:.4f} nats a {things.removesuffix('s')}",
        f"calibration: the stated probability is off by {m['calibration_error']:.2%} on average",
        f"majority:    always guessing {m['majority']:.2%} of the {things} right",
        f"measured on: {int(m[things]):,} {things}",
    ]


def table_lines(
    classes: Sequence[dict[str, Any]], confused: dict[str, Any], calibration: Any, things: str = "texts"
) -> list[str]:
    """Precision and recall by class, what was taken for what, and how often which probability is right."""
    rows = [[r["class"], *(f"{r[k]:.3f}" for k in ("precision", "recall", "f1")), r["support"]] for r in classes]
    lines = ["", plain_table(rows, ["class", "precision", "recall", "F1", things])]
    names, matrix = confused["classes"], confused["counts"]
    if len(names) <= WIDEST:
        lines += ["", confusion_table(matrix, names)]
    else:
        pairs = [(n, names[i], names[j]) for i, row in enumerate(matrix) for j, n in enumerate(row) if n and i != j]
        pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
        taken = [[truth, guess, n] for n, truth, guess in pairs[:_TOP_CONFUSED]]
        lines += ["", "most often confused", plain_table(taken, ["is", "taken for", things])]
    shown = [
        [f"{row['from']:.1f} – {row['to']:.1f}", f"{row['probability']:.3f}", f"{row['right']:.3f}", row["n"]]
        for row in calibration
    ]
    return [*lines, "", plain_table(shown, ["probability", "its mean", "right", things])]


def draw(confused: dict[str, Any], folder: Path) -> None:
    """confusion.png and confusion-dark.png, where matplotlib is installed."""
    try:
        for name, dark in (("confusion.png", False), ("confusion-dark.png", True)):
            draw_confusion(confused["counts"], confused["classes"], folder / name, title=folder.name, dark=dark)
    except UserError:
        return
