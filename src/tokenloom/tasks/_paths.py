"""The paths of the equality kit: what a task declares to have, or why it does not."""

from __future__ import annotations

from collections.abc import Mapping

PATHS = (
    "batch = single",
    "padded left = unpadded",
    "padded right = unpadded",
    "packed = alone",
    "cached = uncached",
    "selected = alone",
    "fused = explicit",
    "accumulated = whole",
    "2 processes = 1",
    "resumed = straight",
    "compiled = eager",
    "saved = loaded",
    "streamed = whole",
)
# Those of models that grow something step by step.
STEPWISE = ("cached = uncached", "selected = alone", "streamed = whole")


def every_path(without: Mapping[str, str] | None = None) -> dict[str, str]:
    """All paths, "" for each that is had. without: for a path that is not, the reason.

    Raises ValueError for a path that there is not.
    """
    without = without or {}
    if unknown := set(without) - set(PATHS):
        raise ValueError(f"the equality kit has no path {sorted(unknown)}")
    return {path: without.get(path, "") for path in PATHS}
