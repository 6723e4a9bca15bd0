"""Recurrent layers.

A layer maps X (B, N, inputs) and a state (S, B, M) to the outputs Y (B, N, M) and the state after the last token. S is
1, or 2 for the LSTM, which has a cell state c beside its output h. The initial state is zero.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Elman(nn.Module):
    """z_n = tanh(x_n W_zx + z_{n−1} W_zz + b_z), y_n = z_n. (Elman 1990, "Finding structure in time".)"""

    parts = 1

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.W_zx = nn.Linear(inputs, width, bias=False)
        self.W_zz = nn.Linear(width, width)

    def forward(self, X: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Y (B, N, M), and the state (1, B, M) after the last token."""
        z, outputs = state[0], []
        for x in self.W_zx(X).unbind(1):
            z = torch.tanh(x + self.W_zz(z))
            outputs.append(z)
        return torch.stack(outputs, 1), z[None]


class LSTM(nn.Module):
    """Gates i, f, o = σ(·) and g = tanh(·) of (x_n, h_{n−1}); c_n = f c_{n−1} + i g, h_n = o tanh(c_n); torch's cell.

    Hochreiter & Schmidhuber 1997, "Long short-term memory"; the forget gate is that of Gers et al. 2000.
    """

    parts = 2

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, X: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Y (B, N, M), and the state (2, B, M) after the last token: h and c."""
        Y, (h, c) = self.cell(X, (state[:1].contiguous(), state[1:].contiguous()))
        return Y, torch.cat((h, c))


class GRU(nn.Module):
    """r, u = σ(·) of (x_n, h_{n−1}); h_n = u h_{n−1} + (1 − u) tanh(x_n W + r (h_{n−1} U + b)); torch's cell.

    Cho et al. 2014, "Learning phrase representations using RNN encoder–decoder for statistical machine translation".
    """

    parts = 1

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.GRU(inputs, width, batch_first=True)

    def forward(self, X: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Y (B, N, M), and the state (1, B, M) after the last token."""
        Y, h = self.cell(X, state.contiguous())
        return Y, h


Recurrent = Elman | LSTM | GRU
CELLS: dict[str, type[Elman] | type[LSTM] | type[GRU]] = {"rnn": Elman, "lstm": LSTM, "gru": GRU}


def initial_state(layer: Recurrent, like: Tensor) -> Tensor:
    """Return zeros (S, B, M) for the rows of X (B, N, inputs)."""
    return like.new_zeros(layer.parts, len(like), layer.width)


def run_segments(layer: Recurrent, X: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the layer to X, with its state set to zero before each token where `starts` (B, N) is true."""
    cuts = [0, *(starts[:, 1:].any(0).nonzero()[:, 0] + 1).tolist(), X.shape[1]]
    outputs = []
    for first, last in pairwise(cuts):
        state = state.masked_fill(starts[:, first, None], 0.0)
        Y, state = layer(X[:, first:last], state)
        outputs.append(Y)
    return torch.cat(outputs, 1), state


def run_counted(layer: Recurrent, X: Tensor, state: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the layer to X, of which row b has counts[b] tokens, 1 … N; the state is that after the last of them."""
    outputs, first = [], 0
    for last in sorted({*counts.tolist(), X.shape[1]}):
        Y, after = layer(X[:, first:last], state)
        state = torch.where((counts > first)[:, None], after, state)
        outputs.append(Y)
        first = last
    return torch.cat(outputs, 1), state


def gradients_through_time(layer: Recurrent, X: Tensor, error: Tensor) -> Tensor:
    """Return the norms (N,) of dE/dz_n for E = error · z_N, backpropagated from the end.

    X: (N, inputs), one row. error: (S · M,), a linear error of the last state. The product of Jacobians in it is what
    vanishes or explodes. (Bengio et al. 1994, "Learning long-term dependencies with gradient descent is difficult".)
    """
    state = initial_state(layer, X[None])
    states = []
    for x in X:
        _, state = layer(x[None, None], state)
        state.retain_grad()
        states.append(state)
    (error * state.flatten()).sum().backward()  # type: ignore[no-untyped-call]
    norms = [torch.zeros(()) if z.grad is None else z.grad.norm() for z in states]
    layer.zero_grad()
    return torch.stack(norms)
