"""The contract of a task: the seam between a kind of data and everything else.

A task says which reader, tokenizer, model, loss and metrics belong together, and how the trained thing is used. The
loop, the checkpoints, the command line know tasks by this contract alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.models.protocols import StepModel
from tokenloom.nn.modules import device_of
from tokenloom.training.batches import BatchContext
from tokenloom.training.device import choose_device
from tokenloom.training.events import Baseline
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerms, MetricSum
from tokenloom.utils.names import with_article

Show = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """What `prepare` makes of the data: samples to train on and to validate with, and the report on them."""

    training: Samples
    validation: Samples
    lines: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """Data and settings, by flat name, of a tiny training.

    without: paths of the equality kit that this kind of model lacks, though the task has them, each with the reason.
    """

    data: str | None
    settings: dict[str, Any]
    without: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prerequisite:
    """A training that comes before: of which task, and with which of its settings, by flat name."""

    task: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class PerSampleLoss:
    """What a run makes of each validation sample: value = Σ sums / Σ counts, the lower the better.

    content: a hash of what was asked; runs that share it were asked the same, sample by sample.
    """

    sums: Tensor
    counts: Tensor
    unit: str
    content: str

    @property
    def value(self) -> float:
        """Over all samples."""
        return float(self.sums.sum() / self.counts.sum())


class Task(ABC):
    """What every task must say, and what all of them share.

    A subclass sets `name`, `summary`, `Settings` (a frozen dataclass whose fields carry help texts, see
    `tokenloom.training.settings.option`), `models` (a line on each model that it can train), and `uses`: for each
    verb (`generate`, `predict`, …) the dataclass of its options; `measuring` is that of further options of `evaluate`,
    where it has some. For the equality kit it sets `paths`: for each path,
    "" when it has it, else the reason why not; and `decoded`, the stream that generation grows. `unit` is that in which
    its loss is drawn. It fills in the
    abstract methods; the rest has defaults.

    After training or loading, `model` is the trained model and `source` the data it came from. A task that learns a
    tokenizer from the data keeps it as an attribute, and writes and reads it in `save_parts` and `load_parts`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Settings: ClassVar[type]
    models: ClassVar[Mapping[str, str]] = {}
    uses: ClassVar[Mapping[str, type]] = {}
    measuring: ClassVar[type | None] = None
    needs_data: ClassVar[bool] = True
    fallback: ClassVar[bool] = False
    things: ClassVar[str] = "tokens"
    unit: str = "nats a token"

    def __init__(self, settings: Any = None) -> None:
        self.settings: Any = self.Settings() if settings is None else settings
        self.model_config: dict[str, Any] = {}
        self.source: str | None = None
        self._model: nn.Module | None = None

    # What a task must say.

    @abstractmethod
    def prepare(self, data: str | None) -> PreparedData:
        """Read, check and split the data, make the tokenizer, settle every size.

        Afterwards `model_config` holds all that `build` needs. data: a path, a built-in name, or None when the
        task makes its own. For a loaded task the tokenizer and the sizes are there already, and stay.
        """

    @abstractmethod
    def build(self, seed: int) -> nn.Module:
        """A fresh model, from `model_config` and the seed alone."""

    @property
    def counted(self) -> bool:
        """Whether the settings ask for a model that is counted by `count`, and not trained with gradients."""
        return False

    def count(self, material: PreparedData) -> nn.Module | None:
        """A model made in one pass over the material, without gradients, where `counted` says so.

        The sizes that it settles go into `model_config`, so that `build` gives a module into which its weights fit.
        What it has counted are buffers of the module. It is made on the CPU.
        """
        return None

    @abstractmethod
    def collate(self, samples: Any, moment: BatchContext) -> Batch:
        """What `Samples.take` gave, as a batch of tensors with masks and targets."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """The terms of the loss by name, as sums and counts per sample; terms of weight 0 are metrics.

        The counts of a term of weight above 0 must be those of the batch's targets of the same name.
        """

    # How a task is held against itself: see "One truth, many paths" in ARCHITECTURE.md.

    paths: ClassVar[Mapping[str, str]] = {}
    decoded: ClassVar[str] = "text"

    @classmethod
    @abstractmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        """Tiny trainings of a second or so, by name, one for each kind of model that the task can build.

        folder: where data files may be written. The equality kit runs over them.
        """

    def decoder(self, batch: Batch) -> StepModel:
        """The model as something that is fed step by step, for the rows of a batch; the stream `decoded` is fed."""
        raise UserError(f"{with_article(self.name)} model does not generate step by step")

    # How a training starts from another run: see `runs/initialization.py`.

    # How the names of those parameters begin that read the features; all others are the body, which tasks may share.
    head: ClassVar[str] = ""

    def adopt_config(self, origin: Task) -> None:
        """Take over, before the data are read, what the body of another run was made with: tokenizer and sizes.

        Raises UserError where this task's models have no body that others share, and with the first setting that asks
        for something else.
        """
        raise UserError(f"--init-from: {with_article(self.name)} model cannot start from another run")

    def adapt_tensor(self, name: str, value: Tensor, origin: Task) -> Tensor:
        """A tensor of the other run's body as it fits into this model: by default the same. Positions of another
        number of tokens, say, are stretched."""
        return value

    def output_meaning(self) -> object:
        """What the outputs of the head stand for, to be compared; None where no other run's head can serve."""
        return None

    # Stages: a task whose tokenizer is learned in a training of its own lists that training, and is handed its run.

    def prerequisites(self) -> Mapping[str, Prerequisite]:
        """Trainings on the same data that must come before the data are prepared, by name; none where all is there."""
        return {}

    def take_prerequisite(self, name: str, trained: Task) -> None:
        """Take over what a stage has trained. In a dry run its model is fresh: sizes alone can be read from it."""
        raise ValueError(f"{type(self).__name__} lists the stage {name!r} and does not take it")

    # What a task may say.

    @classmethod
    def accepts(cls, data: str) -> str | None:
        """Why these data look like this task's, in a few words, or None: how a task is guessed.

        A task that accepts nearly anything sets `fallback`, and is asked only when no other accepts.
        """
        return None

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        """Training settings that suit this task, its sizes and its data, by flat name."""
        return {}

    def sketch(self) -> None:
        """Settle every size without data, so that the model can be looked at. Raises UserError if it needs data."""
        raise UserError(f"the sizes of {self.name} depend on the data: train it with --dry-run instead")

    def derived(self) -> dict[str, Any]:
        """The sizes that `prepare` derived, to be shown: name → value."""
        return {}

    def baseline(self, material: PreparedData) -> Baseline | None:
        """What a simple method reaches on the same validation data."""
        return None

    def example(self) -> str:
        """Something that the trained model makes, to be shown after training; nothing by default."""
        return ""

    def load_samples(self, data: str) -> Samples:
        """All of some other data as samples, to be measured on. By default their validation part."""
        return self.prepare(data).validation

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        """Metrics for a person to read; after training with what `analyze` gave."""
        return [f"{name + ':':<18} {value:.4f}" for name, value in metrics.items()]

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        """Metrics by name from the sums over a split. Lower `loss` is better.

        By default `loss` = Σ weight × value over the terms that are minimized, and every other term is its own value.
        """
        minimized = [total.weight * total.value for total in totals.values() if total.weight and total.count]
        return {name: total.value for name, total in totals.items()} | {"loss": sum(minimized)}

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        """What there is to say of a trained model beside single numbers: tables and matrices, for `metric_lines` and
        `--json`. It may draw them into the folder of the run. Called once, after training, with the best weights."""
        return {}

    def save_parts(self, folder: Path) -> dict[str, Any]:
        """Write what belongs to the run beside the weights (`tokenizer.json`); returns what config.json keeps."""
        return {}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        """Read it back; `kept` is what `save_parts` returned. Raises UserError when it is not what was written."""
        if kept:
            raise ValueError(f"{type(self).__name__} saved parts but does not load them")

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        """Use the trained model from the command line: shows its result, in pieces if it comes so; returns it as data.

        verb: a key of `uses`. options: an instance of its dataclass.
        """
        raise UserError(f"{with_article(self.name)} run cannot {verb}")

    @property
    def sequence(self) -> int:
        """How many tokens the model sees at a time, as its sizes say: what attention costs depends on it."""
        return int(self.model_config.get("context", 1))

    # What all tasks share.

    @property
    def model(self) -> nn.Module:
        """The trained model. Raises UserError before there is one."""
        if self._model is None:
            raise UserError(f"this {self.name} task has no model yet: train it, or load a run")
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._model = model

    def forget(self) -> None:
        """Have no model any more."""
        self._model = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return device_of(self.model)

    def to(self, device: str) -> Self:
        """Move the model; `device` as in the settings ("auto", "cpu", "cuda", …)."""
        self.model.to(choose_device(device))
        return self

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, float]:
        """Metrics over a whole validation split: that of `data` (see `load_samples`), or explicit samples.

        Deterministic, and independent of the batch size. data: None measures on what the run was trained on. Raises
        NoTargets when nothing in it can be measured.
        """
        if batch_size < 1:
            raise UserError(f"--batch-size {batch_size}: must be at least 1")
        if samples is None:
            samples = self.prepare(self.source).validation if data is None else self.load_samples(data)
        return self.metrics(evaluate(self, self.model, samples, batch_size=batch_size))

    def measured(self, context: str | None = None) -> PerSampleLoss:
        """The loss of each validation sample, so that runs can be compared in pairs.

        context: for tasks that can be measured in more than one way. Raises UserError where this one cannot.
        """
        if context is not None:
            raise UserError(f"--context {context}: {self.name} runs are measured in one way only")
        samples = self.prepare(self.source).validation
        sums, counts = evaluate(self, self.model, samples)["loss"].samples
        return PerSampleLoss(sums, counts, "loss", samples.fingerprint())

    @contextmanager
    def ready(self) -> Iterator[nn.Module]:
        """The model set for use, without dropout; afterwards as it was."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train(was_training)
