"""The old contract on top of the new one: for tasks that are not converted yet. It goes with the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tokenloom.config import flatten
from tokenloom.data.samples import Samples
from tokenloom.errors import UserError
from tokenloom.nn.modules import device_of, eval_mode
from tokenloom.tasks.base import (
    NO_SAMPLES,
    Action,
    EvaluateOptions,
    Initialization,
    Match,
    Prerequisite,
    Show,
)
from tokenloom.tasks.base import PreparedData as NewPreparedData
from tokenloom.tasks.base import Task as NewTask
from tokenloom.training.device import choose_device
from tokenloom.training.events import Baseline
from tokenloom.training.loop import evaluate
from tokenloom.training.losses import MetricSum
from tokenloom.utils.names import with_article

__all__ = ["Match", "PreparedData", "Prerequisite", "Show", "Task"]


@dataclass(frozen=True)
class PreparedData:
    train: Samples
    validation: Samples
    text: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        return self.values


class Task(NewTask):
    summary: ClassVar[str]
    models: ClassVar[Mapping[str, str]] = {}
    uses: ClassVar[Mapping[str, type]] = {}
    measuring: ClassVar[type | None] = None
    things: ClassVar[str] = "tokens"
    unit: str = "nats/token"
    head: ClassVar[str] = ""
    metrics = ()

    def __init_subclass__(cls) -> None:
        for verb, options in cls.__dict__.get("uses", {}).items():

            def run(self: Any, given: Any, show: Show, verb: str = verb) -> dict[str, Any]:
                return self.use(verb, given, show)  # type: ignore[no-any-return]

            method = f"_use_{verb.replace(' ', '_')}_"
            run.declared_action = Action(verb, options, "", method, None)  # type: ignore[attr-defined]
            setattr(cls, method, run)
        if cls.measuring is not None:

            def measure(self: Any, given: Any, show: Show) -> dict[str, Any]:
                return self.evaluate(**flatten(given))  # type: ignore[no-any-return]

            both = type("Both", (EvaluateOptions, cls.measuring), {})
            measure.declared_action = Action("evaluate", both, "", "_evaluate", None)  # type: ignore[attr-defined]
            cls._evaluate = measure  # type: ignore[method-assign]

    def prepare(self, data: str | None) -> PreparedData:
        raise NotImplementedError

    def load(self, source: str | None, *, for_evaluation: bool = False) -> NewPreparedData:
        if source is None:
            raise UserError(
                f"{self.name} needs data, on which its sizes depend: a file, a folder or a built-in data set"
            )
        if for_evaluation:
            return NewPreparedData(NO_SAMPLES, self.load_samples(source))
        self._source = source if self._source is None else self._source
        material = self.prepare(source)
        return NewPreparedData(
            material.train,
            material.validation,
            material,
            {} if self.counted else self.recipe(material),
            {} if self.counted else self.derived(),
            self.sequence,
            (lambda: self.count(material)) if self.counted else None,
            lambda: self.baseline(material),
            lambda folder: self.analyze(material, folder),
        )

    @property
    def source(self) -> str | None:
        return self._source

    @source.setter
    def source(self, source: str | None) -> None:
        self._source = source

    @property
    def counted(self) -> bool:
        return False

    def count(self, material: PreparedData) -> Any:
        return None

    def adopt_config(self, origin: Any) -> None:
        raise UserError(f"--init-from: {with_article(self.name)} model cannot be initialized from another run")

    def adapt_tensor(self, name: str, value: Tensor, origin: Any) -> Tensor:
        return value

    def output_meaning(self) -> object:
        return None

    def init_from(self, origin: Any) -> Initialization:
        self.adopt_config(origin)

        def same_head() -> bool:
            return self.output_meaning() is not None and self.output_meaning() == origin.output_meaning()

        return Initialization(same_head, lambda name, value: self.adapt_tensor(name, value, origin))

    @classmethod
    def accepts(cls, data: str) -> str | None:
        return None

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        return {}

    def derived(self) -> dict[str, Any]:
        return {}

    def baseline(self, material: PreparedData) -> Baseline | None:
        return None

    def example(self) -> str:
        return ""

    def load_samples(self, data: str) -> Samples:
        return self.prepare(data).validation

    def metric_lines(self, metrics: dict[str, Any]) -> list[str]:
        return [f"{name + ':':<18} {value:.4f}" for name, value in metrics.items()]

    def legacy_metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        minimized = [total.weight * total.value for total in totals.values() if total.weight and total.count]
        return {name: total.value for name, total in totals.items()} | {"loss": sum(minimized)}

    def analyze(self, material: PreparedData, folder: Path | None) -> dict[str, Any]:
        return {}

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        raise UserError(f"{with_article(self.name)} run cannot {verb}")

    @property
    def sequence(self) -> int:
        return int(self.model_config.get("context", 1))

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def to(self, device: str) -> Any:
        self.model.to(choose_device(device))
        return self

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, float]:
        if samples is None:
            samples = self.prepare(self.source).validation if data is None else self.load_samples(data)
        return self.legacy_metrics(evaluate(self, self.model, samples, batch_size=batch_size))

    @contextmanager
    def ready(self) -> Iterator[nn.Module]:
        with eval_mode(self.model):
            yield self.model
