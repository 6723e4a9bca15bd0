"""A training as small as can be: a GPT that learns rows of unequal length, and what the loop needs around it."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tokenloom.data.samples import ListSamples
from tokenloom.models.batch import IGNORE, Batch, Stream, pad
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.training.batches import BatchContext, Batches
from tokenloom.training.checkpoints import Checkpoints
from tokenloom.training.events import Event
from tokenloom.training.loop import RunFiles, fit
from tokenloom.training.losses import LossTerm, LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric
from tokenloom.training.settings import TrainingSettings

VOCAB = 11


class NextToken:
    """Predict the next id of each row. hook: is shown each batch that the loss is asked for."""

    def __init__(self, hook: Callable[[nn.Module, Batch], None] | None = None) -> None:
        self.hook = hook

    def collate(self, samples: list[Any], context: BatchContext) -> Batch:
        rows = [torch.tensor(row) for row in samples]
        ids, real = pad([row[:-1] for row in rows])
        targets, _ = pad([row[1:] for row in rows], fill=IGNORE)
        return Batch({"text": Stream(ids=ids, real=real)}, {"loss": targets})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        if self.hook is not None:
            self.hook(model, batch)
        targets = batch.targets["loss"]
        logits = model(batch)
        hits = ((logits.argmax(-1) == targets) & (targets != IGNORE)).sum(1)
        term = cross_entropy_term(logits, targets)
        return {"loss": term, "hits": LossTerm(hits.double(), term.counts, weight=0.0)}

    metrics: Sequence[Metric] = (
        Metric("loss", "nats/token", "lower"),
        Metric("hits"),
        Metric("count", compute=lambda task, sums: sums["loss"].count),
    )


def rows(count: int, seed: int = 0, longest: int = 9) -> ListSamples:
    """Rows of 2 … longest ids, in which each id follows from the one before it most of the time."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        row = [int(random.integers(VOCAB))]
        for _ in range(int(random.integers(1, longest))):
            row.append((3 * row[-1] + 1) % VOCAB if random.random() < 0.9 else int(random.integers(VOCAB)))
        made.append(tuple(row))
    return ListSamples(made)


def tiny_gpt(seed: int = 0, dropout: float = 0.0, depth: int = 1) -> GPT:
    """Width 16, one layer."""
    return GPT(GPTConfig(VOCAB, 16, width=16, depth=depth, heads=2, dropout=dropout), seed)


def tiny_settings(optimizer: str = "adamw", **more: Any) -> TrainingSettings:
    """Settings in which nothing is left to be derived."""
    muon_lr = more.pop("muon_lr", 0.02)
    given: dict[str, Any] = {
        "steps": 12,
        "batch_size": 6,
        "seed": 4,
        "eval_every": 4,
        "optimizer": optimizer,
        "lr": 0.01,
        "weight_decay": 0.05,
        "beta2": 0.95,
        "grad_clip": 1.0,
        "lr_schedule": "wsd",
        "warmup_steps": 2,
        "decay_fraction": 0.5,
    }
    if optimizer == "muon":
        given["muon_lr"] = muon_lr
    return TrainingSettings(**{**given, **more})


def batches_of(settings: TrainingSettings, samples: ListSamples | None = None, task: Any = None) -> Batches:
    """The training batches that the settings ask for; seven of them make an epoch of the 40 rows."""
    assert settings.batch_size is not None
    return Batches(
        samples if samples is not None else rows(40),
        (task or NextToken()).collate,
        batch_size=settings.batch_size,
        seed=settings.seed,
        grad_accum=settings.grad_accum,
    )


def weights(model: nn.Module) -> torch.Tensor:
    """All of them, in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def of_kind(events: list[Event], kind: type) -> list[Any]:
    """The events of one kind."""
    return [event for event in events if type(event) is kind]


def mean_loss(model: nn.Module, batch: Batch) -> float:
    """The mean cross-entropy over the counted targets, target by target, in Python's own arithmetic."""
    with torch.no_grad():
        logits = model(batch)
    losses = []
    for b, n in (batch.targets["loss"] != IGNORE).nonzero().tolist():
        scores = logits[b, n].double().tolist()
        highest = max(scores)
        log_sum = highest + math.log(sum(math.exp(s - highest) for s in scores))
        losses.append(log_sum - scores[int(batch.targets["loss"][b, n])])
    return sum(losses) / len(losses)


VALIDATION = rows(30, seed=9)


def train(
    settings: TrainingSettings, *, task: Any = None, model: nn.Module | None = None, batches: Any = None, **more: Any
) -> tuple[list[Event], nn.Module]:
    """A whole training, and the model it left."""
    task = task or NextToken()
    model = model or tiny_gpt()
    return list(fit(task, model, settings, batches or batches_of(settings), VALIDATION, **more)), model


def run_in(folder: Path, keep: int = 2) -> RunFiles:
    return RunFiles(Checkpoints(folder / "checkpoints", keep), folder / "model.safetensors")


def after(steps: int) -> Callable[[], bool]:
    """Asks for a stop after so many steps: the loop asks back once a step."""
    asked = itertools.count(1)
    return lambda: next(asked) >= steps


class Scripted(NextToken):
    """Its validation loss is as written."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = iter(values)

    @property
    def metrics(self) -> Sequence[Metric]:  # type: ignore[override]
        return (Metric("loss", compute=lambda task, sums: next(self.values)),)


def without_targets(batch: Batch) -> Batch:
    return Batch(batch.streams, {name: torch.full_like(target, IGNORE) for name, target in batch.targets.items()})
