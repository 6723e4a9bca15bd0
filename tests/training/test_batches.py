"""Batches: pure functions of the step, cut evenly, and recognized by their fingerprint."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import rows

from tokenloom.data.samples import Keys, ListSamples, TextWindows
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.training.batches import (
    POOL,
    BatchContext,
    Batches,
    bucketed,
    count_targets,
    evaluation_batches,
    evaluation_keys,
    seed_everything,
    step_seed,
)


def noisy(samples: Any, context: BatchContext) -> Batch:
    """A collate in which each row draws its own noise, and which keeps the keys."""
    noise = [[int(x) for x in context.random(row).integers(1 << 60, size=3)] for row in range(len(samples))]
    return Batch({"text": Stream(ids=torch.tensor(noise))}, {"loss": torch.from_numpy(context.keys)})


def made(**more: Any) -> Batches:
    given: dict[str, Any] = {"batch_size": 6, "seed": 1, **more}
    return Batches(given.pop("samples", ListSamples(list(range(20)))), noisy, **given)


def keys_of(batches: Batches, step: int) -> list[list[int]]:
    return [batch.targets["loss"].tolist() for batch in batches(step)]


def test_the_batch_of_a_step_is_a_pure_function() -> None:
    steps = [9, 0, 3, 9, 50]  # in any order, also back into an earlier epoch
    first = made()
    for step in steps:
        (one,), (other,) = first(step), made()(step)
        assert torch.equal(one.targets["loss"], other.targets["loss"])
        assert torch.equal(one["text"].tokens, other["text"].tokens)
    assert keys_of(made(seed=2), 0) != keys_of(made(), 0)


def test_an_epoch_visits_every_sample_once() -> None:
    batches = made()
    assert batches.steps_per_epoch == 4
    for epoch in range(3):
        steps = [keys_of(batches, 4 * epoch + step)[0] for step in range(4)]
        assert [len(step) for step in steps] == [6, 6, 6, 2]
        assert sorted(key for step in steps for key in step) == list(range(20))
    assert keys_of(batches, 0) != keys_of(batches, 4), "each epoch has an order of its own"


@pytest.mark.parametrize("grad_accum", [1, 2, 3, 4, 6, 50])
def test_micro_batches_cover_the_same_keys_evenly(grad_accum: int) -> None:
    whole, cut = made(), made(grad_accum=grad_accum)
    for step in range(5):
        parts = keys_of(cut, step)
        assert [key for part in parts for key in part] == keys_of(whole, step)[0]
        sizes = [len(part) for part in parts]
        assert len(sizes) == min(grad_accum, len(keys_of(whole, step)[0]))
        assert max(sizes) - min(sizes) <= 1


def test_what_a_sample_draws_does_not_depend_on_the_cut() -> None:
    for step in range(5):
        (whole,) = made()(step)
        for grad_accum in (2, 5):
            parts = made(grad_accum=grad_accum)(step)
            assert torch.equal(torch.cat([part["text"].tokens for part in parts]), whole["text"].tokens)


def test_a_sample_draws_anew_at_each_step_and_with_each_seed() -> None:
    def draw(seed: int, step: int, key: int, row: int = 0) -> int:
        keys: Keys = np.array([99] * row + [key], dtype=np.int64)
        return int(BatchContext(seed, step, keys).random(row).integers(1 << 60))

    assert draw(1, 5, 7) == draw(1, 5, 7, row=3), "wherever it stands in the batch"
    assert len({draw(1, 5, 7), draw(2, 5, 7), draw(1, 6, 7), draw(1, 5, 8), draw(1, 7, 5), draw(1, -1, 7)}) == 6


def test_evaluation_visits_everything_once_in_order_and_draws_the_same_for_any_batch_size() -> None:
    samples = ListSamples(list(range(23)))
    whole = list(evaluation_batches(samples, noisy, 100))
    assert len(whole) == 1
    for batch in (1, 4, 23):
        parts = list(evaluation_batches(samples, noisy, batch))
        assert torch.cat([part.targets["loss"] for part in parts]).tolist() == list(range(23))
        assert torch.equal(torch.cat([part["text"].tokens for part in parts]), whole[0]["text"].tokens)
    assert not BatchContext(0, -1, samples.all()).training
    assert BatchContext(0, 0, samples.all()).training


def test_the_seed_of_dropout_differs_by_seed_step_and_micro_batch() -> None:
    seeds = {step_seed(s, t, p) for s in range(3) for t in range(20) for p in range(3)}
    assert len(seeds) == 180
    assert all(0 <= seed < 1 << 62 for seed in seeds)
    assert step_seed(1, 2, 0) == step_seed(1, 2)


def test_the_fingerprint_changes_with_data_batch_and_seed_but_not_with_the_cut() -> None:
    base = made().fingerprint()
    assert base == made().fingerprint() == made(grad_accum=3).fingerprint()
    different = [made(batch_size=5), made(seed=2), made(samples=ListSamples([*range(19), 99]))]
    assert len({base, *(batches.fingerprint() for batches in different)}) == 4


def test_the_fingerprint_changes_when_the_text_changes_but_not_its_length() -> None:
    ids = np.arange(100, dtype=np.uint16)
    other = ids[::-1].copy()
    one, two = (Batches(TextWindows(text, 8), noisy, batch_size=2, seed=0) for text in (ids, other))
    assert one.fingerprint() != two.fingerprint()


def test_there_must_be_something_to_batch() -> None:
    for wrong in ({"samples": ListSamples([])}, {"batch_size": 0}, {"grad_accum": 0}):
        with pytest.raises(ValueError, match="no batches"):
            made(**wrong)


def test_targets_are_counted_over_the_whole_step_by_term() -> None:
    def batch(**targets: list[int]) -> Batch:
        return Batch({}, {name: torch.tensor(values) for name, values in targets.items()})

    micro = [batch(a=[1, IGNORE], b=[IGNORE, IGNORE]), batch(a=[2, 3], b=[IGNORE, IGNORE]), batch(a=[IGNORE])]
    assert count_targets(micro) == {"a": 3, "b": 0}
    assert count_targets([]) == {}


class Lengthy(ListSamples):
    """Samples that say how long they are."""

    def lengths(self, keys: Keys) -> Any:
        return np.array([len(self.items[int(key)]) for key in keys])


@pytest.mark.parametrize("count", [1, 5, 6, 7, 6 * POOL, 6 * POOL + 1, 6 * POOL * 2 + 9])
def test_batches_of_about_one_length_hold_every_sample_once(count: int) -> None:
    random = np.random.default_rng(count)
    keys, lengths = random.permutation(count) * 3, random.integers(1, 1000, count)
    order = bucketed(keys, lengths, 6, np.random.default_rng(0))
    assert sorted(order) == sorted(keys)
    length = dict(zip(keys.tolist(), lengths.tolist(), strict=True))
    full = order[: count // 6 * 6].reshape(-1, 6)
    spread = [np.ptp([length[int(key)] for key in batch]) for batch in full]
    if count >= 6 * POOL:
        # Sorted in pools of POOL batches, a batch spans about a POOL-th of all lengths.
        assert np.mean(spread) < 3 * 1000 / POOL


def test_samples_with_lengths_are_bucketed_purely_and_evaluated_from_short_to_long() -> None:
    samples = Lengthy(["x" * n for n in np.random.default_rng(2).integers(1, 90, 50)])
    batches = Batches(samples, noisy, batch_size=6, seed=1)
    again = Batches(samples, noisy, batch_size=6, seed=1)
    assert [keys_of(batches, step) for step in range(20)] == [keys_of(again, step) for step in range(19, -1, -1)][::-1]
    epochs = [[k for step in range(9 * e, 9 * e + 9) for part in keys_of(batches, step) for k in part] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]
    seen = [int(key) for part in evaluation_keys(samples, 7) for key in part]
    assert sorted(seen) == list(range(50))
    assert [len(samples.items[key]) for key in seen] == sorted(len(item) for item in samples.items)


def test_rows_of_the_tiny_training_are_of_unequal_length() -> None:
    """Else the tests of accumulation would prove little."""
    assert len({len(row) for row in rows(40).items}) > 5


def test_seeding_is_that_of_torch() -> None:
    for seed in (0, 7, 2**62 - 1):
        seed_everything(seed)
        ours = torch.nn.functional.dropout(torch.ones(50)), torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(ours[0], torch.nn.functional.dropout(torch.ones(50)))
        assert torch.equal(ours[1], torch.rand(3))
