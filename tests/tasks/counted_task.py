"""The task of `own_task.py` with a model that is counted: how often each digit stood at the third place."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from own_task import Sums
from torch import nn

from tokenloom.models.batch import Batch
from tokenloom.tasks.base import PreparedData


class CountsModel(nn.Module):
    """log p(digit), the same for every pair."""

    def __init__(self, digits: int) -> None:
        super().__init__()
        self.register_buffer("logs", torch.zeros(digits, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(digits, dtype=torch.int64))

    def forward(self, batch: Batch, cache: None = None, hooks: None = None) -> torch.Tensor:
        return self.get_buffer("logs").expand(len(batch), -1)


class Counts(Sums):
    """Add-one counts of the third digit; the sizes are known once the data are counted."""

    name = "digit-counts"
    summary = "count which digit comes third"
    models: ClassVar[dict[str, str]] = {"counts": "add-one counts"}

    @property
    def counted(self) -> bool:
        return True

    def prepare(self, data: str | None) -> PreparedData:
        kept = self.model_config
        material = super().prepare(data)
        self.model_config = kept
        return material

    def count(self, material: PreparedData) -> CountsModel:
        samples: Any = material.training
        thirds = torch.tensor([row[2] for row in samples.take(samples.all())])
        self.model_config = {"digits": int(thirds.max()) + 1}
        model = CountsModel(**self.model_config)
        counts = thirds.bincount(minlength=self.model_config["digits"])
        smoothed = counts.double() + 1
        model.get_buffer("counts").copy_(counts)
        model.get_buffer("logs").copy_((smoothed / smoothed.sum()).log())
        return model

    def derived(self) -> dict[str, Any]:
        return dict(self.model_config)

    def build(self, seed: int) -> CountsModel:
        return CountsModel(**self.model_config)
