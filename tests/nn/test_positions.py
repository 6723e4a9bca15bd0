"""Position parts against their formulas: figures of the chapter, complex numbers, tables looked up by hand."""

import cmath
import math

import pytest
import torch

from tokenloom.nn.positions import (
    ALiBi,
    Learned,
    Positions,
    RelativeBias,
    Rotary,
    Sinusoidal,
    apply_rotary,
    make_positions,
)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def at(*numbers):
    return torch.tensor([numbers])


# Sinusoidal.


def test_sinusoidal_is_its_formula():
    """Reference 1.10: r[n, 2j] = sin(w_j n) and r[n, 2j+1] = cos(w_j n) with w_j = base^(−2j/D)."""
    for base in (10_000.0, 100.0):
        r = Sinusoidal(8, base).encode(torch.tensor([0, 1, 57, 100_003]), torch.float64)
        for place, n in enumerate((0, 1, 57, 100_003)):
            for j in range(4):
                angle = n * base ** (-2 * j / 8)
                assert r[place, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-10)
                assert r[place, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-10)


def test_sinusoidal_figures():
    """Reference 1.10: 2,000 positions, D = 32: the range, the wavelengths, and all positions apart."""
    r = Sinusoidal(32).encode(torch.arange(2000), torch.float64)
    assert -1 <= r.min() < -0.999
    assert 0.999 < r.max() <= 1
    speeds = torch.atan2(r[1, 0::2], r[1, 1::2])
    wavelengths = 2 * math.pi / speeds
    assert f"{wavelengths[0]:.1f}" == "6.3"
    assert f"{wavelengths[-1]:,.1f}" == "35,332.9"
    assert torch.nn.functional.pdist(r).min() > 1e-3


def test_a_shift_is_a_rotation():
    """Reference 1.11: one block-diagonal M_7 maps every r_n to r_{n+7}; sines alone have no such map."""
    r = Sinusoidal(32).encode(torch.arange(2000), torch.float64)
    M = torch.zeros(32, 32, dtype=torch.float64)
    for j in range(16):
        angle = 7 * 10_000.0 ** (-2 * j / 32)
        c, s = math.cos(angle), math.sin(angle)
        M[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor([[c, s], [-s, c]], dtype=M.dtype)
    assert (r[:-7] @ M.T - r[7:]).abs().max() <= 1e-12
    for n in (10, 500, 1500):
        assert f"{r[n] @ r[n + 3]:.4f}" == "12.2724"
    sines = r[:, 0::2]
    best = torch.linalg.lstsq(sines[:-7], sines[7:]).solution
    assert f"{(sines[:-7] @ best - sines[7:]).square().mean().sqrt():.3f}" == "0.311"


def test_sinusoidal_is_added_where_the_positions_say():
    part, X = Sinusoidal(8), draw(2, 3, 8)
    positions = torch.tensor([[0, 1, 2], [5, 0, 1]])
    torch.testing.assert_close(part.add(X, positions), X + part.encode(positions, torch.float64))
    torch.testing.assert_close(part.add(X, positions[:1]), X + part.encode(positions[0], torch.float64))
    assert part.add(X.bfloat16(), positions).dtype == torch.bfloat16
    # Far positions are exact in half precision too, where the position itself would be rounded to 1,000,448.
    far = torch.tensor([[1_000_001]])
    exact = Sinusoidal(8).encode(far, torch.float64)
    torch.testing.assert_close(part.encode(far, torch.bfloat16).double(), exact, atol=2**-8, rtol=0)


# Rotary.


def by_complex_numbers(x, n, base, scaling):
    """Features j and j + Dh/2 as one complex number, turned by its angle."""
    half = len(x) // 2
    turned = [complex(x[j], x[j + half]) * cmath.exp(1j * n * base ** (-2 * j / len(x)) / scaling) for j in range(half)]
    return [z.real for z in turned] + [z.imag for z in turned]


@pytest.mark.parametrize(("base", "scaling"), [(10_000.0, 1.0), (500.0, 1.0), (10_000.0, 4.0)])
def test_rotary_is_multiplication_by_complex_numbers(base, scaling):
    X = draw(2, 3, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [7, 100_003, 0, 5]])
    Y = apply_rotary(X, Rotary(6, base, scaling).rotation(positions, torch.float64))
    for b in range(2):
        for h in range(3):
            for n in range(4):
                expected = by_complex_numbers(X[b, h, n].tolist(), int(positions[b, n]), base, scaling)
                assert Y[b, h, n].tolist() == pytest.approx(expected, abs=1e-9)


def test_rotary_scores_depend_on_the_difference_alone():
    part, q, k = Rotary(8), draw(1, 1, 1, 8, seed=1), draw(1, 1, 1, 8, seed=2)

    def score(n, m):
        return (apply_rotary(q, part.rotation(at(n), q.dtype)) * apply_rotary(k, part.rotation(at(m), k.dtype))).sum()

    for difference in (-40, -1, 0, 3, 999):
        scores = [score(m + difference, m) for m in (40, 41, 1000, 90_000)]
        torch.testing.assert_close(torch.stack(scores), scores[0].expand(4), atol=1e-9, rtol=0)
    assert abs(score(3, 0) - score(4, 0)) > 1e-3
    torch.testing.assert_close(score(5, 5), (q * k).sum())


def test_scaling_stretches_the_positions():
    stretched = Rotary(8, scaling=4.0).rotation(at(0, 4, 8, 400), torch.float64)
    for wide, narrow in zip(stretched, Rotary(8).rotation(at(0, 1, 2, 100), torch.float64), strict=True):
        torch.testing.assert_close(wide, narrow, atol=1e-12, rtol=0)


def test_rotary_is_exact_in_a_half_precision_model():
    """The one rounding is that of the result, at any position: angles and products are finer than bfloat16."""
    X = draw(1, 2, 4, 64).bfloat16()
    positions = at(3, 257, 4_099, 100_003)
    part = Rotary(64).bfloat16()
    Y = apply_rotary(X, part.rotation(positions, torch.bfloat16))
    exact = apply_rotary(X.double(), Rotary(64).rotation(positions, torch.float64))
    assert Y.dtype == torch.bfloat16
    half_a_step = exact.abs() * 2.0**-8
    assert ((Y.double() - exact).abs() <= half_a_step * 1.01 + 1e-6).all()


def test_rotary_keeps_lengths_and_starts_at_nothing():
    X, part = draw(1, 1, 3, 8), Rotary(8)
    Y = apply_rotary(X, part.rotation(at(0, 9, 12345), torch.float64))
    torch.testing.assert_close(Y.norm(dim=-1), X.norm(dim=-1))
    assert torch.equal(Y[:, :, 0], X[:, :, 0])


# Biases on the scores.


def test_relative_bias_looks_up_its_table():
    part = RelativeBias(3, 2)
    with torch.no_grad():
        part.table.copy_(draw(5, 3))
    queries, keys = torch.tensor([[0, 5, 9], [4, 4, 4]]), torch.tensor([[0, 1, 6, 9], [0, 3, 5, 100]])
    bias = part.bias(queries, keys)
    assert bias.shape == (2, 3, 3, 4)
    for b in range(2):
        for h in range(3):
            for n in range(3):
                for m in range(4):
                    offset = min(2, max(-2, int(queries[b, n] - keys[b, m])))
                    assert bias[b, h, n, m] == part.table[offset + 2, h]
    bias.sum().backward()
    assert part.table.grad.sum() == bias.numel()


def test_relative_bias_starts_at_nothing():
    assert not RelativeBias(2, 4).bias(at(0, 1), at(0, 1)).any()


def test_fixed_slopes_by_hand():
    part = ALiBi(4)
    assert part.slopes.tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert ALiBi(8).slopes.tolist() == [2.0**-h for h in range(1, 9)]
    bias = part.bias(at(0, 3), at(0, 1, 7))
    distances = torch.tensor([[0.0, 1, 7], [3, 2, 4]])
    expected = torch.stack([-slope * distances for slope in (1 / 4, 1 / 16, 1 / 64, 1 / 256)])
    assert torch.equal(bias, expected[None])
    assert not list(part.parameters())
    assert not part.state_dict()
    assert part.double().bias(at(0), at(0)).dtype == torch.float64


# Learned, and all of them.


def test_learned_positions_and_their_limit():
    part = Learned(4, 6).double()
    X, positions = draw(2, 3, 6), torch.tensor([[0, 3, 1], [2, 2, 0]])
    assert torch.equal(part.add(X, positions), X + part.table[positions])
    assert part.limit == 4
    with pytest.raises(ValueError, match=r"positions 2 … 4: there are learned positions for 0 … 3 only"):
        part.add(X, at(2, 3, 4))
    with pytest.raises(ValueError, match=r"positions -1 … 1"):
        part.add(X, at(-1, 0, 1))


def test_none_adds_nothing():
    part, X = Positions(), draw(1, 3, 4)
    assert part.add(X, at(0, 1, 2)) is X
    assert part.position_info(at(0, 1, 2)) == (None, None)


SETTINGS = {
    "none": {},
    "learned": {},
    "sinusoidal": {"base": 100.0},
    "rotary": {"base": 500.0, "scaling": 2.0},
    "relative-bias": {"reach": 5},
    "alibi": {},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_packed_documents_restart_by_their_positions(kind):
    """Whatever a part does at positions 0 1 2 0 1, it does the same at both zeros and at both ones."""
    part = make_positions({"kind": kind, **SETTINGS[kind]}, width=8, heads=2, limit=10).double()
    positions, same = at(0, 1, 2, 0, 1), torch.ones(1, 5, 8, dtype=torch.float64)
    X = part.add(same, positions)[0]
    assert torch.equal(X[:2], X[3:])
    position_info = part.position_info(positions, None, torch.float64)
    for table in position_info.rotation or ():
        assert torch.equal(table[:, :, :2], table[:, :, 3:])
    if position_info.bias is not None:
        assert torch.equal(position_info.bias[..., :2, :2], position_info.bias[..., 3:, 3:])
        assert torch.equal(position_info.bias[..., :2], position_info.bias[..., 3:])


def test_make_positions_makes_what_the_config_names():
    made = {kind: make_positions({"kind": kind, **more}, width=8, heads=2, limit=10) for kind, more in SETTINGS.items()}
    kinds = [Positions, Learned, Sinusoidal, Rotary, RelativeBias, ALiBi]
    assert [type(part) for part in made.values()] == kinds
    assert made["learned"].table.shape == (10, 8)
    assert (made["rotary"].head_dim, made["rotary"].base, made["rotary"].scaling) == (4, 500.0, 2.0)
    assert made["relative-bias"].table.shape == (11, 2)
    assert make_positions({"kind": "relative-bias"}, width=8, heads=2, limit=10).reach == 10
    assert [part.relative for part in made.values()] == [True, False, False, True, True, True]


def test_make_positions_leaves_the_config_alone_and_refuses_the_rest():
    spec = {"kind": "rotary", "base": 100.0}
    make_positions(spec, width=8, heads=2, limit=10)
    assert spec == {"kind": "rotary", "base": 100.0}
    for bad, message in (
        ({"kind": "rotarry"}, "no position part 'rotarry': there are none, learned, sinusoidal, sinusoidal-2d, rotary"),
        ({}, "no position part None"),
        ({"kind": "rotary", "bass": 1}, r"position part 'rotary' does not take \['bass'\]"),
        ({"kind": "learned", "limit": 1}, r"does not take \['limit'\]"),
        ({"kind": "none", "base": 1}, r"does not take \['base'\]"),
        ({"kind": "rotary", "base": -1.0}, "base > 0"),
        ({"kind": "rotary", "scaling": math.nan}, "scaling > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_positions(bad, width=8, heads=2, limit=10)
    with pytest.raises(ValueError, match="even width, not 7"):
        make_positions({"kind": "sinusoidal"}, width=7, heads=1, limit=10)
    with pytest.raises(ValueError, match="even number of features per head, not 3"):
        make_positions({"kind": "rotary"}, width=6, heads=2, limit=10)
