"""The task of `own_task.py` with a model that is fitted in one pass: how often each digit stood at the third place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from kit.own_task import Sums
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
    """Count which digit comes third; the sizes are known once the data are counted."""

    name = "digit-counts"

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        config = self.model_config
        prepared = super().load(source, for_evaluation=for_evaluation)
        self.model_config = config
        return replace(
            prepared, recipe={}, fit=lambda: self._fit(prepared.train), auto_settings={"smoothing": "add-one"}
        )

    def _fit(self, samples: Any) -> CountsModel:
        thirds = torch.tensor([row[2] for row in samples.take(samples.all())])
        self.model_config = {"digits": int(thirds.max()) + 1}
        model = CountsModel(**self.model_config)
        counts = thirds.bincount(minlength=self.model_config["digits"])
        smoothed = counts.double() + 1
        model.get_buffer("counts").copy_(counts)
        model.get_buffer("logs").copy_((smoothed / smoothed.sum()).log())
        return model

    def build_model(self, seed: int) -> CountsModel:
        return CountsModel(**self.model_config)
