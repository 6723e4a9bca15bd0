"""What every task has without doing anything for it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.own_task import AddOptions, Sums, SumsSettings, write_sums

from tokenloom.config import option
from tokenloom.data.samples import ListSamples
from tokenloom.errors import UserError
from tokenloom.nn.modules import eval_mode
from tokenloom.tasks.base import EvaluateOptions, Show, Task, action, actions_of, summary_of
from tokenloom.training.loop import NoTargets
from tokenloom.training.losses import LossTerm, MetricSum
from tokenloom.training.metrics import Metric, compute_metrics, counted_unit


@dataclass(frozen=True)
class MoreOptions(EvaluateOptions):
    """One option more than every task has."""

    often: int = option(1, "how often")


def untrained(tmp_path: Path) -> Sums:
    source = write_sums(tmp_path / "sums.txt")
    task = Sums(SumsSettings(dropout=0.5), source)
    task.load(source)
    task.model = task.build_model(3)
    return task


def totals(sums: list[float], counts: list[int], weight: float) -> MetricSum:
    total = MetricSum(weight)
    total.update(LossTerm(torch.tensor(sums), torch.tensor(counts), weight))
    return total


class Declared:
    """Metrics by their names alone."""

    def __init__(self, *names: str) -> None:
        self.metrics = [Metric(name) for name in names]


def test_tables_are_computed_on_demand_and_a_metric_may_be_left_out() -> None:
    task = Declared("loss")
    task.metrics += [
        Metric("rows", kind="table", compute=lambda task, sums: [{"class": "a"}]),
        Metric("twice", compute=lambda task, sums: 2 * sums["loss"].value),
        Metric("never", compute=lambda task, sums: None),
    ]
    sums = {"loss": totals([2.0], [1], 1.0)}
    assert compute_metrics(task, sums) == {"loss": 2.0, "twice": 4.0}
    assert compute_metrics(task, sums, tables=True) == {"loss": 2.0, "rows": [{"class": "a"}], "twice": 4.0}


def test_the_unit_of_the_loss_says_what_is_counted() -> None:
    assert counted_unit(Sums()) == "digits"
    with pytest.raises(ValueError, match="declares no metric named loss"):
        counted_unit(Declared("accuracy"))


def test_the_contract_is_small() -> None:
    """A member more is a decision: what follows from the data belongs into `PreparedData`."""
    members = {name for name in {*dir(Task), *vars(Sums()), *Task.__annotations__} if not name.startswith("_")}
    assert len(members) <= 15, sorted(members)


def test_the_loss_is_the_weighted_sum_of_the_terms_and_metrics_stand_beside_it() -> None:
    sums = {"shape": totals([2.0, 4.0], [1, 2], 1.0), "code": totals([8.0], [2], 0.25), "hits": totals([3.0], [4], 0.0)}
    found = compute_metrics(Declared("loss", "shape", "code", "hits", "absent"), sums)
    assert found == {"loss": 2.0 + 0.25 * 4.0, "shape": 2.0, "code": 4.0, "hits": 0.75}


def test_a_term_without_targets_is_no_part_of_the_loss() -> None:
    found = compute_metrics(
        Declared("loss", "other"), {"loss": totals([2.0], [1], 1.0), "other": totals([0.0], [0], 1.0)}
    )
    assert found["loss"] == 2.0
    assert math.isnan(found["other"])


def test_without_a_model_it_is_said() -> None:
    with pytest.raises(UserError, match="this digit-sums task has no model yet: train it, or load a run"):
        Sums().evaluate(samples=ListSamples([(1, 2, 3)]))


def test_a_model_may_be_measured_on_its_own_data_on_others_and_on_explicit_samples(tmp_path: Path) -> None:
    task = untrained(tmp_path)
    own = task.evaluate()
    assert own == task.evaluate()
    assert own["loss"] == pytest.approx(task.evaluate(batch_size=1)["loss"], rel=1e-6)
    other = task.evaluate(write_sums(tmp_path / "other.txt", offset=1))
    assert other["loss"] != own["loss"]
    explicit = task.evaluate(
        samples=ListSamples(task.load(str(tmp_path / "sums.txt")).validation.take(torch.arange(12).numpy()))
    )
    assert explicit == own
    assert task.model.training, "left as it was"


def test_nothing_to_measure_is_no_loss_of_zero(tmp_path: Path) -> None:
    with pytest.raises(NoTargets, match="none of the 0 samples"):
        untrained(tmp_path).evaluate(samples=ListSamples([]))


def test_eval_mode_is_without_dropout_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = untrained(tmp_path).model.train()
    seen: list[bool] = []

    def fail() -> None:
        with eval_mode(model) as inside:
            seen.append(inside.training)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert model.training


def test_actions_are_declared_by_a_decorator_and_inherited(tmp_path: Path) -> None:
    class More(Sums):
        """Has one more action, and another option for `evaluate`."""

        @action(AddOptions, name="inspect sums")
        def _inspect(self, options: AddOptions, show: Show) -> dict[str, Any]:
            """Look inside RUN."""
            return {"seen": options.digits}

        @action(MoreOptions)
        def _evaluate(self, options: MoreOptions, show: Show) -> dict[str, Any]:
            return {"often": options.often}

    assert list(actions_of(Sums)) == ["evaluate", "predict"]
    actions = actions_of(More)
    assert list(actions) == ["evaluate", "predict", "inspect sums"]
    assert (actions["predict"].help, actions["inspect sums"].help) == ("Predict with RUN.", "Look inside RUN.")
    task = More()
    assert actions["inspect sums"].run(task, AddOptions("34")) == {"seen": "34"}
    assert actions["evaluate"].run(task, MoreOptions(often=3)) == {"often": 3}
    shown: list[str] = []
    result = actions_of(Sums)["predict"].run(untrained(tmp_path), AddOptions("12"), shown.append)
    assert shown == [f"{result['answer']}\n"]
    with pytest.raises(UserError, match="--batch-size 0: must be at least 1"):
        EvaluateOptions(batch_size=0)


def test_what_a_task_cannot_do_it_refuses(tmp_path: Path) -> None:
    task = untrained(tmp_path)
    with pytest.raises(UserError, match="digit-sums needs data"):
        task.load(None)
    with pytest.raises(UserError, match="a digit-sums model cannot be initialized from another run"):
        task.init_from(task)
    with pytest.raises(ValueError, match="Sums saves assets but does not load them"):
        task.load_assets(tmp_path, {"tokenizer": "x"})
    assert summary_of(Sums) == "Predict which digit follows two digits"
