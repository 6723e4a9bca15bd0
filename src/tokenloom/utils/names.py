"""Helping with a name that was not found: the nearest one that exists."""

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, ignoring case; an empty text when none is near."""
    by_folded: dict[str, str] = {}
    for name in known:
        by_folded.setdefault(name.casefold(), name)
    found = difflib.get_close_matches(given.casefold(), list(by_folded), n=1, cutoff=0.6)
    return f"; did you mean {by_folded[found[0]]!r}?" if found else ""


def some(items: Iterable[object], limit: int = 20) -> str:
    """The first `limit` items with commas between them, and how many more there are."""
    listed = list(items)
    shown = ", ".join(str(item) for item in listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit:,} more"


def counted(n: int, what: str, plural: str | None = None) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


def with_article(what: str) -> str:
    """`a run`, `an image`."""
    return f"{'an' if what[:1].lower() in 'aeiou' else 'a'} {what}"
