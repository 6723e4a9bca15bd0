"""Taps: a light way to look at, or replace, the intermediate values of a forward pass.

A tap is an argument. Without one, a model pays a test for None; nothing is kept on modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import Tensor


class Hooks:
    """Which intermediates to keep, and which to change, by name: `layers.0.pattern`, `layers.*.resid_post`.

    want: a name or pattern (`*` matches anything), or several. edit: for a name or pattern, a function whose result
    takes the value's place. After the pass, `values` holds what was wanted, by full name, with its gradient history.
    """

    def __init__(
        self, want: str | Iterable[str] = ("*",), edit: dict[str, Callable[[Tensor], Tensor]] | None = None
    ) -> None:
        self._want = (want,) if isinstance(want, str) else tuple(want)
        self._edit = dict(edit or {})
        self._scope = ""
        self.values: dict[str, Tensor] = {}

    def scope(self, name: str) -> Hooks:
        """The same taps as seen from inside a part: names are prefixed with the part's."""
        inner = Hooks.__new__(Hooks)
        inner._want, inner._edit, inner.values = self._want, self._edit, self.values
        inner._scope = f"{self._scope}{name}."
        return inner

    def active(self, *names: str) -> bool:
        """Whether any of these names would be kept or changed here."""
        patterns = (*self._want, *self._edit)
        return any(fnmatchcase(self._scope + name, pattern) for name in names for pattern in patterns)

    def record(self, name: str, value: Tensor) -> Tensor:
        """Show a value under a name; what comes back takes its place."""
        full = self._scope + name
        for pattern, change in self._edit.items():
            if fnmatchcase(full, pattern):
                value = change(value)
        if any(fnmatchcase(full, pattern) for pattern in self._want):
            self.values[full] = value
        return value
