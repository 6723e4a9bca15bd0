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

# So many batches are sorted by length together.
POOL = 32


@dataclass(frozen=True)
class BatchContext:
    """When and why samples are put into a batch: all that randomness in `collate` may depend on.

    seed, step: of the training; step −1 in evaluation. keys: which samples, in order.
    """

    seed: int
    step: int
    keys: Keys

    @property
    def training(self) -> bool:
        """False in evaluation, where nothing is random from one time to the next."""
        return self.step >= 0

    def random(self, row: int) -> np.random.Generator:
        """The generator of one sample at this moment: the same however the batch is cut."""
        return generator_for(self.seed, self.step + 1, int(self.keys[row]))


Collate = Callable[[Any, BatchContext], Batch]

# A step's micro-batches. `Batches` is one; training takes any other way of making them too.
BatchSource = Callable[[int], list[Batch]]


class Batches:
    """Training batches by step. Call it with a step for that step's micro-batches.

    An epoch visits every sample once; its last batch may be smaller. Micro-batches split a batch evenly. Samples that
    have `lengths` are put together with others of about their length, so that little is padded.

    batch: samples a step. grad_accum: micro-batches a step; a batch of fewer samples gives one for each. share: (rank,
    world) of this process; it gets its slice of every batch, and reads no other samples. All processes get as many
    micro-batches; where there are too few samples for all, some are of samples of its own in which nothing counts.

    Raises ValueError when there are no samples, or fewer in a batch than processes.
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
                f"no batches from {len(samples)} samples, {batch_size} a step in {grad_accum} micro-batches,"
                f" for {share[1]} process(es)"
            )
        self.samples, self.collate, self.share = samples, collate, share
        self.batch_size, self.seed, self.grad_accum = batch_size, seed, grad_accum
        self.steps_per_epoch = -(-len(samples) // batch_size)
        self._order = lru_cache(maxsize=2)(self._plan)

    def _plan(self, epoch: int) -> Keys:
        """The keys of an epoch in the order in which steps take them."""
        keys = self.samples.epoch(self.seed, epoch)
        lengths = lengths_of(self.samples, keys)
        return (
            keys
            if lengths is None
            else bucketed(keys, lengths, self.batch_size, generator_for(self.seed, epoch, 0x50_F7))
        )

    def keys(self, step: int) -> Keys:
        """Which samples the step learns from, in order, in all processes together."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]

    def __call__(self, step: int) -> list[Batch]:
        rank, world = self.share
        slices = np.array_split(self.keys(step), world)
        # As many micro-batches as the smallest slice has samples for: the same number in all processes.
        count = max(1, min(self.grad_accum, len(slices[-1])))
        parts = np.array_split(slices[rank], count)
        return [self._collate(part, step) if len(part) else self._nothing() for part in parts]

    def _collate(self, keys: Keys, step: int) -> Batch:
        return self.collate(self.samples.take(keys), BatchContext(self.seed, step, keys))

    def _nothing(self) -> Batch:
        """A batch without targets, for a process that has nothing to do while the others have."""
        rank, world = self.share
        batch = self._collate(np.array_split(self.keys(0), world)[rank][:1], 0)
        targets = {name: torch.full_like(target, IGNORE) for name, target in batch.targets.items()}
        return Batch(batch.streams, targets)

    def fingerprint(self) -> str:
        """A hash of the samples and of the plan by which steps take them, which batch and seed decide.

        How a batch is cut into micro-batches makes no difference to it.
        """
        return fingerprint_of((self.samples.fingerprint(), self._order(0), self.batch_size, self.seed))


def lengths_of(samples: Samples, keys: Keys) -> NDArray[np.int64] | None:
    """How long the samples with these keys are, where they say so by a method `lengths(keys)`; else None."""
    lengths = getattr(samples, "lengths", None)
    return None if lengths is None else np.asarray(lengths(keys), dtype=np.int64)


def bucketed(keys: Keys, lengths: NDArray[np.int64], batch_size: int, random: np.random.Generator) -> Keys:
    """The same keys, so that each batch holds samples of about one length, in random order of batches.

    Pools of `POOL` batches are sorted by length and cut; a last batch that is not full stays the last.
    """
    pools = range(0, len(keys), POOL * batch_size)
    order = np.concatenate([s + np.argsort(lengths[s : s + POOL * batch_size], kind="stable") for s in pools])
    full = len(keys) // batch_size
    # The batch that is not full takes from the whole pool, and not its longest alone.
    left = np.sort(random.permutation(order[(pools[-1]) :])[: len(keys) - full * batch_size])
    rest = order[~np.isin(order, left)]
    batches = rest.reshape(full, batch_size)[random.permutation(full)]
    chosen: Keys = keys[np.concatenate([batches.reshape(-1), left])]
    return chosen


def count_targets(micro: Iterable[Batch]) -> dict[str, int]:
    """How many targets count in a whole step, for each loss term."""
    return add_counts(batch.counts() for batch in micro)


def add_counts(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by name, added up."""
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def evaluation_keys(samples: Samples, batch_size: int, share: tuple[int, int] = (0, 1)) -> Iterator[Keys]:
    """Everything once, in batches whose size makes no difference to the result: in order, or from short to long where
    samples have `lengths`.

    share: (rank, world) of this process, which gets one slice of it all. Each process gets as many batches, of which
    the last may be empty.
    """
    keys = samples.all()
    lengths = lengths_of(samples, keys)
    slices = np.array_split(keys if lengths is None else keys[np.argsort(lengths, kind="stable")], share[1])
    for start in range(0, len(slices[0]), batch_size):
        yield slices[share[0]][start : start + batch_size]


def evaluation_batches(samples: Samples, collate: Collate, batch_size: int) -> Iterator[Batch]:
    """The batches of `evaluation_keys`, for one process."""
    for part in evaluation_keys(samples, batch_size):
        yield collate(samples.take(part), BatchContext(0, -1, part))


def step_seed(seed: int, step: int, part: int = 0) -> int:
    """The seed of dropout in one micro-batch of one step: resuming needs no generator state."""
    return int(generator_for(seed, step, part, 0x5EED).integers(2**62))


def seed_everything(seed: int) -> None:
    """Set the global generators that torch's own modules (dropout) draw from: the CPU's, and those of devices in use.

    `torch.manual_seed` does the same in a millisecond: it formats a stack trace for every kind of device.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
