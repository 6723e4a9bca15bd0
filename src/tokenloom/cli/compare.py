"""`tokenloom compare`: trained runs in pairs, or the kinds of language models on one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenloom.cli.output import duration, print_json, quantity
from tokenloom.errors import UserError
from tokenloom.utils.progress import reporting_progress


def compare_runs(runs: Sequence[str], context: str | None, *, device: str, as_json: bool) -> None:
    """`tokenloom compare RUN RUN …`."""
    from tokenloom.cli.use import one_thread
    from tokenloom.evaluation.comparison import compare
    from tokenloom.plotting.tables import plain_table
    from tokenloom.runs.folder import load

    if len(runs) < 2:
        raise UserError("compare needs two runs; or data and --models gpt,lstm,ngram")
    if doubled := next((run for run in runs if runs.count(run) > 1), None):
        raise UserError(f"{doubled}: stands there twice; a run does not differ from itself")
    one_thread()
    pairs = compare([(run, load(run, device=device)) for run in runs], context)
    if as_json:
        print_json({"pairs": [asdict(pair) for pair in pairs]})
        return
    header = ["A", "B", f"A, {pairs[0].unit}", "B", "A − B", "95 % interval", "A better in"]
    rows = [
        [p.a, p.b, p.value_a, p.value_b, p.difference, f"{p.low:+.4f} … {p.high:+.4f}", f"{p.wins:.1%}"] for p in pairs
    ]
    print(plain_table(rows, header))
    print(f"on {pairs[0].samples:,} samples of the validation part, resampled in pairs; the lower is the better")


def compare_models(
    data: str,
    models: str,
    folder: str,
    settings: dict[str, Any],
    training: dict[str, Any],
    *,
    context: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """`tokenloom compare DATA --models …`."""
    from tokenloom.cli.display import Display, field
    from tokenloom.evaluation.perplexity import checked_window
    from tokenloom.plotting.tables import plain_table
    from tokenloom.tasks import _model_comparison as ladder

    place, window = Path(folder), ladder.WINDOW if context is None else checked_window(context, None)
    if window is None:
        raise UserError("--context running is shown anyway: give the length of the separate windows beside it")
    rungs: list[ladder.ModelComparison] = []
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise UserError("--models: name at least one model, such as gpt,lstm,ngram")
    for model, fitting in ladder.trainings(data, names, place, settings, training, overwrite):
        with Display(quiet=quiet) as display, reporting_progress(display.progress_line):
            display.line(field("compare", f"{model}, {len(rungs) + 1} of {len(names)}"))
            rungs.append(ladder.climb(model, fitting, window, display.show))
    result = ladder.write(place, data, rungs)
    if as_json:
        print_json({**result, "out": str(place)})
        return
    header = ["model", "bits per byte, running context", f"windows of {window}", "training", "stored numbers"]
    rows = [[r.model, r.running, r.windows, duration(r.seconds), quantity(r.numbers)] for r in rungs]
    print(plain_table(rows, header))
    best = min(rungs, key=lambda rung: rung.running)
    print(f"best with running context: {best.model}; the runs, compare.json and compare.png are in {place}")
