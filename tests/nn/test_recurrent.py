"""Recurrent layers against torch's own, against the formulas written out, and against published gradients."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from tokenloom.nn.recurrent import (
    CELLS,
    GRU,
    LSTM,
    Elman,
    gradients_through_time,
    initial_state,
    run_counted,
    run_segments,
)

D, M, B, N = 3, 5, 4, 7


def layer_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    return CELLS[kind](D, M).double()


def inputs() -> torch.Tensor:
    return torch.randn(B, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_the_elman_cell_is_torchs() -> None:
    ours = layer_of("rnn")
    theirs = nn.RNN(D, M, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.W_zx.weight)
        theirs.weight_hh_l0.copy_(ours.W_zz.weight)
        theirs.bias_ih_l0.copy_(ours.W_zz.bias)
        theirs.bias_hh_l0.zero_()
    state = torch.randn(1, B, M, dtype=torch.float64)
    for mine, other in zip(ours(inputs(), state), theirs(inputs(), state), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_the_lstm_is_its_formula() -> None:
    layer = layer_of("lstm")
    assert isinstance(layer, LSTM)
    W, U, b = layer.cell.weight_ih_l0, layer.cell.weight_hh_l0, layer.cell.bias_ih_l0 + layer.cell.bias_hh_l0
    h, c = torch.randn(2, B, M, dtype=torch.float64)
    Y, state = layer(inputs(), torch.stack((h, c)))
    for n in range(N):
        i, f, g, o = (inputs()[:, n] @ W.T + h @ U.T + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(Y[:, n], h, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, torch.stack((h, c)), rtol=0, atol=1e-12)


def test_the_gru_is_its_formula() -> None:
    layer = layer_of("gru")
    assert isinstance(layer, GRU)
    W, U = layer.cell.weight_ih_l0, layer.cell.weight_hh_l0
    b, d = layer.cell.bias_ih_l0, layer.cell.bias_hh_l0
    h = torch.randn(B, M, dtype=torch.float64)
    Y, state = layer(inputs(), h[None])
    for n in range(N):
        from_x, from_h = (inputs()[:, n] @ W.T + b).chunk(3, -1), (h @ U.T + d).chunk(3, -1)
        r, u = ((from_x[k] + from_h[k]).sigmoid() for k in (0, 1))
        h = u * h + (1 - u) * torch.tanh(from_x[2] + r * from_h[2])
        torch.testing.assert_close(Y[:, n], h, rtol=0, atol=1e-12)
    torch.testing.assert_close(state[0], h, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CELLS)
def test_a_text_in_two_parts_with_the_state_carried_is_the_text(kind: str) -> None:
    layer, X = layer_of(kind), inputs()
    whole, last = layer(X, initial_state(layer, X))
    first, state = layer(X[:, :3], initial_state(layer, X))
    second, after = layer(X[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CELLS)
def test_a_document_that_begins_inside_a_row_knows_nothing_of_what_stood_before(kind: str) -> None:
    layer, X = layer_of(kind), inputs()
    starts = torch.zeros(B, N, dtype=torch.bool)
    starts[0, 2] = starts[1, 5] = starts[3, 0] = True
    given = torch.randn(layer.parts, B, M, dtype=torch.float64)
    Y, _ = run_segments(layer, X, given, starts)
    for row, cuts in enumerate(([0, 2, N], [0, 5, N], [0, N], [0, N])):
        state = given[:, row : row + 1] if row != 3 else initial_state(layer, X[:1])
        for first, last in pairwise(cuts):
            alone, _ = layer(X[row : row + 1, first:last], state)
            torch.testing.assert_close(Y[row, first:last], alone[0], rtol=0, atol=1e-12)
            state = initial_state(layer, X[:1])


@pytest.mark.parametrize("kind", CELLS)
def test_rows_of_different_lengths_have_the_state_of_their_last_token(kind: str) -> None:
    layer, X = layer_of(kind), inputs()
    counts = torch.tensor([3, 7, 1, 3])
    Y, state = run_counted(layer, X, initial_state(layer, X), counts)
    for row, count in enumerate(counts.tolist()):
        alone, after = layer(X[row : row + 1, :count], initial_state(layer, X[:1]))
        torch.testing.assert_close(Y[row, :count], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(state[:, row], after[:, 0], rtol=0, atol=1e-12)


WIDTH, LENGTH = 64, 60


def drawn(gain: float) -> tuple[Elman, torch.Tensor, torch.Tensor]:
    """A tanh network whose recurrent matrix is gain × a random orthogonal one; inputs and a linear error."""
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))
    X = 0.5 * torch.randn(LENGTH, WIDTH, generator=generator)
    error = torch.randn(WIDTH, generator=generator)
    layer = Elman(WIDTH, WIDTH)
    with torch.no_grad():
        layer.W_zx.weight.copy_(torch.eye(WIDTH))
        layer.W_zz.weight.copy_(gain * Q.T)
        layer.W_zz.bias.zero_()
    return layer, X, error


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (0.5, [9.08, 1.20e-3, 2.38e-11, 1.50e-22]),
        (1.0, [9.08, 0.506, 1.47e-3, 4.18e-7]),
        (1.5, [9.08, 7.46, 2.42, 1.31]),
    ],
)
def test_gradients_through_time_to_the_printed_digits(gain: float, expected: list[float]) -> None:
    """Reference 2.10: at the last token, and 10, 30 and 59 before it."""
    norms = gradients_through_time(*drawn(gain))
    found = [float(norms[LENGTH - 1 - back]) for back in (0, 10, 30, 59)]
    assert [f"{value:.3g}" for value in found] == [f"{value:.3g}" for value in expected]
    for back in (10, 30, 59):
        # No factor of the product is larger than the largest singular value, since tanh′ ≤ 1.
        assert norms[LENGTH - 1 - back] <= norms[-1] * gain**back * 1.001


def test_a_large_gain_explodes() -> None:
    norms = gradients_through_time(*drawn(3.0))
    assert 1e5 < norms[0] < 1e8


@pytest.mark.parametrize(("kind", "gate"), [("lstm", slice(WIDTH, 2 * WIDTH)), ("gru", slice(WIDTH, 2 * WIDTH))])
def test_a_gate_near_one_keeps_gradients_alive(kind: str, gate: slice) -> None:
    """Where the tanh network with the same gain loses all by a factor of 10²², a gate that keeps loses little."""
    _, X, _ = drawn(0.5)
    torch.manual_seed(0)
    layer = CELLS[kind](WIDTH, WIDTH)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(0.5)
        layer.cell.bias_ih_l0[gate] = 6.0
    error = torch.randn(layer.parts * WIDTH, generator=torch.Generator().manual_seed(1))
    norms = gradients_through_time(layer, X, error)
    assert 0.1 < norms[0] / norms[-1] < 10
