"""A training as data: what `--json` prints of it."""

from __future__ import annotations

import time
from typing import Any

from tokenloom.config import flatten
from tokenloom.runs.counted import USED
from tokenloom.runs.events import Counted, Planned, PrerequisiteEvent
from tokenloom.runs.session import TrainingSession
from tokenloom.training.events import Baseline, Event, Finished, Saved


def summary(fitting: TrainingSession, events: list[Event], began: float) -> dict[str, Any]:
    """What `--json` prints of a training."""
    # What a stage before it had to tell stands in the stage's own run.
    last = max((place for place, e in enumerate(events) if isinstance(e, PrerequisiteEvent)), default=-1)
    events = events[last + 1 :]
    plan = next((e.plan for e in events if isinstance(e, Planned)), None)
    result: dict[str, Any] = {"task": fitting.name, "out": None if fitting.folder is None else str(fitting.folder.path)}
    if plan is not None:
        result |= {
            "parameters": plan.parameters,
            "flops_per_token": plan.flops_per_token,
            "memory_bytes": plan.memory.total,
            "steps": plan.steps,
            "tokens_per_second": plan.tokens_per_second,
            "settings": flatten(fitting.task.settings) | flatten(fitting.training),
        }
    for event in events:
        if isinstance(event, Counted):
            settings = flatten(fitting.task.settings) | {n: flatten(fitting.training)[n] for n in USED}
            result |= {"numbers": event.numbers, "memory_bytes": event.size, "settings": settings}
        elif isinstance(event, Baseline):
            result["baseline"] = {
                "name": event.name,
                "value": event.value,
                "unit": event.unit,
                "metric": event.metric,
            }
        elif isinstance(event, Finished):
            result |= {**event.best, "steps": event.step, "best_step": event.best_step, "reason": event.reason}
            result["training_seconds"] = event.seconds
        elif isinstance(event, Saved):
            result["checkpoint"] = str(event.path)
    result["seconds"] = time.perf_counter() - began
    return result
