"""`tokenloom lab …`: the reference experiments, and the report of their results."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.output import JsonOptions, OutputOptions, print_json, print_table
from tokenloom.cli.parameters import with_options
from tokenloom.config import build, option
from tokenloom.errors import UserError
from tokenloom.utils.names import counted
from tokenloom.utils.progress import duration

if TYPE_CHECKING:
    from tokenloom.lab.experiment import Experiment


@dataclass(frozen=True)
class LabRunOptions(OutputOptions):
    """The options of `lab run`."""

    ids: list[str] = option([], "rows such as 1.3, sections such as 1, or your own file ./mine.py", positional=True)
    all: bool = option(False, "all rows")
    seed: int | None = option(None, "seed instead of each row's own; tolerances are wider", low=0, high=2**63 - 1)
    quick: bool = option(False, "smaller budgets and coarse bounds")
    out: str = option("runs/lab", "folder of the results")
    resume: bool = option(False, "resume an interrupted run")
    overwrite: bool = option(False, "discard an interrupted run")


@dataclass(frozen=True)
class LabReportOptions(JsonOptions):
    """The options of `lab report`."""

    out: str = option("runs/lab", "folder of the results")
    page: str | None = option(None, "file to write [default: report.html in --out]")


def list_all(**given: Any) -> None:
    """List the experiments."""
    from tokenloom.lab.registry import experiments

    rows = list(experiments().values())
    if build(JsonOptions, given).json:
        print_json({"experiments": [{"id": one.id, "title": one.title, "question": one.question} for one in rows]})
        return
    print_table([[f"{one.id} ", one.title, "yes" if one.quick else ""] for one in rows], ["row", "", "quick form"])


def run(**given: Any) -> int:
    """Run experiments and compare results with published figures; exit code 1 when one is out of tolerance."""
    from tokenloom.lab.registry import experiments, find
    from tokenloom.lab.runner import ResultsFolder, RunOptions
    from tokenloom.lab.runner import run as run_rows

    own = build(LabRunOptions, given)
    if bool(own.ids) == own.all:
        raise UserError("give the rows to run, or --all (tokenloom lab list shows them)")
    chosen = list(experiments().values()) if own.all else find(own.ids)
    progress = LabProgress(chosen, quick=own.quick, quiet=own.quiet)
    rows = []
    folder = ResultsFolder(own.out)
    try:
        modes: dict[str, Any] = {"resume": own.resume, "overwrite": own.overwrite}
        callbacks: dict[str, Any] = {"on_start": progress.start, "report_progress": progress.update}
        for row in run_rows(chosen, folder, RunOptions(own.seed, own.quick), **modes, **callbacks):
            rows.append(row)
            progress.finish(row)
            if not own.json:
                show(row)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; {counted(len(rows), 'finished row')} in {own.out}; the same command with --resume continues"
        ) from None
    finally:
        progress.close()
    if own.resume:
        ids = {one.id for one in chosen}
        rows = [row for row in folder.rows() if row["id"] in ids]
    bad = [row["id"] for row in rows if not row["passed"]]
    if own.json:
        print_json({"rows": [{k: v for k, v in row.items() if k != "plots"} for row in rows], "out": own.out})
    else:
        summary = f"out of tolerance: {', '.join(bad)}" if bad else "all within tolerance"
        seconds = sum(row["cpu_seconds"] for row in rows)
        next_command = f"tokenloom lab report --out {own.out}"
        print(f"{len(rows)} rows, {summary}; {duration(seconds)} of one core; report: {next_command}")
    return 1 if bad else 0


def report(**given: Any) -> None:
    """Write the report of all rows that were run: one self-contained HTML page."""
    from tokenloom.lab.report import html
    from tokenloom.lab.runner import ResultsFolder

    own = build(LabReportOptions, given)
    rows = ResultsFolder(own.out).rows()
    if not rows:
        raise UserError(f"{own.out}: has no rows; tokenloom lab run --all --out {own.out} writes them")
    path = Path(own.page) if own.page else Path(own.out) / "report.html"
    try:
        path.write_text(html(rows), "utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; --page names another file") from error
    if own.json:
        print_json({"page": str(path), "rows": len(rows), "passed": sum(row["passed"] for row in rows)})
    else:
        print(path)


def new(name: Annotated[str, Parameter(help="name of the experiment; writes NAME.py")], /, **given: Any) -> None:
    """Write a template of an experiment into the current folder."""
    from tokenloom.lab.template import write_template

    path = write_template(name)
    if build(JsonOptions, given).json:
        print_json({"file": str(path)})
    else:
        print(f"{path}: tokenloom lab run ./{path} runs it")


def show(row: dict[str, Any]) -> None:
    """Print the results of a row."""
    print(f"\n{row['id']} {row['title']}{' (quick form)' if row['quick'] else ''}, seed {row['seed']}")
    print(f"question: {row['question']}\nprotocol: {row['protocol']}")
    results = {True: "within", False: "OUT", None: "shown"}
    cells = [
        [m["name"], m["published"], m["measured"], m["tolerance"], results[m["passed"]]] for m in row["measurements"]
    ]
    print_table(cells, ["value", "published", "measured", "tolerance", "result"])
    for note in row["notes"]:
        print(f"note: {note}")


class LabProgress:
    """Progress on standard error: one line in a terminal, otherwise a line per row."""

    EVERY = 0.5

    def __init__(self, chosen: list[Experiment], *, quick: bool, quiet: bool) -> None:
        self.chosen, self.quick, self.quiet = chosen, quick, quiet
        self.position, self.spent, self.expected, self.shown = 0, 0.0, 0.0, 0.0
        self.text = ""
        self.terminal = sys.stderr.isatty()

    def start(self, one: Experiment) -> None:
        """Show the row that starts."""
        self.position = self.chosen.index(one)
        left = sum(other.seconds for other in self.chosen[self.position :])
        pace = self.spent / self.expected if self.expected else 1.0
        if not self.quiet:
            rest = "" if self.quick else f", ETA {duration(left * pace)}"
            self.text = f"{self.position + 1} of {len(self.chosen)}: {one.id} {one.title}{rest}"
            print(self._line(self.text), end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def update(self, fraction: float) -> None:
        """Show the fraction of a training in it that is done; only in a terminal."""
        now = time.perf_counter()
        if self.terminal and not self.quiet and now - self.shown >= self.EVERY:
            self.shown = now
            print(self._line(f"{self.text}, training {fraction:.0%}"), end="\r", file=sys.stderr, flush=True)

    def _line(self, text: str) -> str:
        return f"{text[:100]:<100}" if self.terminal else text

    def finish(self, row: dict[str, Any]) -> None:
        """Add the seconds of a finished row, for the ETA."""
        self.spent += row["seconds"]
        self.expected += self.chosen[self.position].seconds

    def close(self) -> None:
        """Clear the line."""
        if self.terminal and not self.quiet:
            print(" " * 100, end="\r", file=sys.stderr)


COMMANDS = (
    with_options(list_all, [JsonOptions]),
    with_options(run, [LabRunOptions]),
    with_options(report, [LabReportOptions]),
    with_options(new, [JsonOptions]),
)
