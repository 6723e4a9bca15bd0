"""Samples: what a task trains and evaluates on, counted, ordered and read by key.

A key identifies a sample. The order of an epoch is a pure function of (samples, seed, epoch), so that a process that
knows the step knows which samples to read, and reads no others.
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
    """A sequence of ids that need not be in memory: the part of a one-dimensional array that `TextWindows` uses."""

    def __len__(self) -> int:
        """Return the number of ids."""
        ...

    def __getitem__(self, index: NDArray[np.int64], /) -> NDArray[Any]:
        """Return the ids at some positions, in the shape of `index`."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of all ids, which need not be read for it."""
        ...


class Samples(Protocol):
    """What can be trained on or evaluated.

    Samples of different lengths may also have `lengths(keys)`, an array of int64: see `Batches`.
    """

    def __len__(self) -> int:
        """Return the number of samples of one epoch."""
        ...

    def epoch(self, seed: int, epoch: int) -> Keys:
        """Return the len(self) keys of one training epoch, in order."""
        ...

    def all(self) -> Keys:
        """Return the keys that cover everything once, in reading order, for evaluation."""
        ...

    def take(self, keys: Keys) -> Any:
        """Return the samples with these keys, as the task's `collate` takes them."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the content: training resumes only with the same data."""
        ...


def generator_for(*numbers: int) -> np.random.Generator:
    """Return a random generator that is a pure function of some numbers: (seed, epoch), (seed, step, sample), …

    Different numbers, and different counts of numbers, give independent generators.
    """
    # Not a list of numbers: SeedSequence pads it with zeros, so that (1, 2) would equal (1, 2, 0).
    packed = b"".join((n & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for n in numbers) + b"\1"
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(packed, "little"))))


def fingerprint_of(value: Any) -> str:
    """Return a hash of a value: texts, bytes, numbers, arrays and tensors, and lists, tuples, mappings and dataclasses
    of these. Raises TypeError for anything else."""
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
    # Kind and length distinguish ("ab", "c") from ("a", "bc"), and 1 from "1".
    digest.update(f"{kind}:{len(raw)}:".encode() + raw)


@dataclass(frozen=True)
class ListSamples:
    """Samples in a list; the key is the index."""

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
        """See `Samples`. Items of a type that `fingerprint_of` cannot hash need a subclass with its own."""
        return fingerprint_of(list(self.items))


@dataclass(frozen=True)
class TextWindows:
    """Windows of `context` tokens, each with its next token, over one sequence of ids. The key is the start.

    Training epochs cut the ids at a random offset, so that windows differ from epoch to epoch, and visit each window
    once in random order; this takes 16 bytes of memory per window, and reads no ids. Evaluation cuts at 0, and its last
    window may be short: every token except the first is a target once.

    lead: number of tokens before each window that are read with it; before the first token stands the end.
    """

    ids: NDArray[Any] | Run
    context: int
    lead: int = 0

    def __post_init__(self) -> None:
        if len(self.ids) < 2 or self.context < 1:
            raise ValueError(f"{len(self.ids)} tokens in windows of {self.context} have no targets")

    def __len__(self) -> int:
        # One fewer than fit, so that the offset is free and the number is the same in every epoch.
        return max(1, (len(self.ids) - 1) // self.context - 1)

    def epoch(self, seed: int, epoch: int) -> Keys:
        random = generator_for(seed, epoch)
        slack = max(0, len(self.ids) - 1 - len(self) * self.context)
        shift = int(random.integers(slack + 1))
        return shift + random.permutation(len(self)).astype(np.int64) * self.context

    def all(self) -> Keys:
        return np.arange(0, len(self.ids) - 1, self.context, dtype=np.int64)

    def take(self, keys: Keys) -> NDArray[np.int64]:
        """Return (B, lead + context + 1) ids; −1 past the end of the text."""
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


class DocumentChunks:
    """Documents of ids, each cut into chunks of at most `size` ids. The key is the index of the first id, counted over
    all documents.

    Evaluation cuts every document at 0, size, 2·size … A training epoch shifts the cuts of each document longer than a
    chunk at random, so that chunks differ from epoch to epoch; the first two then may overlap, so that all are full and
    no id is lost.

    Raises ValueError without any id, and for a size below 1.
    """

    def __init__(self, documents: Sequence[NDArray[Any]], size: int) -> None:
        nonempty = [document for document in documents if len(document)]
        if not nonempty or size < 1:
            raise ValueError(f"{len(nonempty)} documents in chunks of {size} are empty")
        self.ids, self.size = np.concatenate(nonempty), size
        self.ends = np.cumsum([len(document) for document in nonempty])
        lengths = np.diff(self.ends, prepend=0)
        counts = -(-lengths // size)
        self._document = np.repeat(np.arange(len(nonempty)), counts)
        self._number = np.arange(len(self._document)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._slack = counts * size - lengths
        self._starts = self.ends - lengths

    def __len__(self) -> int:
        return len(self._document)

    def epoch(self, seed: int, epoch: int) -> Keys:
        random = generator_for(seed, epoch)
        shift = random.integers(self._slack + 1) * (self.ends - self._starts > self.size)
        chosen: Keys = random.permutation(self._cut(shift))
        return chosen

    def all(self) -> Keys:
        return self._cut(np.zeros(len(self.ends), np.int64))

    def _cut(self, shift: NDArray[np.int64]) -> Keys:
        within = np.maximum(0, self._number * self.size - shift[self._document])
        cut: Keys = (self._starts[self._document] + within).astype(np.int64)
        return cut

    def lengths(self, keys: Keys) -> NDArray[np.int64]:
        """Return the number of ids of each chunk."""
        end = self.ends[np.searchsorted(self.ends, keys, side="right")]
        shortest: NDArray[np.int64] = np.minimum(end - keys, self.size)
        return shortest

    def take(self, keys: Keys) -> list[NDArray[Any]]:
        """Return the ids of each chunk, each (n,)."""
        return [
            self.ids[key : key + length] for key, length in zip(keys.tolist(), self.lengths(keys).tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        """See `Samples`."""
        return fingerprint_of((self.size, self.ends, self.ids))
