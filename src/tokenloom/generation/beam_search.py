"""Beam search: the most likely continuation, found by keeping the best partial hypotheses at each step.

Greedy decoding is not optimal: the best first token may have poor continuations (Bishop & Bishop, section 12.3.2).
"""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.generation.prefill import IDS, check_max_new_tokens, check_prompts, prefill, require_finite
from tokenloom.generation.sampling import top_k_mask, widen
from tokenloom.models.protocols import StepModel, feed_device


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation found by beam search.

    ids: its tokens, without the end token. end: the end token, None when the limit was reached. log_prob: ln p of ids
    and the end token. length: number of tokens in log_prob. score: log_prob / length^length_penalty.
    """

    ids: tuple[int, ...]
    end: int | None
    log_prob: float
    length: int
    score: float


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """num_beams: partial hypotheses kept per prompt. end: ids that end a hypothesis. n_best: hypotheses to return.

    length_penalty: the exponent of the length that divides a score; 0 compares probabilities, which favors short
    texts, 1 compares nats/token. As in Wu et al. (2016), section 7, without their offset of 5.
    """

    num_beams: int
    max_new_tokens: int
    end: Collection[int] = ()
    length_penalty: float = 1.0
    n_best: int = 1

    def __post_init__(self) -> None:
        check_max_new_tokens(self.max_new_tokens)
        if self.num_beams < 1:
            raise UserError(f"{flag('num_beams')} {self.num_beams}: must be at least 1 (greedy)")
        if not 1 <= self.n_best <= self.num_beams:
            raise UserError(
                f"{flag('num_beams')} {self.num_beams}: gives 1 to {self.num_beams} results, not {self.n_best}"
            )
        if not 0 <= self.length_penalty <= 10:
            raise UserError(f"{flag('length_penalty')} {self.length_penalty}: must be from 0 to 10")

    def score(self, log_prob: float, length: int) -> float:
        """Return log_prob / length^length_penalty."""
        return log_prob / math.pow(length, self.length_penalty)


@torch.inference_mode()
def beam_search(model: StepModel, prompts: Sequence[IDS], options: BeamOptions) -> list[list[Hypothesis]]:
    """Return the n best continuations of each prompt, best first (fewer where fewer are possible).

    At each step the `num_beams` best one-token extensions of a prompt's beams are kept; those that end with an end
    token leave the beam but remain candidates. A prompt is done when its beam is empty, at the limit of new tokens, or
    when no continuation of its beam can enter its n best. Ties go to the better parent, then to the smaller id. One
    beam is greedy decoding. All prompts and beams are one batch; each prompt gets the same result as alone.

    Raises UserError for an empty prompt, NonFiniteLogits when the model's outputs are not finite.
    """
    ids = check_prompts(prompts)
    searches = [_Search(options) for _ in ids]
    if not ids or options.max_new_tokens == 0:
        return [[Hypothesis((), None, 0.0, 0, 0.0)] for _ in ids]
    log_probs, state = prefill(model, ids)
    active, device = searches, feed_device(model)
    for length in range(1, options.max_new_tokens + 1):
        width = min(options.num_beams, log_probs.shape[-1])
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
    """Return log-probabilities and ids of the k best tokens of each row (B, vocab), by ascending id, on the host."""
    log_probs = widen(log_probs)
    require_finite(log_probs.amax(-1).tolist(), step, log_probs.device)
    keep = top_k_mask(log_probs, k)
    # Exactly k per row: write each to its rank, and all others to an extra column that is dropped.
    rank = torch.where(keep, keep.cumsum(-1) - 1, k)
    places = torch.arange(log_probs.shape[-1], device=log_probs.device).expand_as(rank)
    ids = torch.empty(len(rank), k + 1, dtype=torch.int64, device=rank.device).scatter_(1, rank, places)[:, :k]
    return log_probs.gather(1, ids).tolist(), ids.tolist()


@dataclass(frozen=True, slots=True)
class _Beam:
    """A partial hypothesis: its tokens and their ln p."""

    ids: tuple[int, ...]
    log_prob: float


class _Search:
    """The search for one prompt: its beam, best first, and the n best finished hypotheses."""

    def __init__(self, options: BeamOptions) -> None:
        self.options = options
        self.live = [_Beam((), 0.0)]
        self.done: list[Hypothesis] = []

    def extend(self, values: list[list[float]], tokens: list[list[int]], length: int) -> list[int]:
        """Replace the beam by its best extensions of `length` tokens; return the index of each one's parent."""
        candidates = (
            (-(beam.log_prob + value), parent, token)
            for parent, beam in enumerate(self.live)
            for value, token in zip(values[parent], tokens[parent], strict=True)
            if value > -math.inf
        )
        live: list[_Beam] = []
        parents: list[int] = []
        for cost, parent, token in heapq.nsmallest(self.options.num_beams, candidates):
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
        """Return whether nothing in the beam can still enter the n best.

        ln p only decreases, and is divided by max_new_tokens^length_penalty at most, which bounds every later score.
        """
        if not self.live or len(self.done) < self.options.n_best:
            return False
        bound = self.options.score(self.live[0].log_prob, self.options.max_new_tokens)
        return self.done[-1].score >= bound
