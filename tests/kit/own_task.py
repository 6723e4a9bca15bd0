"""A task as a user would write one in a file of their own: which digit follows two digits? The rule is their sum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokenloom.config import Options, option
from tokenloom.data.samples import ListSamples
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.nn.modules import eval_mode
from tokenloom.tasks.base import NO_SAMPLES, PlainReport, PreparedData, Show, Task, action, need_data
from tokenloom.training.batches import BatchContext
from tokenloom.training.losses import LossTerm, LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric


@dataclass(frozen=True)
class SumsSettings(Options):
    """Sizes, and how often an example is left out in training."""

    width: int = option(8, "features per digit")
    dropout: float = option(0.1, "fraction of activations set to zero in training")
    hidden: float = option(0.2, "fraction of the examples without a target, drawn anew at each step")


class SumsModel(nn.Module):
    """Two embedded digits → a linear map → the logits of the third."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.digits = nn.Embedding(10, width)
        self.mix = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 10)

    def forward(self, batch: Batch, cache: None = None, hooks: None = None) -> torch.Tensor:
        X = self.digits(batch["digits"].tokens).flatten(1)  # (B, 2·width)
        logits: torch.Tensor = self.head(self.dropout(torch.tanh(self.mix(X))))
        return logits


@dataclass(frozen=True)
class AddOptions(Options):
    """The two digits."""

    digits: str = option("12", "two digits")


class Sums(Task):
    """Predict which digit follows two digits."""

    name = "digit-sums"
    Settings = SumsSettings
    metrics = (Metric("loss", "nats/digit", "lower"), Metric("accuracy", better="higher", kind="percent"))

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        try:
            lines = Path(need_data(self, source)).read_text("utf-8").split()
        except OSError as error:
            raise UserError(f"{source}: cannot be read") from error
        rows = [tuple(int(c) for c in line) for line in lines]
        if for_evaluation:
            return PreparedData(NO_SAMPLES, ListSamples(rows))
        cut = len(rows) * 9 // 10
        self.model_config = self.model_config or {"width": self.settings.width, "dropout": self.settings.dropout}
        return PreparedData(
            ListSamples(rows[:cut]),
            ListSamples(rows[cut:]),
            PlainReport({"lines": len(rows)}),
            recipe={"steps": 40, "batch_size": 16, "lr": 0.02},
        )

    def build_model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return SumsModel(**self.model_config)

    def collate(self, samples: Any, context: BatchContext) -> Batch:
        digits = torch.tensor(samples)
        targets = digits[:, 2].clone()
        if context.training:
            for row in range(len(targets)):
                if context.random(row).random() < self.settings.hidden:
                    targets[row] = IGNORE
        return Batch({"digits": Stream(ids=digits[:, :2])}, {"loss": targets})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        targets = batch.targets["loss"]
        logits = model(batch)
        term = cross_entropy_term(logits, targets)
        return {"loss": term, "accuracy": LossTerm((logits.argmax(-1) == targets).float(), term.counts, weight=0.0)}

    @action(AddOptions)
    def _predict(self, options: AddOptions, show: Show) -> dict[str, Any]:
        """Predict with RUN."""
        digits = torch.tensor([[int(c) for c in options.digits]])
        with eval_mode(self.model) as model, torch.no_grad():
            answer = int(model(Batch({"digits": Stream(ids=digits)})).argmax())
        show(f"{answer}\n")
        return {"answer": answer}


def write_sums(path: Path, lines: int = 120, offset: int = 0) -> str:
    """Data for the task. offset: of the rule, so that other data of the same length can be made."""
    pairs = [(i * 7 + i // 10) % 100 for i in range(lines)]
    path.write_text("\n".join(f"{p:02}{(p // 10 + p % 10 + offset) % 10}" for p in pairs), encoding="utf-8")
    return str(path)
