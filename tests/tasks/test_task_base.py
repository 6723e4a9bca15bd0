"""What every task has without doing anything for it."""

import math
from pathlib import Path

import pytest
import torch
from own_task import Sums, SumsSettings, write_sums

from tokenloom.data.samples import ListSamples
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.training.loop import NoTargets
from tokenloom.training.losses import LossTerm, MetricSum


def untrained(tmp_path: Path) -> Sums:
    task = Sums(SumsSettings(dropout=0.5))
    task.source = write_sums(tmp_path / "sums.txt")
    task.prepare(task.source)
    task.model = task.build_model(3)
    return task


def totals(sums: list[float], counts: list[int], weight: float) -> MetricSum:
    total = MetricSum(weight)
    total.update(LossTerm(torch.tensor(sums), torch.tensor(counts), weight))
    return total


def test_the_loss_is_the_weighted_sum_of_the_terms_and_metrics_stand_beside_it() -> None:
    found = Sums().metrics(
        {"shape": totals([2.0, 4.0], [1, 2], 1.0), "code": totals([8.0], [2], 0.25), "hits": totals([3.0], [4], 0.0)}
    )
    assert found == {"loss": 2.0 + 0.25 * 4.0, "shape": 2.0, "code": 4.0, "hits": 0.75}


def test_a_term_without_targets_is_no_part_of_the_loss() -> None:
    found = Sums().metrics({"loss": totals([2.0], [1], 1.0), "other": totals([0.0], [0], 1.0)})
    assert found["loss"] == 2.0
    assert math.isnan(found["other"])


def test_without_a_model_it_is_said() -> None:
    with pytest.raises(UserError, match="this digit-sums task has no model yet: train it, or load a run"):
        Sums().evaluate(samples=ListSamples([(1, 2, 3)]))


def test_a_model_may_be_measured_on_its_own_data_on_others_and_on_explicit_samples(tmp_path: Path) -> None:
    task = untrained(tmp_path)
    own = task.evaluate()
    assert own == task.evaluate() == task.evaluate(task.source)
    assert own["loss"] == pytest.approx(task.evaluate(batch_size=1)["loss"], rel=1e-6)
    other = task.evaluate(write_sums(tmp_path / "other.txt", offset=1))
    assert other["loss"] != own["loss"]
    explicit = task.evaluate(samples=ListSamples(task.prepare(task.source).validation.take(torch.arange(12).numpy())))
    assert explicit == own
    assert task.model.training, "left as it was"


def test_a_batch_of_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--batch-size 0: must be at least 1"):
        untrained(tmp_path).evaluate(batch_size=0)


def test_nothing_to_measure_is_no_loss_of_zero(tmp_path: Path) -> None:
    with pytest.raises(NoTargets, match="none of the 0 samples"):
        untrained(tmp_path).evaluate(samples=ListSamples([]))


def test_ready_is_without_dropout_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    task = untrained(tmp_path)
    task.model.train()
    seen: list[bool] = []

    def fail() -> None:
        with task.ready() as model:
            seen.append(model.training)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert task.model.training


def test_what_a_task_does_not_do_it_refuses(tmp_path: Path) -> None:
    task = untrained(tmp_path)
    with pytest.raises(UserError, match="does not generate step by step"):
        task.decoder(Batch({}))
    with pytest.raises(UserError, match="depend on the data"):
        task.sketch()
    with pytest.raises(UserError, match="a digit-sums run cannot sing"):
        super(Sums, task).use("sing", None, print)
    assert task.to("cpu") is task
    assert task.device == torch.device("cpu")
    with pytest.raises(UserError, match="--device tpu"):
        task.to("tpu")
