"""The kernel behind Muon against its formula in float64."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tokenloom.kernels import functions as kernels
from tokenloom.kernels import loader, threads
from tokenloom.training.muon import QUINTIC, STEPS, newton_schulz

pytestmark = pytest.mark.skipif(
    bool(loader.unavailable_reason("newton_schulz")), reason=loader.unavailable_reason("newton_schulz")
)

# Square and wide ones, whole panels of 16 and not, a single number.
SHAPES = [(1, 1, 1), (3, 5, 5), (5, 17, 23), (2, 13, 200), (4, 32, 64), (1, 48, 47 + 48), (2, 96, 96), (2, 100, 300)]


def drawn(*shape: int) -> Tensor:
    X = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return X / X.norm(dim=(1, 2), keepdim=True)


def by_the_formula(X: Tensor) -> Tensor:
    a, b, c = QUINTIC
    X = X.double()
    for _ in range(STEPS):
        A = X @ X.mT
        X = a * X + b * A @ X + c * A @ A @ X
    return X


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_formula(shape: tuple[int, int, int]) -> None:
    X = drawn(*shape)
    before = X.clone()
    found = kernels.newton_schulz(X, QUINTIC, STEPS)
    assert found is not None
    assert torch.equal(X, before), "what is given stays"
    # Rounding of 1e-7 grows by 3.4 a step where singular values are small: 5 steps, 1.6e-5 relative to the largest.
    torch.testing.assert_close(found.double(), by_the_formula(X), rtol=0, atol=2e-5)
    turned = kernels.newton_schulz(X.mT.contiguous().mT, QUINTIC, STEPS)
    assert turned is not None
    assert torch.equal(turned, found), "wherever the numbers lie"


def test_rows_that_are_alike_or_empty_stay_so() -> None:
    """A matrix of rank one keeps it, and rows of zeros are not filled."""
    X = torch.zeros(1, 4, 40)
    X[:, :2] = 0.1
    found = kernels.newton_schulz(X, QUINTIC, STEPS)
    assert found is not None
    assert bool((found[:, 2:] == 0).all())
    torch.testing.assert_close(found[:, 0], found[:, 1])
    torch.testing.assert_close(found.double(), by_the_formula(X), rtol=0, atol=2e-5)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.skipif(threads.entry() == 0, reason="no OpenMP runtime to share")
def test_any_number_of_threads_gives_the_same_bits(request: pytest.FixtureRequest) -> None:
    alone = kernels.newton_schulz(drawn(5, 40, 90), QUINTIC, STEPS)
    request.getfixturevalue("two_threads")
    together = kernels.newton_schulz(drawn(5, 40, 90), QUINTIC, STEPS)
    assert alone is not None
    assert together is not None
    assert torch.equal(alone, together)


def test_torch_does_what_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.newton_schulz(drawn(1, 4, 4).double(), QUINTIC, STEPS) is None
    assert kernels.newton_schulz(torch.zeros(0, 4, 4), QUINTIC, STEPS) is None
    large = drawn(1, kernels.MAX_ROWS + 1, kernels.MAX_ROWS + 1)
    assert kernels.newton_schulz(large, QUINTIC, STEPS) is None
    torch.testing.assert_close(newton_schulz(large).double(), by_the_formula(large), rtol=0, atol=2e-5)
    with FlopCounterMode(display=False):
        assert kernels.newton_schulz(drawn(1, 4, 4), QUINTIC, STEPS) is None
    with monkeypatch.context() as patched:
        patched.setenv(loader.VARIABLE, "0")
        assert kernels.newton_schulz(drawn(1, 4, 4), QUINTIC, STEPS) is None
