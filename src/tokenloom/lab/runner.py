"""Run experiments one after another, and write the row of each as it finishes."""

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
from tokenloom.lab.experiment import Experiment, ExperimentContext, sort_key
from tokenloom.utils.files import write_json
from tokenloom.utils.names import some
from tokenloom.version import VERSION

PLAN = "plan.json"


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run. seed: None for the seed of each experiment."""

    seed: int | None = None
    quick: bool = False


class ResultsFolder:
    """A folder with one JSON file per row, and the plan of the run until all rows are finished."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """Return all finished rows, sorted by id. Raise UserError for a corrupt file."""
        found = []
        for file in self.path.glob("row-*.json"):
            try:
                found.append(json.loads(file.read_text("utf-8")))
            except ValueError as error:
                raise UserError(f"{file}: is no row of the lab ({error}); remove it and run that row again") from error
        return sorted(found, key=lambda row: sort_key(row["id"]))

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file atomically. Raise UserError where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / name, content, indent=None)
        except OSError as error:
            raise UserError(f"{self.path / name}: {error.strerror or error}; --out names another folder") from error

    def start(self, plan: dict[str, Any], *, resume: bool, overwrite: bool) -> set[str]:
        """Write the plan of a run, and return the ids that an interrupted run has finished, if it is resumed.

        Raise UserError if a run was interrupted and neither resume nor overwrite is given.
        """
        file = self.path / PLAN
        finished: set[str] = set()
        if file.exists():
            previous = json.loads(file.read_text("utf-8"))
            finished = {row["id"] for row in self.rows() if row["run"] == previous["run"]} & set(plan["ids"])
            same = all(previous[key] == plan[key] for key in ("seed", "quick", "version"))
            if resume and not same:
                raise UserError(f"--resume: the run in {self.path} had another seed, form or version; --overwrite it")
            if not resume and not overwrite:
                raise UserError(
                    f"an interrupted run left {len(finished)} finished rows in {self.path}: "
                    "--resume continues it, --overwrite discards it"
                )
            if resume:
                plan["run"] = previous["run"]
            else:
                finished = set()
        self.write(PLAN, plan)
        return finished

    def finish(self) -> None:
        """Remove the plan, when all rows are finished."""
        (self.path / PLAN).unlink(missing_ok=True)


def check_data(chosen: Sequence[Experiment], quick: bool = False) -> None:
    """Download missing data sets before the first row runs.

    Raise UserError for a data set that cannot be downloaded, and for a missing package, with the extra that installs
    it.
    """
    for one in chosen:
        if one.requires is not None and find_spec(one.requires[0]) is None:
            package, extra = one.requires
            raise UserError(f"row {one.id} is compared with {package}: pip install 'tokenloom[{extra}]'")
    for name in dict.fromkeys(one.dataset_for(quick) for one in chosen):
        if name is None:
            continue
        try:
            registry.download(name)
        except UserError as error:
            rows = some([one.id for one in chosen if one.dataset_for(quick) == name])
            raise UserError(
                f"the data set {name} is missing: tokenloom data download {name} fetches it ({error});"
                f" rows that read it: {rows}"
            ) from error


def run(
    chosen: Sequence[Experiment],
    folder: ResultsFolder,
    options: RunOptions,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_start: Callable[[Experiment], None] = lambda one: None,
    report_progress: Callable[[float], None] = lambda fraction: None,
) -> Iterator[dict[str, Any]]:
    """Run experiments on one thread, and yield each row when it is written.

    on_start: called with each experiment before it runs. report_progress: called with the fraction of a training in it
    that is done.
    """
    check_data(chosen, options.quick)
    stamp = f"{time.time():.3f}"
    plan = {
        "ids": [one.id for one in chosen],
        "seed": options.seed,
        "quick": options.quick,
        "version": VERSION,
        "run": stamp,
    }
    finished = folder.start(plan, resume=resume, overwrite=overwrite)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Exact digits depend on the order of sums, and so on the number of threads.
    cache: dict[Any, Any] = {}
    try:
        for one in chosen:
            if one.id in finished:
                continue
            on_start(one)
            row = {**measure(one, options, cache, report_progress), "run": plan["run"]}
            folder.write(f"row-{one.id.replace(os.sep, '_')}.json", row)
            yield row
    finally:
        torch.set_num_threads(threads)
    folder.finish()


def measure(
    one: Experiment,
    options: RunOptions,
    cache: dict[Any, Any] | None = None,
    report_progress: Callable[[float], None] = lambda fraction: None,
) -> dict[str, Any]:
    """Run one experiment and return its row, as plain data for JSON."""
    seed = one.seed if options.seed is None else options.seed
    quick = options.quick and one.quick
    ctx = ExperimentContext(seed, seed == one.seed, quick, report_progress, {} if cache is None else cache)
    began, processor = time.perf_counter(), time.process_time()
    outcome = one.run(ctx)
    return {
        "id": one.id,
        "title": one.title,
        "section": one.section,
        "question": one.question,
        "protocol": one.protocol,
        "explanation": one.explanation,
        "seed": seed,
        "default_seed": ctx.default_seed,
        "quick": quick,
        "passed": outcome.passed,
        "measurements": [asdict(measure) for measure in outcome.measurements],
        "plots": [asdict(plot) for plot in outcome.plots],
        "notes": list(outcome.notes),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - processor,
        "version": VERSION,
    }
