"""Comparison of runs in pairs, on the same samples of the same validation data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import UserError
from tokenloom.evaluation.comparison import PerSampleLoss, paired_bootstrap
from tokenloom.runs.folder import RunFolder, load
from tokenloom.tasks.base import Task
from tokenloom.training.loop import evaluate
from tokenloom.training.metrics import loss_metric
from tokenloom.utils.names import with_article


@dataclass(frozen=True)
class Paired:
    """Run A against run B, by a bootstrap over the samples that both were evaluated on.

    difference: value of A − value of B; A is better below 0. low, high: its 95% interval. wins: the fraction of
    resamples in which A is better. See `paired_bootstrap`.
    """

    a: str
    b: str
    value_a: float
    value_b: float
    unit: str
    samples: int
    difference: float
    low: float
    high: float
    wins: float


def compare(runs: Sequence[str], context: str | None = None, *, device: str = "cpu") -> list[Paired]:
    """Compare every run with every other. context: of the evaluation of a text model, see `TextEvaluateOptions`.

    Raise UserError for runs of different tasks, or that were not evaluated on the same data.
    """
    sources = [RunFolder(run).read_config()["data"] for run in runs]
    tasks = [load(run, device=device) for run in runs]
    for run, task in zip(runs, tasks, strict=True):
        if task.name != tasks[0].name:
            raise UserError(
                f"{runs[0]} is {with_article(tasks[0].name)} run and {run} {with_article(task.name)} run: they predict"
                " different things"
            )
    losses = [per_sample_loss(task, source, context) for task, source in zip(tasks, sources, strict=True)]
    for run, source, loss in zip(runs, sources, losses, strict=True):
        if loss.content != losses[0].content:
            raise UserError(
                f"{runs[0]} and {run} have different validation data ({sources[0]} and {source}), or read or cut them"
                " differently: there are no pairs to compare"
            )
        if len(loss.sums) < 2:
            raise UserError(f"{run}: one sample of validation data is too few to compare on")
    return [_pair(runs[i], runs[j], losses[i], losses[j]) for i, j in itertools.combinations(range(len(runs)), 2)]


def per_sample_loss(task: Task, source: str | None, context: str | None = None) -> PerSampleLoss:
    """Return the loss of each validation sample of the training data, or what a metric of the task declares for it.

    Raise UserError for a context where the task has no such option.
    """
    for metric in task.metrics:
        if metric.per_sample is not None:
            found: PerSampleLoss = metric.per_sample(task, context)
            return found
    if context is not None:
        raise UserError(f"--context {context}: {task.name} runs are evaluated in one way only")
    samples = task.load(source).validation
    sums, counts = evaluate(task, task.model, samples)["loss"].samples
    return PerSampleLoss(sums, counts, loss_metric(task).unit, samples.fingerprint())


def _pair(name_a: str, name_b: str, a: PerSampleLoss, b: PerSampleLoss) -> Paired:
    low, high, wins = paired_bootstrap(a, b)
    if not math.isfinite(a.value - b.value):
        raise UserError(f"{name_a} and {name_b}: nothing in their validation data counts")
    return Paired(name_a, name_b, a.value, b.value, a.unit, len(a.sums), a.value - b.value, low, high, wins)
