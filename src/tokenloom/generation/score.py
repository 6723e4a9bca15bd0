"""Scoring: log-probabilities of a given continuation after a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.generation.prefill import IDS, check_prompt, pad
from tokenloom.generation.sampling import NonFiniteLogits
from tokenloom.models.protocols import StepModel, feed_device


@dataclass(frozen=True, slots=True)
class Score:
    """log_probs: ln p of each token of the continuation, given the prompt and the tokens before it."""

    log_probs: tuple[float, ...]

    @property
    def total(self) -> float:
        """Return ln p of the whole continuation."""
        return sum(self.log_probs)

    @property
    def average(self) -> float:
        """Return the mean ln p per token; exp(−average) is the perplexity."""
        return self.total / len(self.log_probs)


def score(model: StepModel, prompt: IDS, continuation: IDS, *, chunk: int = 512) -> Score:
    """Score one continuation after one prompt. See `score_pairs`."""
    return score_pairs(model, [(prompt, continuation)], chunk=chunk)[0]


@torch.inference_mode()
def score_pairs(
    model: StepModel, pairs: Sequence[tuple[IDS, IDS]], *, chunk: int = 512, batch_size: int = 32
) -> list[Score]:
    """Score several (prompt, continuation) pairs, in order.

    chunk, batch_size: tokens and rows fed at once, which affect memory (batch_size × chunk × vocab numbers) but not the
    result. Raises UserError for an empty prompt or continuation, NonFiniteLogits when the model's outputs are not
    finite.
    """
    if chunk < 1 or batch_size < 1:
        raise ValueError(f"chunk and batch_size must be at least 1, not {chunk} and {batch_size}")
    if model.context is not None:
        chunk = min(chunk, max(model.context, 1))
    texts = [_checked(prompt, continuation) for prompt, continuation in pairs]
    scores: list[Score | None] = [None] * len(texts)
    # Texts of similar lengths share a batch, which reduces padding.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index][0]))
    for first in range(0, len(order), batch_size):
        part = order[first : first + batch_size]
        values = _score_batch(model, [texts[index][0] for index in part], part, chunk)
        for index, row in zip(part, values, strict=True):
            scores[index] = Score(tuple(row[texts[index][1] - 1 :]))
    return [score for score in scores if score is not None]


def _checked(prompt: IDS, continuation: IDS) -> tuple[tuple[int, ...], int]:
    """Return the whole text, and the length of the prompt."""
    start = check_prompt(prompt, "the prompt")
    if not len(continuation):
        raise UserError("the continuation is empty: there is no token to score")
    return start + check_prompt(continuation, "the continuation"), len(start)


def _score_batch(
    model: StepModel, texts: Sequence[tuple[int, ...]], which: Sequence[int], chunk: int
) -> list[list[float]]:
    """Return ln p of every token except the first of each text. Finished texts leave the batch."""
    device = feed_device(model)
    state = model.init_state(len(texts), which)
    rows = list(range(len(texts)))
    found: list[list[float]] = [[] for _ in texts]
    place = 0
    while rows:
        tokens, counts = pad([texts[row][place : place + chunk][: len(texts[row]) - 1 - place] for row in rows], device)
        targets, _ = pad([texts[row][place + 1 : place + 1 + chunk] for row in rows], device)
        log_probs, state = model.step(tokens, state, counts)
        for row, values in zip(rows, _gather(log_probs, targets, counts, place), strict=True):
            found[row] += values
        place += chunk
        staying = [n for n, row in enumerate(rows) if len(texts[row]) - 1 > place]
        if staying and len(staying) < len(rows):
            state = state.select(torch.tensor(staying, device=device))
        rows = [rows[n] for n in staying]
    return found


def _gather(log_probs: Tensor, targets: Tensor, counts: Tensor | None, place: int) -> list[list[float]]:
    """Return ln p of the targets (B, N), as lists without padding."""
    # 0 × maximum is NaN where a row contains NaN or infinity, and 0 elsewhere.
    chosen = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    checked = chosen + 0 * log_probs.amax(-1)
    lengths = [targets.shape[1]] * len(targets) if counts is None else counts.tolist()
    values = [row[:length] for row, length in zip(checked.tolist(), lengths, strict=True)]
    for row in values:
        for n, value in enumerate(row):
            if value != value:
                raise NonFiniteLogits(place + n + 1, log_probs.device)
    return values
