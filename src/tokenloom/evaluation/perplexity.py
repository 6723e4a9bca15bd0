"""How much text each token is predicted from when a text model is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.config import Options, option
from tokenloom.data.samples import Run
from tokenloom.errors import UserError
from tokenloom.tasks.base import PerSampleLoss
from tokenloom.training.losses import LossTerm, MetricSum

RUNNING = "running"
BITS_PER_BYTE = "bits per byte"
# Bytes of a block of text that runs are compared on: several hundred tokens, so that neighbors tell little of it.
BLOCK = 512


@dataclass(frozen=True)
class MeasuringOptions(Options):
    """How a text is measured."""

    context: str | None = option(
        None,
        "running: each token after all that the model can make use of; N: in separate windows of N tokens; those of"
        " the training when not given",
    )


def checked_window(context: str | int, largest: int | None) -> int | None:
    """The length of separate windows, or None for running context. Raises UserError for what cannot be.

    largest: the longest window that the model can read.
    """
    if context == RUNNING:
        return None
    try:
        window = int(context)
    except ValueError:
        raise UserError(f"--context {context}: must be {RUNNING}, or a number of tokens") from None
    if window < 1:
        raise UserError(f"--context {context}: must be at least 1")
    if largest is not None and window > largest:
        raise UserError(
            f"--context {context}: this model reads at most {largest:,} tokens at once; --context {RUNNING} slides"
        )
    return window


def window_in_words(window: float) -> str:
    """The protocol, for a person."""
    return "with running context" if math.isinf(window) else f"in separate windows of {int(window):,}"


def metrics_of(totals: dict[str, MetricSum], window: float) -> dict[str, float]:
    """What a text costs: nats, bits, perplexity a token; bits per byte. window: the protocol, infinite when running."""
    loss, size = totals["loss"], totals["bytes"].total
    nats = loss.value
    metrics = {
        "loss": nats,
        "interval": loss.interval(),
        "bits": nats / math.log(2),
        "perplexity": math.exp(min(nats, 700.0)),
        "bits_per_byte": loss.total / math.log(2) / size if size else math.nan,
        "targets": loss.count,
        "window": float(window),
    }
    if "unknown" in totals and totals["unknown"].total:
        # What an unknown word was is never predicted, so that there is no price of the text in bits.
        metrics |= {"unknown": totals["unknown"].value, "bits_per_byte": math.nan}
    return metrics


def lines_of(metrics: dict[str, float]) -> list[str]:
    """The metrics for a person."""
    m = metrics
    per_byte = f"{m['bits_per_byte']:.4f}"
    if m.get("unknown"):
        per_byte = f"none, since {m['unknown']:.1%} of the words are unknown to the tokenizer"
    either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
    return [
        f"loss:          {m['loss']:.4f}{either_way} nats a token{' (95 % interval)' if either_way else ''}",
        f"bits a token:  {m['bits']:.4f}",
        f"perplexity:    {m['perplexity']:,.2f}",
        f"bits per byte: {per_byte}",
        f"measured on:   {int(m['targets']):,} tokens, {window_in_words(m['window'])}",
    ]


def documents_of(ids: NDArray[Any] | Run, border: int | None) -> Iterator[NDArray[np.int64]]:
    """Each document of a run with the border before it and the one after it, so that every id but the first of all is
    the last but first of one; the whole run where there are no borders."""
    whole = ids[np.arange(len(ids))].astype(np.int64)
    cuts = [] if border is None else np.flatnonzero(whole == border).tolist()
    starts = sorted({0, *cuts} - {len(whole) - 1})
    for first, last in zip(starts, [*starts[1:], len(whole) - 1], strict=True):
        yield whole[first : last + 1]


def totals_of(values: torch.Tensor, block: int) -> MetricSum:
    """Values of single tokens as sums over blocks of so many, for an interval."""
    block_of = torch.arange(len(values)) // block
    sums = block_of.bincount(weights=values.double())
    counts = block_of.bincount()
    totals = MetricSum()
    totals.update(LossTerm(sums, counts))
    return totals


def blocks(nats: torch.Tensor, sizes: torch.Tensor, content: str) -> PerSampleLoss:
    """Nats of single tokens as bits in blocks of `BLOCK` bytes; a token belongs to the block in which it begins.

    nats: (N − 1,) of all tokens but the first, which is given and costs nothing. sizes: (N,) bytes of each token.
    """
    ends = sizes.cumsum(0)
    block_of = ((ends - sizes) // BLOCK)[1:]
    number = int(-(-ends[-1] // BLOCK))
    bits = block_of.bincount(weights=nats.double() / math.log(2), minlength=number)
    return PerSampleLoss(bits, block_of.bincount(weights=sizes[1:].double(), minlength=number), BITS_PER_BYTE, content)
