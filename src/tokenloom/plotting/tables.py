"""Plain tables, for files, pipes and logs: aligned text without colors or frames."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

NUMBER = re.compile(r"[+\-−±~<>≤≥]?\s?\d[\d,]*(\.\d+)?(e[+-]?\d+)?\s?(%|[a-zA-Z]{1,3}(/s)?)?")


def plain_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Lay rows out under a header in columns two spaces apart, with a rule of dashes between.

    A column is right-aligned when all its filled cells are numbers, or text that reads as one ("1,024", "12.5 %",
    "3.1 MB", "nan"); its floats get the same number of decimals, at most four. None is an empty cell. Wide
    characters count as two columns; line breaks and other control characters are written as escapes (\\n), so that a
    cell stays on its line. Raises ValueError for a row with more or fewer cells than the header.
    """
    from rich.cells import cell_len

    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(header)}")
    columns = []
    for title, *cells in zip(header, *rows, strict=True):
        texts = [_printable(text) for text in [title, *_texts(cells)]]
        width = max(map(cell_len, texts))
        right = _numeric(texts[1:])
        spaces = [" " * (width - cell_len(text)) for text in texts]
        texts = [gap + text if right else text + gap for text, gap in zip(texts, spaces, strict=True)]
        columns.append([texts[0], "-" * width, *texts[1:]])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _numeric(texts: Sequence[str]) -> bool:
    filled = [text for text in texts if text]
    return bool(filled) and all(NUMBER.fullmatch(text) or text in ("nan", "inf", "-inf") for text in filled)


def _texts(cells: Sequence[object]) -> list[str]:
    """The cells of one column as text."""
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
    """How many of at most four decimals are needed; one at least, so that a float looks like one."""
    return max(len(f"{value:.4f}".rstrip("0").split(".")[1]), 1)


def _printable(text: str) -> str:
    """The text with control characters, line separators and lone surrogates as escapes."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") else char
        for char in text
    )
