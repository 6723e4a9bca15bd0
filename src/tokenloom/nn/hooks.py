"""Hooks: record or replace the intermediate values of a forward pass, under TransformerLens's names.

Hooks are an argument of `forward`. Without them a model pays a test for None; nothing is stored on modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import Tensor


class Hooks:
    """Which intermediate values to record and which to replace, by name: `layers.0.pattern`, `layers.*.resid_post`.

    want: a name or pattern (`*` matches anything, dots too), or several. edit: name or pattern → function whose result
    replaces the value. After the pass, `values` holds the recorded values by full name, with their gradient history.
    """

    def __init__(
        self, want: str | Iterable[str] = ("*",), edit: dict[str, Callable[[Tensor], Tensor]] | None = None
    ) -> None:
        self._want = (want,) if isinstance(want, str) else tuple(want)
        self._edit = dict(edit or {})
        self._scope = ""
        self.values: dict[str, Tensor] = {}

    def scope(self, name: str) -> Hooks:
        """Return the same hooks inside a part: names get the prefix `name.`."""
        inner = Hooks.__new__(Hooks)
        inner._want, inner._edit, inner.values = self._want, self._edit, self.values
        inner._scope = f"{self._scope}{name}."
        return inner

    def active(self, *names: str) -> bool:
        """Return whether any of these names is recorded or replaced here."""
        patterns = (*self._want, *self._edit)
        return any(fnmatchcase(self._scope + name, pattern) for name in names for pattern in patterns)

    def record(self, name: str, value: Tensor) -> Tensor:
        """Record a value under a name; returns the value, or its replacement."""
        full = self._scope + name
        for pattern, change in self._edit.items():
            if fnmatchcase(full, pattern):
                value = change(value)
        if any(fnmatchcase(full, pattern) for pattern in self._want):
            self.values[full] = value
        return value


def record(hooks: Hooks | None, name: str, value: Tensor) -> Tensor:
    """`hooks.record(name, value)`; without hooks, the value."""
    return value if hooks is None else hooks.record(name, value)
