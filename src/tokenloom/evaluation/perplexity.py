"""How much context each token of a text is predicted from in an evaluation, and losses per block of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.data.samples import Run
from tokenloom.errors import UserError
from tokenloom.evaluation.comparison import PerSampleLoss
from tokenloom.training.losses import LossTerm, MetricSum

SLIDING = "sliding"
BITS_PER_BYTE = "bits/byte"
# Bytes per block of text on which runs are compared: several hundred tokens, so that blocks are nearly independent.
BLOCK = 512


def check_context(context: str | int, largest: int | None) -> int | None:
    """Return the length of separate windows, or None for sliding context. Raise UserError for any other value.

    largest: length of the longest window that the model can read.
    """
    if context == SLIDING:
        return None
    try:
        window = int(context)
    except ValueError:
        raise UserError(f"--context {context}: must be {SLIDING}, or a number of tokens") from None
    if window < 1:
        raise UserError(f"--context {context}: must be at least 1")
    if largest is not None and window > largest:
        raise UserError(
            f"--context {context}: this model reads at most {largest:,} tokens at once; --context {SLIDING}"
            " uses windows that overlap"
        )
    return window


def documents_of(ids: NDArray[Any] | Run, border: int | None) -> Iterator[NDArray[np.int64]]:
    """Yield each document of a run with the border before it and the one after it; the whole run without borders.

    Every id but the first of the run is the last or an inner id of exactly one of them.
    """
    whole = ids[np.arange(len(ids))].astype(np.int64)
    cuts = [] if border is None else np.flatnonzero(whole == border).tolist()
    starts = sorted({0, *cuts} - {len(whole) - 1})
    for first, last in zip(starts, [*starts[1:], len(whole) - 1], strict=True):
        yield whole[first : last + 1]


def block_sums(values: torch.Tensor, length: int, weight: float) -> MetricSum:
    """Return (N,) values of single tokens as sums over blocks of so many tokens, for a confidence interval."""
    block_of = torch.arange(len(values)) // length
    sums = MetricSum(weight)
    sums.update(LossTerm(block_of.bincount(weights=values.double()), block_of.bincount()))
    return sums


def bits_per_block(nats: torch.Tensor, sizes: torch.Tensor, content: str) -> PerSampleLoss:
    """Return bits in blocks of `BLOCK` bytes of text; a token belongs to the block in which it begins.

    nats: (N − 1,) of all tokens but the first, which is not predicted. sizes: (N,) bytes of each token.
    """
    ends = sizes.cumsum(0)
    block_of = ((ends - sizes) // BLOCK)[1:]
    count = int(-(-ends[-1] // BLOCK))
    bits = block_of.bincount(weights=nats.double() / math.log(2), minlength=count)
    return PerSampleLoss(bits, block_of.bincount(weights=sizes[1:].double(), minlength=count), BITS_PER_BYTE, content)
