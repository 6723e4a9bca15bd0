"""The kernels against their formulas in float64, with gradients, and against torch where it decides what is right."""

import math
from collections.abc import Iterator

import pytest
import torch
from held_kernels import (
    REAL,
    Formula,
    assert_equal_to,
    attention_formula,
    causal_attention,
    drawn,
    history,
    native,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tokenloom.kernels import functions as kernels
from tokenloom.kernels import loader, threads
from tokenloom.kernels.functions import linear_gelu, mlp, rms_norm
from tokenloom.nn.attention import attention, explicit_attention
from tokenloom.nn.masks import Causal, Padding, SlidingWindow
from tokenloom.nn.mlp import MLP, make_mlp
from tokenloom.nn.norms import RMSNorm


def gelu_formula(X: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x Φ(x), with Φ(x) = ½ erfc(−x/√2)."""
    Z = F.linear(X, W, b)
    return 0.5 * Z * torch.erfc(-Z / math.sqrt(2))


# GELU after a linear map.


@native
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 64, 16), (4, 100, 37), (130, 3, 8), (129, 9)])
@pytest.mark.parametrize("bias", [True, False])
def test_gelu_is_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    """Also for widths that are no multiple of eight, and for rows that are none of a piece of work."""
    X, W = drawn(*shape), drawn(11, shape[-1], seed=1)
    inputs = [X, W, drawn(11, seed=2)] if bias else [X, W]
    kernel: Formula = linear_gelu if bias else lambda X, W: linear_gelu(X, W, None)
    assert_equal_to(kernel, gelu_formula, inputs, drawn(*shape[:-1], 11, seed=3).detach(), 1e-6)


@native
def test_gelu_at_every_size_of_number() -> None:
    """To 1e-6 relative even where 1 + erf(x/√2) has no digit left: down to e^(−x²/2) near the smallest number."""
    x = torch.linspace(-12, 12, 20_001).reshape(-1, 1).requires_grad_()
    Y = linear_gelu(x, torch.ones(1, 1), None)
    assert Y is not None
    Y.sum().backward()
    wide = x.detach().double().requires_grad_()
    expected = gelu_formula(wide, torch.ones(1, 1, dtype=torch.float64))
    expected.sum().backward()
    near = x.detach().abs() < 5
    torch.testing.assert_close(Y.detach().double()[near], expected.detach()[near], rtol=1e-6, atol=0)
    torch.testing.assert_close(Y.detach().double(), expected.detach(), rtol=6e-6, atol=0)
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0, atol=3e-7)
    torch.testing.assert_close(Y.double(), F.gelu(wide), rtol=1e-6, atol=5e-7)


@native
def test_gelu_of_what_is_no_number() -> None:
    """As torch's GELU in float64: in float32, oneDNN's for AVX-512 makes not-a-number of +∞ (and errs by 1e-6)."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e30, -1e30, 1e-40]).reshape(-1, 1)
    one, two = x.clone().requires_grad_(), x.double().requires_grad_()
    Y, expected = linear_gelu(one, torch.ones(1, 1), None), F.gelu(two)
    assert Y is not None
    torch.testing.assert_close(Y, expected.float(), equal_nan=True)
    grads = [torch.autograd.grad(y.sum(), x)[0].float() for y, x in ((Y, one), (expected, two))]
    torch.testing.assert_close(*grads, equal_nan=True)


# The MLP.


def mlp_formula(squared: bool, biases: bool) -> Formula:
    def formula(X: Tensor, W_in: Tensor, W_out: Tensor, *b: Tensor) -> Tensor:
        b_in, b_out = b if biases else (None, None)
        H = F.linear(X, W_in, b_in).relu().square() if squared else gelu_formula(X, W_in, b_in)
        return F.linear(H, W_out, b_out)

    return formula


@native
@pytest.mark.parametrize("shape", [(1, 16), (2, 3, 48), (96, 32), (7, 28, 64), (5, 200, 16), (101, 192)])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_mlp_is_its_formula(shape: tuple[int, ...], squared: bool, biases: bool) -> None:
    """Of one row, of rows that are none of a block, of more blocks than there are groups of sums."""
    D, hidden = shape[-1], 80
    scale = D**-0.5
    inputs = [drawn(*shape), drawn(hidden, D, seed=1, scale=scale), drawn(D, hidden, seed=2, scale=0.1)]
    inputs += [drawn(hidden, seed=3), drawn(D, seed=4)] if biases else []

    def kernel(X: Tensor, W_in: Tensor, W_out: Tensor, *b: Tensor) -> Tensor | None:
        b_in, b_out = b if biases else (None, None)
        return mlp(X, W_in, b_in, W_out, b_out, squared)

    assert_equal_to(kernel, mlp_formula(squared, biases), inputs, drawn(*shape, seed=5).detach(), 2e-6)


@native
@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_mlp_as_a_part_of_a_model(activation: str) -> None:
    """What lies anywhere in memory, a second derivative, and what is no number, as without the kernel."""
    part = MLP(16, 32, activation)
    X = drawn(4, 16, 6).detach().transpose(1, 2).requires_grad_()

    def found() -> list[Tensor]:
        Y = part(X)
        (dX,) = torch.autograd.grad(Y.square().sum(), X, create_graph=True)
        return [Y, dX, *torch.autograd.grad(dX.square().sum(), [X, *part.parameters()])]

    with_kernel = found()
    assert "MLP" in type(part(X).grad_fn).__name__
    with loader.disabled():
        expected = found()
        assert "MLP" not in type(part(X).grad_fn).__name__
    for got, want in zip(with_kernel, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.detach().abs().max()))
    broken = torch.full((2, 16), math.nan).requires_grad_()
    assert part(broken).isnan().all()


@native
def test_mlp_of_which_a_part_is_frozen_or_listened_to() -> None:
    """A map that is not trained costs no gradient; hooks at a map see what goes through it."""
    X, part = drawn(3, 16), MLP(16, 32)
    part.W_in.weight.requires_grad_(False)
    assert "MLP" not in type(part(X).grad_fn).__name__
    part.requires_grad_(True)
    seen: list[torch.Size] = []
    handle = part.W_out.register_forward_hook(lambda map, given, Y: seen.append(given[0].shape))
    part(X)
    handle.remove()
    part(X)
    assert seen == [(3, 32)]


# RMSNorm.


def rms_formula(X: Tensor, w: Tensor | None = None) -> Tensor:
    Y = X / (X.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return Y if w is None else w * Y


@native
@pytest.mark.parametrize("shape", [(1, 8), (3, 5, 24), (2, 70, 4, 16), (129, 64)])
@pytest.mark.parametrize("learned", [True, False])
def test_rms_norm_is_its_formula(shape: tuple[int, ...], learned: bool) -> None:
    X = drawn(*shape, scale=3)
    inputs = [X, drawn(shape[-1], seed=1)] if learned else [X]

    def kernel(X: Tensor, w: Tensor | None = None) -> Tensor | None:
        return rms_norm(X, w, 1e-6)

    assert_equal_to(kernel, rms_formula, inputs, drawn(*shape, seed=2).detach(), 2e-6)


@native
def test_rms_norm_as_a_part_of_a_model() -> None:
    """What lies anywhere in memory, rows of zeros, a second derivative, and no numbers: as without the kernel."""
    part = RMSNorm(8)
    X = drawn(4, 8, 6).detach().transpose(1, 2)
    X[0] = 0
    X.requires_grad_()

    def found() -> list[Tensor]:
        (dX,) = torch.autograd.grad(part(X).pow(3).sum(), X, create_graph=True)
        return [part(X), dX, *torch.autograd.grad(dX.square().sum(), [X, *part.parameters()])]

    with_kernel = found()
    assert "RMSNorm" in type(part(X).grad_fn).__name__
    with loader.disabled():
        expected = found()
    for got, want in zip(with_kernel, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.detach().abs().max()))
    broken = torch.tensor([[math.nan] * 8, [1.0] * 8]).requires_grad_()
    assert part(broken).isnan().all(-1).tolist() == [True, False]


# Where torch does the work.


@pytest.fixture
def small() -> list[Tensor]:
    return [drawn(1, 2, 10, 8, seed=s) for s in range(3)]


def refused(inputs: list[Tensor]) -> bool:
    Q, K, V = inputs
    return causal_attention(Q, K, V) is None and linear_gelu(Q, K.flatten(0, 2)[:5], None) is None


@native
def test_torch_does_what_is_not_for_a_kernel(small: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not refused(small)
    with torch.no_grad():
        assert refused(small)
    assert refused([x.detach() for x in small])
    assert refused([x.double() for x in small])
    assert refused([x.bfloat16() for x in small])
    assert refused([x.to("meta") for x in small])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert refused(small)
    with FlopCounterMode(display=False):
        assert refused(small)
    with loader.disabled():
        assert refused(small)
    with monkeypatch.context() as patched:
        patched.setenv(loader.VARIABLE, "0")
        assert refused(small)
    with monkeypatch.context() as patched:
        patched.setattr(threads, "entry", lambda: 0)
        assert not refused(small), "one thread needs no runtime"
        patched.setattr(torch, "get_num_threads", lambda: 2)
        assert refused(small)
    assert causal_attention(*(drawn(1, 1, 4, 12, seed=s) for s in range(3))) is None, "a width that is not made"
    assert causal_attention(*(drawn(1, 1, kernels.MAX_TOKENS + 1, 8, seed=s) for s in range(3))) is None
    assert causal_attention(drawn(1, 1, 3, 8), drawn(1, 1, 4, 8), drawn(1, 1, 4, 8)) is None
    assert causal_attention(*(drawn(0, 1, 4, 8, seed=s) for s in range(3))) is None
    long = [drawn(1, 1, kernels.MAX_UNMASKED + 1, 16, seed=s) for s in range(3)]
    assert kernels.attention(*long) is None
    assert kernels.attention(*long, real=torch.ones(1, kernels.MAX_UNMASKED + 1).bool()) is not None
    for mask in (Causal() & SlidingWindow(3), Causal() & Causal() & Padding(REAL[:1])):
        assert "_AttentionBackward" not in history(attention(*small, mask))
    assert linear_gelu(drawn(0, 4), drawn(3, 4), None) is None
    for rows, D, hidden in ((0, 16, 16), (3, 8, 16), (3, 16, 24), (3, kernels.MAX_MLP_WIDTH + 16, 16)):
        assert mlp(drawn(rows, D), drawn(hidden, D), None, drawn(D, hidden), None, False) is None
    assert rms_norm(drawn(3, 12), None, 1e-6) is None
    assert rms_norm(drawn(0, 8), None, 1e-6) is None


@native
def test_transforms_see_through() -> None:
    """torch.func and torch.compile get operations that they know."""
    part = MLP(16, 32)
    inputs = [drawn(2, 2, 6, 16, seed=s).detach() for s in range(3)]

    def both(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return part(attention(Q, K, V, Causal())).square().sum()

    found = torch.func.grad(both)(*inputs)
    asked = inputs[0].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(both(asked, *inputs[1:]), asked)[0], found, rtol=1e-4, atol=1e-5)


@native
@pytest.mark.parametrize("what", ["gelu", "attention", "padded attention"])
def test_second_derivatives(what: str) -> None:
    """A gradient that is to be differentiated again is made of torch's operations."""
    inputs = [drawn(5, 8), drawn(3, 8, seed=1)] if what == "gelu" else [drawn(3, 2, 10, 8, seed=s) for s in range(3)]
    kernel, formula = {
        "gelu": (lambda X, W: linear_gelu(X, W, None), gelu_formula),
        "attention": (causal_attention, attention_formula),
        "padded attention": (
            lambda *x: kernels.attention(*x, real=REAL),
            lambda *x: explicit_attention(*x, Padding(REAL))[0],
        ),
    }[what]
    seconds = []
    for function in (kernel, formula):
        first = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        seconds.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for got, want in zip(*seconds, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@native
def test_a_gradient_that_nobody_wants_is_not_made() -> None:
    X, W, b = drawn(6, 8).detach(), drawn(3, 8, seed=1), drawn(3, seed=2).detach()
    Y = linear_gelu(X, W, b)
    assert Y is not None
    (found,) = torch.autograd.grad(Y.sum(), W)
    (expected,) = torch.autograd.grad(gelu_formula(X, W, b).sum(), W)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# The same numbers each time.


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def trained_numbers() -> list[Tensor]:
    """All that attention and GELU give for inputs of a middle size."""
    Q, K, V = (drawn(3, 4, 70, 16, seed=s) for s in range(3))
    X, W, b = drawn(500, 24, seed=3), drawn(40, 24, seed=4), drawn(40, seed=5)
    Y, Z = causal_attention(Q, K, V), linear_gelu(X, W, b)
    assert Y is not None
    assert Z is not None
    return [Y, Z, *torch.autograd.grad(Y.square().sum() + Z.square().sum(), [Q, K, V, b])]


def trained_mlp() -> list[Tensor]:
    """The same of the MLP's, which does all its products by itself: 11 blocks in 8 groups; and of a norm's."""
    inputs = [drawn(1000, 32), drawn(48, 32, seed=1), drawn(48, seed=2), drawn(32, 48, seed=3), drawn(32, seed=4)]
    Y = mlp(*inputs, squared=False)
    assert Y is not None
    Z = rms_norm(inputs[0], inputs[-1], 1e-6)
    assert Z is not None
    return [Y, Z, *torch.autograd.grad(Y.square().sum() + Z.pow(3).sum(), inputs)]


@native
@pytest.mark.skipif(threads.entry() == 0, reason="no OpenMP runtime to share")
def test_any_number_of_threads_gives_the_same_bits(request: pytest.FixtureRequest) -> None:
    alone, alone_mlp = trained_numbers(), trained_mlp()
    assert all(map(torch.equal, alone, trained_numbers()))
    request.getfixturevalue("two_threads")
    assert all(map(torch.equal, alone_mlp, trained_mlp()))
    # The products of torch may differ between threads in their last bits; those of the kernels do not.
    again = trained_numbers()
    assert all(map(torch.equal, [alone[0], *alone[2:5]], [again[0], *again[2:5]]))
    torch.testing.assert_close(alone[1], again[1])
    torch.testing.assert_close(alone[5], again[5], rtol=1e-5, atol=1e-5)


# In the modules that use them.


@native
def test_an_mlp_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    part, X = make_mlp({"kind": "plain", "activation": "gelu"}, 24), drawn(2, 9, 24)
    results = []
    for off in (False, True):
        with monkeypatch.context() as patched:
            if off:
                patched.setenv(loader.VARIABLE, "0")
            Y = part(X)
            assert ("LinearGelu" in str(history(Y))) != off
            results.append([Y, *torch.autograd.grad(Y.square().sum(), [X, *part.parameters()])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_an_mlp_that_is_listened_to_or_adapted_calls_its_map() -> None:
    part, X = MLP(8, 16), drawn(3, 8)
    seen: list[Tensor] = []
    handle = part.W_in.register_forward_hook(lambda module, inputs, output: seen.append(output))
    part(X)
    assert len(seen) == 1
    handle.remove()
    part.W_in = nn.Sequential(part.W_in)  # type: ignore[assignment]
    assert part(X).shape == (3, 8)
