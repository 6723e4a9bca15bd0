"""Models of other libraries: GPT-2 of `transformers`, and `torch.nn.TransformerEncoder` with a causal mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def gpt2(vocab_size: int, N: int, D: int, H: int, L: int) -> Any:
    """Return GPT-2 of `transformers` with random weights, without dropout; other options are the defaults."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=N,
        n_embd=D,
        n_layer=L,
        n_head=H,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config)


class GPT2Logits(nn.Module):
    """GPT-2 from ids to logits, without a cache."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.model = gpt2(*sizes)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


class EncoderGPT(nn.Module):
    """torch's encoder between embeddings and a linear head."""

    def __init__(self, vocab_size: int, N: int, D: int, H: int, L: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, D), nn.Embedding(N, D)
        layer = nn.TransformerEncoderLayer(
            D, H, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, L, norm=nn.LayerNorm(D), enable_nested_tensor=False)
        self.head = nn.Linear(D, vocab_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(N))

    def forward(self, ids: Tensor) -> Tensor:
        X = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits: Tensor = self.head(self.encoder(X, mask=self.mask, is_causal=True))
        return logits


class LogitsTraining:
    """A fast training loop for a model from ids to logits: windows by one gather, fused AdamW, clipping, cosine."""

    def __init__(self, model: nn.Module, ids: Tensor, *, N: int = 64, batch: int = 32, steps: int = 900) -> None:
        self.model, self.ids, self.N, self.batch = model.train(), ids, N, batch
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.offsets = torch.arange(N + 1)

    def step(self) -> float:
        """Run one step; return its loss."""
        starts = torch.randint(len(self.ids) - self.N, (self.batch, 1))
        windows = self.ids[starts + self.offsets]
        logits = self.model(windows[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()
