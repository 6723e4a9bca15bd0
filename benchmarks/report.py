"""Results: results.json, and the tables in README.md that are generated from it."""

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

from benchmarks.harness import RELATIVE_TIME, SPEEDUP, Goal, Row, Spread

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def machine() -> dict[str, str]:
    """Return the processor, the versions and the date."""
    from importlib.metadata import version

    return {
        "processor": processor(Path("/proc/cpuinfo")),
        "cores": str(os.cpu_count()),
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def processor(path: Path) -> str:
    """Return the name of the processor with its family and model."""
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


def row_from_dict(values: Mapping[str, Any]) -> Row:
    goal = None if values["goal"] is None else Goal(**values["goal"])
    return Row(**{**values, "result": Spread(**values["result"]), "goal": goal})


def format_number(value: float) -> str:
    """Return a number with three significant digits; an integer above a hundred."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one line per row."""
    lines = ["| name | threads | ours | peer | result (min … max) | goal |", "|---|---|---|---|---|---|"]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(row: Row) -> str:
    digits = 4 if row.result_unit == "nats" else None

    def number(value: float) -> str:
        return format_number(value) if digits is None else f"{value:.{digits}f}"

    result = row.result
    spread = f" ({number(result.low)} … {number(result.high)})" if result.count > 1 else ""
    separator = "" if row.result_unit in (SPEEDUP, RELATIVE_TIME) else " "
    value = f"**{number(result.median)}{separator}{row.result_unit}**{spread}"
    ours = "" if row.ours is None else f"{number(row.ours)} {row.unit}"
    peer = row.peer if row.theirs is None else f"{row.peer}: {number(row.theirs)} {row.unit}"
    goal = "" if row.goal is None else f"{row.goal.sign} {row.goal.value:g}: {'met' if row.met else 'not met'}"
    return f"| {row.name} | {row.threads} | {ours} | {peer} | {value} | {goal} |"


def section(name: str, results: Mapping[str, Any]) -> str:
    """Return a comparison with its command, its machine and its table."""
    m = results["machine"]
    where = f"{m['processor']}, {m['cores']} cores, torch {m['torch']}, Python {m['python']}, {m['date']}"
    rows = [row_from_dict(row) for row in results["rows"]]
    return f"### {name}\n\n`{results['command']}`: {where}.\n\n{table(rows)}\n"


def with_results(page: str, results: Mapping[str, Any], order: Sequence[str]) -> str:
    """Return the page with the results between its two markers. Raise ValueError for a page without markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    sections = "\n".join(section(name, results[name]) for name in order if name in results)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def save_results(results_path: Path, page_path: Path, new: Mapping[str, Any], order: Sequence[str]) -> None:
    """Replace the results of some comparisons in both files."""
    results = json.loads(results_path.read_text("utf-8")) if results_path.exists() else {}
    results.update(new)
    page = with_results(page_path.read_text("utf-8"), results, order)
    results_path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page_path.write_text(page, "utf-8")
