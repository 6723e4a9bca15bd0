"""Add-k and Jelinek–Mercer smoothing against their formulas with dictionaries; separators between documents."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.ngram import Ngram, fit_jelinek_mercer
from tokenloom.models.ngram_lm import NgramModel
from tokenloom.models.ngram_smoothing import BUCKETS, AddK, JelinekMercer, KneserNey, em_weights

VOCAB = 6


def text(seed: int, length: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.choice(VOCAB - 1, size=length, p=random.dirichlet(np.full(VOCAB - 1, 0.7)))


def counts_of(ids: np.ndarray, order: int) -> Counter:
    """How often each n-gram of up to `order` tokens occurs."""
    grams = (tuple(ids[i : i + m]) for m in range(1, order + 1) for i in range(len(ids) - m + 1))
    return Counter(grams)


def followed(counts: Counter, history: tuple) -> int:
    return sum(counts[(*history, w)] for w in range(VOCAB))


@pytest.mark.parametrize("k", [1.0, 0.1])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_add_k_is_its_formula(order: int, k: float) -> None:
    ids = text(1, 200)
    model = Ngram.fit([ids], VOCAB, order, AddK(k))
    counts = counts_of(ids, order)
    asked = np.random.default_rng(0).integers(0, VOCAB, 80)
    found = model.log_probs(asked)
    for i, token in enumerate(asked):
        history = tuple(asked[max(0, i - order + 1) : i])
        p = (counts[(*history, token)] + k) / (followed(counts, history) + k * VOCAB)
        assert found[i] == pytest.approx(math.log(p), abs=1e-12)


def test_jelinek_mercer_is_its_formula() -> None:
    ids, order = text(2, 300), 3
    random = np.random.default_rng(5)
    smoothing = JelinekMercer(tuple(tuple(random.random(BUCKETS)) for _ in range(order)))
    model = Ngram.fit([ids], VOCAB, order, smoothing)
    counts = counts_of(ids, order)

    def probability(token: int, history: tuple) -> float:
        lower = probability(token, history[1:]) if history else 1 / VOCAB
        total = followed(counts, history)
        if not total:
            return lower
        share = smoothing.weights[len(history)][int(math.log2(total))]
        return share * counts[(*history, token)] / total + (1 - share) * lower

    asked = np.random.default_rng(3).integers(0, VOCAB, 80)
    for i, found in enumerate(model.log_probs(asked)):
        expected = probability(asked[i], tuple(asked[max(0, i - order + 1) : i]))
        assert found == pytest.approx(math.log(expected), abs=1e-12)


def test_the_weights_are_the_best_for_what_is_held_out() -> None:
    random = np.random.default_rng(0)
    relative, lower = random.random(3000) * (random.random(3000) < 0.7), 0.05 + 0.2 * random.random(3000)
    totals = np.repeat([1.0, 5.0, 100.0], 1000)
    weights = em_weights(relative, totals, lower)
    for bucket, part in zip((0, 2, 6), np.split(np.arange(3000), 3), strict=True):
        grid = np.linspace(0, 0.999, 400)[:, None]
        best = np.log(grid * relative[part] + (1 - grid) * lower[part] + 1e-300).sum(1).argmax()
        assert weights[bucket] == pytest.approx(grid[best, 0], abs=0.01)
    assert weights[3] == weights[2], "a bucket of which there are none takes the weight of the one below"


def test_interpolation_finds_weights_that_beat_adding_one() -> None:
    # Each token tells the next but for noise, so that two orders say more than one.
    random = np.random.default_rng(4)
    ids = np.zeros(6000, dtype=np.int64)
    for i in range(1, len(ids)):
        ids[i] = (2 * ids[i - 1] + 1) % 5 if random.random() < 0.7 else random.integers(5)
    train, held = ids[:5000], ids[5000:]
    smoothing = fit_jelinek_mercer([train], VOCAB, 4)
    loss = {
        name: -Ngram.fit([train], VOCAB, 4, way).log_probs(held).mean()
        for name, way in (("interpolated", smoothing), ("add", AddK(1.0)))
    }
    assert loss["interpolated"] < loss["add"]
    # The rule gives one token 0.7 + 0.3 / 5 and four 0.3 / 5 each: no model can do better than its entropy.
    entropy = -0.76 * math.log(0.76) - 4 * 0.06 * math.log(0.06)
    assert loss["interpolated"] == pytest.approx(entropy, abs=0.06)


@pytest.mark.parametrize("smoothing", [KneserNey(), AddK(0.5), JelinekMercer(((0.6,) * BUCKETS,) * 3)])
def test_every_distribution_sums_to_one(smoothing: object) -> None:
    model = Ngram.fit([text(7, 150)], VOCAB, 3, smoothing)  # type: ignore[arg-type]
    contexts = torch.tensor(list(itertools.product(range(VOCAB), repeat=2)))
    logs, _ = model.step(contexts, model.init_state(len(contexts)))
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(logs.shape[:2], dtype=torch.float64), rtol=0, atol=1e-12)


END = 5


@pytest.mark.parametrize("smoothing", [KneserNey(), AddK(1.0)])
def test_a_border_ends_one_document_and_begins_the_next(smoothing: object) -> None:
    documents = [text(8, 30), text(9, 1), text(10, 50)]
    run = np.array([END, *(i for document in documents for i in (*document, END))])
    model = Ngram.fit([run], VOCAB, 3, smoothing, separator=END)  # type: ignore[arg-type]
    across = {(int(a), END, int(b)) for a, e, b in zip(run, run[1:], run[2:], strict=False) if e == END}
    grams = counts_of(run, 3)
    assert across
    assert len(model.levels[2].keys) == len({g for g in grams if len(g) == 3} - across)
    # All at once, document by document, and in steps: the same.
    whole = model.log_probs(run)
    cuts = np.flatnonzero(run == END)
    apart = [model.log_probs(run[a : b + 1])[1:] for a, b in itertools.pairwise(cuts.tolist())]
    np.testing.assert_allclose(np.concatenate(apart), whole[1:], atol=1e-12)
    logs, _ = model.step(torch.from_numpy(run)[None, :-1], model.init_state(1))
    np.testing.assert_allclose(logs[0].gather(1, torch.from_numpy(run)[1:, None])[:, 0], whole[1:], atol=1e-12)


def test_the_module_says_what_its_tables_say() -> None:
    ngram = Ngram.fit([text(11, 200)], VOCAB, 3)
    module = NgramModel.of(ngram)
    ids = torch.from_numpy(np.stack([text(12, 20), text(13, 20)]))
    batch = Batch({"text": Stream(ids=ids[:, :-1])})
    logits = module(batch)
    expected = torch.from_numpy(ngram.log_probs(ids.numpy()))[:, 1:]
    torch.testing.assert_close(logits.gather(2, ids[:, 1:, None])[:, :, 0], expected, rtol=0, atol=1e-12)
    targets = ids[:, 1:].clone()
    targets[0, 3] = -100
    asked = module.log_probs(batch, targets)
    assert asked[0, 3] == 0
    asked[0, 3] = expected[0, 3]
    torch.testing.assert_close(asked, expected, rtol=0, atol=1e-12)
    again = NgramModel(VOCAB, [len(level.keys) for level in ngram.levels])
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(batch), logits)
