"""Feeding token sequences of different lengths to a model, and the checks that every way of decoding shares."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.generation.sampling import NonFiniteLogits
from tokenloom.models.protocols import State, StepModel, feed_device

IDS = Sequence[int]


def check_prompt(prompt: IDS, name: str) -> tuple[int, ...]:
    """The ids of a prompt as a tuple; raises UserError when there are none, ValueError for a negative id."""
    ids = tuple(int(token) for token in prompt)
    if not ids:
        raise UserError(f"{name} is empty: a model needs at least one token to go on from (--prompt)")
    if min(ids) < 0:
        raise ValueError(f"{name} holds the id {min(ids)}; ids start at 0")
    return ids


def check_prompts(prompts: Sequence[IDS]) -> list[tuple[int, ...]]:
    """All prompts as tuples; where there are several, an error counts them from 1. See `check_prompt`."""
    if len(prompts) == 1:
        return [check_prompt(prompts[0], "the prompt")]
    return [check_prompt(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]


def check_budget(max_new_tokens: int) -> None:
    """Raises UserError for a negative number of new tokens."""
    if max_new_tokens < 0:
        raise UserError(f"{max_new_tokens} new tokens cannot be made: give 0 or more (--max-new-tokens)")


def pad(sequences: Sequence[IDS], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Tokens (B, N) int64 padded on the right with 0, and counts (B,): None when all rows are equally long."""
    lengths = [len(sequence) for sequence in sequences]
    N = max(lengths)
    tokens = torch.tensor([[*sequence, *[0] * (N - len(sequence))] for sequence in sequences], device=device)
    return tokens, None if min(lengths) == N else torch.tensor(lengths, device=device)


def prefill(model: StepModel, prompts: Sequence[IDS], rows: Sequence[int] | None = None) -> tuple[Tensor, State]:
    """Feed whole prompts at once: log-probabilities (B, vocab) of the token after each, and the state of all rows.

    rows: as for `StepModel.init_state`. Of a prompt longer than the model's context only the last part is fed: nothing
    else can matter.
    """
    if model.context is not None:
        prompts = [prompt[-max(model.context, 1) :] for prompt in prompts]
    tokens, counts = pad(prompts, feed_device(model))
    log_probs, state = model.step(tokens, model.init_state(len(prompts), rows), counts)
    if counts is None:
        return log_probs[:, -1], state
    return log_probs[torch.arange(len(prompts), device=log_probs.device), counts - 1], state


def require_finite(values: Sequence[float], step: int, device: torch.device) -> None:
    """Raises NonFiniteLogits when one of the values, on the host already, is NaN or infinite."""
    if not all(map(math.isfinite, values)):
        raise NonFiniteLogits(step, device)
