"""The contract of a task: a kind of data with its tokenizer, model, loss, metrics and uses of the trained model.

The training loop, the run folder and the command line know tasks by this contract alone.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from tokenloom.config import Options, flatten, option, options
from tokenloom.data.samples import ListSamples, Samples
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import LossTerms
from tokenloom.training.metrics import Metric, compute_metrics
from tokenloom.utils.names import with_article

Show = Callable[[str], None]


class Report(Protocol):
    """A report on the data."""

    def lines(self) -> list[str]:
        """Return the report as lines `label: text`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        ...


@dataclass(frozen=True)
class PlainReport:
    """A report that is a few values by name."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return a line per value."""
        return [f"{name + ':':<11} {value}" for name, value in self.values.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self.values)


# Where all data are for evaluation.
NO_SAMPLES = ListSamples(())


@dataclass(frozen=True)
class PreparedData:
    """Data that are read, checked, split and tokenized, and what follows from them.

    recipe: training settings that suit the task, its sizes and the data, by name. auto_settings: sizes and other
    settings that were chosen automatically, to be shown. sequence_length: tokens per sample, on which the cost of
    attention depends. fit: makes the model in one pass over the data, for a model that is not trained with gradients;
    sizes that it finds go into `model_config`. baseline: evaluates a simple method on the validation data. analyze:
    returns metrics beside the declared ones, computed once, with the trained model; may write figures into the folder.
    """

    train: Samples
    validation: Samples
    report: Report = field(default_factory=PlainReport)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    auto_settings: Mapping[str, Any] = field(default_factory=dict)
    sequence_length: int = 1
    fit: Callable[[], nn.Module] | None = None
    baseline: Callable[[], Baseline | None] | None = None
    analyze: Callable[[Path | None], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Match:
    """The data look like those of a task. fallback: any data of this kind do; other tasks that match come first."""

    reason: str
    fallback: bool = False


@dataclass(frozen=True)
class Prerequisite:
    """A training, or a run, that must be there before the data of a task can be loaded.

    task, settings: what to train, on the same data. run: a run folder to load instead. use: hands the trained task
    over; in a dry run its model is untrained.
    """

    name: str
    task: str
    use: Callable[[Any], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None


@dataclass(frozen=True)
class Initialization:
    """How the weights of another run are copied into a new model.

    Parameters of the head have names that begin with "head."; all others are the backbone. same_head: whether the
    outputs of both heads mean the same, so that the head is copied too; called once the data are loaded. adapt: returns
    a tensor of the backbone, by name, in the shape that the new model needs.
    """

    same_head: Callable[[], bool] = lambda: False
    adapt: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor


# Actions.


@dataclass(frozen=True)
class Action:
    """A use of a trained task: a command of the command line, with declared options.

    method: name of the method, called with the options and a function that shows text; it returns values for JSON, of
    which "notes" is a list of remarks. example: returns the options, by name, with which the action shows an example
    after training, from the task; None shows none.
    """

    name: str
    options: type[Options]
    help: str
    method: str
    example: Callable[[Any], Mapping[str, Any]] | None = None

    def run(self, task: Task, options: Options, show: Show = lambda text: None) -> dict[str, Any]:
        """Run the action on a task with a trained model."""
        result: dict[str, Any] = getattr(task, self.method)(options, show)
        return result


def action(
    options: type[Options], *, name: str = "", example: Callable[[Any], Mapping[str, Any]] | None = None
) -> Callable[[Any], Any]:
    """Return a decorator that declares a method of a task as an action.

    name: that of the method without underscores when not given; an action `inspect X` is `tokenloom inspect RUN X`. The
    first line of the method's docstring is the help text; a method that overrides another one may leave it out.
    """

    def declare(method: Any) -> Any:
        text = (inspect.getdoc(method) or "").partition("\n")[0]
        method.declared_action = Action(
            name or method.__name__.strip("_").replace("_", "-"), options, text, method.__name__, example
        )
        return method

    return declare


def actions_of(task: type[Any]) -> dict[str, Action]:
    """Return the actions that a task and its bases declare, by name; `evaluate` is the first."""
    found: dict[str, Action] = {}
    for cls in reversed(task.__mro__):
        for member in vars(cls).values():
            declared = getattr(member, "declared_action", None)
            if isinstance(declared, Action):
                found[declared.name] = declared
    return found


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """On what a run is evaluated."""

    data: str | None = option(None, "evaluate on all of these data instead")
    batch_size: int = option(64, "examples per batch; the result does not depend on it", low=1)


class Task(ABC):
    """The base of all tasks. The first line of a task's docstring is its summary.

    A task sets `name`, `Settings` and `metrics`, and fills in the abstract methods. What may choose the model is an
    option `model` of its settings. It is constructed from settings and the source of its training data; `load` decides
    all sizes and leaves in `model_config` what `build_model` needs. After training or loading a run, `model` is the
    trained model. Methods under `@action` are commands: see `actions_of`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Options]]
    metrics: Sequence[Metric] = (Metric("loss", "nats/token", "lower"),)

    def __init__(self, settings: Any = None, source: str | None = None) -> None:
        self.settings: Any = self.Settings() if settings is None else settings
        self.model_config: dict[str, Any] = {}
        self._source = source
        self._model: nn.Module | None = None

    @abstractmethod
    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        """Read, check and split data; make the tokenizer and decide all sizes, unless they are there already.

        source: a path, the name of a built-in data set, "-", or None for a task that makes its own data or can decide
        its sizes without any. for_evaluation: all of the data are validation samples, and `train` is `NO_SAMPLES`.
        Raise UserError for data that cannot be used.
        """

    @abstractmethod
    def build_model(self, seed: int) -> nn.Module:
        """Return a new model from `model_config` and the seed."""

    @abstractmethod
    def collate(self, samples: Any, context: BatchContext) -> Batch:
        """Return what `Samples.take` gave as a batch of tensors, with masks and targets."""

    @abstractmethod
    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        """Return the terms of the loss by name, as sums and counts per sample; terms of weight 0 are for metrics.

        The counts of a term of weight above 0 must be those of the batch's targets of the same name.
        """

    @property
    def model(self) -> nn.Module:
        """The trained model. Raise UserError where there is none."""
        if self._model is None:
            raise UserError(f"this {self.name} task has no model yet: train it, or load a run")
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._model = model

    @model.deleter
    def model(self) -> None:
        self._model = None

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, Any]:
        """Return the metrics on the validation split of the training data, on all of other data, or on given samples.

        The result is deterministic and does not depend on the batch size. Raise NoTargets when there are no targets.
        """
        analyze = None
        if samples is None:
            prepared = self.load(self._source) if data is None else self.load(data, for_evaluation=True)
            samples, analyze = prepared.validation, prepared.analyze
        sums = evaluate(self, self.model, samples, batch_size=batch_size)
        metrics = compute_metrics(self, sums, tables=True)
        return metrics if analyze is None else {**metrics, **analyze(None)}

    @action(EvaluateOptions)
    def _evaluate(self, options: Any, show: Show) -> dict[str, Any]:
        """Evaluate RUN on the whole validation split of its data, or on all of other data."""
        return self.evaluate(**flatten(options))

    def save_assets(self, folder: Path) -> dict[str, Any]:
        """Write what a run needs beside weights and config, such as a tokenizer; return what config.json has of it."""
        return {}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        """Read what `save_assets` wrote; saved is what it returned. Raise UserError when the files are not the same."""
        if saved:
            raise ValueError(f"{type(self).__name__} saves assets but does not load them")

    def init_from(self, origin: Task) -> Initialization:
        """Take over tokenizer and sizes of another run's backbone; called before the data are loaded.

        Raise UserError when the models share no backbone, and for the first setting that differs.
        """
        raise UserError(f"--init-from: {with_article(self.name)} model cannot be initialized from another run")

    def prerequisites(self) -> Sequence[Prerequisite]:
        """Return the trainings that must come first, on the same data; none where their results are there already."""
        return ()


def summary_of(task: type[Task]) -> str:
    """Return the first line of a task's docstring."""
    return (inspect.getdoc(task) or "").partition("\n")[0].rstrip(".")


def models_of(task: type[Task]) -> dict[str, str]:
    """Return the models that a task can train, with what each is: the choices of the option `model` of its settings.

    The help text of the option lists them as "NAME: what it is; NAME: what it is".
    """
    for one in options(task.Settings):
        if one.name == "model":
            texts = dict(part.strip().partition(": ")[::2] for part in one.help.split(";"))
            return {str(name): texts.get(str(name), "") for name in one.choices or ()}
    return {}


def need_data(task: Task, source: str | None) -> str:
    """Return the source of the data. Raise UserError when there is none, for a task that cannot do without."""
    if source is None:
        raise UserError(f"{task.name} needs data, on which its sizes depend: a file, a folder or a built-in data set")
    return source
