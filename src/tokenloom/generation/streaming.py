"""Text that is safe to send while tokens still come: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence
from typing import Protocol

from tokenloom.errors import UserError


class TokenStream(Protocol):
    """Turns ids into text one by one, holding back what is not a whole character yet (a tokenizer's `stream()`)."""

    def push(self, token: int, /) -> str:
        """The text that this id completes."""
        ...

    def finish(self) -> str:
        """What is left when no more ids come."""
        ...


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple; raises UserError for an empty one, which would stop before the first token."""
    if isinstance(stops, str):
        raise ValueError("stop strings come as a sequence of strings, not as one string")
    if any(not stop for stop in stops):
        raise UserError("a stop string is empty: give at least one character (--stop)")
    return tuple(stops)


class TextStreamer:
    """Text from ids, cut before the first stop string.

    The text ends where the stop string that is *complete* first begins (the longest of them, when several end at the
    same character), however the text was cut into tokens. What could still become a stop string is held back until
    it is known.
    """

    def __init__(self, stream: TokenStream, stop: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stops = check_stops(stop)
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come. Nothing more is sent then."""
        return self._stopped

    def push(self, token: int) -> str:
        """Take one more id; returns the text that may be sent now, often none."""
        if self._stopped:
            return ""
        return self._safe(self._stream.push(token))

    def finish(self) -> str:
        """The text still held back, when no more ids come; it holds no stop string either."""
        if self._stopped:
            return ""
        sent = self._safe(self._stream.finish())
        held, self._held = self._held, ""
        return sent + held

    def _safe(self, text: str) -> str:
        if not self._stops or not text:
            return text
        text = self._held + text
        cut = self._first_stop(text)
        if cut is None:
            cut = len(text) - self._possible_start(text)
            self._held = text[cut:]
        else:
            self._stopped = True
            self._held = ""
        return text[:cut]

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string that is complete first begins. A string's first place is also where it ends first."""
        places = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        return min(places)[1] if places else None

    def _possible_start(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for size in range(longest, 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
