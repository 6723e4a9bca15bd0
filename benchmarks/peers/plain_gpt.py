"""The plain implementation: a GPT written formula by formula.

Explicit N × N attention with a mask; W_q, W_k, W_v and W_o are matrices multiplied from the right; one slice of the
text per window. With the draws in the same order, it reproduces the published losses of lab row 3.4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.W_q = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_k = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_v = nn.Parameter(torch.randn(D, D) / math.sqrt(D))
        self.W_o = nn.Parameter(torch.randn(D, D) / math.sqrt(D))

    def forward(self, X: Tensor) -> Tensor:
        B, N, D = X.shape
        Q, K, V = ((X @ W).view(B, N, self.H, D // self.H).transpose(1, 2) for W in (self.W_q, self.W_k, self.W_v))
        scores = Q @ K.transpose(-2, -1) / math.sqrt(D // self.H)
        future = torch.triu(torch.ones(N, N, dtype=torch.bool), diagonal=1)
        A = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return (A @ V).transpose(1, 2).reshape(B, N, D) @ self.W_o


class Layer(nn.Module):
    """Attention and an MLP with 4 D hidden units, pre-norm."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.attention = Attention(D, H)
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, X: Tensor) -> Tensor:
        X = X + self.attention(self.norm1(X))
        Y: Tensor = X + self.mlp(self.norm2(X))
        return Y


class PlainGPT(nn.Module):
    """Token embedding + learned positions → layers → norm → linear head."""

    def __init__(self, vocab_size: int, N: int, D: int, H: int, L: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, D)
        self.positions = nn.Parameter(0.02 * torch.randn(N, D))
        self.layers = nn.ModuleList([Layer(D, H) for _ in range(L)])
        self.norm = nn.LayerNorm(D)
        self.output = nn.Linear(D, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, N, vocab)."""
        X = self.table(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            X = layer(X)
        logits: Tensor = self.output(self.norm(X))
        return logits


class PlainTraining:
    """AdamW on all parameters, 100 steps of warm-up, then cosine decay; no clipping.

    ids: the text. seed: of the initialization; windows are drawn from a generator of seed 0.
    """

    def __init__(self, ids: Tensor, vocab_size: int, *, N: int = 64, batch: int = 32, steps: int = 900, seed: int = 12):
        torch.manual_seed(seed)
        self.model = PlainGPT(vocab_size, N, 64, 4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-3, weight_decay=0.01)
        self.generator = torch.Generator().manual_seed(0)
        self.ids, self.N, self.batch, self.steps, self.done = ids, N, batch, steps, 0

    def windows(self) -> tuple[Tensor, Tensor]:
        """Return random windows and their targets, shifted by one: (B, N) each."""
        starts = torch.randint(len(self.ids) - self.N - 1, (self.batch,), generator=self.generator)
        X = torch.stack([self.ids[s : s + self.N] for s in starts])
        Y = torch.stack([self.ids[s + 1 : s + self.N + 1] for s in starts])
        return X, Y

    def step(self) -> float:
        """Run one training step; return its loss."""
        s = self.done
        factor = (s + 1) / 100 if s < 100 else 0.5 * (1 + math.cos(math.pi * (s - 100) / (self.steps - 100)))
        for group in self.optimizer.param_groups:
            group["lr"] = 6e-3 * factor
        X, Y = self.windows()
        loss = cross_entropy(self.model(X).flatten(0, 1), Y.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.done += 1
        return loss.item()
