"""Multinomial naive Bayes: a text is a bag of tokens, independent given its class.

Manning, Raghavan & Schütze 2008, "Introduction to Information Retrieval", section 13.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.models.batch import Batch
from tokenloom.nn.hooks import Hooks


class NaiveBayes(nn.Module):
    """log p(c) + Σ_n log p(w_n | c), with p(w | c) = (count of w in c + α) / Σ_v (count of v in c + α).

    Raw counts are stored, so that α can be chosen afterwards; computed with logarithms in float64.
    Buffers: `counts` (classes, vocab) and `texts` (classes,), float64; `alpha` (). A token that occurs in no class is
    ignored, and is not in the sum over v.
    """

    counts: Tensor
    texts: Tensor
    alpha: Tensor

    def __init__(self, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(outputs, vocab_size, dtype=torch.float64))
        self.register_buffer("texts", torch.ones(outputs, dtype=torch.float64))
        self.register_buffer("alpha", torch.ones((), dtype=torch.float64))

    @classmethod
    def count(
        cls,
        rows: Sequence[NDArray[Any]],
        labels: Sequence[int],
        *,
        vocab_size: int,
        outputs: int,
        alpha: float,
        without: Sequence[int] = (),
    ) -> NaiveBayes:
        """Count rows of ids (n,) and their classes. without: ids to ignore. Raises ValueError for a class
        without texts."""
        model = cls(vocab_size, outputs)
        lengths = np.array([len(row) for row in rows])
        cells = np.repeat(np.asarray(labels, np.int64), lengths) * vocab_size + np.concatenate(rows)
        counts = np.bincount(cells, minlength=outputs * vocab_size).reshape(outputs, vocab_size).astype(np.float64)
        counts[:, list(without)] = 0
        texts = np.bincount(np.asarray(labels), minlength=outputs)
        if not texts.all():
            raise ValueError(f"class {int(texts.argmin())} has no texts")
        model.counts.copy_(torch.from_numpy(counts))
        model.texts.copy_(torch.from_numpy(texts))
        model.alpha.fill_(alpha)
        return model

    def log_likelihood(self) -> Tensor:
        """Return log p(w | c), (classes, vocab); 0 for ignored tokens."""
        known = self.counts.sum(0) > 0
        smoothed = self.counts + self.alpha
        total = (smoothed * known).sum(1, keepdim=True)
        return torch.where(known, smoothed.log() - total.log(), 0.0)

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return log p(c, text) for the stream "text", (B, classes)."""
        text = batch["text"]
        prior = (self.texts / self.texts.sum()).log()
        each = self.log_likelihood().T[text.tokens]
        if text.real is not None:
            each = each * text.real[..., None]
        scores = prior + each.sum(1)
        return scores if hooks is None else hooks.record("logits", scores)
