"""Word vectors: skip-gram and CBOW with negative sampling, computed over rows of words."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenloom.models.batch import Batch
from tokenloom.nn.hooks import Hooks

ModelFamily = Literal["skip-gram", "cbow"]
# Words of a row whose windows are computed in one matrix product.
BLOCK = 16


class WordVectors(nn.Module):
    """Two vectors per word: v as input, u as output.

    skip-gram: a word x_n predicts each word x_m around it, with the logit v(x_n) · u(x_m).
    cbow: the mean input vector of the words around n predicts the word there: 1/|C| Σ_{m ∈ C} v(x_m) · u(x_n).

    `window_mask` says which words are around a position. `forward` returns the positive logits, (B, N, 2 window) for
    skip-gram in the order −window … −1, 1 … window, and (B, N, 1) for CBOW; and the logits of the row's S negative
    words at each position, (B, N, S). The caller masks the logits that have no target.

    Only products inside the window are needed. They are computed as matrix products of BLOCK words with the
    BLOCK + 2 window words around them: gathering 2 window vectors per word is much slower.

    Source: Mikolov et al. 2013, "Efficient estimation of word representations in vector space" and "Distributed
    representations of words and phrases"; negatives shared by many positions: Ji et al. 2016, "Parallelizing word2vec
    in shared and distributed memory".
    """

    def __init__(self, kind: ModelFamily, vocab_size: int, dim: int, window: int, seed: int = 0) -> None:
        super().__init__()
        self.kind, self.window = kind, window
        self.words = nn.Embedding(vocab_size, dim)
        self.outputs = nn.Embedding(vocab_size, dim)
        generator = torch.Generator().manual_seed(seed)
        nn.init.uniform_(self.words.weight, -0.5 / dim, 0.5 / dim, generator=generator)
        nn.init.zeros_(self.outputs.weight)

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> tuple[Tensor, Tensor]:
        """Return positive and negative logits. Streams: "words", ids (B, N); "window", (B, N, 2 window) bool, for CBOW;
        "negatives", ids (B, S)."""
        ids, negatives = batch["words"].tokens, self.outputs(batch["negatives"].tokens)
        if self.kind == "skip-gram":
            V = self.words(ids)
            return self._positives(ids, V), V @ negatives.transpose(1, 2)
        means = self._means(ids, batch["window"].tokens.to(negatives.dtype))
        return (means * self.outputs(ids)).sum(-1, keepdim=True), means @ negatives.transpose(1, 2)

    def _positives(self, ids: Tensor, V: Tensor) -> Tensor:
        """Return v(x_n) · u(x_m) for every m in the window of n: (B, N, 2 window)."""
        N, W = ids.shape[1], self.window
        U = self.outputs(_blocks(ids, W))
        V = _pad_to_blocks(V).view(len(ids), -1, BLOCK, V.shape[-1])
        return _cut(_band(V @ U.transpose(-1, -2), W), N)

    def _means(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mean of v over the words in each window, 0 for an empty one: (B, N, D)."""
        N, W = ids.shape[1], self.window
        weights = mask / mask.sum(-1, keepdim=True).clamp(min=1)
        means: Tensor = _unband(_pad_to_blocks(weights), W) @ self.words(_blocks(ids, W))
        return _cut(means.flatten(1, 2), N)


def window_mask(segments: Tensor, reach: Tensor, window: int) -> Tensor:
    """Return which of the 2 window positions m around each n are in its window, (B, N, 2 window) bool.

    A position is in the window where 0 < |m − n| ≤ reach_n and segment_m = segment_n; the order is −window … −1,
    1 … window. segments: (B, N), −1 for padding. reach: (B, N), 0 … window.
    """
    others = pad(segments, (window, window), value=-1).unfold(1, 2 * window + 1, 1)
    distance = torch.arange(-window, window + 1, dtype=reach.dtype, device=reach.device).abs()
    inside = (others == segments[..., None]) & (segments >= 0)[..., None] & (distance <= reach[..., None])
    return _without_middle(inside, window)


def neighbors_of(ids: Tensor, window: int) -> Tensor:
    """Return the ids around each position, 0 beyond the ends: (B, N) → (B, N, 2 window)."""
    return _without_middle(pad(ids, (window, window)).unfold(1, 2 * window + 1, 1), window)


def _without_middle(values: Tensor, window: int) -> Tensor:
    return torch.cat((values[..., :window], values[..., window + 1 :]), dim=-1)


def _pad_to_blocks(rows: Tensor) -> Tensor:
    """Pad (B, N, D) with zeros to whole blocks. Copies only where N is no multiple of BLOCK."""
    extra = -rows.shape[1] % BLOCK
    return pad(rows, (0, 0, 0, extra)) if extra else rows


def _cut(rows: Tensor, N: int) -> Tensor:
    """Undo `_pad_to_blocks`."""
    return rows if rows.shape[1] == N else rows[:, :N]


def _blocks(ids: Tensor, window: int) -> Tensor:
    """Return the ids of each block and those around it, 0 beyond the ends: (B, N) → (B, blocks, BLOCK + 2 window)."""
    return pad(ids, (window, window + -ids.shape[1] % BLOCK)).unfold(1, BLOCK + 2 * window, BLOCK)


def _band(products: Tensor, window: int) -> Tensor:
    """Return columns i … i + 2 window of row i: (B, blocks, BLOCK, BLOCK + 2 window) → (B, blocks · BLOCK, 2 window).

    In memory, the first wanted number of row i is one further along its row than that of row i − 1. Viewed with rows
    longer by one, the wanted numbers form columns.
    """
    B, count, rows, columns = products.shape
    skewed = pad(products.flatten(2), (0, rows)).view(B, count * rows, columns + 1)
    return _without_middle(skewed[..., : 2 * window + 1], window)


def _unband(band: Tensor, window: int) -> Tensor:
    """Undo `_band`, with 0 in the middle and outside of the band."""
    B, N, _ = band.shape
    middle = band.new_zeros(B, N, 1)
    columns = BLOCK + 2 * window
    padded = torch.cat((band[..., :window], middle, band[..., window:]), dim=-1)
    skewed = pad(padded, (0, BLOCK)).view(B, -1, BLOCK * (columns + 1))
    return skewed[..., : BLOCK * columns].view(B, -1, BLOCK, columns)
