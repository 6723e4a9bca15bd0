"""Samples: what a task learns from, as something that can be counted, ordered and taken by key.

A key names a sample for good. The order in which an epoch visits the samples is a pure function of (samples, seed,
epoch), so a process that knows the step knows which samples to read, and reads no others.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]


class Run(Protocol):
    """A run of ids that need not be in memory: like an array of one dimension, as far as `TextWindows` needs it."""

    def __len__(self) -> int:
        """How many ids there are."""
        ...

    def __getitem__(self, index: NDArray[np.int64], /) -> NDArray[Any]:
        """The ids at some places, in the shape of `index`."""
        ...

    def fingerprint(self) -> str:
        """A hash of all the ids, which need not be read for it."""
        ...


class Samples(Protocol):
    """Anything that can be trained on or evaluated.

    Samples whose lengths differ may also have `lengths(keys)`, an array of int64: see `Batches`.
    """

    def __len__(self) -> int:
        """How many samples one epoch visits."""
        ...

    def epoch(self, seed: int, epoch: int) -> Keys:
        """The keys of one epoch of training, in order; always len(self) of them."""
        ...

    def all(self) -> Keys:
        """The keys that cover everything once, in the natural order: what evaluation visits."""
        ...

    def take(self, keys: Keys) -> Any:
        """The samples with these keys, in the form that the task's `collate` wants."""
        ...

    def fingerprint(self) -> str:
        """A hash of all that the samples hold: training is only resumed with the very data it began with."""
        ...


def generator_for(*numbers: int) -> np.random.Generator:
    """A random generator that is a pure function of some numbers: (seed, epoch), (seed, step, sample), …

    Different numbers, and different counts of numbers, give independent generators.
    """
    # A list of numbers would not do: SeedSequence fills it up with zeros, and (1, 2) would be (1, 2, 0).
    packed = b"".join((n & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for n in numbers) + b"\1"
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(packed, "little"))))


def fingerprint_of(value: Any) -> str:
    """A hash of what a value holds: texts, bytes, numbers, arrays and tensors, and lists, tuples, mappings and
    dataclasses of these. Raises TypeError for anything else."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        digest.update(f"[{len(value)}]".encode())
        for part in value:
            _feed(digest, part)
        return
    if isinstance(value, bytes):
        kind, raw = "bytes", value
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError("an array of objects has no content that can be hashed")
        kind, raw = f"{array.dtype.str}{array.shape}", array.tobytes()
    elif value is None or isinstance(value, str | int | float):
        kind, raw = type(value).__name__, repr(value).encode()
    else:
        raise TypeError(f"no way to hash the content of a {type(value).__name__}: give these samples a fingerprint()")
    # Kind and length keep ("ab", "c") apart from ("a", "bc"), and 1 from "1".
    digest.update(f"{kind}:{len(raw)}:".encode() + raw)


@dataclass(frozen=True)
class ListSamples:
    """Samples that are simply there, one after the other; the key is the index."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def epoch(self, seed: int, epoch: int) -> Keys:
        return generator_for(seed, epoch).permutation(len(self.items)).astype(np.int64)

    def all(self) -> Keys:
        return np.arange(len(self.items), dtype=np.int64)

    def take(self, keys: Keys) -> list[Any]:
        return [self.items[int(key)] for key in keys]

    def fingerprint(self) -> str:
        """See `Samples`. Items of a kind that `fingerprint_of` does not know need a subclass with its own."""
        return fingerprint_of(list(self.items))


@dataclass(frozen=True)
class TextWindows:
    """Windows of `context` tokens, each with its next token, over one long run of ids. The key is the start.

    Training epochs cut the ids at a random offset, so that windows differ from epoch to epoch, and visit each window
    once, in an order over the whole run; that takes 16 bytes of memory a window, and reads none of the ids. Evaluation
    cuts at 0, and its last window may be short: every token but the very first is a target once.

    lead: each window comes with so many tokens before it; before the beginning of the run stands its end.
    """

    ids: NDArray[Any] | Run
    context: int
    lead: int = 0

    def __post_init__(self) -> None:
        if len(self.ids) < 2 or self.context < 1:
            raise ValueError(f"{len(self.ids)} tokens in windows of {self.context} hold nothing to predict")

    def __len__(self) -> int:
        # One fewer than fit, so that the cut can be anywhere and their number never changes.
        return max(1, (len(self.ids) - 1) // self.context - 1)

    def epoch(self, seed: int, epoch: int) -> Keys:
        random = generator_for(seed, epoch)
        room = max(0, len(self.ids) - 1 - len(self) * self.context)
        shift = int(random.integers(room + 1))
        return shift + random.permutation(len(self)).astype(np.int64) * self.context

    def all(self) -> Keys:
        return np.arange(0, len(self.ids) - 1, self.context, dtype=np.int64)

    def take(self, keys: Keys) -> NDArray[np.int64]:
        """(B, lead + context + 1) ids; past the end of the text, −1."""
        index = keys[:, None] + np.arange(-self.lead, self.context + 1)
        last = len(self.ids) - 1
        index[index < 0] %= last + 1
        taken: NDArray[np.int64] = self.ids[np.minimum(index, last)].astype(np.int64)
        if int(keys.max(initial=0)) + self.context > last:
            taken[index > last] = -1
        return taken

    def fingerprint(self) -> str:
        ids = self.ids if isinstance(self.ids, np.ndarray) else self.ids.fingerprint()
        return fingerprint_of((self.context, ids, self.lead) if self.lead else (self.context, ids))
