"""Muon against the formula in float64, and against torch's own within the coarseness of bfloat16."""

import math

import pytest
import torch
from torch import Tensor, nn

from tokenloom.training.muon import QUINTIC, Muon, orthogonalize

SHAPES = [(8, 8), (12, 8), (7, 16), (8, 40), (40, 8), (1, 5), (5, 1), (1, 1)]


def matrices(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    chance = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=chance, dtype=torch.float64).to(dtype) for shape in SHAPES * 2]


def by_the_formula(G: Tensor) -> Tensor:
    """Five steps of X ← a X + b A X + c A² X, A = X Xᵀ, one matrix at a time."""
    a, b, c = QUINTIC
    X = (G.T if G.shape[0] > G.shape[1] else G) / G.norm()
    for _ in range(5):
        A = X @ X.T
        X = a * X + b * A @ X + c * A @ A @ X
    return X.T if G.shape[0] > G.shape[1] else X


def test_every_matrix_becomes_what_the_formula_says() -> None:
    for given, found in zip(matrices(), orthogonalize(matrices()), strict=True):
        torch.testing.assert_close(found, by_the_formula(given), rtol=0, atol=1e-9)
        values = torch.linalg.svdvals(found)
        assert 0.6 < float(values.min()) <= float(values.max()) < 1.3


def test_float32_is_close_to_float64() -> None:
    for given, found in zip(matrices(), orthogonalize(matrices(torch.float32)), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), by_the_formula(given), rtol=0, atol=2e-4)


def test_a_matrix_gets_the_same_alone_and_among_others() -> None:
    together = orthogonalize(matrices())
    for given, found in zip(matrices(), together, strict=True):
        torch.testing.assert_close(orthogonalize([given])[0], found, rtol=0, atol=1e-12)


def test_zeros_stay_zeros_and_nothing_is_nothing() -> None:
    assert bool((orthogonalize([torch.zeros(3, 4)])[0] == 0).all())
    assert orthogonalize([]) == []


def test_two_steps_are_the_formula() -> None:
    start = matrices()[:4]
    parameters = [nn.Parameter(W.clone()) for W in start]
    still = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = Muon([*parameters, still], 0.1, weight_decay=0.2, momentum=0.9)
    momenta = [torch.zeros_like(W) for W in start]
    expected = [W.clone() for W in start]
    for step in range(2):
        for number, p in enumerate(parameters):
            G = matrices()[4 + number].reshape(-1)[: p.numel()]
            G = torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (step + 1) + number).reshape(p.shape)
            p.grad = G.clone()
            momenta[number] = 0.9 * momenta[number] + 0.1 * G
            direction = by_the_formula(0.1 * G + 0.9 * momenta[number])
            scale = math.sqrt(max(1, p.shape[0] / p.shape[1]))
            expected[number] = (1 - 0.1 * 0.2) * expected[number] - 0.1 * scale * direction
        optimizer.step()
    for p, W in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.detach(), W, rtol=0, atol=1e-9)
    assert bool((still == 1).all()), "no gradient, no step"


def test_it_is_torchs_own_within_the_coarseness_of_bfloat16() -> None:
    ours, theirs = ([nn.Parameter(W.clone()) for W in matrices(torch.float32)[:5]] for _ in range(2))
    optimizers = Muon(ours, 0.05, weight_decay=0.1), torch.optim.Muon(theirs, 0.05, weight_decay=0.1)
    for seed in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0.01)


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is for matrices, not for a parameter of shape \(3,\)"):
        Muon([nn.Parameter(torch.zeros(3))], 0.1)
