"""Running experiments one after another; each row is written as it finishes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tokenloom.data import registry
from tokenloom.errors import UserError
from tokenloom.lab.experiment import Bench, Experiment, Outcome, order
from tokenloom.utils.files import write_json
from tokenloom.utils.names import some
from tokenloom.version import VERSION

PLAN = "plan.json"


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run. seed: None = each row's own."""

    seed: int | None = None
    quick: bool = False


class Folder:
    """Where rows are kept: one JSON file each, and the plan of the run, which is gone when all is finished."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """All finished rows, in the order of the chapter. Raises UserError for a file that is no row."""
        found = []
        for file in self.path.glob("row-*.json"):
            try:
                found.append(json.loads(file.read_text("utf-8")))
            except ValueError as error:
                raise UserError(f"{file}: is no row of the lab ({error}); remove it and run that row again") from error
        return sorted(found, key=lambda row: order(row["id"]))

    def write(self, name: str, content: Any) -> None:
        """A JSON file, whole or not at all. Raises UserError where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / name, content, indent=None)
        except OSError as error:
            raise UserError(f"{self.path / name}: {error.strerror or error}; --out names another folder") from error

    def begin(self, plan: dict[str, Any], *, resume: bool, overwrite: bool) -> set[str]:
        """Write the plan of a run, and return the ids that an interrupted one has finished and need not run again.

        Raises UserError when one was interrupted and neither resume nor overwrite is asked for.
        """
        file = self.path / PLAN
        done: set[str] = set()
        if file.exists():
            before = json.loads(file.read_text("utf-8"))
            done = {row["id"] for row in self.rows() if row["run"] == before["run"]} & set(plan["ids"])
            alike = all(before[key] == plan[key] for key in ("seed", "quick", "version"))
            if resume and not alike:
                raise UserError(f"--resume: the run in {self.path} had another seed, form or version; --overwrite it")
            if not resume and not overwrite:
                raise UserError(
                    f"an interrupted run left {len(done)} finished rows in {self.path}: "
                    "--resume goes on with it, --overwrite starts over"
                )
            if resume:
                plan["run"] = before["run"]
            else:
                done = set()
        self.write(PLAN, plan)
        return done

    def finish(self) -> None:
        """Nothing is left to do."""
        (self.path / PLAN).unlink(missing_ok=True)


def check_data(chosen: Sequence[Experiment], quick: bool = False) -> None:
    """Fetch what is missing before the first row runs. Raises UserError naming the command that fetches it, and the
    extra of a package that a row is held against and that is not installed."""
    for one in chosen:
        if one.beside is not None and find_spec(one.beside[0]) is None:
            package, extra = one.beside
            raise UserError(f"row {one.id} is held against {package}: pip install 'tokenloom[{extra}]'")
    for name in dict.fromkeys(one.data(quick) for one in chosen):
        if name is None:
            continue
        try:
            registry.download(name)
        except UserError as error:
            rows = some([one.id for one in chosen if one.data(quick) == name])
            raise UserError(
                f"the data set {name} is missing: tokenloom data download {name} fetches it ({error});"
                f" rows that ask for it: {rows}"
            ) from error


def run(
    chosen: Sequence[Experiment],
    folder: Folder,
    wish: RunOptions,
    *,
    resume: bool = False,
    overwrite: bool = False,
    begin: Callable[[Experiment], None] = lambda one: None,
    tell: Callable[[float], None] = lambda share: None,
) -> Iterator[dict[str, Any]]:
    """Run experiments on one thread, and yield each row when it is written. begin: told what comes next; tell: how much
    of a training in it is done, from 0 to 1."""
    check_data(chosen, wish.quick)
    stamp = f"{time.time():.3f}"
    plan = {"ids": [one.id for one in chosen], "seed": wish.seed, "quick": wish.quick, "version": VERSION, "run": stamp}
    done = folder.begin(plan, resume=resume, overwrite=overwrite)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Sums are added in another order by more, and the digits are those of one.
    made: dict[Any, Any] = {}
    try:
        for one in chosen:
            if one.id in done:
                continue
            begin(one)
            row = {**measure(one, wish, made, tell), "run": plan["run"]}
            folder.write(f"row-{one.id.replace(os.sep, '_')}.json", row)
            yield row
    finally:
        torch.set_num_threads(threads)
    folder.finish()


def measure(
    one: Experiment,
    wish: RunOptions,
    made: dict[Any, Any] | None = None,
    tell: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Run one experiment and return its row: plain data, all that the report needs."""
    seed = one.seed if wish.seed is None else wish.seed
    quick = wish.quick and one.quick
    bench = Bench(seed, seed == one.seed, quick, tell, {} if made is None else made)
    began, processor = time.perf_counter(), time.process_time()
    outcome: Outcome = one.run(bench)
    return {
        "id": one.id,
        "title": one.title,
        "section": one.section,
        "asked": one.asked,
        "protocol": one.protocol,
        "explanation": one.explanation,
        "seed": seed,
        "own_seed": bench.own_seed,
        "quick": quick,
        "good": outcome.good,
        "measures": [asdict(measure) for measure in outcome.measures],
        "plots": [asdict(plot) for plot in outcome.plots],
        "notes": list(outcome.notes),
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - processor,
        "version": VERSION,
    }
