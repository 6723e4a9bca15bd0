"""Choosing the next token: small pure functions on the scores of one step, and the options that combine them.

Every function takes scores (B, vocab): log-probabilities or logits, since none of the rules cares about a constant
added to a row. Scores in half precision are widened to float32 first. A token that is ruled out gets minus infinity.
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

from tokenloom.errors import UserError

# A nucleus is mostly this small; sorting a vocabulary of 50,000 for it takes longer than a small model's step.
_FIRST_LOOK = 512
# Random numbers that a sample draws at once.
_AHEAD = 64


class NonFiniteLogits(UserError, RuntimeError):
    """The model gave scores to which no token can be chosen: NaN, plus infinity, or minus infinity everywhere."""

    def __init__(self, step: int | None, device: torch.device, where: str = "") -> None:
        self.step = step
        self.device = device
        at = "" if step is None else f" at step {step}"
        super().__init__(
            f"the model's logits are not finite{at} on {device}{where}: its weights are damaged, or its numbers"
            " overflow in this precision (try float32)"
        )


def widen(scores: Tensor) -> Tensor:
    """The scores in float32 or wider: a draw in half precision would be visibly wrong."""
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def apply_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Scores (B, vocab) divided by the temperature; 0 leaves only the best token (the smallest id among equals).

    A row is shifted to a maximum of 0 first, so that no temperature, however small, overflows it.
    """
    scores = widen(scores)
    if temperature == 0:
        best = scores.argmax(-1, keepdim=True)
        return torch.full_like(scores, -math.inf).scatter_(-1, best, 0.0)
    if temperature == 1:
        return scores
    # A temperature below the smallest normal number would be read as 0 and give 0 / 0.
    return (scores - scores.amax(-1, keepdim=True)) / max(temperature, torch.finfo(scores.dtype).tiny)


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """Which tokens of each row are its k best: exactly k of them; among equals the smaller ids win."""
    return _best(scores, scores.topk(k, dim=-1).values[..., -1:], k)


def _best(scores: Tensor, threshold: Tensor, count: int | Tensor) -> Tensor:
    """The `count` best of each row, of which the last has the score `threshold` (B, 1); ties to the smaller ids."""
    keep = scores >= threshold
    if int(keep.sum()) == (count * len(scores) if isinstance(count, int) else int(count.sum())):
        return keep  # no tie at the last place, as is usual: that saves most of the work
    above = scores > threshold
    level = scores == threshold
    room = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def keep_top_k(scores: Tensor, k: int | None) -> Tensor:
    """Keep the k best tokens of each row, never more; None, 0 and k >= vocab keep all.

    Source: Fan, Lewis and Dauphin, Hierarchical Neural Story Generation (2018), section 5.
    """
    scores = widen(scores)
    if not k or k >= scores.shape[-1]:
        return scores
    return scores.masked_fill(~top_k_mask(scores, k), -math.inf)


def keep_top_p(scores: Tensor, p: float | None) -> Tensor:
    """Keep the smallest set of best tokens whose probability reaches p; at least the best token; 1 and None keep all.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), section 3.1 (the nucleus).
    """
    scores = widen(scores)
    if p is None or p >= 1:
        return scores
    # The slack lets 0.6 + 0.3 count as 0.9.
    enough = p - _slack(scores)
    total = scores.logsumexp(-1, keepdim=True)
    ordered = scores.topk(min(_FIRST_LOOK, scores.shape[-1]), dim=-1).values
    mass = (ordered - total).exp().cumsum(-1)
    if ordered.shape != scores.shape and not bool((mass[..., -1] >= enough).all()):
        ordered = scores.sort(dim=-1, descending=True).values
        mass = (ordered - total).exp().cumsum(-1)
    # A token stays when those before it do not reach p yet.
    count = 1 + (mass[..., :-1] < enough).sum(-1, keepdim=True)
    return scores.masked_fill(~_best(scores, ordered.gather(-1, count - 1), count), -math.inf)


def keep_min_p(scores: Tensor, min_p: float | None) -> Tensor:
    """Keep the tokens at least min_p times as likely as the likeliest; 0 and None keep all.

    Source: Nguyen et al., Turning Up the Heat: Min-p Sampling (2024), section 3.
    """
    scores = widen(scores)
    if not min_p:
        return scores
    relative = (scores - scores.amax(-1, keepdim=True)).exp()
    return scores.masked_fill(relative < min_p * (1 - _slack(scores)), -math.inf)


def _slack(scores: Tensor) -> float:
    """How much rounding may have moved a probability that comes from scores of this width."""
    return 8 * torch.finfo(scores.dtype).eps


def penalize_repetition(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide the odds of every token seen before by the penalty: p(i) ∝ p(i) / penalty, that is, score − ln(penalty).

    scores (B, vocab); seen (B, vocab) bool, so that a token pays once, however often it came; penalty >= 1.

    The idea is that of Keskar et al., CTRL (2019), section 4.1. They divide the *logit*, which depends on where the
    zero of the logits happens to be: divided, a negative logit becomes more likely; multiplied instead, as is usual,
    two seen tokens of 0.6 and 0.3 become 0.65 and 0.16 (penalty 2, on log-probabilities): the first *gains*.
    Dividing the probability gives 0.55 and 0.27. It is the same for logits and log-probabilities, and after the
    softmax no seen token can ever be more likely than before.
    """
    scores = widen(scores)
    if penalty == 1:
        return scores
    return torch.where(seen, scores - math.log(penalty), scores)


def pick(scores: Tensor, uniforms: Sequence[float]) -> Tensor:
    """The token at which the running sum of probabilities passes u: inverse transform sampling.

    scores (B, vocab), need not be normalized; one u in [0, 1) a row. Returns ids (B,), −1 for a row that has NaN,
    plus infinity or nothing but minus infinity. A token of probability zero is never picked, for no u: the sum runs
    in float64 (float32 where a device has no more), and its rounding can not let a zero in.
    """
    scores = widen(scores)
    if scores.device.type == "cpu":
        return torch.tensor(_pick_in_order(scores.detach().numpy(), uniforms)[0])
    return _pick_in_parallel(scores, uniforms)


def _pick_in_order(
    scores: NDArray[Any], uniforms: Sequence[float], temperature: float = 1.0
) -> tuple[list[int], list[float]]:
    """On the CPU, in NumPy, whose calls cost a third of PyTorch's on a small vocabulary; each row's largest score, too.

    The temperature is above 0. The sum is made in order, so that it only grows, and grows only at possible tokens.
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
            # Where u was rounded to 1 nothing passes: take the last possible token.
            ids[row] = int(sums[row].searchsorted(sums[row, -1]))
    return [i if math.isfinite(top) else -1 for i, top in zip(ids, largest, strict=True)] if broken else ids, largest


def _pick_in_parallel(scores: Tensor, uniforms: Sequence[float]) -> Tensor:
    """On other devices a sum is made in parts and may shrink by a rounding: look at the possible tokens only."""
    device = scores.device
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    possible = weights > 0
    mass = weights.cumsum(-1, dtype=torch.float32 if device.type == "mps" else torch.float64)
    u = torch.tensor(uniforms, dtype=mass.dtype, device=device).unsqueeze(-1)
    places = torch.arange(weights.shape[-1], device=device)
    first = torch.where(possible & (mass > u * mass[:, -1:]), places, len(places)).amin(-1)
    return torch.minimum(first, torch.where(possible, places, -1).amax(-1))


class Uniforms:
    """The numbers in [0, 1) that a generator gives one after the other, drawn ahead: a call of torch for each is what
    a token of a small model would wait for. The generator must be used by nothing else."""

    __slots__ = ("_generator", "_waiting")

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._waiting: list[float] = []

    def next(self) -> float:
        """The next number."""
        if not self._waiting:
            g = self._generator
            self._waiting = torch.rand(_AHEAD, generator=g, dtype=torch.float64, device=g.device).tolist()[::-1]
        return self._waiting.pop()


Draws = Sequence[torch.Generator | Uniforms]


def uniforms_of(generators: Draws) -> list[float]:
    """One number in [0, 1) from each generator: what a row draws depends on no other row."""
    return [g.next() if isinstance(g, Uniforms) else _one(g) for g in generators]


def _one(g: torch.Generator) -> float:
    return torch.rand((), generator=g, dtype=torch.float64, device=g.device).item()


def draw(scores: Tensor, generators: Draws) -> Tensor:
    """Draw one token a row, each with its own generator: scores (B, vocab) → ids (B,).

    Raises NonFiniteLogits when a row has nothing to draw from.
    """
    if len(generators) != len(scores):
        raise ValueError(f"{len(scores)} rows need as many generators, not {len(generators)}")
    ids = pick(scores, uniforms_of(generators))
    if bool((ids < 0).any()):
        raise NonFiniteLogits(None, scores.device)
    return ids


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The rules act in this order: penalty, temperature, top-k, top-p, min-p.

    temperature: 0 always takes the likeliest token; 1 draws from the model's own distribution.
    top_k: keep this many tokens; None or 0: no limit. top_p: keep the smallest set with this much probability.
    min_p: keep tokens at least this many times as likely as the likeliest.
    repetition_penalty: divide the odds of tokens that the text holds already by this; 1 does nothing.

    Raises UserError for a value outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(
                f"temperature {self.temperature} cannot be used: it must be 0 (always the likeliest token)"
                " or a positive number (--temperature)"
            )
        if self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise UserError(f"top-k {self.top_k} cannot be used: it must be 0 (no limit) or a count (--top-k)")
        for name, value in (("top-p", self.top_p), ("min-p", self.min_p)):
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{name} {value} cannot be used: it must lie between 0 and 1 (--{name})")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty >= 1):
            raise UserError(
                f"repetition penalty {self.repetition_penalty} cannot be used: it must be 1 (no penalty)"
                " or more (--repetition-penalty)"
            )

    def greedy(self) -> "Sampling":
        """These options with the likeliest token always taken; the repetition penalty stays."""
        return replace(self, temperature=0.0, top_k=None, top_p=None, min_p=None)

    @property
    def is_greedy(self) -> bool:
        """Whether the options leave one token only, so that nothing is drawn."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on the tokens seen before."""
        return self.repetition_penalty != 1

    @property
    def _rules(self) -> bool:
        """Whether tokens may be ruled out."""
        whole = self.top_p is None or self.top_p >= 1
        return bool(self.top_k) or not whole or bool(self.min_p)

    def filtered(self, log_probs: Tensor, seen: Tensor | None = None) -> Tensor:
        """The scores (B, vocab) after all rules but not normalized again; the tensor itself when no rule applies."""
        if self.penalizes:
            if seen is None:
                raise ValueError("a repetition penalty needs the tokens seen so far")
            log_probs = penalize_repetition(log_probs, seen, self.repetition_penalty)
        scores = apply_temperature(log_probs, self.temperature)
        return keep_min_p(keep_top_p(keep_top_k(scores, self.top_k), self.top_p), self.min_p)

    def distribution(self, log_probs: Tensor, seen: Tensor | None = None) -> Tensor:
        """Log-probabilities (B, vocab) of the tokens under these options; minus infinity for those ruled out.

        log_probs (B, vocab) from the model; seen (B, vocab) bool, needed only with a repetition penalty.
        """
        return self.filtered(log_probs, seen).log_softmax(-1)

    def choose(self, log_probs: Tensor, generators: Draws, seen: Tensor | None = None) -> tuple[list[int], list[float]]:
        """Choose a token a row: ids and their log-probabilities under the model itself, on the host.

        A row with scores that are not finite gives a log-probability that is not finite, for the caller to see:
        the numbers go to the host anyway, and this costs no further wait for the device.
        """
        log_probs = widen(log_probs).detach()
        if self.is_greedy and not self.penalizes:
            best, ids = log_probs.max(-1)
            return ids.tolist(), best.tolist()
        if log_probs.device.type == "cpu" and not (self.is_greedy or self.penalizes or self._rules):
            # The temperature alone: all of it in NumPy.
            array = log_probs.numpy()
            return _values_of(array, *_pick_in_order(array, uniforms_of(generators), self.temperature))
        scores = self.filtered(log_probs, seen)
        if log_probs.device.type == "cpu":
            ids_here = (
                scores.argmax(-1).tolist()
                if self.is_greedy
                else _pick_in_order(scores.numpy(), uniforms_of(generators))[0]
            )
            return _values_of(log_probs.numpy(), ids_here, log_probs.amax(-1).tolist())
        ids = scores.argmax(-1) if self.is_greedy else _pick_in_parallel(scores, uniforms_of(generators)).clamp(min=0)
        chosen = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        # The rules may hide a NaN; the row's maximum does not. 0 × maximum spoils the value in that case only.
        checked = chosen + 0 * log_probs.amax(-1)
        return ids.tolist(), checked.tolist()


def _values_of(log_probs: NDArray[Any], ids: list[int], largest: list[float]) -> tuple[list[int], list[float]]:
    """The ids, in range, and their log-probabilities; a row's largest instead where that is not finite."""
    ids = [max(token, 0) for token in ids]
    chosen = [log_probs.item(0, ids[0])] if len(ids) == 1 else log_probs[np.arange(len(ids)), ids].tolist()
    return ids, [value if math.isfinite(top) else top for value, top in zip(chosen, largest, strict=True)]
