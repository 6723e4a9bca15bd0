"""Prefill: feed prompts of different lengths to a model; and the checks that all decoding methods share."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.generation.sampling import NonFiniteLogits
from tokenloom.models.protocols import State, StepModel, feed_device

IDS = Sequence[int]


def check_prompt(prompt: IDS, name: str) -> tuple[int, ...]:
    """Return the ids of a prompt as a tuple. Raises UserError when there are none, ValueError for a negative id."""
    ids = tuple(int(token) for token in prompt)
    if not ids:
        raise UserError(f"{name} is empty: a model needs at least one token to continue ({flag('prompt')})")
    if min(ids) < 0:
        raise ValueError(f"{name} contains the id {min(ids)}; ids start at 0")
    return ids


def check_prompts(prompts: Sequence[IDS]) -> list[tuple[int, ...]]:
    """Return all prompts as tuples; see `check_prompt`. Errors number several prompts from 1."""
    if len(prompts) == 1:
        return [check_prompt(prompts[0], "the prompt")]
    return [check_prompt(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]


def check_max_new_tokens(max_new_tokens: int) -> None:
    """Raise UserError for a negative number of new tokens."""
    if max_new_tokens < 0:
        raise UserError(f"{flag('max_new_tokens')} {max_new_tokens}: must be at least 0")


def pad(sequences: Sequence[IDS], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return tokens (B, N) int64, padded on the right with 0, and counts (B,), None when all rows are equally long."""
    lengths = [len(sequence) for sequence in sequences]
    N = max(lengths)
    tokens = torch.tensor([[*sequence, *[0] * (N - len(sequence))] for sequence in sequences], device=device)
    return tokens, None if min(lengths) == N else torch.tensor(lengths, device=device)


def prefill(model: StepModel, prompts: Sequence[IDS], rows: Sequence[int] | None = None) -> tuple[Tensor, State]:
    """Feed whole prompts; return log-probabilities (B, vocab) of the next token, and the state of all rows.

    rows: as for `StepModel.init_state`. Of a prompt longer than the model's context only the last part is fed, since
    the rest cannot matter.
    """
    if model.context is not None:
        prompts = [prompt[-max(model.context, 1) :] for prompt in prompts]
    tokens, counts = pad(prompts, feed_device(model))
    log_probs, state = model.step(tokens, model.init_state(len(prompts), rows), counts)
    if counts is None:
        return log_probs[:, -1], state
    return log_probs[torch.arange(len(prompts), device=log_probs.device), counts - 1], state


def require_finite(values: Sequence[float], step: int, device: torch.device) -> None:
    """Raise NonFiniteLogits when a value, on the host already, is NaN or infinite."""
    if not all(map(math.isfinite, values)):
        raise NonFiniteLogits(step, device)
