"""Streaming: text that can be emitted while tokens are generated, without partial characters or stop strings."""

from collections.abc import Sequence
from typing import Protocol

from tokenloom.config import flag
from tokenloom.errors import UserError


class TokenStream(Protocol):
    """Decodes ids one at a time, buffering incomplete characters (a tokenizer's `stream()`)."""

    def push(self, token: int, /) -> str:
        """Return the text that this id completes."""
        ...

    def finish(self) -> str:
        """Return the rest of the text."""
        ...


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """Return the stop strings as a tuple. Raises UserError for an empty one."""
    if isinstance(stops, str):
        raise ValueError("stop strings must be a sequence of strings, not one string")
    if any(not stop for stop in stops):
        raise UserError(f"{flag('stop')}: a stop string needs at least one character")
    return tuple(stops)


class TextStreamer:
    """Decodes ids to text up to the first stop string.

    The text ends where the stop string that is *complete* first begins (the longest, when several end at the same
    character), however the text is tokenized. What may still become a stop string is buffered.
    """

    def __init__(self, stream: TokenStream, stop: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stops = check_stops(stop)
        self._pending = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found. Nothing is emitted after it."""
        return self._stopped

    def push(self, token: int) -> str:
        """Take one id; return the text that can be emitted now, possibly none."""
        if self._stopped:
            return ""
        return self._release(self._stream.push(token))

    def finish(self) -> str:
        """Return the buffered rest of the text, up to a stop string."""
        if self._stopped:
            return ""
        sent = self._release(self._stream.finish())
        pending, self._pending = self._pending, ""
        return sent + pending

    def _release(self, text: str) -> str:
        if not self._stops or not text:
            return text
        text = self._pending + text
        cut = self._first_stop(text)
        if cut is None:
            cut = len(text) - self._possible_start(text)
            self._pending = text[cut:]
        else:
            self._stopped = True
            self._pending = ""
        return text[:cut]

    def _first_stop(self, text: str) -> int | None:
        """Return the start of the stop string that is complete first, or None."""
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None

    def _possible_start(self, text: str) -> int:
        """Return how many of the last characters may begin a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for size in range(longest, 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
