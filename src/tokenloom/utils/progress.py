"""Long work that says how far it is. Whoever can show that listens, and by default nobody does.

with telling(print):
    for part in watched(parts, "pictures encoded", len(pictures), each=500):
        …                                       # "12,000 of 60,000 pictures encoded", now and then
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str], None]

# Seconds of work before the first line; each line after it waits twice as long as the one before.
PATIENCE = 2.0

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reporting_progress(listener: Listener) -> Iterator[None]:
    """Have the listener called with a line whenever long work inside has one."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track_progress(items: Iterable[T], what: str, total: int, each: int = 1) -> Iterator[T]:
    """The items, one after another; what takes longer than `PATIENCE` is told of.

    what: what is done with things, in the plural ("pictures decoded"), of which there are `total`, `each` an item.
    """
    wait, began = PATIENCE, time.perf_counter()
    for number, item in enumerate(items):
        listener = _listener.get()
        if listener is not None and time.perf_counter() - began >= wait:
            wait *= 2
            listener(f"{number * each:,} of {total:,} {what}")
        yield item
