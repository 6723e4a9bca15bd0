"""Tables of text without colors and frames, for terminals, files and pipes."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

NUMBER = re.compile(r"[+\-−±~<>≤≥]?\s?\d[\d,]*(\.\d+)?(e[+-]?\d+)?\s?(%|[a-zA-Z]{1,3}(/s)?)?")


def plain_table(rows: Sequence[Sequence[object]], header: Sequence[str], width: int | None = None) -> str:
    """Return rows under a header, in columns two spaces apart, with a rule of dashes between.

    A column is right-aligned when all its filled cells are numbers, or text that reads as one ("1,024", "12.5 %",
    "3.1 MB", "nan"); its floats get the same number of decimals, at most four. None is an empty cell. Control
    characters, such as line breaks, are written as escapes (\\n). width: columns of the terminal, in which long cells
    are wrapped; None does not wrap. Raise ValueError for a row with more or fewer cells than the header.
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(header)}")
    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n")
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [_texts(cells) for cells in zip(*rows, strict=True)] or [[] for _ in header]
    for title, texts in zip(header, columns, strict=True):
        table.add_column(Text(_printable(title)), justify="right" if _numeric(texts) else "left", no_wrap=width is None)
    for row in zip(*columns, strict=True):
        table.add_row(*(Text(_printable(text)) for text in row))
    console = Console(width=width or 1_000_000, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _numeric(texts: Sequence[str]) -> bool:
    filled = [text for text in texts if text]
    return bool(filled) and all(NUMBER.fullmatch(text) or text in ("nan", "inf", "-inf") for text in filled)


def _texts(cells: Sequence[object]) -> list[str]:
    """Return the cells of one column as text."""
    floats = [cell for cell in cells if isinstance(cell, float) and math.isfinite(cell)]
    decimals = max((_decimals(value) for value in floats), default=0)
    # Fixed decimals would show a tiny number as zero and a huge one as a row of digits.
    fixed = all(value == 0 or 1e-3 <= abs(value) < 1e9 for value in floats)
    texts = []
    for cell in cells:
        if isinstance(cell, float) and math.isfinite(cell):
            texts.append(f"{cell:.{decimals}f}" if fixed else f"{cell:.4g}")
        else:
            texts.append("" if cell is None else str(cell))
    return texts


def _decimals(value: float) -> int:
    """Return how many decimals show a float exactly: from one to four."""
    return max(len(f"{value:.4f}".rstrip("0").split(".")[1]), 1)


def _printable(text: str) -> str:
    """Return the text with control characters, line separators and lone surrogates as escapes."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") else char
        for char in text
    )
