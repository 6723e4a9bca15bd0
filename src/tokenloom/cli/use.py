"""Using and measuring a trained run from the command line."""

from __future__ import annotations

import sys
import time
from typing import Any

from tokenloom.cli.output import print_json
from tokenloom.utils.progress import reporting_progress


def use_run(verb: str, run: str, given: dict[str, Any], *, device: str, as_json: bool, quiet: bool) -> None:
    """`tokenloom generate RUN …` and the other verbs."""
    from tokenloom.config import build
    from tokenloom.runs.folder import load

    one_thread()
    task = load(run, device=device)
    options: Any = build(task.uses[verb], given)
    began = time.perf_counter()
    say = _nothing if quiet else _so_far

    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    with reporting_progress(say):
        result = task.use(verb, options, _nothing if as_json else show)
    if not quiet:
        for note in result.get("notes", []):
            print(f"note: {note}", file=sys.stderr)
    if as_json:
        print_json({**result, "run": run, "seconds": time.perf_counter() - began})


def evaluate_run(run: str, data: str | None, given: dict[str, Any], *, batch: int, device: str, as_json: bool) -> None:
    """`tokenloom evaluate RUN [--data …]`, with the options that the run's task has for it."""
    from tokenloom.errors import UserError
    from tokenloom.runs.folder import load

    if batch < 1:
        raise UserError(f"--batch {batch}: must be at least 1")
    one_thread()
    task = load(run, device=device)
    began = time.perf_counter()
    with reporting_progress(_so_far):
        metrics = task.evaluate(data, batch=batch, **given)
    seconds = time.perf_counter() - began
    if as_json:
        print_json({**metrics, "data": task.source if data is None else data, "run": run, "seconds": seconds})
        return
    print("\n".join(task.metric_lines(metrics)))


def _so_far(text: str) -> None:
    print(f"so far: {text}", file=sys.stderr)


def _nothing(text: str) -> None:
    pass


def one_thread() -> None:
    """Small models are used on one thread: more only get in each other's way."""
    import torch

    torch.set_num_threads(1)
