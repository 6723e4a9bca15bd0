"""The rules for choosing one token, against plain definitions in float64."""

import math

import numpy as np
import pytest
import torch

from tokenloom.errors import UserError
from tokenloom.generation.sampling import (
    NonFiniteLogits,
    Sampling,
    _pick_torch,
    apply_temperature,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    pick,
    top_k_mask,
    uniforms_of,
    widen,
)

INF, NAN = math.inf, math.nan
LAST_BELOW_1 = 1 - 2**-53


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def kept(scores: torch.Tensor) -> list[list[int]]:
    return [torch.nonzero(row > -INF).flatten().tolist() for row in scores]


# --- temperature


@pytest.mark.parametrize("temperature", [0.3, 1, 2.5])
def test_temperature_divides(temperature: float) -> None:
    scores = normal(4, 9, dtype=torch.float64)
    expected = (scores / temperature).softmax(-1)
    torch.testing.assert_close(apply_temperature(scores, temperature).softmax(-1), expected)


def test_temperature_zero_keeps_the_first_of_the_best() -> None:
    assert kept(apply_temperature(torch.tensor([[1.0, 3, 3, 2], [5, 1, 0, 0]]), 0)) == [[1], [0]]


@pytest.mark.parametrize("temperature", [1e-12, 1e-40, 5e-324])
def test_a_tiny_temperature_is_greedy_not_nan(temperature: float) -> None:
    scores = normal(5, 11).log_softmax(-1)
    cold = apply_temperature(scores, temperature).softmax(-1)
    assert torch.equal(cold.argmax(-1), scores.argmax(-1))
    torch.testing.assert_close(cold.max(-1).values, torch.ones(5))


def test_a_huge_temperature_is_uniform_over_what_is_possible() -> None:
    hot = apply_temperature(logs(0.9, 0.1, 0.0), 1e300).softmax(-1)
    torch.testing.assert_close(hot, torch.tensor([[0.5, 0.5, 0]], dtype=torch.float64))


# --- top-k


@pytest.mark.parametrize("k", [None, 0, 5, 6, 10**9])
def test_top_k_without_a_limit(k: int | None) -> None:
    scores = normal(3, 5)
    assert torch.equal(keep_top_k(scores, k), scores)


def test_top_k_with_ties_lets_nobody_extra_in() -> None:
    ties = torch.tensor([[1.0, 2, 2, 2, 0], [0, 0, 0, 0, 0], [-INF, 3, -INF, -INF, -INF]])
    assert kept(keep_top_k(ties, 2)) == [[1, 2], [0, 1], [1]]
    assert kept(keep_top_k(ties, 1)) == [[1], [0], [1]]
    assert top_k_mask(ties, 3).sum(-1).tolist() == [3, 3, 3]


def test_top_k_against_sorting() -> None:
    scores = torch.randint(0, 6, (200, 12), generator=torch.Generator().manual_seed(1)).double()
    for k in range(1, 12):
        plain = [sorted(sorted(range(12), key=lambda i, row=row: (-row[i], i))[:k]) for row in scores.tolist()]
        assert kept(keep_top_k(scores, k)) == plain


# --- top-p


def smallest_set(probabilities: list[float], p: float) -> list[int]:
    chosen, mass = [], 0.0
    for index in sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i)):
        chosen.append(index)
        mass += probabilities[index]
        if mass >= p:
            break
    return sorted(chosen)


@pytest.mark.parametrize("p", [0.3, 0.99, 0.9999999])
def test_top_p_in_a_large_vocabulary(p: float) -> None:
    """Sharp rows need a few tokens of 2,000, flat ones nearly all."""
    sharpness = torch.tensor([[0.1], [1.0], [4.0], [12.0]], dtype=torch.float64)
    for scores in (sharpness * normal(4, 2000, dtype=torch.float64), 9 * normal(3, 2000, dtype=torch.float64)):
        assert kept(keep_top_p(scores, p)) == [smallest_set(row, p) for row in scores.softmax(-1).tolist()]


def test_top_p_with_ties_takes_the_smaller_ids() -> None:
    assert kept(keep_top_p(logs(0.1, 0.2, 0.2, 0.2, 0.3), 0.6)) == [[1, 2, 4]]
    assert kept(keep_top_p(torch.zeros(1, 2000), 0.5)) == [list(range(1000))]


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p_is_the_smallest_set_that_reaches_p(p: float) -> None:
    scores = 3 * normal(100, 20, dtype=torch.float64)
    expected = [smallest_set(row, p) for row in scores.softmax(-1).tolist()]
    assert kept(keep_top_p(scores, p)) == expected
    assert kept(keep_top_p(scores.log_softmax(-1), p)) == expected


def test_top_p_at_its_ends() -> None:
    scores = torch.tensor([[0.0, 2, 2, 1]])
    assert kept(keep_top_p(scores, 0)) == [[1]]
    assert torch.equal(keep_top_p(scores, 1), scores)
    assert torch.equal(keep_top_p(scores, None), scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_is_not_fooled_by_rounding(dtype: torch.dtype) -> None:
    assert kept(keep_top_p(logs(0.6, 0.3, 0.1).to(dtype), 0.9)) == [[0, 1]]
    assert kept(keep_top_p(logs(0.125, 0.25, 0.125, 0.5).to(dtype), 0.75)) == [[1, 3]]
    assert kept(keep_top_p(logs(*[0.1] * 10).to(dtype), 0.7)) == [list(range(7))]


# --- min-p


def test_min_p_is_relative_to_the_best() -> None:
    scores = logs(0.5, 0.25, 0.2, 0.05)
    assert kept(keep_min_p(scores, 0.5)) == [[0, 1]]
    assert kept(keep_min_p(scores.float(), 0.1)) == [[0, 1, 2, 3]]
    assert kept(keep_min_p(scores + 7, 0.11)) == [[0, 1, 2]]
    assert kept(keep_min_p(scores, 1)) == [[0]]
    assert torch.equal(keep_min_p(scores, 0), scores)
    assert torch.equal(keep_min_p(scores, None), scores)


# --- repetition penalty


@pytest.mark.parametrize("kind", ["logits", "negative logits", "log-probabilities"])
@pytest.mark.parametrize("penalty", [1.01, 1.3, 2.0, 50.0])
def test_penalty_never_makes_a_seen_token_likelier(kind: str, penalty: float) -> None:
    scores = 3 * normal(300, 6, dtype=torch.float64)
    scores = {"logits": scores, "negative logits": scores - 30}.get(kind, scores.log_softmax(-1))
    seen = torch.rand(300, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    before = scores.softmax(-1)
    after = penalize_repetition(scores, seen, penalty).softmax(-1)
    some = seen.any(-1) & ~seen.all(-1)
    assert bool((after[some][seen[some]] < before[some][seen[some]]).all())
    assert bool((after[some][~seen[some]] > before[some][~seen[some]]).all())
    torch.testing.assert_close(after[seen.all(-1)], before[seen.all(-1)])


def test_penalty_worked_by_hand() -> None:
    after = penalize_repetition(logs(0.6, 0.3, 0.1), torch.tensor([[True, True, False]]), 2).softmax(-1)
    torch.testing.assert_close(after, torch.tensor([[0.3, 0.15, 0.1]], dtype=torch.float64) / 0.55)


def test_penalty_is_the_same_for_logits_and_log_probabilities() -> None:
    logits, seen = normal(5, 7, dtype=torch.float64) - 4, normal(5, 7) > 0
    one = penalize_repetition(logits, seen, 1.7).softmax(-1)
    other = penalize_repetition(logits.log_softmax(-1), seen, 1.7).softmax(-1)
    torch.testing.assert_close(one, other)


# --- drawing


def edges(probabilities: list[float]) -> list[float]:
    """Numbers in [0, 1) at and beside every boundary of the running sum."""
    total, sums = 0.0, [0.0]
    for probability in probabilities:
        total += probability
        sums.append(total)
    places = {0.0, 5e-324, 2**-53, 0.5, LAST_BELOW_1, 1 - 2**-52, 1 - 2**-24}
    for value in sums:
        at = value / total
        places |= {at, math.nextafter(at, 0), math.nextafter(at, 1), float(np.float32(at))}
    return [place for place in places if 0 <= place < 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_token_of_probability_zero_is_never_drawn(dtype: torch.dtype) -> None:
    rows: list[list[float]] = [
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 1],
        [0, 0.1, 0, 0.2, 0, 0, 0.7, 0],
        [1e-3, 0, 1e-3, 0, 0.998, 0],
        [0, 1 / 3, 1 / 3, 0, 1 / 3, 0],
        [0, *[0.1] * 10, 0],
    ]
    for row in rows:
        scores = torch.tensor([row], dtype=torch.float64).log().to(dtype)
        weights = scores.float().exp().flatten().tolist()
        uniforms = edges(weights)
        ids = pick(scores.expand(len(uniforms), -1), uniforms)
        assert {int(i) for i in ids} <= {i for i, p in enumerate(row) if p > 0}
        assert len(set(ids.tolist())) == sum(p > 0 for p in row), "every possible token has a place"


def test_both_roads_of_the_draw_agree() -> None:
    """The road of other devices can be walked on the CPU, where its sums are the same."""
    scores = (3 * normal(40, 23, dtype=torch.float64)).masked_fill(normal(40, 23, seed=4) > 0.5, -INF)
    scores[7, 3], scores[9], scores[11, 22] = NAN, -INF, INF
    # 1.0 is what a u just below 1 becomes on a device that has float32 only.
    for u in [*edges(scores[0].exp().tolist()), 1.0]:
        parallel = _pick_torch(scores, [u] * 40).tolist()
        assert parallel == pick(scores, [u] * 40).tolist()
        assert [row for row in range(40) if parallel[row] < 0] == [7, 9, 11]


def test_a_sum_that_shrinks_by_rounding_lets_no_zero_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parallel sum need not grow: here one moves at tokens of probability zero, up and down."""
    plain_sum = torch.Tensor.cumsum
    for error in ([0, 0, -1e-3, 0, 1e-3], [0, 0, 1e-3, 0, 1e-3], [1e-3, 0, 0, 0, -1e-3]):
        moved = torch.tensor(error, dtype=torch.float64)
        monkeypatch.setattr(torch.Tensor, "cumsum", lambda *a, moved=moved, **k: plain_sum(*a, **k) + moved)
        for u in (0.0, 1e-4, 0.4985, 0.4991, 0.4999, 0.5, 0.5002, 0.9985, 0.9995, LAST_BELOW_1, 1.0):
            assert int(_pick_torch(logs(0.0, 0.5, 0.0, 0.5, 0.0), [u])) in (1, 3)


def test_pick_goes_by_the_running_sum() -> None:
    uniforms = [0, 0.24, 0.26, 0.74, 0.76, LAST_BELOW_1]
    assert pick(logs(0.25, 0.5, 0.25).expand(6, -1), uniforms).tolist() == [0, 0, 1, 1, 2, 2]
    # Scores need not be normalized.
    assert pick(logs(0.25, 0.5, 0.25).expand(6, -1) - 700, uniforms).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("bad", [[NAN, 0, 0], [0, 0, INF], [-INF, -INF, -INF], [NAN, NAN, NAN], [-INF, NAN, INF]])
def test_pick_marks_a_broken_row_and_no_other(bad: list[float]) -> None:
    scores = torch.tensor([[0.0, 1, 2], bad, [0, -INF, -INF]])
    for u in (0.0, 0.3, LAST_BELOW_1):
        ids = pick(scores, [u] * 3).tolist()
        assert ids[1] == -1
        assert 0 <= ids[0] < 3
        assert ids[2] == 0
    with pytest.raises(NonFiniteLogits, match="cpu"):
        draw(scores, [torch.Generator().manual_seed(n) for n in range(3)])


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05], dtype=torch.float64)
    generator, n = torch.Generator().manual_seed(3), 20_000
    ids = draw(probabilities.log().expand(n, -1), [generator] * n)
    counts = torch.bincount(ids, minlength=5) / n
    assert float((counts - probabilities).abs().max()) < 4 * math.sqrt(0.25 / n)
    assert counts[1] == 0


def test_a_row_draws_from_its_own_generator_alone() -> None:
    scores = normal(6, 40)
    together = draw(scores, [torch.Generator().manual_seed(n) for n in range(6)])
    alone = [int(draw(scores[n : n + 1], [torch.Generator().manual_seed(n)])) for n in range(6)]
    assert together.tolist() == alone
    with pytest.raises(ValueError, match="6 rows"):
        draw(scores, [torch.Generator()])


def test_uniforms_are_double_and_below_one() -> None:
    u = uniforms_of([torch.Generator().manual_seed(0)] * 1000)
    assert 0 <= min(u) < max(u) < 1
    assert len(set(u)) == 1000
    assert any(value != float(np.float32(value)) for value in u)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    half = normal(3, 8).to(dtype)
    assert widen(half).dtype == torch.float32
    for rule in (
        apply_temperature(half, 0.7),
        keep_top_k(half, 3),
        keep_top_p(half, 0.8),
        keep_min_p(half, 0.1),
        penalize_repetition(half, half > 0, 1.2),
        Sampling().distribution(half),
    ):
        assert rule.dtype == torch.float32
    # 1,000 equal tokens: a running sum in half precision would stand still long before the end.
    flat = torch.full((1, 1000), -math.log(1000)).to(dtype)
    assert int(pick(flat, [0.9995])) == 999


# --- the options together


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"temperature": -1.0}, "--temperature"),
        ({"temperature": NAN}, "--temperature"),
        ({"temperature": INF}, "--temperature"),
        ({"top_k": -1}, "--top-k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_p": 1.5}, "--top-p"),
        ({"top_p": -0.1}, "--top-p"),
        ({"top_p": NAN}, "--top-p"),
        ({"min_p": 1.01}, "--min-p"),
        ({"min_p": -1.0}, "--min-p"),
        ({"repetition_penalty": 0.5}, "--repetition-penalty"),
        ({"repetition_penalty": NAN}, "--repetition-penalty"),
        ({"repetition_penalty": INF}, "--repetition-penalty"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float], flag: str) -> None:
    with pytest.raises(UserError) as caught:
        Sampling(**options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert flag in message
    assert str(next(iter(options.values()))) in message
    assert "\n" not in message


def plain_rules(row: np.ndarray, seen: np.ndarray, options: Sampling) -> np.ndarray:
    """The rules one after the other on one row of probabilities."""
    p = np.where(seen, row / options.repetition_penalty, row) ** (1 / options.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    p[order[options.top_k :]] = 0
    p /= p.sum()
    stay = smallest_set(p.tolist(), options.top_p if options.top_p is not None else 1)
    p[[i for i in range(len(p)) if i not in stay]] = 0
    p[p < (options.min_p or 0) * p.max()] = 0
    return p / p.sum()


def test_the_rules_act_in_the_order_stated() -> None:
    options = Sampling(temperature=0.8, top_k=7, top_p=0.85, min_p=0.12, repetition_penalty=1.5)
    log_probs, seen = (2 * normal(50, 15, dtype=torch.float64)).log_softmax(-1), normal(50, 15, seed=9) > 0.3
    result = options.distribution(log_probs, seen).exp()
    expected = [plain_rules(row, s, options) for row, s in zip(log_probs.exp().numpy(), seen.numpy(), strict=True)]
    np.testing.assert_allclose(result.numpy(), np.array(expected), atol=1e-12)


def test_defaults_leave_the_distribution_alone() -> None:
    log_probs = normal(4, 6).log_softmax(-1)
    assert Sampling().process(log_probs) is log_probs
    torch.testing.assert_close(Sampling().distribution(log_probs), log_probs)


def test_greedy_options() -> None:
    log_probs = logs(0.1, 0.4, 0.4, 0.1)
    for options in (Sampling(temperature=0), Sampling(top_k=1), Sampling(top_p=0), Sampling(2.0, 5).greedy()):
        assert options.is_greedy
        ids, chosen = options.choose(log_probs, [])
        assert ids == [1]
        assert chosen == [pytest.approx(math.log(0.4))]
        assert kept(options.distribution(log_probs)) == [[1]]
    assert not Sampling(temperature=0.01).is_greedy
    assert Sampling(repetition_penalty=1.5, top_p=0.5).greedy() == Sampling(0, repetition_penalty=1.5)
    seen = torch.tensor([[False, True, False, False]])
    ids, chosen = Sampling(0, repetition_penalty=1.1).choose(log_probs, [], seen)
    assert ids == [2]
    assert chosen == [pytest.approx(math.log(0.4))], "the model's own log-probability"


def test_a_penalty_without_seen_tokens_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="seen"):
        Sampling(repetition_penalty=2).distribution(logs(0.5, 0.5))


def test_an_enormous_penalty_still_leaves_a_choice() -> None:
    options = Sampling(repetition_penalty=1e300)
    ids, chosen = options.choose(logs(0.7, 0.3).float(), [torch.Generator().manual_seed(0)], torch.ones(1, 2).bool())
    assert 0 <= ids[0] < 2
    assert math.isfinite(chosen[0])


@pytest.mark.parametrize(
    "options",
    [
        Sampling(),
        Sampling(0),
        Sampling(0.5),
        Sampling(top_k=2),
        Sampling(top_p=0.5),
        Sampling(min_p=0.5),
        Sampling(0, repetition_penalty=2),
        Sampling(0.7, 2, 0.9, 0.1, 2),
    ],
)
@pytest.mark.parametrize("bad", [[0, NAN, 5, 5], [0, 1, INF, 2], [-INF] * 4, [NAN] * 4, [-INF, -INF, NAN, 9]])
def test_no_rule_hides_a_broken_row(options: Sampling, bad: list[float]) -> None:
    scores = torch.tensor([[0.0, 1, 2, 3], bad])
    generators = [torch.Generator().manual_seed(n) for n in range(2)]
    ids, chosen = options.choose(scores, generators, torch.tensor([[True, False] * 2] * 2))
    assert not math.isfinite(chosen[1])
    assert math.isfinite(chosen[0])
    assert all(0 <= token < 4 for token in ids), "never an id out of range"


@pytest.mark.parametrize("temperature", [1e-30, 0.3, 1.0, 2.5])
def test_a_temperature_alone_draws_as_the_rules_one_after_the_other(temperature: float) -> None:
    """It has a shorter road of its own."""
    logs = torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).log_softmax(-1)

    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in range(40)]

    ids, values = Sampling(temperature).choose(logs, generators())
    assert ids == draw(apply_temperature(logs, temperature), generators()).tolist()
    assert values == pytest.approx(logs.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist())
    assert Sampling(temperature, top_p=1.0, top_k=0, min_p=0.0).choose(logs, generators())[0] == ids
