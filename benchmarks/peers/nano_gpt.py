"""The model and training loop of nanoGPT (Karpathy 2022), written for this comparison.

One projection for queries, keys and values, torch's fused attention, GELU, no biases, tied embeddings; AdamW with
weight decay for matrices only; one slice per window, and clipping.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    """Attention and an MLP, pre-norm."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.before_attention, self.before_mlp = nn.LayerNorm(D, bias=False), nn.LayerNorm(D, bias=False)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        self.activation = nn.GELU()

    def forward(self, X: Tensor) -> Tensor:
        B, N, D = X.shape
        parts = self.qkv(self.before_attention(X)).split(D, dim=2)
        Q, K, V = (part.view(B, N, self.H, D // self.H).transpose(1, 2) for part in parts)
        Y = scaled_dot_product_attention(Q, K, V, is_causal=True)
        X = X + self.out(Y.transpose(1, 2).contiguous().view(B, N, D))
        Z: Tensor = X + self.down(self.activation(self.up(self.before_mlp(X))))
        return Z


class NanoGPT(nn.Module):
    """A decoder that returns its loss."""

    def __init__(self, vocab_size: int, N: int, D: int, H: int, L: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, D), nn.Embedding(N, D)
        self.blocks = nn.ModuleList([Block(D, H) for _ in range(L)])
        self.norm = nn.LayerNorm(D, bias=False)
        self.head = nn.Linear(D, vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * L) if last else 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        X = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            X = block(X)
        logits = self.head(self.norm(X))
        return cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)


class NanoTraining:
    """Training on a text of 16-bit ids."""

    def __init__(
        self, ids: NDArray[np.uint16], vocab_size: int, *, N: int = 64, batch: int = 32, steps: int = 900
    ) -> None:
        torch.manual_seed(0)
        self.ids, self.N, self.batch, self.steps, self.done = ids, N, batch, steps, 0
        self.model = NanoGPT(vocab_size, N, 64, 4, 2).train()
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        rest = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)

    def windows(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.ids) - self.N, (self.batch,))
        X = torch.stack([torch.from_numpy(self.ids[s : s + self.N].astype(np.int64)) for s in starts])
        Y = torch.stack([torch.from_numpy(self.ids[s + 1 : s + 1 + self.N].astype(np.int64)) for s in starts])
        return X, Y

    def step(self) -> None:
        """Run one step."""
        s = self.done
        factor = (s + 1) / 100 if s < 100 else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - 100) / (self.steps - 100)))
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * factor
        X, Y = self.windows()
        self.model(X, Y).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
