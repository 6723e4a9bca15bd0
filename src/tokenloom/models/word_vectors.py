"""Word vectors: skip-gram and CBOW with negative sampling, over whole rows of words at a time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenloom.models.batch import Batch
from tokenloom.nn.hooks import Hooks

ModelFamily = Literal["skip-gram", "cbow"]
# So many words of a row are held against their surroundings in one product of matrices.
BLOCK = 16


class WordVectors(nn.Module):
    """Two vectors a word: v for the word itself, u for the word as something that is predicted.

    skip-gram: a word x_n predicts each word x_m around it, with the logit v(x_n) · u(x_m).
    cbow: the mean of the vectors around a place predicts the word in it: 1/|C| Σ_{m ∈ C} v(x_m) · u(x_n).

    Which words are around a place, `surroundings` says. `forward` returns the logits of what is there, (B, N, 2 window)
    for skip-gram in the order −window … −1, 1 … window, and (B, N, 1) for CBOW; and those of the row's S negative words
    at each place, (B, N, S). What a place does not ask for is to be left out by whoever reads the logits.

    Only products inside the window are needed, but they are computed as products of matrices, BLOCK words with the
    BLOCK + 2 window around them, since gathering 2 window vectors for each word costs far more than it computes.

    Source: Mikolov et al. 2013, "Efficient estimation of word representations in vector space" and "Distributed
    representations of words and phrases"; negatives shared by many places after Ji et al. 2016, "Parallelizing word2vec
    in shared and distributed memory".
    """

    def __init__(self, kind: ModelFamily, vocab_size: int, width: int, window: int, seed: int = 0) -> None:
        super().__init__()
        self.kind, self.window = kind, window
        self.words = nn.Embedding(vocab_size, width)
        self.outputs = nn.Embedding(vocab_size, width)
        generator = torch.Generator().manual_seed(seed)
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width, generator=generator)
        nn.init.zeros_(self.outputs.weight)

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> tuple[Tensor, Tensor]:
        """Streams: "words", ids (B, N); "around", features (B, N, 2 window), 1 where a word is; "negatives", (B, S)."""
        ids, negatives = batch["words"].tokens, self.outputs(batch["negatives"].tokens)
        if self.kind == "skip-gram":
            V = self.words(ids)
            return self._positives(ids, V), V @ negatives.transpose(1, 2)
        means = self._means(ids, batch["around"].tokens.to(negatives.dtype))
        return (means * self.outputs(ids)).sum(-1, keepdim=True), means @ negatives.transpose(1, 2)

    def _positives(self, ids: Tensor, V: Tensor) -> Tensor:
        """v(x_n) · u(x_m) for every m in the window of n: (B, N, 2 window)."""
        N, W = ids.shape[1], self.window
        U = self.outputs(_blocks(ids, W))
        V = _whole(V).view(len(ids), -1, BLOCK, V.shape[-1])
        return _first(_band(V @ U.transpose(-1, -2), W), N)

    def _means(self, ids: Tensor, around: Tensor) -> Tensor:
        """The mean of v over the words around each place, 0 where there is none: (B, N, D)."""
        N, W = ids.shape[1], self.window
        share = around / around.sum(-1, keepdim=True).clamp(min=1)
        means: Tensor = _unband(_whole(share), W) @ self.words(_blocks(ids, W))
        return _first(means.flatten(1, 2), N)


def surroundings(segments: Tensor, reach: Tensor, window: int) -> Tensor:
    """Which of the 2 window places around each place n are in it: 0 < |m − n| ≤ reach_n and segment_m = segment_n.

    segments: (B, N), −1 where a token only pads. reach: (B, N), 0 … window. Returns (B, N, 2 window) bool, in the order
    −window … −1, 1 … window.
    """
    beside = pad(segments, (window, window), value=-1).unfold(1, 2 * window + 1, 1)
    distance = torch.arange(-window, window + 1, dtype=reach.dtype, device=reach.device).abs()
    inside = (beside == segments[..., None]) & (segments >= 0)[..., None] & (distance <= reach[..., None])
    return _without_middle(inside, window)


def neighbors_of(ids: Tensor, window: int) -> Tensor:
    """The ids at the places around each place, 0 beyond the ends: (B, N) → (B, N, 2 window)."""
    return _without_middle(pad(ids, (window, window)).unfold(1, 2 * window + 1, 1), window)


def _without_middle(values: Tensor, window: int) -> Tensor:
    return torch.cat((values[..., :window], values[..., window + 1 :]), dim=-1)


def _whole(rows: Tensor) -> Tensor:
    """(B, N, D) lengthened with zeros to whole blocks; a copy is only made where N needs it."""
    extra = -rows.shape[1] % BLOCK
    return pad(rows, (0, 0, 0, extra)) if extra else rows


def _first(rows: Tensor, N: int) -> Tensor:
    """The inverse of `_whole`."""
    return rows if rows.shape[1] == N else rows[:, :N]


def _blocks(ids: Tensor, window: int) -> Tensor:
    """(B, N) → (B, blocks, BLOCK + 2 window): the ids of each block, and those around it; 0 beyond the ends."""
    return pad(ids, (window, window + -ids.shape[1] % BLOCK)).unfold(1, BLOCK + 2 * window, BLOCK)


def _band(products: Tensor, window: int) -> Tensor:
    """(B, blocks, BLOCK, BLOCK + 2 window) → (B, blocks · BLOCK, 2 window): of row i the columns i … i + 2 window.

    In memory, row i's first wanted number is one further along its row than that of the row before: read with rows one
    longer, they stand below each other.
    """
    B, count, rows, columns = products.shape
    skewed = pad(products.flatten(2), (0, rows)).view(B, count * rows, columns + 1)
    return _without_middle(skewed[..., : 2 * window + 1], window)


def _unband(band: Tensor, window: int) -> Tensor:
    """The inverse of `_band`, with 0 in the middle and outside of the band."""
    B, N, _ = band.shape
    middle = band.new_zeros(B, N, 1)
    columns = BLOCK + 2 * window
    whole = torch.cat((band[..., :window], middle, band[..., window:]), dim=-1)
    skewed = pad(whole, (0, BLOCK)).view(B, -1, BLOCK * (columns + 1))
    return skewed[..., : BLOCK * columns].view(B, -1, BLOCK, columns)
