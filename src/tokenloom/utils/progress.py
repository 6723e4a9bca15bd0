"""Progress of long work other than training steps. Without a listener it is silent.

with reporting_progress(print):
    for part in track_progress(parts, "images encoded", len(images), each=500):
        …                             # "12,000 of 60,000 images encoded, 950/s, ETA 0:51", now and then
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str], None]

# Seconds of work before the first line; the interval doubles with each line.
PATIENCE = 2.0

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def duration(seconds: float) -> str:
    """Return seconds as 1:05:09, 3:20 or 0:08."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def reporting_progress(listener: Listener) -> Iterator[None]:
    """Call the listener with each progress line of the work inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track_progress(items: Iterable[T], what: str, total: int, each: int = 1) -> Iterator[T]:
    """Yield the items, and report progress when they take longer than `PATIENCE` seconds.

    what: things and what is done with them ("images decoded"). total: number of things, `each` per item.
    """
    wait, began = PATIENCE, time.perf_counter()
    for number, item in enumerate(items):
        listener = _listener.get()
        if listener is not None and time.perf_counter() - began >= wait:
            wait *= 2
            done, seconds = number * each, time.perf_counter() - began
            rest = f", {done / seconds:,.3g}/s, ETA {duration(seconds * (total - done) / done)}" if done else ""
            listener(f"{done:,} of {total:,} {what}{rest}")
        yield item
