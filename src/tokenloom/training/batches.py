"""The global batch of step s is a pure function of (samples, seed, s)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.data.samples import Keys, Samples, fingerprint_of, generator_for
from tokenloom.models.batch import IGNORE, Batch

# Number of batches that are sorted by length together.
POOL = 32


@dataclass(frozen=True)
class BatchContext:
    """What randomness in `collate` may depend on.

    seed, step: of the training; step is −1 in evaluation. keys: of the samples, in order.
    """

    seed: int
    step: int
    keys: Keys

    @property
    def training(self) -> bool:
        """Whether the batch is for training; evaluation is deterministic."""
        return self.step >= 0

    def random(self, row: int) -> np.random.Generator:
        """Return the generator of one sample, independent of how the batch is split."""
        return generator_for(self.seed, self.step + 1, int(self.keys[row]))


Collate = Callable[[Any, BatchContext], Batch]

# Returns the micro-batches of a step; `Batches` is one.
BatchSource = Callable[[int], list[Batch]]


class Batches:
    """Training batches: call it with a step for the micro-batches of that step.

    An epoch visits every sample once; its last batch may be smaller. Micro-batches split a batch evenly. Samples with
    `lengths` are batched with others of similar length, to reduce padding.

    batch_size: samples per step. grad_accum: micro-batches per step; fewer when the batch has fewer samples. share:
    (rank, world size) of this process, which reads only its own slice of each batch. All processes get the same number
    of micro-batches; where samples do not suffice, a process gets a batch without targets.

    Raise ValueError when there are no samples, or fewer in a batch than processes.
    """

    def __init__(
        self,
        samples: Samples,
        collate: Collate,
        *,
        batch_size: int,
        seed: int,
        grad_accum: int = 1,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if min(len(samples), batch_size) < share[1] or grad_accum < 1:
            raise ValueError(
                f"no batches from {len(samples)} samples with batch_size {batch_size}, grad_accum {grad_accum}"
                f" and {share[1]} process(es)"
            )
        self.samples, self.collate, self.share = samples, collate, share
        self.batch_size, self.seed, self.grad_accum = batch_size, seed, grad_accum
        self.steps_per_epoch = -(-len(samples) // batch_size)
        self._epoch_keys = lru_cache(maxsize=2)(self._order)

    def _order(self, epoch: int) -> Keys:
        """Return the keys of an epoch in the order of training."""
        keys = self.samples.epoch(self.seed, epoch)
        lengths = lengths_of(self.samples, keys)
        return (
            keys
            if lengths is None
            else bucketed(keys, lengths, self.batch_size, generator_for(self.seed, epoch, 0x50_F7))
        )

    def keys(self, step: int) -> Keys:
        """Return the keys of the samples of a step, in order, over all processes."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._epoch_keys(epoch)[index * self.batch_size : (index + 1) * self.batch_size]

    def __call__(self, step: int) -> list[Batch]:
        rank, world = self.share
        slices = np.array_split(self.keys(step), world)
        # The smallest slice decides, so that all processes have the same number of micro-batches.
        count = max(1, min(self.grad_accum, len(slices[-1])))
        parts = np.array_split(slices[rank], count)
        return [self._collate(part, step) if len(part) else self._without_targets() for part in parts]

    def _collate(self, keys: Keys, step: int) -> Batch:
        return self.collate(self.samples.take(keys), BatchContext(self.seed, step, keys))

    def _without_targets(self) -> Batch:
        """Return a batch without targets, for a process that has no samples in a step."""
        rank, world = self.share
        batch = self._collate(np.array_split(self.keys(0), world)[rank][:1], 0)
        targets = {name: torch.full_like(target, IGNORE) for name, target in batch.targets.items()}
        return Batch(batch.streams, targets)

    def fingerprint(self) -> str:
        """Return a hash of the samples and of their order in batches, which depends on batch size and seed.

        It does not depend on the number of micro-batches.
        """
        return fingerprint_of((self.samples.fingerprint(), self._epoch_keys(0), self.batch_size, self.seed))


def lengths_of(samples: Samples, keys: Keys) -> NDArray[np.int64] | None:
    """Return the lengths of the samples with these keys; None for samples without a method `lengths(keys)`."""
    lengths = getattr(samples, "lengths", None)
    return None if lengths is None else np.asarray(lengths(keys), dtype=np.int64)


def bucketed(keys: Keys, lengths: NDArray[np.int64], batch_size: int, random: np.random.Generator) -> Keys:
    """Return the keys reordered so that each batch has samples of similar length, with the batches in random order.

    Pools of `POOL` batches are sorted by length and cut into batches. An incomplete batch remains the last.
    """
    pools = range(0, len(keys), POOL * batch_size)
    order = np.concatenate([s + np.argsort(lengths[s : s + POOL * batch_size], kind="stable") for s in pools])
    full = len(keys) // batch_size
    # The incomplete batch gets a random part of the last pool, not its longest samples.
    incomplete = np.sort(random.permutation(order[(pools[-1]) :])[: len(keys) - full * batch_size])
    rest = order[~np.isin(order, incomplete)]
    batches = rest.reshape(full, batch_size)[random.permutation(full)]
    chosen: Keys = keys[np.concatenate([batches.reshape(-1), incomplete])]
    return chosen


def count_targets(micro: Iterable[Batch]) -> dict[str, int]:
    """Return the number of counted targets of a whole step, for each loss term."""
    return add_counts(batch.counts() for batch in micro)


def add_counts(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name."""
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def evaluation_keys(samples: Samples, batch_size: int, share: tuple[int, int] = (0, 1)) -> Iterator[Keys]:
    """Yield the keys of all samples in batches: in order, or by increasing length for samples with `lengths`.

    share: (rank, world size) of this process, which gets its slice. All processes get the same number of batches; the
    last may be empty.
    """
    keys = samples.all()
    lengths = lengths_of(samples, keys)
    slices = np.array_split(keys if lengths is None else keys[np.argsort(lengths, kind="stable")], share[1])
    for start in range(0, len(slices[0]), batch_size):
        yield slices[share[0]][start : start + batch_size]


def evaluation_batches(samples: Samples, collate: Collate, batch_size: int) -> Iterator[Batch]:
    """Yield the batches of `evaluation_keys` for one process."""
    for part in evaluation_keys(samples, batch_size):
        yield collate(samples.take(part), BatchContext(0, -1, part))


def step_seed(seed: int, step: int, part: int = 0) -> int:
    """Return the seed of dropout in a micro-batch of a step, so that resuming needs no generator state."""
    return int(generator_for(seed, step, part, 0x5EED).integers(2**62))


def seed_everything(seed: int) -> None:
    """Seed torch's global generators, which dropout draws from: of the CPU, and of available devices.

    `torch.manual_seed` is much slower: it takes a millisecond, formatting a stack trace for every kind of device.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
