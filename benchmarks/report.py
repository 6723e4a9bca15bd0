"""What a comparison leaves: results.json, and the tables in README.md that are made from it."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import FASTER, TIMES, Goal, Row, Spread

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def machine() -> dict[str, str]:
    """What was measured on, and when."""
    from importlib.metadata import version

    return {
        "processor": processor(Path("/proc/cpuinfo")),
        "cores": str(os.cpu_count()),
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def processor(path: Path) -> str:
    """The processor's name, with its family and model where its makers' names alone say little."""
    try:
        text = path.read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = {
        key: re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in ("model name", "cpu family", "model")
    }
    name, family, model = (match[1].strip() if match else "unknown" for match in found.values())
    return f"{name}, family {family} model {model}"


def row_as_dict(row: Row) -> dict[str, Any]:
    return asdict(row)


def row_from_dict(kept: Mapping[str, Any]) -> Row:
    goal = None if kept["goal"] is None else Goal(**kept["goal"])
    return Row(**{**kept, "figure": Spread(**kept["figure"]), "goal": goal})


def short(value: float) -> str:
    """A number with three digits that count; whole above a hundred."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown, a line a row."""
    lines = ["| what | threads | ours | peer | figure (min … max) | goal |", "|---|---|---|---|---|---|"]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(row: Row) -> str:
    digits = 4 if row.measure == "nats" else None

    def number(value: float) -> str:
        return short(value) if digits is None else f"{value:.{digits}f}"

    f = row.figure
    spread = f" ({number(f.low)} … {number(f.high)})" if f.count > 1 else ""
    separator = "" if row.measure in (FASTER, TIMES) else " "
    figure = f"**{number(f.median)}{separator}{row.measure}**{spread}"
    ours = "" if row.ours is None else f"{number(row.ours)} {row.unit}"
    peer = row.peer if row.theirs is None else f"{row.peer}: {number(row.theirs)} {row.unit}"
    goal = "" if row.goal is None else f"{row.goal.sign} {row.goal.value:g}: {'met' if row.met else 'not met'}"
    return f"| {row.what} | {row.threads} | {ours} | {peer} | {figure} | {goal} |"


def section(name: str, kept: Mapping[str, Any]) -> str:
    """A comparison with its command, its machine and its table."""
    m = kept["machine"]
    where = f"{m['processor']}, {m['cores']} cores, torch {m['torch']}, Python {m['python']}, {m['date']}"
    rows = [row_from_dict(row) for row in kept["rows"]]
    return f"### {name}\n\n`{kept['command']}`: {where}.\n\n{table(rows)}\n"


def with_results(page: str, results: Mapping[str, Any], order: Sequence[str]) -> str:
    """The page with the results between its two marks. Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    sections = "\n".join(section(name, results[name]) for name in order if name in results)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def keep(results_path: Path, page_path: Path, fresh: Mapping[str, Any], order: Sequence[str]) -> None:
    """Put fresh results in the place of the old ones of the same comparisons, in both files."""
    results = json.loads(results_path.read_text("utf-8")) if results_path.exists() else {}
    results.update(fresh)
    page = with_results(page_path.read_text("utf-8"), results, order)
    results_path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page_path.write_text(page, "utf-8")
