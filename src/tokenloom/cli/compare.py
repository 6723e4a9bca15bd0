"""`tokenloom compare`: trained runs in pairs. `tokenloom sweep`: several models trained on one text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenloom.cli.output import OutputOptions, RunOptions, print_json, print_table, quantity
from tokenloom.config import build, option
from tokenloom.errors import UserError
from tokenloom.utils.progress import duration, reporting_progress


@dataclass(frozen=True)
class CompareOptions(RunOptions):
    """The options of `compare`."""

    runs: list[str] = option([], "run folders", positional=True)
    context: str | None = option(
        None, "text: sliding, or N for separate windows of N tokens [default: of the training]"
    )


@dataclass(frozen=True)
class SweepOptions(OutputOptions):
    """The options of `sweep` beside those of the task and of training."""

    models: str = option("", "language models to train, such as unigram,bigram,ngram,rnn,lstm,gpt")
    eval_context: int = option(64, "tokens of the separate windows shown beside sliding context", low=1)
    out: str | None = option(None, "folder of the runs [default: runs/sweep-DATA]")
    overwrite: bool = option(False, "replace existing runs")


def compare_classes() -> list[type]:
    """Return the settings classes of `compare`."""
    return [CompareOptions]


def sweep_classes() -> list[type]:
    """Return the settings classes of `sweep`."""
    from tokenloom.tasks.text_generation import TextGeneration
    from tokenloom.training.settings import TrainingSettings

    return [SweepOptions, TextGeneration.Settings, TrainingSettings]


def compare_runs(given: dict[str, Any]) -> None:
    """`tokenloom compare RUN RUN …`."""
    from tokenloom.cli.use import use_one_thread
    from tokenloom.runs.comparison import compare

    own = build(CompareOptions, given)
    if len(own.runs) < 2:
        raise UserError("compare needs two runs (tokenloom sweep DATA --models gpt,lstm,ngram trains them)")
    if repeated := next((run for run in own.runs if own.runs.count(run) > 1), None):
        raise UserError(f"{repeated}: given twice; a run does not differ from itself")
    use_one_thread()
    pairs = compare(own.runs, own.context, device=own.device)
    if own.json:
        print_json({"pairs": [asdict(pair) for pair in pairs]})
        return
    header = ["A", "B", f"A, {pairs[0].unit}", "B", "A − B", "95 % interval", "A better in"]
    rows = [
        [p.a, p.b, p.value_a, p.value_b, p.difference, f"{p.low:+.4f} … {p.high:+.4f}", f"{p.wins:.1%}"] for p in pairs
    ]
    print_table(rows, header)
    print(f"paired bootstrap over {pairs[0].samples:,} validation examples; lower is better")


def sweep_models(data: str, given: dict[str, Any]) -> None:
    """`tokenloom sweep DATA --models …`."""
    from tokenloom.cli.display import Display, field
    from tokenloom.runs.sweep import ModelComparison, sweep_sessions, train_and_evaluate, write_sweep

    own = build(SweepOptions, given)
    names = [name.strip() for name in own.models.split(",") if name.strip()]
    if not names:
        raise UserError("--models: name at least one model, such as gpt,lstm,ngram")
    if "model" in given:
        raise UserError("--model: a sweep trains those of --models")
    folder = Path(own.out or f"runs/sweep-{Path(data).stem}")
    settings = {name: value for name, value in given.items() if name not in SweepOptions.__dataclass_fields__}
    results: list[ModelComparison] = []
    for model, session in sweep_sessions(data, names, folder, settings, own.overwrite):
        with Display(quiet=own.quiet) as display, reporting_progress(display.progress_line):
            display.line(field("sweep", f"{model}, {len(results) + 1} of {len(names)}"))
            results.append(train_and_evaluate(model, session, own.eval_context, display.show))
    result = write_sweep(folder, data, results)
    if own.json:
        print_json({**result, "out": str(folder)})
        return
    header = ["model", "bits/byte, sliding", f"windows of {own.eval_context}", "training", "saved numbers"]
    rows = [
        [r.model, r.bits_per_byte_sliding, r.bits_per_byte_windows, duration(r.seconds), quantity(r.saved_numbers)]
        for r in results
    ]
    print_table(rows, header)
    best = min(results, key=lambda one: one.bits_per_byte_sliding)
    print(f"best with sliding context: {best.model}; runs, sweep.json and sweep.png: {folder}")
