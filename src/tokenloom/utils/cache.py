"""Where files stay that can be had again: fetched data, and what was compiled here."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """TOKENLOOM_CACHE, else XDG_CACHE_HOME/tokenloom, else ~/.cache/tokenloom."""
    if own := os.environ.get("TOKENLOOM_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    return base / "tokenloom"
