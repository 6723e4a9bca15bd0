"""Beam search: looking for the most likely continuation by keeping the few best beginnings.

Greedy choice is not optimal: the best first token may lead into poor company (Bishop & Bishop, section 12.3.2).
"""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.generation.prefill import IDS, check_budget, check_prompts, prefill, require_finite
from tokenloom.generation.sampling import top_k_mask, widen
from tokenloom.models.protocols import StepModel, feed_device


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation that a beam search found.

    ids: its tokens, without the end token. end: the end token that closed it, None when it was cut at the limit.
    log_prob: ln p of ids, and of the end token where there is one. length: how many tokens that counts.
    score: log_prob / length^alpha, by which hypotheses are compared.
    """

    ids: tuple[int, ...]
    end: int | None
    log_prob: float
    length: int
    score: float


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """width: how many beginnings are kept. end: ids that close a hypothesis. n_best: how many to return.

    alpha: how much of the length is divided out of a score; 0 compares probabilities, which favors short
    texts, 1 compares averages a token. The power is that of Wu et al. (2016), section 7, without their offset of 5.
    """

    width: int
    max_new_tokens: int
    end: Collection[int] = ()
    alpha: float = 1.0
    n_best: int = 1

    def __post_init__(self) -> None:
        check_budget(self.max_new_tokens)
        if self.width < 1:
            raise UserError(f"a beam of width {self.width} cannot search: give 1 (greedy) or more (--beam)")
        if not 1 <= self.n_best <= self.width:
            raise UserError(
                f"{self.n_best} results cannot come from a beam of width {self.width}:"
                f" ask for 1 to {self.width}, or widen the beam (--beam)"
            )
        if not 0 <= self.alpha <= 10:
            raise UserError(f"length normalization {self.alpha} must lie between 0 and 10 (--alpha)")

    def score(self, log_prob: float, length: int) -> float:
        """log_prob / length^alpha."""
        return log_prob / math.pow(length, self.alpha)


@torch.inference_mode()
def beam_search(model: StepModel, prompts: Sequence[IDS], options: BeamOptions) -> list[list[Hypothesis]]:
    """The n best continuations of each prompt, best first (fewer where fewer are possible).

    At each step the `width` best one-token extensions of a prompt's beam are kept; those that end with an end token
    leave the beam but stay in the competition. A prompt is done when its beam is empty, at the limit of new tokens,
    or when no continuation of what is in the beam could enter its n best any more. Ties go to the better parent, then
    to the smaller id. Width 1 is greedy choice.
    All prompts and beams go through the model as one batch, with its cache; each prompt gets what it would get alone.

    Raises UserError for an empty prompt or options out of range, NonFiniteLogits when the model breaks down.
    """
    ids = check_prompts(prompts)
    searches = [_Search(options) for _ in ids]
    if not ids or options.max_new_tokens == 0:
        return [[Hypothesis((), None, 0.0, 0, 0.0)] for _ in ids]
    log_probs, state = prefill(model, ids)
    active, device = searches, feed_device(model)
    for length in range(1, options.max_new_tokens + 1):
        width = min(options.width, log_probs.shape[-1])
        values, tokens = _best_extensions(log_probs, width, length)
        parents: list[int] = []
        row = 0
        for search in active:
            end = row + len(search.live)
            parents += [row + parent for parent in search.extend(values[row:end], tokens[row:end], length)]
            row = end
        active = [search for search in active if search.live]
        if not active:
            break
        if parents != list(range(row)):
            state = state.select(torch.tensor(parents, device=device))
        newest = [[beam.ids[-1]] for search in active for beam in search.live]
        log_probs, state = model.step(torch.tensor(newest, device=device), state)
        log_probs = log_probs[:, -1]
    return [search.done for search in searches]


def _best_extensions(log_probs: Tensor, k: int, step: int) -> tuple[list[list[float]], list[list[int]]]:
    """The k best tokens of each row (B, vocab), by ascending id: their log-probabilities and ids, on the host."""
    log_probs = widen(log_probs)
    require_finite(log_probs.amax(-1).tolist(), step, log_probs.device)
    keep = top_k_mask(log_probs, k)
    # Exactly k a row are kept: write each to its rank, and all the others to a column that is thrown away.
    rank = torch.where(keep, keep.cumsum(-1) - 1, k)
    places = torch.arange(log_probs.shape[-1], device=log_probs.device).expand_as(rank)
    ids = torch.empty(len(rank), k + 1, dtype=torch.int64, device=rank.device).scatter_(1, rank, places)[:, :k]
    return log_probs.gather(1, ids).tolist(), ids.tolist()


@dataclass(frozen=True, slots=True)
class _Beam:
    """A beginning: its tokens and ln p of them."""

    ids: tuple[int, ...]
    log_prob: float


class _Search:
    """The search for one prompt: the beginnings that go on, best first, and the n best hypotheses so far."""

    def __init__(self, options: BeamOptions) -> None:
        self.options = options
        self.live = [_Beam((), 0.0)]
        self.done: list[Hypothesis] = []

    def extend(self, values: list[list[float]], tokens: list[list[int]], length: int) -> list[int]:
        """Replace the beam by its best extensions, now `length` tokens long; returns the old beam each came from."""
        candidates = (
            (-(beam.log_prob + value), parent, token)
            for parent, beam in enumerate(self.live)
            for value, token in zip(values[parent], tokens[parent], strict=True)
            if value > -math.inf
        )
        live: list[_Beam] = []
        parents: list[int] = []
        for cost, parent, token in heapq.nsmallest(self.options.width, candidates):
            before = self.live[parent].ids
            if token in self.options.end:
                self._finish(before, token, -cost, length)
            elif length == self.options.max_new_tokens:
                self._finish((*before, token), None, -cost, length)
            else:
                live.append(_Beam((*before, token), -cost))
                parents.append(parent)
        self.live = live
        if self._settled():
            self.live = []
        return parents[: len(self.live)]

    def _finish(self, ids: tuple[int, ...], end: int | None, log_prob: float, length: int) -> None:
        self.done.append(Hypothesis(ids, end, log_prob, length, self.options.score(log_prob, length)))
        self.done.sort(key=lambda hypothesis: -hypothesis.score)
        del self.done[self.options.n_best :]

    def _settled(self) -> bool:
        """Whether nothing in the beam can still enter the n best.

        ln p only falls from here on, and is divided by max_new_tokens^alpha at most: that bounds every score to come.
        """
        if not self.live or len(self.done) < self.options.n_best:
            return False
        bound = self.options.score(self.live[0].log_prob, self.options.max_new_tokens)
        return self.done[-1].score >= bound
