"""Samples: every token once, the same order for the same numbers, and a fingerprint that nothing escapes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tokenloom.data.samples import ListSamples, TextWindows, fingerprint_of, generator_for

SIZES = [(9, 4), (13, 4), (100, 7), (101, 10), (57, 1), (64, 16), (65, 16), (66, 16)]


def windows(tokens: int, context: int) -> TextWindows:
    """Every token is another number, so that it is known where it came from."""
    return TextWindows(np.arange(tokens, dtype=np.uint16), context)


@pytest.mark.parametrize(("tokens", "context"), SIZES)
def test_an_epoch_visits_each_window_once_and_never_leaves_the_text(tokens: int, context: int) -> None:
    samples = windows(tokens, context)
    for epoch in range(20):
        keys = samples.epoch(3, epoch)
        assert len(keys) == len(samples)
        cut = keys.min()
        assert sorted(keys) == [cut + i * context for i in range(len(samples))]
        taken = samples.take(keys)
        assert taken.min() >= 0, "no window of a text that is long enough is short"
        assert np.array_equal(taken, keys[:, None] + np.arange(context + 1))


@pytest.mark.parametrize(("tokens", "context"), SIZES)
def test_the_cut_is_anywhere(tokens: int, context: int) -> None:
    """Over many epochs every token is a target but the first, and windows begin at every place of the grid."""
    samples = windows(tokens, context)
    epochs = [samples.epoch(0, epoch) for epoch in range(400)]
    cuts = {int(keys.min()) for keys in epochs}
    assert cuts == set(range(tokens - 1 - len(samples) * context + 1))
    assert {cut % context for cut in cuts} == set(range(context))
    targets = {int(t) for keys in epochs for t in samples.take(keys)[:, 1:].flat}
    assert targets == set(range(1, tokens))


def test_an_epoch_leaves_out_less_than_two_windows() -> None:
    for tokens in range(2, 80):
        for context in (1, 3, 8, 20):
            samples = windows(tokens, context)
            assert len(samples) >= 1
            assert (tokens - 1) - len(samples) * context < 2 * context


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    for make in (lambda: windows(200, 8), lambda: ListSamples(list(range(30)))):
        first = make().epoch(5, 2)
        assert np.array_equal(first, make().epoch(5, 2))
        assert first.dtype == np.int64
        others = [make().epoch(5, 3), make().epoch(6, 2), make().epoch(2, 5)]
        assert all(not np.array_equal(first, other) for other in others)
        assert not np.array_equal(first, np.sort(first)), "in a random order"


def test_evaluation_covers_every_token_but_the_first_exactly_once() -> None:
    for tokens in range(2, 50):
        for context in (1, 2, 3, 7, 16, 49, 60):
            samples = windows(tokens, context)
            taken = samples.take(samples.all())
            assert taken.shape[1] == context + 1
            inputs, targets = taken[:, :-1], taken[:, 1:]
            counted = targets >= 0
            assert targets[counted].tolist() == list(range(1, tokens))
            assert np.array_equal(inputs[counted], targets[counted] - 1), "each is predicted from the token before it"
            assert not counted[:, 1:][~counted[:, :-1]].any(), "what pads stands at the end"


def test_a_text_shorter_than_a_window_is_one_short_window() -> None:
    samples = windows(5, 16)
    assert len(samples) == 1
    assert samples.epoch(0, 0).tolist() == samples.all().tolist() == [0]
    assert samples.take(samples.all()).tolist() == [[0, 1, 2, 3, 4] + [-1] * 12]


def test_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="1 tokens"):
        windows(1, 4)
    with pytest.raises(ValueError, match="windows of 0"):
        windows(9, 0)


def test_wide_ids_stay_what_they_are() -> None:
    ids = np.array([65535, 40000, 7], dtype=np.uint16)
    assert TextWindows(ids, 4).take(np.array([0])).tolist() == [[65535, 40000, 7, -1, -1]]


def test_a_list_gives_its_items_by_key() -> None:
    samples = ListSamples(["a", "b", "c"])
    assert len(samples) == 3
    assert samples.all().tolist() == [0, 1, 2]
    assert sorted(samples.epoch(1, 0)) == [0, 1, 2]
    assert samples.take(np.array([2, 0])) == ["c", "a"]


# Fingerprints.


@dataclasses.dataclass
class Pair:
    """An item of a list of samples."""

    text: str
    picture: np.ndarray


PAIRS: list[tuple[Any, Any]] = [
    ("a text", "a texT"),
    (1, "1"),
    (1, True),
    (1, 1.0),
    (None, "None"),
    (b"a", "a"),
    (["ab", "c"], ["a", "bc"]),
    (["a", ["b"]], ["a", "b"]),
    ([], None),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    (np.array([1, 2, 3]), np.array([1, 2, 4])),
    (np.array([[1, 2]]), np.array([[1], [2]])),
    (np.array([1, 2], np.int32), np.array([1, 2], np.int64)),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])),
    (Pair("a", np.zeros(3)), Pair("a", np.ones(3))),
    (Pair("a", np.zeros(3)), Pair("b", np.zeros(3))),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda value: repr(value)[:20])
def test_different_content_has_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint_of(one) == fingerprint_of(one)
    assert fingerprint_of(one) != fingerprint_of(other)


def test_equal_content_has_the_same_fingerprint() -> None:
    assert fingerprint_of(Pair("a", np.zeros(3))) == fingerprint_of(Pair("a", np.zeros(6)[::2]))
    assert fingerprint_of([1, "é\ud800"]) == fingerprint_of((1, "é\ud800"))


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1, 2}])
def test_what_cannot_be_hashed_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="hash"):
        fingerprint_of([value])


def test_samples_have_the_fingerprint_of_what_they_hold() -> None:
    ids = np.arange(50, dtype=np.uint16)
    changed = ids.copy()
    changed[17] += 1
    assert TextWindows(ids, 8).fingerprint() == TextWindows(ids.copy(), 8).fingerprint()
    assert TextWindows(ids, 8).fingerprint() != TextWindows(changed, 8).fingerprint()
    assert TextWindows(ids, 8).fingerprint() != TextWindows(ids, 9).fingerprint()
    assert ListSamples([("a", 1)]).fingerprint() == ListSamples((("a", 1),)).fingerprint()
    assert ListSamples([("a", 1)]).fingerprint() != ListSamples([("a", 2)]).fingerprint()


def test_a_fingerprint_costs_little() -> None:
    """A million ids, and a hundred thousand texts, in a context."""
    import time

    began = time.perf_counter()
    TextWindows(np.zeros(1_000_000, dtype=np.uint16), 8).fingerprint()
    ListSamples([("some words", 3)] * 30_000).fingerprint()
    assert time.perf_counter() - began < 2


# Generators.


def test_generators_are_pure_functions_of_their_numbers() -> None:
    numbers = [
        (1,),
        (1, 0),
        (1, 0, 0),
        (0, 1),
        (1, 2),
        (2, 1),
        (1 << 32,),
        (0, 1, 0),
        (-1,),
        (1 << 40, 3),
        (3, 1 << 40),
    ]
    draws = [tuple(generator_for(*given).integers(1 << 62, size=2).tolist()) for given in numbers]
    assert draws == [tuple(generator_for(*given).integers(1 << 62, size=2).tolist()) for given in numbers]
    assert len(set(draws)) == len(numbers), "other numbers, and another count of numbers, give other draws"


@pytest.mark.parametrize("make", [lambda: windows(300, 4), lambda: ListSamples(list(range(70)))])
def test_every_order_is_as_likely(make: Callable[[], Any]) -> None:
    """The first key of an epoch is spread over all samples."""
    samples = make()
    places = [int(samples.epoch(0, epoch)[0]) for epoch in range(300)]
    assert len(set(places)) > len(samples) / 2
