"""Text classifier: a transformer encoder, pooled at its class token and over all tokens, and a bag of n-grams.

The class token: Devlin et al. 2019. Mean and maximum over the tokens: Shen et al. 2018, "Baseline needs more love".
Hashed n-grams: Joulin et al. 2017 ("fastText"), as the linear part beside the deep one of Cheng et al. 2016 ("Wide &
deep").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.encoder import EncoderBackbone, EncoderConfig, class_token, mean_over_real
from tokenloom.nn.hooks import Hooks, record
from tokenloom.nn.initialization import constant, initialize

_PRIME = 2_147_483_647


@dataclass(frozen=True)
class ClassifierConfig(EncoderConfig):
    """As `EncoderConfig`; outputs: classes. ngram_features: tokens of the longest n-grams in the bag; 0 for no bag.
    buckets: rows that n-grams are hashed into."""

    ngram_features: int = 2
    buckets: int = 1 << 16


class ClassificationHead(nn.Module):
    """W [x_class; mean_n x_n; max_n x_n] + b + Σ_g e(g) / √G over the G n-grams g of the text.

    All parameters start at zero, so that an untrained head gives each class the same probability.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.ngram_features = config.ngram_features
        self.pooled = nn.Linear(3 * config.width, config.outputs)
        self.bag = nn.Embedding(config.buckets, config.outputs) if config.ngram_features else None
        self.dropout = nn.Dropout(config.dropout)
        initialize(self, [("*", constant(0.0))], torch.Generator())

    def forward(self, X: Tensor, text: Stream) -> Tensor:
        """X: the backbone's features (B, N, D) of the stream → logits (B, outputs)."""
        pooled = torch.cat((class_token(X, text.real), mean_over_real(X, text.real), _maximum(X, text.real)), dim=-1)
        logits: Tensor = self.pooled(self.dropout(pooled))
        if self.bag is not None:
            logits = logits + self._bag(self.bag, text)
        return logits

    def _bag(self, bag: nn.Embedding, text: Stream) -> Tensor:
        """Return Σ_g e(g) / √G, (B, outputs). No n-gram contains the class token or padding."""
        ids, real = text.tokens, text.real
        known = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        first = known.int().argmax(1, keepdim=True)
        known = known & (torch.arange(ids.shape[1], device=ids.device) != first)  # (B, N)
        total: Tensor = torch.zeros(len(ids), bag.embedding_dim, dtype=bag.weight.dtype, device=ids.device)
        count = torch.zeros(len(ids), 1, dtype=torch.int64, device=ids.device)
        hashed, whole = ids + 1, known
        for n in range(min(self.ngram_features, ids.shape[1])):
            if n:
                # The n-gram that ends at each position: the shorter one that ends one position before, and this token.
                hashed = (hashed[:, :-1] * 1_000_003 + ids[:, n:] + 1) % _PRIME
                whole = whole[:, :-1] & known[:, n:]
            rows = (hashed * 48_271 + n) % _PRIME % bag.num_embeddings
            total = total + (bag(rows) * whole[..., None]).sum(1)
            count = count + whole.sum(1, keepdim=True)
        return total / count.clamp(min=1).to(total.dtype).sqrt()


def _maximum(X: Tensor, real: Tensor | None) -> Tensor:
    """Return the maximum of each feature over the real tokens: (B, N, D) → (B, D)."""
    X = X if real is None else X.masked_fill(~real[..., None], -torch.inf)
    return X.amax(1)


class TextClassifier(nn.Module):
    """The encoder's backbone and a `ClassificationHead`: logits (B, outputs) for the stream "text".

    Each row begins with the class token.
    """

    def __init__(self, config: ClassifierConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.backbone = EncoderBackbone(config, seed)
        self.head = ClassificationHead(config)

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Return logits (B, outputs)."""
        text = batch["text"]
        return record(hooks, "logits", self.head(self.backbone(text, hooks), text))
