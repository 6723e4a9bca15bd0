"""The key–value cache by itself: where tokens stand, what they see, what is kept. (Whole models: test_gpt.py.)"""

import random

import pytest
import torch

from tokenloom.nn.cache import KeyValueCache, MemoryCache
from tokenloom.nn.masks import to_dense

CPU = torch.device("cpu")


def numbered(positions, row):
    """Keys that tell which token they are: (1 head, N, 1 feature) of 1000 · row + position."""
    return torch.tensor([[[1000.0 * row + position] for position in positions]])


def feed(cache, counts, N):
    """One chunk of numbered tokens; returns for each row and each of its queries the set of tokens that it sees."""
    lengths = cache.lengths.tolist()
    positions, key_positions, mask = cache.chunk(N)
    rows = len(lengths)
    K = torch.stack([numbered(range(lengths[b], lengths[b] + N), b) for b in range(rows)])
    seen = []
    for layer in range(len(cache.keys)):
        keys, values = cache.layer(layer).extend(K, -K)
        assert torch.equal(keys, -values)
        M = keys.shape[2]
        whole = torch.ones(rows, 1, N, M) if mask is None else to_dense(mask, N, M, CPU).expand(rows, 1, N, M)
        key_positions = key_positions.expand(rows, M)
        assert positions.expand(rows, N).tolist() == [list(range(lengths[b], lengths[b] + N)) for b in range(rows)]
        for b in range(rows):
            for n in range(counts[b]):
                visible = whole[b, 0, n].bool()
                # Where a key may be seen, its stated position is that of the token it holds.
                assert keys[b, 0, visible, 0].tolist() == [1000 * b + p for p in key_positions[b][visible].tolist()]
                seen.append((b, lengths[b] + n, sorted(int(k) for k in keys[b, 0, visible, 0])))
    cache.advance(N, None if counts == [N] * rows else torch.tensor(counts))
    return seen


@pytest.mark.parametrize("window", [None, 1, 3, 4, 11])
@pytest.mark.parametrize("seed", range(4))
def test_every_token_sees_its_past_or_its_window_and_nothing_else(window, seed):
    """Random chunks with random counts, followed for a while: brute force over who sees whom."""
    chance = random.Random(seed)
    capacity = 30 if window is None else window
    cache = KeyValueCache(2, (3, 1, capacity, 1), torch.zeros(()), window)
    for _ in range(12):
        N = chance.choice([1, 1, 2, 5, 9])
        if cache.free is not None and cache.free < N:
            break
        counts = [N] * 3 if chance.random() < 0.4 else [chance.randint(0, N) for _ in range(3)]
        for b, position, tokens in feed(cache, counts, N):
            first = 0 if window is None else max(0, position - window + 1)
            assert tokens == [1000 * b + p for p in range(first, position + 1)], (b, position)
        if chance.random() < 0.3:
            # Rows put back in the same order are a new cache with the same content.
            old, cache = cache, cache.select(torch.arange(3))
            for tensor in (*old.keys, *old.values):
                tensor.fill_(-1)
    assert max(cache.lengths) > 9


def test_room_and_the_end_of_it():
    cache = KeyValueCache(1, (2, 1, 8, 1), torch.zeros(()))
    assert cache.free == 8
    feed(cache, [5, 2], 5)
    assert (cache.free, cache.longest, cache.uniform, cache.lengths.tolist()) == (3, 5, False, [5, 2])
    with pytest.raises(ValueError, match="4 tokens after 5: the cache holds 8"):
        cache.chunk(4)
    feed(cache, [0, 3], 3)
    assert (cache.free, cache.uniform) == (3, True)
    assert KeyValueCache(1, (2, 1, 8, 1), torch.zeros(()), 8).free is None


def test_selecting_rows_of_one_length_makes_them_even_again():
    cache = KeyValueCache(1, (3, 1, 8, 1), torch.zeros(()))
    feed(cache, [5, 2, 5], 5)
    chosen = cache.select(torch.tensor([2, 0, 2]))
    assert (chosen.uniform, chosen.longest) == (True, 5)
    assert cache.select(torch.tensor([1])).longest == 2
    assert len(cache.select(torch.tensor([], dtype=torch.int64)).lengths) == 0


def test_reset_forgets_and_allocates_nothing():
    cache = KeyValueCache(1, (2, 1, 8, 1), torch.zeros(()))
    places = [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)]
    feed(cache, [5, 2], 5)
    cache.reset()
    assert (cache.free, cache.uniform, cache.lengths.tolist()) == (8, True, [0, 0])
    assert [seen for _, _, seen in feed(cache, [1, 1], 1)] == [[0], [1000]]
    assert [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)] == places
    assert cache.nbytes == 2 * 2 * 8 * 4


def test_a_chunk_given_up_leaves_nothing_behind():
    """A pass that fails half-way, in a ring: its keys are not stored with those of the next chunk."""
    cache = KeyValueCache(2, (1, 1, 4, 1), torch.zeros(()), 4)
    feed(cache, [3], 3)
    cache.chunk(2)
    cache.layer(0).extend(numbered([77, 78], 0)[None], numbered([77, 78], 0)[None])
    assert {tuple(seen) for _, _, seen in feed(cache, [1], 1)} == {(0, 1, 2, 3)}
    assert {tuple(seen) for _, _, seen in feed(cache, [1], 1)} == {(1, 2, 3, 4)}


def test_misuse():
    with pytest.raises(ValueError, match="a ring buffer of 8 slots cannot serve a window of 4"):
        KeyValueCache(1, (2, 1, 8, 1), torch.zeros(()), 4)
    cache = KeyValueCache(1, (2, 1, 8, 1), torch.zeros(()))
    with pytest.raises(AssertionError, match="chunk"):
        cache.layer(0).extend(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    assert not cache.layer(0).complete
    with pytest.raises(RuntimeError, match="by extending it"):
        cache.layer(0).stored()
    with pytest.raises(RuntimeError, match="has not been read"):
        MemoryCache().stored()
    assert not MemoryCache().select(torch.tensor([0])).complete


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_caches_are_empty_and_their_own(dtype):
    """Made page by page, and still nothing but zeros that belong to one cache."""
    caches = [KeyValueCache(2, (3, 2, 1000, 16), torch.zeros(1, dtype=dtype)) for _ in range(2)]
    caches[0].both.fill_(1)
    assert caches[0].both.dtype == dtype
    assert caches[1].both.count_nonzero() == 0
