"""A model as small as can be, and checkpoints of it in which every number tells the step."""

from pathlib import Path

import torch
from torch import nn

from tokenloom.training.checkpoints import (
    Checkpoints,
)


class Small(nn.Module):
    """Two maps, one of them tied; a buffer that is kept, and one that is not."""

    def __init__(self, value: float = 0.0, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.full((2,), value))
        self.register_buffer("derived", torch.full((2,), value), persistent=False)
        with torch.no_grad():
            self.first.weight.fill_(value)
            self.first.bias.fill_(value + 0.5)


def state_of(step: int) -> dict[str, torch.Tensor]:
    return {"0/first.weight/exp_avg": torch.full((3, 3), float(step))}


def save(checkpoints: Checkpoints, step: int, best_step: int | None = None) -> Path:
    return checkpoints.save(step, Small(float(step)), state_of(step), {"best_step": best_step, "more": [1, 0.1]})
