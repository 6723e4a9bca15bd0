"""The n-gram model against a plain dictionary version of its formula, by hand, and on the published text."""

import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from tokenloom.models.ngram import Ngram
from tokenloom.models.ngram_smoothing import KneserNey


class Plain:
    """Interpolated Kneser–Ney straight from the formula: dictionaries, recursion, one token at a time."""

    def __init__(self, documents, vocab_size, order, modified):
        self.vocab_size, self.order = vocab_size, order
        neighbors = defaultdict(set)
        occurrences = Counter()
        for document in documents:
            for end in range(len(document)):
                for first in range(max(0, end - order + 1), end + 1):
                    gram = tuple(document[first : end + 1])
                    occurrences[gram] += 1
                    neighbors[gram].add(document[first - 1] if first > 0 else "start")
        self.counts = {gram: occurrences[gram] if len(gram) == order else len(neighbors[gram]) for gram in occurrences}
        self.discounts = {m: self.estimate(m, modified) for m in range(1, order + 1)}

    def estimate(self, length, modified):
        times = Counter(count for gram, count in self.counts.items() if len(gram) == length)
        if times[1] == 0 or times[2] == 0:
            return [0.5, 0.5, 0.5]
        d = times[1] / (times[1] + 2 * times[2])
        if modified and times[3] and times[4]:
            three = [c - (c + 1) * d * times[c + 1] / times[c] for c in (1, 2, 3)]
            if all(value > 0 for value in three):
                return three
        return [d, d, d]

    def probability(self, token, history):
        history = tuple(history)
        lower = self.probability(token, history[1:]) if history else 1 / self.vocab_size
        followers = {w: self.counts.get((*history, w), 0) for w in range(self.vocab_size)}
        total = sum(followers.values())
        if total == 0:
            return lower

        def discount(count):
            return self.discounts[len(history) + 1][min(count, 3) - 1] if count else 0.0

        kept = (followers[token] - discount(followers[token])) / total
        return kept + sum(map(discount, followers.values())) / total * lower

    def log_probs(self, ids, window=None):
        window = window or len(ids)
        values = []
        for i, token in enumerate(ids):
            first = max(i - i % window, i - self.order + 1)
            values.append(np.log(self.probability(token, ids[first:i])))
        return np.array(values)


def documents(seed, lengths, vocab_size):
    """Skewed random tokens, so that n-grams repeat and all count classes occur."""
    generator = np.random.default_rng(seed)
    weights = generator.dirichlet(np.full(vocab_size, 0.7))
    return [generator.choice(vocab_size, size=n, p=weights) for n in lengths]


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("lengths", [[120], [60, 1, 0, 2, 57], [3, 2, 2], [400]])
def test_equals_the_plain_formula(lengths, order, modified):
    parts = documents(len(lengths) + order, lengths, 6)
    # One id of the vocabulary is never counted, and the scored text holds it.
    model = Ngram.fit(parts, 7, order, KneserNey(modified))
    plain = Plain([part.tolist() for part in parts], 7, order, modified)
    text = np.random.default_rng(order).integers(0, 7, 150)
    text[20:60] = np.resize(parts[0], 40)
    for level, expected in zip(model.levels, plain.discounts.values(), strict=True):
        np.testing.assert_allclose(level.discounts, expected, rtol=1e-13)
    np.testing.assert_allclose(model.log_probs(text), plain.log_probs(text.tolist()), rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.log_probs(text, windows=8), plain.log_probs(text.tolist(), 8), rtol=0, atol=1e-12)


def test_the_modified_discounts_are_really_used():
    parts = documents(0, [3000], 12)
    one, three = (Ngram.fit(parts, 12, 3, KneserNey(modified)) for modified in (False, True))
    assert len(set(one.levels[2].discounts)) == 1
    assert len(set(three.levels[2].discounts)) == 3
    n = [np.count_nonzero(np.unique(grams(parts[0], 3), return_counts=True)[1] == c) for c in range(5)]
    assert one.levels[2].discounts[0] == pytest.approx(n[1] / (n[1] + 2 * n[2]))


def grams(ids, length):
    return np.lib.stride_tricks.sliding_window_view(ids, length) @ (100 ** np.arange(length))


def test_numbers_worked_by_hand():
    # Order 2 on "a b a b c". Bigrams ab 2, ba 1, bc 1: n1 = 2, n2 = 1, D = 2/4 = 0.5.
    # Left neighbors: a {start, b} = 2, b {a} = 1, c {b} = 1: n1 = 2, n2 = 1, D = 0.5, total 4; vocabulary 4.
    # p(a) = 1.5/4 + 1.5/4 · 1/4 = 0.46875, p(b) = p(c) = 0.5/4 + 0.09375 = 0.21875, p(d) = 0.09375.
    # p(b|a) = 1.5/2 + 0.5/2 · 0.21875 = 0.8046875. p(a|b) = 0.5/2 + 1/2 · 0.46875 = 0.484375.
    # p(d|b) = 1/2 · 0.09375 = 0.046875. Nothing follows c: p(a|c) = p(a).
    model = Ngram.fit([np.array([0, 1, 0, 1, 2])], 4, 2)
    pairs = np.array([[0, 1], [1, 0], [1, 3], [2, 0], [3, 2]])
    found = np.exp(model.log_probs(pairs))
    np.testing.assert_allclose(found[:, 0], [0.46875, 0.21875, 0.21875, 0.21875, 0.09375], atol=1e-15)
    np.testing.assert_allclose(found[:, 1], [0.8046875, 0.484375, 0.046875, 0.46875, 0.21875], atol=1e-15)


@pytest.mark.parametrize("modified", [False, True])
def test_probabilities_sum_to_one_after_any_context(modified):
    vocab_size, order = 9, 4
    model = Ngram.fit(documents(3, [200, 150], 8), vocab_size, order, KneserNey(modified))
    generator = np.random.default_rng(1)
    contexts = generator.integers(0, vocab_size, (60, order - 1))
    rows = np.concatenate([np.repeat(contexts, vocab_size, 0), np.tile(np.arange(vocab_size), 60)[:, None]], 1)
    scored = np.exp(model.log_probs(rows)[:, -1]).reshape(60, vocab_size)
    np.testing.assert_allclose(scored.sum(1), 1, atol=1e-12)
    assert scored.min() > 0
    logs, _ = model.step(torch.from_numpy(contexts), model.init_state(60))
    np.testing.assert_allclose(logs.exp().sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(logs[:, -1].exp(), scored, atol=1e-14)


@pytest.mark.parametrize("order", [1, 2, 6])
def test_step_equals_log_probs_however_the_text_is_cut(order):
    model = Ngram.fit(documents(5, [300], 7), 8, order)
    text = np.random.default_rng(2).integers(0, 8, 40)
    expected = model.log_probs(text)[1:]
    for chunk in (1, 3, 40):
        state, logs = model.init_state(1), []
        for piece in torch.from_numpy(text).split(chunk):
            piece_logs, state = model.step(piece[None], state)
            logs.append(piece_logs[0])
        predicted = torch.cat(logs)[:-1].gather(1, torch.from_numpy(text)[1:, None])[:, 0]
        np.testing.assert_allclose(predicted, expected, rtol=0, atol=1e-13)
        assert state.lengths.tolist() == [40]
        assert state.tail.tolist() == [text[len(text) - order + 1 :].tolist()]


def test_padded_rows_of_different_lengths_equal_rows_alone():
    model = Ngram.fit(documents(6, [300], 7), 7, 4)
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([1, 5, 3])
    tokens = torch.randint(7, (3, 5), generator=generator)
    tokens[torch.arange(5) >= counts[:, None]] = -100
    more = torch.randint(7, (3, 2), generator=generator)
    logs, state = model.step(tokens, model.init_state(3), counts)
    after, state = model.step(more, state)
    assert state.lengths.tolist() == [3, 7, 5]
    for row, count in enumerate(counts.tolist()):
        alone, its_state = model.step(tokens[row : row + 1, :count], model.init_state(1))
        assert torch.equal(alone[0], logs[row, :count])
        alone, _ = model.step(more[row : row + 1], its_state)
        assert torch.equal(alone[0], after[row])


def test_states_fork_and_select_as_independent_values():
    model = Ngram.fit(documents(7, [300], 5), 5, 4)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0]])
    _, state = model.step(tokens, model.init_state(2))
    repeat_rows = state.repeat(2)
    assert repeat_rows.tail.tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 0], [3, 4, 0]]
    assert repeat_rows.lengths.tolist() == [3, 3, 3, 3]
    logs, after = model.step(torch.tensor([[1], [2], [3], [4]]), repeat_rows)
    for row, (history, token) in enumerate([((0, 1, 2), 1), ((0, 1, 2), 2), ((3, 4, 0), 3), ((3, 4, 0), 4)]):
        expected, _ = model.step(torch.tensor([[*history, token]]), model.init_state(1))
        assert torch.equal(logs[row, 0], expected[0, -1])
    chosen = after.select(torch.tensor([3, 0, 3]))
    assert chosen.tail.tolist() == [[4, 0, 4], [1, 2, 1], [4, 0, 4]]
    chosen.tail.zero_()
    assert after.tail[3].tolist() == [4, 0, 4]
    assert state.tail.tolist() == [[0, 1, 2], [3, 4, 0]]


def test_no_ngram_crosses_from_one_part_into_the_next():
    left, right = np.array([0, 1] * 20), np.array([2, 3] * 20)
    apart = Ngram.fit([left, right], 4, 3)
    # 1 → 2 happens only across the separator: after 1 the model knows 0 alone, and gives 2 what it gives any stranger.
    assert len(apart.levels[1].keys) == 4
    logs, _ = apart.step(torch.tensor([[0, 1]]), apart.init_state(1))
    assert logs[0, -1].argmax() == 0
    together = Ngram.fit([np.concatenate([left, right])], 4, 3)
    assert len(together.levels[1].keys) == 5
    text = np.random.default_rng(0).integers(0, 4, 50)
    np.testing.assert_array_equal(apart.log_probs(text), Ngram.fit([right, left], 4, 3).log_probs(text))


def test_a_token_that_only_opens_documents_is_not_a_stranger():
    parts = [np.array([4, 0, 1, 0, 2, 1, 0])] * 3
    model = Ngram.fit(parts, 6, 3)
    first = np.exp(model.log_probs(np.array([[4], [5]])))
    assert first[0, 0] > 2 * first[1, 0]


def test_windows_stand_alone():
    model = Ngram.fit(documents(8, [500], 6), 6, 5)
    text = documents(9, [103], 6)[0]
    cut = model.log_probs(text, windows=10)
    for first in range(0, 103, 10):
        piece = text[first : first + 10]
        np.testing.assert_array_equal(cut[first : first + 10], model.log_probs(piece))
    np.testing.assert_array_equal(model.log_probs(text[:100].reshape(10, 10)).reshape(-1), cut[:100])
    assert not np.allclose(cut, model.log_probs(text))
    assert model.log_probs(text[:0]).shape == (0,)


def test_ids_of_any_integer_width_and_large_vocabularies_count_alike():
    ids = documents(10, [200], 200)[0]
    wide = Ngram.fit([ids.astype(np.int64)], 200, 3)
    narrow = Ngram.fit([ids.astype(np.uint8)], 200, 3)
    np.testing.assert_array_equal(narrow.log_probs(ids.astype(np.uint8)), wide.log_probs(ids))
    # The same text under ids spread over 2³⁰: only the uniform base differs.
    spread = Ngram.fit([ids * 5_000_000], 1 << 30, 3)
    for few, many in zip(wide.levels, spread.levels, strict=True):
        np.testing.assert_array_equal(few.gamma, many.gamma)
        assert few.discounts == many.discounts


def test_wrong_use_is_refused():
    ids = np.array([0, 1, 2])
    model = Ngram.fit([ids], 3, 2)
    assert (model.vocab_size, model.context) == (3, 1)
    with pytest.raises(ValueError, match="at least one token"):
        Ngram.fit([ids[:0]], 3)
    with pytest.raises(ValueError, match=r"0 … 1, not 0 … 2"):
        Ngram.fit([ids], 2)
    with pytest.raises(ValueError, match="integer"):
        Ngram.fit([ids / 2], 3)
    with pytest.raises(ValueError, match="order"):
        Ngram.fit([ids], 3, 0)
    with pytest.raises(ValueError, match="not -1"):
        model.log_probs(np.array([0, -1]))
    with pytest.raises(ValueError, match="windows"):
        model.log_probs(ids, windows=0)
    with pytest.raises(ValueError, match="3-D"):
        model.log_probs(ids.reshape(1, 1, 3))
    with pytest.raises(ValueError, match="0 … 2"):
        model.step(torch.tensor([[3]]), model.init_state(1))
    with pytest.raises(ValueError, match="2 rows"):
        model.step(torch.tensor([[1], [1]]), model.init_state(1))
    with pytest.raises(ValueError, match="counts"):
        model.step(torch.tensor([[1, 1]]), model.init_state(1), torch.tensor([3]))


def test_counting_needs_no_torch():
    script = (
        "import sys, numpy as np\n"
        "from tokenloom.models.ngram import Ngram\n"
        "Ngram.fit([np.arange(5)], 5).log_probs(np.arange(5))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_tinyshakespeare_reaches_the_published_figures(tinyshakespeare):
    _, ids = np.unique(np.array(list(tinyshakespeare)), return_inverse=True)
    train, validation = ids[:1_003_854], ids[1_003_854:]
    model = Ngram.fit([train], 65, 6)
    assert -model.log_probs(validation).mean() == pytest.approx(1.555, abs=0.01)
    generator = torch.Generator().manual_seed(123)
    starts = [torch.randint(len(validation) - 65, (64,), generator=generator) for _ in range(8)]
    windows = np.stack([validation[s : s + 65] for s in torch.cat(starts).tolist()])
    # Each window predicts its 64 targets from its first token on.
    assert -model.log_probs(windows)[:, 1:].mean() == pytest.approx(1.611, abs=0.002)
    better = Ngram.fit([train], 65, 6, KneserNey(modified=True))
    assert -better.log_probs(validation).mean() == pytest.approx(1.5226, abs=0.001)
