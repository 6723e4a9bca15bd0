"""Corruption for masked language modeling (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Of all tokens, the fraction that is predicted; of those, the fractions that become the mask or a random token.
SELECTED, MASKED, RANDOM = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class MaskingDraws:
    """The random draws of a corruption, each of the shape of the ids: two numbers in [0, 1), and a text token's id."""

    select: Tensor
    kind: Tensor
    replacement: Tensor

    @staticmethod
    def of(shape: tuple[int, ...], vocab_size: int, generator: torch.Generator) -> MaskingDraws:
        """Draw from a generator, in this order."""
        select = torch.rand(shape, generator=generator)
        kind = torch.rand(shape, generator=generator)
        return MaskingDraws(select, kind, torch.randint(vocab_size, shape, generator=generator))

    @staticmethod
    def for_sample(length: int, vocab_size: int, random: np.random.Generator) -> MaskingDraws:
        """Draw for one sample of `length` tokens, so that at least one is selected."""
        select, kind = random.random(length), random.random(length)
        select[select.argmin()] = 0.0
        replacement = random.integers(vocab_size, size=length)
        return MaskingDraws(torch.from_numpy(select), torch.from_numpy(kind), torch.from_numpy(replacement))


def corrupt(ids: Tensor, draws: MaskingDraws, mask: int) -> tuple[Tensor, Tensor]:
    """Return the corrupted ids, and which tokens are to be predicted (bool); both of the shape of `ids`.

    A token is selected where select < 0.15. A selected token becomes the mask where kind < 0.8, the replacement where
    kind < 0.9, and otherwise stays as it is.
    """
    selected = draws.select < SELECTED
    masked = selected & (draws.kind < MASKED)
    replaced = selected & ~masked & (draws.kind < MASKED + RANDOM)
    corrupted = torch.where(masked, torch.full_like(ids, mask), torch.where(replaced, draws.replacement, ids))
    return corrupted, selected
