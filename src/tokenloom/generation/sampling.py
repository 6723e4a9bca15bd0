"""Sampling: logits processors as pure functions, drawing a token, and the options that combine them.

Scores (B, vocab) are log-probabilities or logits: no function depends on a constant added to a row. Half-precision
scores are widened to float32. An excluded token gets minus infinity.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenloom.config import Options, option
from tokenloom.errors import UserError

# Top-p sorts this many best tokens first, which mostly suffice: sorting 50,000 takes longer than a small model's step.
_TOP_P_SORTED = 512
# Random numbers that a sample draws at once.
_BUFFER = 64


class NonFiniteLogits(UserError, RuntimeError):
    """The model's scores are NaN, plus infinity, or minus infinity everywhere, so that no token can be chosen."""

    def __init__(self, step: int | None, device: torch.device, where: str = "") -> None:
        self.step = step
        self.device = device
        at = "" if step is None else f" at step {step}"
        super().__init__(
            f"the model's logits are not finite{at} on {device}{where}: its weights are damaged, or values"
            " overflow in this precision (try float32)"
        )


def widen(scores: Tensor) -> Tensor:
    """Return the scores in float32 or wider; sampling in half precision would be visibly wrong."""
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def apply_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Divide scores (B, vocab) by the temperature; 0 leaves only the best token (the smallest id among equals).

    A row is shifted to a maximum of 0 first, so that it does not overflow at any temperature.
    """
    scores = widen(scores)
    if temperature == 0:
        best = scores.argmax(-1, keepdim=True)
        return torch.full_like(scores, -math.inf).scatter_(-1, best, 0.0)
    if temperature == 1:
        return scores
    # A temperature below the smallest normal number would be rounded to 0 and give 0 / 0.
    return (scores - scores.amax(-1, keepdim=True)) / max(temperature, torch.finfo(scores.dtype).tiny)


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """Return the mask of the k best tokens of each row, exactly k; among equals the smaller ids win."""
    return _best(scores, scores.topk(k, dim=-1).values[..., -1:], k)


def _best(scores: Tensor, threshold: Tensor, count: int | Tensor) -> Tensor:
    """Return the mask of the `count` best of each row; `threshold` (B, 1) is the last one's score; ties as above."""
    keep = scores >= threshold
    if int(keep.sum()) == (count * len(scores) if isinstance(count, int) else int(count.sum())):
        return keep  # usually there is no tie at the threshold
    above = scores > threshold
    level = scores == threshold
    missing = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= missing))


def keep_top_k(scores: Tensor, k: int | None) -> Tensor:
    """Keep exactly the k best tokens of each row; None, 0 and k >= vocab keep all.

    Source: Fan, Lewis and Dauphin, Hierarchical Neural Story Generation (2018), section 5.
    """
    scores = widen(scores)
    if not k or k >= scores.shape[-1]:
        return scores
    return scores.masked_fill(~top_k_mask(scores, k), -math.inf)


def keep_top_p(scores: Tensor, p: float | None) -> Tensor:
    """Keep the smallest set of best tokens with a total probability of p, at least one token; 1 and None keep all.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), section 3.1 (the nucleus).
    """
    scores = widen(scores)
    if p is None or p >= 1:
        return scores
    # The tolerance lets 0.6 + 0.3 count as 0.9.
    enough = p - _tolerance(scores)
    total = scores.logsumexp(-1, keepdim=True)
    ordered = scores.topk(min(_TOP_P_SORTED, scores.shape[-1]), dim=-1).values
    mass = (ordered - total).exp().cumsum(-1)
    if ordered.shape != scores.shape and not bool((mass[..., -1] >= enough).all()):
        ordered = scores.sort(dim=-1, descending=True).values
        mass = (ordered - total).exp().cumsum(-1)
    # A token stays if those before it do not reach p.
    count = 1 + (mass[..., :-1] < enough).sum(-1, keepdim=True)
    return scores.masked_fill(~_best(scores, ordered.gather(-1, count - 1), count), -math.inf)


def keep_min_p(scores: Tensor, min_p: float | None) -> Tensor:
    """Keep tokens with at least min_p times the probability of the most likely; 0 and None keep all.

    Source: Nguyen et al., Turning Up the Heat: Min-p Sampling (2024), section 3.
    """
    scores = widen(scores)
    if not min_p:
        return scores
    relative = (scores - scores.amax(-1, keepdim=True)).exp()
    return scores.masked_fill(relative < min_p * (1 - _tolerance(scores)), -math.inf)


def _tolerance(scores: Tensor) -> float:
    """Return the rounding error of a probability computed from scores of this dtype."""
    return 8 * torch.finfo(scores.dtype).eps


def penalize_repetition(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide the probability of every token seen before by the penalty: score − ln(penalty).

    scores (B, vocab); seen (B, vocab) bool, so that a token is penalized once; penalty >= 1.

    After Keskar et al., CTRL (2019), section 4.1, who divide the *logit*, which depends on the zero of the logits:
    a divided negative logit becomes more likely; multiplied instead, as is usual, two seen tokens of 0.6 and 0.3 become
    0.65 and 0.16 (penalty 2, on log-probabilities), so the first *gains*. Dividing the probability gives 0.55 and 0.27;
    it is the same for logits and log-probabilities, and no seen token ever becomes more likely.
    """
    scores = widen(scores)
    if penalty == 1:
        return scores
    return torch.where(seen, scores - math.log(penalty), scores)


def pick(scores: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Sample by inverse transform: return the token at which the cumulative probability passes u.

    scores (B, vocab), not necessarily normalized; one u in [0, 1) per row. Returns ids (B,), −1 for a row with NaN,
    plus infinity or only minus infinity. A token of probability zero is never chosen, for any u: sums are in float64
    (float32 on devices without it), and rounding cannot include it.
    """
    scores = widen(scores)
    if scores.device.type == "cpu":
        return torch.tensor(_pick_numpy(scores.detach().numpy(), uniforms)[0])
    return _pick_torch(scores, uniforms)


def _pick_numpy(
    scores: NDArray[Any], uniforms: Sequence[float], temperature: float = 1.0
) -> tuple[list[int], list[float]]:
    """`pick` on the CPU, in NumPy, three times as fast as PyTorch for a small vocabulary; also returns row maxima.

    The temperature is above 0. The cumulative sum is computed in order, so that it increases at possible tokens only.
    """
    best = np.maximum.reduce(scores, axis=-1, keepdims=True)
    largest: list[float] = best[:, 0].tolist()
    broken = not all(map(math.isfinite, largest))
    with np.errstate(invalid="ignore") if broken else nullcontext():
        weights = scores - best
        if temperature != 1:
            weights /= max(temperature, np.finfo(scores.dtype).tiny)
        np.exp(weights, out=weights)
        sums = np.add.accumulate(weights, axis=-1, dtype=np.float64)
        if len(sums) == 1:
            ids = [int(sums[0].searchsorted(uniforms[0] * sums[0, -1], side="right"))]
        else:
            targets = sums[:, -1] * np.array(uniforms)
            ids = np.add.reduce(sums <= targets[:, None], axis=-1, dtype=np.intp).tolist()
    for row, token in enumerate(ids):
        if token == sums.shape[1]:
            # Where u was rounded to 1: take the last possible token.
            ids[row] = int(sums[row].searchsorted(sums[row, -1]))
    return [i if math.isfinite(top) else -1 for i, top in zip(ids, largest, strict=True)] if broken else ids, largest


def _pick_torch(scores: Tensor, uniforms: Sequence[float]) -> Tensor:
    """`pick` on other devices; a parallel cumulative sum may decrease by rounding, so consider possible tokens only."""
    device = scores.device
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    possible = weights > 0
    mass = weights.cumsum(-1, dtype=torch.float32 if device.type == "mps" else torch.float64)
    u = torch.tensor(uniforms, dtype=mass.dtype, device=device).unsqueeze(-1)
    places = torch.arange(weights.shape[-1], device=device)
    first = torch.where(possible & (mass > u * mass[:, -1:]), places, len(places)).amin(-1)
    return torch.minimum(first, torch.where(possible, places, -1).amax(-1))


class Uniforms:
    """Random numbers in [0, 1) of a generator, drawn in blocks, since one torch call per token is slow.

    The generator must not be used elsewhere.
    """

    __slots__ = ("_buffer", "_generator")

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._buffer: list[float] = []

    def next(self) -> float:
        """Return the next number."""
        if not self._buffer:
            g = self._generator
            self._buffer = torch.rand(_BUFFER, generator=g, dtype=torch.float64, device=g.device).tolist()[::-1]
        return self._buffer.pop()


Draws = Sequence[torch.Generator | Uniforms]


def uniforms_of(generators: Draws) -> list[float]:
    """Return one number in [0, 1) from each generator, so that rows are independent."""
    return [g.next() if isinstance(g, Uniforms) else _one(g) for g in generators]


def _one(g: torch.Generator) -> float:
    return torch.rand((), generator=g, dtype=torch.float64, device=g.device).item()


def draw(scores: Tensor, generators: Draws) -> Tensor:
    """Draw one token per row, each with its own generator: scores (B, vocab) → ids (B,).

    Raises NonFiniteLogits for a row without a finite score.
    """
    if len(generators) != len(scores):
        raise ValueError(f"{len(scores)} rows need as many generators, not {len(generators)}")
    ids = pick(scores, uniforms_of(generators))
    if bool((ids < 0).any()):
        raise NonFiniteLogits(None, scores.device)
    return ids


@dataclass(frozen=True)
class Sampling(Options):
    """How to choose the next token: penalty, temperature, top-k, top-p and min-p, in this order."""

    temperature: float = option(1.0, "sampling temperature; lower is more deterministic, 0 is greedy", low=0)
    top_k: int | None = option(None, "sample from the k most likely tokens only; 0: no limit", low=0)
    top_p: float | None = option(None, "sample from the smallest set with this total probability", low=0, high=1)
    min_p: float | None = option(None, "sample from tokens this many times as likely as the best", low=0, high=1)
    repetition_penalty: float = option(1.0, "divide the probability of tokens that occurred by this", low=1)

    def greedy(self) -> "Sampling":
        """Return greedy options with the same repetition penalty."""
        return replace(self, temperature=0.0, top_k=None, top_p=None, min_p=None)

    @property
    def is_greedy(self) -> bool:
        """Whether only one token remains, so that nothing is drawn."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on previous tokens."""
        return self.repetition_penalty != 1

    @property
    def _excludes(self) -> bool:
        """Whether tokens may be excluded."""
        whole = self.top_p is None or self.top_p >= 1
        return bool(self.top_k) or not whole or bool(self.min_p)

    def process(self, log_probs: Tensor, seen: Tensor | None = None) -> Tensor:
        """Apply all processors; return scores (B, vocab), not normalized, or the tensor itself when none applies."""
        if self.penalizes:
            if seen is None:
                raise ValueError("a repetition penalty needs the tokens seen before")
            log_probs = penalize_repetition(log_probs, seen, self.repetition_penalty)
        scores = apply_temperature(log_probs, self.temperature)
        return keep_min_p(keep_top_p(keep_top_k(scores, self.top_k), self.top_p), self.min_p)

    def distribution(self, log_probs: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return log-probabilities (B, vocab) under these options; minus infinity for excluded tokens.

        log_probs (B, vocab) from the model; seen (B, vocab) bool, needed only with a repetition penalty.
        """
        return self.process(log_probs, seen).log_softmax(-1)

    def choose(self, log_probs: Tensor, generators: Draws, seen: Tensor | None = None) -> tuple[list[int], list[float]]:
        """Choose one token per row; return ids and their log-probabilities under the model itself, on the host.

        A row with non-finite scores gives a non-finite log-probability for the caller to check, which needs no extra
        device synchronization.
        """
        log_probs = widen(log_probs).detach()
        if self.is_greedy and not self.penalizes:
            best, ids = log_probs.max(-1)
            return ids.tolist(), best.tolist()
        if log_probs.device.type == "cpu" and not (self.is_greedy or self.penalizes or self._excludes):
            # Temperature only: all in NumPy.
            array = log_probs.numpy()
            return _values_of(array, *_pick_numpy(array, uniforms_of(generators), self.temperature))
        scores = self.process(log_probs, seen)
        if log_probs.device.type == "cpu":
            chosen_ids = (
                scores.argmax(-1).tolist()
                if self.is_greedy
                else _pick_numpy(scores.numpy(), uniforms_of(generators))[0]
            )
            return _values_of(log_probs.numpy(), chosen_ids, log_probs.amax(-1).tolist())
        ids = scores.argmax(-1) if self.is_greedy else _pick_torch(scores, uniforms_of(generators)).clamp(min=0)
        chosen = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        # Processors may hide a NaN; the row maximum does not. 0 × maximum changes the value in that case only.
        checked = chosen + 0 * log_probs.amax(-1)
        return ids.tolist(), checked.tolist()


def _values_of(log_probs: NDArray[Any], ids: list[int], largest: list[float]) -> tuple[list[int], list[float]]:
    """Return ids in range and their log-probabilities, or the row maximum where that is not finite."""
    ids = [max(token, 0) for token in ids]
    chosen = [log_probs.item(0, ids[0])] if len(ids) == 1 else log_probs[np.arange(len(ids)), ids].tolist()
    return ids, [value if math.isfinite(top) else top for value, top in zip(chosen, largest, strict=True)]
