"""`tokenloom lab …`: the experiments of the chapter, and the report of what came out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenloom.cli.output import JSON, QUIET, duration, print_json, print_table, whole_number
from tokenloom.errors import UserError
from tokenloom.utils.names import counted

if TYPE_CHECKING:
    from tokenloom.lab.experiment import Experiment

IDS = Annotated[str, Parameter(help="rows such as 1.3, whole sections such as 1, or a file of your own: ./mine.py")]
ALL = Annotated[bool, Parameter(name="--all", negative="", show_default=False, help="every row of the chapter")]
SEED = Annotated[int | None, Parameter(converter=whole_number, help="instead of each row's own: wider tolerances hold")]
QUICK = Annotated[bool, Parameter(negative="", show_default=False, help="smaller budgets, against coarse bounds")]
OUT = Annotated[str, Parameter(help="folder of the rows")]
RESUME = Annotated[bool, Parameter(negative="", show_default=False, help="go on with a run that was interrupted")]
OVERWRITE = Annotated[bool, Parameter(negative="", show_default=False, help="start anew in place of such a run")]
PAGE = Annotated[str | None, Parameter(help="the file to write [default: report.html in the folder of the rows]")]
NAME = Annotated[str, Parameter(help="the experiment's name: NAME.py is written here")]


def list_all(*, json: JSON = False) -> None:
    """List the experiments."""
    from tokenloom.lab.registry import experiments

    rows = list(experiments().values())
    if json:
        print_json({"experiments": [{"id": one.id, "title": one.title, "asked": one.asked} for one in rows]})
        return
    print_table([[f"{one.id} ", one.title, "yes" if one.quick else ""] for one in rows], ["row", "", "quick form"])


def run(
    *ids: IDS,
    all: ALL = False,
    seed: SEED = None,
    quick: QUICK = False,
    out: OUT = "runs/lab",
    resume: RESUME = False,
    overwrite: OVERWRITE = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> int:
    """Run experiments, and hold what comes out against what was published; 1 when a figure is out of tolerance."""
    from tokenloom.lab.registry import experiments, find
    from tokenloom.lab.runner import Folder, RunOptions
    from tokenloom.lab.runner import run as rows_of

    if bool(ids) == all:
        raise UserError("say which rows to run, or --all (tokenloom lab list shows them)")
    if seed is not None and not 0 <= seed < 2**63:
        raise UserError(f"--seed {seed}: must be from 0 to 2⁶³ − 1")
    chosen = list(experiments().values()) if all else find(ids)
    view = View(chosen, quick=quick, quiet=quiet)
    rows = []
    folder = Folder(out)
    try:
        again: dict[str, bool] = {"resume": resume, "overwrite": overwrite}
        for row in rows_of(chosen, folder, RunOptions(seed, quick), **again, begin=view.begin, tell=view.tell):
            rows.append(row)
            view.end(row)
            if not json:
                show(row)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; {counted(len(rows), 'finished row')} kept in {out}: the same command with --resume goes on"
        ) from None
    finally:
        view.close()
    if resume:
        ids_asked = {one.id for one in chosen}
        rows = [row for row in folder.rows() if row["id"] in ids_asked]
    bad = [row["id"] for row in rows if not row["good"]]
    if json:
        print_json({"rows": [{k: v for k, v in row.items() if k != "pictures"} for row in rows], "out": out})
    else:
        verdict = f"out of tolerance: {', '.join(bad)}" if bad else "all within tolerance"
        spent = sum(row["processor_seconds"] for row in rows)
        print(f"{len(rows)} rows, {verdict}; {duration(spent)} of one core; the page: tokenloom lab report --out {out}")
    return 1 if bad else 0


def report(*, out: OUT = "runs/lab", page: PAGE = None, json: JSON = False) -> None:
    """Write the report of all rows that were run: one page, which needs nothing from outside."""
    from tokenloom.lab.report import html
    from tokenloom.lab.runner import Folder

    rows = Folder(out).rows()
    if not rows:
        raise UserError(f"{out}: no rows are there; tokenloom lab run --all --out {out} makes them")
    path = Path(page) if page else Path(out) / "report.html"
    try:
        path.write_text(html(rows), "utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; --page names another file") from error
    if json:
        print_json({"page": str(path), "rows": len(rows), "good": sum(row["good"] for row in rows)})
    else:
        print(path)


def new(name: NAME, /, *, json: JSON = False) -> None:
    """Write an experiment to start from into this folder."""
    from tokenloom.lab.template import write

    path = write(name)
    if json:
        print_json({"file": str(path)})
    else:
        print(f"{path}: tokenloom lab run ./{path} runs it")


def show(row: dict[str, Any]) -> None:
    """One row for a person to read."""
    print(f"\n{row['id']} {row['title']}{' (quick form)' if row['quick'] else ''}, seed {row['seed']}")
    print(f"asked:    {row['asked']}\nprotocol: {row['protocol']}")
    marks = {True: "within", False: "OUT", None: "shown"}
    cells = [[m["name"], m["published"], m["measured"], m["tolerance"], marks[m["good"]]] for m in row["measures"]]
    print_table(cells, ["figure", "published", "measured", "tolerance", "verdict"])
    for note in row["notes"]:
        print(f"note: {note}")


class View:
    """One line on standard error that says what runs and how long is left; in a file, a line a row."""

    EVERY = 0.5

    def __init__(self, chosen: list[Experiment], *, quick: bool, quiet: bool) -> None:
        self.chosen, self.quick, self.quiet = chosen, quick, quiet
        self.place, self.spent, self.expected, self.told = 0, 0.0, 0.0, 0.0
        self.text = ""
        self.terminal = sys.stderr.isatty()

    def begin(self, one: Experiment) -> None:
        """This row comes next."""
        self.place = self.chosen.index(one)
        left = sum(other.seconds for other in self.chosen[self.place :])
        pace = self.spent / self.expected if self.expected else 1.0
        if not self.quiet:
            rest = "" if self.quick else f", about {duration(left * pace)} left"
            self.text = f"{self.place + 1} of {len(self.chosen)}: {one.id} {one.title}{rest}"
            print(self._line(self.text), end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def tell(self, share: float) -> None:
        """So much of a training in it is done; seen in a terminal alone."""
        now = time.perf_counter()
        if self.terminal and not self.quiet and now - self.told >= self.EVERY:
            self.told = now
            print(self._line(f"{self.text}, training {share:.0%}"), end="\r", file=sys.stderr, flush=True)

    def _line(self, text: str) -> str:
        return f"{text[:100]:<100}" if self.terminal else text

    def end(self, row: dict[str, Any]) -> None:
        """That row is done."""
        self.spent += row["seconds"]
        self.expected += self.chosen[self.place].seconds

    def close(self) -> None:
        """Leave a clean line."""
        if self.terminal and not self.quiet:
            print(" " * 100, end="\r", file=sys.stderr)


COMMANDS = (list_all, run, report, new)
