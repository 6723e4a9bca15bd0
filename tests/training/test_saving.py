"""What a training keeps: checkpoints and best weights, going on bit for bit, and what a breakdown leaves behind."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    VALIDATION,
    NextToken,
    Scripted,
    after,
    batches_of,
    of_kind,
    rows,
    run_in,
    tiny_gpt,
    tiny_settings,
    train,
    weights,
)
from torch import nn

from tokenloom.data.samples import ListSamples
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.training.batches import BatchContext
from tokenloom.training.checkpoints import Checkpoints, load_weights, read_tensors
from tokenloom.training.events import Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.training.loop import NonFiniteLoss, fit
from tokenloom.training.losses import LossTerms
from tokenloom.training.settings import TrainingSettings

# What is kept.


def test_the_best_weights_and_checkpoints_are_kept(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    settings = tiny_settings(steps=6, eval_every=1)
    kept: list[torch.Tensor] = []
    events = []
    model = tiny_gpt()
    task = Scripted([3.0, 2.0, 2.5, 2.4, 2.0, 2.1])
    for event in fit(task, model, settings, batches_of(settings), VALIDATION, run=run):
        events.append(event)
        if isinstance(event, Evaluated):
            kept.append(weights(model))
    assert [e.best for e in of_kind(events, Evaluated)] == [True, True, False, False, False, False]
    assert [e.step for e in of_kind(events, Saved)] == [1, 2, 3, 4, 5, 6]
    assert run.checkpoints.steps() == [2, 5, 6], "the best, and the last two"
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.best_step, finished.best) == (2, {"loss": 2.0})
    best = tiny_gpt(seed=7)
    load_weights(best, run.weights)
    assert torch.equal(weights(best), kept[1])
    load_weights(best, run.checkpoints.path(5) / "model.safetensors")
    assert torch.equal(weights(best), kept[4])
    assert torch.equal(weights(model), kept[5]), "the model itself is as the last step left it"


def test_patience_ends_training_and_a_run_that_ended_so_stays_ended(tmp_path: Path) -> None:
    settings = tiny_settings(steps=50, eval_every=2, patience=3)
    values = [3.0, 2.0, 2.1, 1.9, 2.0, 2.0, 2.0, 0.0]
    events, model = train(settings, task=Scripted(values), run=run_in(tmp_path))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.step, finished.reason, finished.best_step) == (14, "patience", 8)
    again, other = train(settings, task=Scripted([]), run=run_in(tmp_path), resume=True)
    assert [type(e) for e in again] == [Resumed, Finished]
    assert replace(finished, seconds=0.0) == replace(again[-1], seconds=0.0)  # type: ignore[type-var]
    assert torch.equal(weights(model), weights(other))


def test_stop_saves_once_and_gives_weights_even_before_the_first_evaluation(tmp_path: Path) -> None:
    settings = tiny_settings(eval_every=5)
    for stop_after, best in ((3, -1), (5, 5), (7, 5)):
        folder = tmp_path / str(stop_after)
        folder.mkdir()
        run = run_in(folder)
        events, model = train(settings, run=run, stop=after(stop_after))
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert (finished.step, finished.reason, finished.best_step) == (stop_after, "interrupt", best)
        saved = [e.step for e in of_kind(events, Saved)]
        assert saved == sorted({stop_after, *([5] if stop_after > 5 else [])}), "each step once"
        usable = tiny_gpt(seed=3)
        load_weights(usable, run.weights)
        if best in (-1, stop_after):
            assert torch.equal(weights(usable), weights(model))


def test_checkpoints_come_apart_from_evaluations_too(tmp_path: Path) -> None:
    """Every so many steps, and at each evaluation; once where both fall together."""
    events, _ = train(tiny_settings(steps=12, eval_every=6, save_every=4, keep_checkpoints=9), run=run_in(tmp_path))
    assert [event.step for event in of_kind(events, Saved)] == [4, 6, 8, 12]
    assert [event.step for event in of_kind(events, Evaluated)] == [6, 12]
    state, _ = Checkpoints(tmp_path / "checkpoints").read(8)
    assert state["best_step"] == 6, "what is the best is known between evaluations"
    alone, _ = train(tiny_settings(steps=12, eval_every=6, save_every=4))
    assert not of_kind(alone, Saved), "without a run there is nowhere to save"


def test_before_the_first_evaluation_a_checkpoint_gives_weights_to_use(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for event in fit(NextToken(), tiny_gpt(), s := tiny_settings(save_every=2), batches_of(s), VALIDATION, run=run):
        if isinstance(event, Saved):
            break
    assert event.step == 2
    assert run.weights.is_file()


def test_stop_at_the_last_step_is_no_interrupt() -> None:
    events, _ = train(tiny_settings(steps=1), stop=lambda: True)
    assert events[-1].reason == "steps"  # type: ignore[attr-defined]


# Going on.


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("stop_after", [1, 5, 8, 11])
def test_resumed_is_straight_bit_for_bit(kind: str, stop_after: int, tmp_path: Path) -> None:
    """With dropout, accumulation, in the middle of an epoch of seven steps and at an evaluation."""
    settings = tiny_settings(kind, grad_accum=2, steps=16)
    straight, model = train(settings, model=tiny_gpt(dropout=0.2))
    run, stop = run_in(tmp_path), after(stop_after)
    first, _ = train(settings, model=tiny_gpt(dropout=0.2), run=run, stop=stop)
    torch.manual_seed(12345)  # a process of its own has another global state
    rest, other = train(settings, model=tiny_gpt(seed=99, dropout=0.2), run=run_in(tmp_path), resume=True)
    assert rest[0] == Resumed(stop_after, [])

    def told(events: list[Event], kind_: type) -> list[Event]:
        return [replace(event, seconds=0.0) for event in of_kind(events, kind_)]

    assert told(first, StepFinished) + told(rest, StepFinished) == told(straight, StepFinished)
    assert told(first, Evaluated) + told(rest, Evaluated) == told(straight, Evaluated)
    assert torch.equal(weights(model), weights(other))
    assert replace(rest[-1], seconds=0.0) == replace(straight[-1], seconds=0.0)  # type: ignore[type-var]


def test_seconds_go_on_too(tmp_path: Path) -> None:
    settings = tiny_settings(steps=4, eval_every=1)
    first, _ = train(settings, run=run_in(tmp_path), stop=lambda: True)
    rest, _ = train(settings, run=run_in(tmp_path), resume=True)
    assert of_kind(rest, StepFinished)[0].seconds > first[-1].seconds > 0  # type: ignore[attr-defined]


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(tmp_path: Path) -> None:
    settings = tiny_settings(steps=12)
    straight, model = train(settings, run=run_in(tmp_path))
    for name in ("model.safetensors", "optimizer.safetensors"):
        path = tmp_path / "checkpoints" / "step-00000012" / name
        path.write_bytes(path.read_bytes()[:-200])
    rest, other = train(settings, run=run_in(tmp_path), resume=True)
    (resumed,) = of_kind(rest, Resumed)
    assert resumed.step == 8
    assert "step-00000012" in resumed.damaged[0]
    assert rest[-1].notes == resumed.damaged  # type: ignore[attr-defined]
    assert torch.equal(weights(model), weights(other))
    assert straight[-1].best == rest[-1].best  # type: ignore[attr-defined]


def test_going_back_takes_back_the_best_weights_too(tmp_path: Path) -> None:
    """The best came after step 8, whose checkpoint is lost: those of step 4 are the best again."""
    settings = tiny_settings(steps=12)
    train(settings, task=Scripted([2.0, 1.0, 3.0]), run=run_in(tmp_path))
    for step in (8, 12):
        (tmp_path / f"checkpoints/step-{step:08d}/model.safetensors").unlink()
    (tmp_path / "again").mkdir()
    train(settings, task=Scripted([2.0]), run=run_in(tmp_path / "again"), stop=after(4))
    shutil.copytree(tmp_path / "again/checkpoints/step-00000004", tmp_path / "checkpoints/step-00000004")
    events, _ = train(settings, task=Scripted([]), run=run_in(tmp_path), resume=True, stop=lambda: True)
    assert events[-1].best_step == 4  # type: ignore[attr-defined]
    checkpoint = tmp_path / "checkpoints/step-00000004/model.safetensors"
    assert (tmp_path / "model.safetensors").read_bytes() == checkpoint.read_bytes()


@pytest.mark.parametrize(
    ("change", "word"),
    [("data", "training"), ("batch_size", "training"), ("seed", "training"), ("validation", "validation")],
)
def test_other_data_are_refused_on_resume(change: str, word: str, tmp_path: Path) -> None:
    settings = tiny_settings(steps=4)
    train(settings, run=run_in(tmp_path))
    other = replace(settings, **{"batch_size": {"batch_size": 5}, "seed": {"seed": 5}}.get(change, {}))  # type: ignore[arg-type]
    samples = rows(40)
    if change == "data":
        samples = ListSamples([(1, 2), *samples.items[1:]])
    validation = rows(30, seed=8) if change == "validation" else VALIDATION
    with pytest.raises(UserError, match=rf"step-00000004: the {word} data"):
        list(
            fit(
                NextToken(),
                tiny_gpt(),
                other,
                batches_of(other, samples),
                validation,
                run=run_in(tmp_path),
                resume=True,
            )
        )


def test_another_model_or_optimizer_is_refused_on_resume(tmp_path: Path) -> None:
    train(tiny_settings("muon", steps=4), run=run_in(tmp_path))
    with pytest.raises(UserError, match=r"model\.safetensors: "):
        train(tiny_settings("muon", steps=8), model=tiny_gpt(depth=2), run=run_in(tmp_path), resume=True)
    with pytest.raises(UserError, match=r"optimizer\.safetensors: the optimizer state of"):
        train(tiny_settings("adamw", steps=8), run=run_in(tmp_path), resume=True)


def test_accumulation_may_change_on_resume(tmp_path: Path) -> None:
    """The batches stay the same; only memory and rounding differ."""
    settings = tiny_settings(steps=8)
    straight, _ = train(settings, model=tiny_gpt().double())
    train(settings, model=tiny_gpt().double(), run=run_in(tmp_path), stop=lambda: True)
    rest, _ = train(replace(settings, grad_accum=3), model=tiny_gpt().double(), run=run_in(tmp_path), resume=True)
    losses = [s.loss for s in of_kind(rest, StepFinished)]
    assert losses == pytest.approx([s.loss for s in of_kind(straight, StepFinished)][1:], rel=1e-10)


# Breaking down.


def poisoned(settings: TrainingSettings, at: int, row: int | slice = 0) -> tuple[NextToken, Any]:
    """A task that spoils weights just before the loss of a step is asked for: a row of the embedding, that of padding
    unless another is given."""
    seen = [0]

    def hook(model: nn.Module, batch: Batch) -> None:
        if model.training:
            seen[0] += 1
            if seen[0] == at:
                with torch.no_grad():
                    next(model.parameters())[row] = math.nan

    return NextToken(hook), batches_of(settings)


def test_weights_that_are_no_numbers_stop_training_and_spoil_nothing(tmp_path: Path) -> None:
    """The row may not even occur in the batch: then the loss is fine, and only the weights tell."""
    settings = tiny_settings(steps=12, eval_every=4)
    for at in (6, 8, 7):
        folder = tmp_path / str(at)
        folder.mkdir()
        run = run_in(folder)
        task, batches = poisoned(settings, at)
        with pytest.raises(NonFiniteLoss, match=r"step \d+: "):
            list(fit(task, tiny_gpt(), settings, batches, VALIDATION, run=run))
        state, checkpoint, damaged = run.checkpoints.newest_complete()
        assert (state["step"], damaged) == (4, [])
        for path in (run.weights, checkpoint / "model.safetensors"):
            model = tiny_gpt()
            load_weights(model, path)
            assert bool(torch.isfinite(weights(model)).all())


def test_a_spoilt_weight_that_no_loss_shows_is_found_before_it_is_saved(tmp_path: Path) -> None:
    """An embedding that never occurs, at an evaluation and at an interrupt."""

    class Quiet(NextToken):
        def collate(self, samples: Any, context: BatchContext) -> Batch:
            batch = super().collate(samples, context)
            batch["text"].ids.clamp_(max=9)  # type: ignore[union-attr]
            return batch

    for more in ({"eval_every": 2}, {"stop": lambda: True}):
        settings = tiny_settings(eval_every=more.pop("eval_every", 100), grad_clip=0.0)
        model = tiny_gpt()
        with torch.no_grad():
            model.tokens.weight[10] = math.nan
        run = run_in(tmp_path)
        with pytest.raises(NonFiniteLoss, match=r"tokens\.weight is no longer finite"):
            train(settings, task=Quiet(), model=model, batches=batches_of(settings, task=Quiet()), run=run, **more)
        assert not run.weights.exists()
        assert not run.checkpoints.steps()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_rate_of_a_thousand_million_stops_at_once(kind: str, tmp_path: Path) -> None:
    settings = tiny_settings(kind, lr=1e9, muon_lr=1e9, eval_every=100)
    events = fit(NextToken(), tiny_gpt(), settings, batches_of(settings), VALIDATION, run=run_in(tmp_path))
    assert isinstance(next(events), StepFinished)
    with pytest.raises(NonFiniteLoss, match=r"step [234]: .*--lr"):
        list(events)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_rate_that_becomes_too_high_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    good = tiny_settings(steps=4)
    _, model = train(good, run=run_in(tmp_path))
    bad = tiny_settings(steps=400, lr=1e9, eval_every=100)
    with pytest.raises(NonFiniteLoss):
        train(bad, run=run_in(tmp_path), resume=True)
    state, folder, _ = run_in(tmp_path).checkpoints.newest_complete()
    assert state["step"] == 4
    kept = tiny_gpt()
    load_weights(kept, folder / "model.safetensors")
    assert torch.equal(weights(kept), weights(model))


def test_a_validation_loss_that_is_no_number_stops_training() -> None:
    with pytest.raises(NonFiniteLoss, match="step 4: the validation loss is nan"):
        train(tiny_settings(), task=Scripted([math.nan]))


def test_a_gradient_that_is_no_number_stops_training_though_the_loss_is_one(tmp_path: Path) -> None:
    class Sharp(NextToken):
        """Adds 0, whose derivative does not exist."""

        def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
            terms = super().compute_loss(model, batch)
            p = next(model.parameters())
            terms["loss"].sums = terms["loss"].sums + (p - p.detach()).square().sum().sqrt()
            return terms

    model, before = tiny_gpt(), weights(tiny_gpt())
    with pytest.raises(NonFiniteLoss, match="step 1: the gradient norm is nan"):
        train(tiny_settings(), task=Sharp(), model=model, run=run_in(tmp_path))
    assert torch.equal(weights(model), before), "nothing was learned from it"


def test_a_loss_that_is_no_number_is_told_as_such() -> None:
    task, batches = poisoned(tiny_settings(), at=1, row=slice(None))
    with pytest.raises(NonFiniteLoss, match="step 1: the loss is nan"):
        list(fit(task, tiny_gpt(), tiny_settings(), batches, VALIDATION))


def test_a_parameter_that_came_after_the_optimizers_is_caught_before_anything_is_kept(tmp_path: Path) -> None:
    settings = tiny_settings(eval_every=3)
    model = tiny_gpt()
    events = fit(NextToken(), model, settings, batches_of(settings), VALIDATION, run=run_in(tmp_path))
    next(events)
    model.added = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"in none \['added'\]"):
        list(events)
    assert list(tmp_path.iterdir()) == []


def test_one_nan_in_the_data_stops_at_the_step_that_meets_it(tmp_path: Path) -> None:
    """A number goes with each row, and one of the forty is none. The last good checkpoint stays, and training goes on
    from it when the data have been mended."""

    class Weighted(NextToken):
        importance = torch.ones(40)

        def collate(self, samples: list[Any], context: BatchContext) -> Batch:
            batch = super().collate(samples, context)
            if context.training:
                batch.streams["importance"] = Stream(features=self.importance[list(context.keys)][:, None, None])
            return batch

        def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
            terms = super().compute_loss(model, batch)
            if "importance" in batch.streams:
                terms["loss"].sums = terms["loss"].sums * batch["importance"].features.flatten()
            return terms

    settings = tiny_settings(steps=7, eval_every=7, save_every=1)
    spoilt, sound = Weighted(), Weighted()
    spoilt.importance = torch.ones(40)
    batches = batches_of(settings, task=spoilt)
    spoilt.importance[int(batches.keys(4)[2])] = math.nan
    with pytest.raises(NonFiniteLoss, match="step 5: the loss is nan"):
        train(settings, task=spoilt, batches=batches, run=run_in(tmp_path))
    state, folder, damaged = Checkpoints(tmp_path / "checkpoints").newest_complete()
    assert (state["step"], damaged) == (4, [])
    assert all(bool(torch.isfinite(t).all()) for t in read_tensors(folder / "model.safetensors").values())
    _, model = train(settings, task=sound, batches=batches_of(settings, task=sound))
    _, other = train(settings, task=sound, batches=batches_of(settings, task=sound), run=run_in(tmp_path), resume=True)
    assert torch.equal(weights(model), weights(other))
