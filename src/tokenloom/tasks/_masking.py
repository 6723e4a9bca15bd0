"""Masked-language-model corruption: which tokens are asked for, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Devlin et al. 2019, section 3.1.
SELECTED, MASKED, RANDOM = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class Draws:
    """All the chance in a corruption, each of the shape of the ids: two numbers in [0, 1), and a text token's id."""

    select: Tensor
    kind: Tensor
    replacement: Tensor

    @staticmethod
    def of(shape: tuple[int, ...], vocab_size: int, generator: torch.Generator) -> Draws:
        """Draw from a generator, in this order."""
        select = torch.rand(shape, generator=generator)
        kind = torch.rand(shape, generator=generator)
        return Draws(select, kind, torch.randint(vocab_size, shape, generator=generator))

    @staticmethod
    def of_sample(length: int, vocab_size: int, random: np.random.Generator) -> Draws:
        """The draws of one sample of so many tokens, of which at least one is then selected."""
        select, kind = random.random(length), random.random(length)
        select[select.argmin()] = 0.0
        replacement = random.integers(vocab_size, size=length)
        return Draws(torch.from_numpy(select), torch.from_numpy(kind), torch.from_numpy(replacement))


def corrupt(ids: Tensor, draws: Draws, mask: int) -> tuple[Tensor, Tensor]:
    """The ids as the model sees them, and which of them it is asked for (bool); both of the shape of `ids`.

    A token is selected where select < 0.15. Of the selected, the mask stands in the place of those with kind < 0.8,
    the replacement of those with kind < 0.9, and the others stay as they are.
    """
    selected = draws.select < SELECTED
    masked = selected & (draws.kind < MASKED)
    replaced = selected & ~masked & (draws.kind < MASKED + RANDOM)
    seen = torch.where(masked, torch.full_like(ids, mask), torch.where(replaced, draws.replacement, ids))
    return seen, selected
