"""The loop: what a step learns from, what is measured, kept and told, and what stops it."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import (
    VALIDATION,
    NextToken,
    batches_of,
    mean_loss,
    of_kind,
    run_in,
    tiny_gpt,
    tiny_settings,
    train,
    weights,
    without_targets,
)
from torch import nn

from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.gpt import GPT
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Evaluated, Event, Finished, StepFinished
from tokenloom.training.loop import NoTargets, Trainer, evaluate, fit
from tokenloom.training.losses import LossTerm, LossTerms, cross_entropy_term
from tokenloom.training.metrics import Metric, compute_metrics


def awake(model: GPT) -> GPT:
    """With output maps that are not zero, as they are at the start: else dropout would change nothing."""
    layer: Any = model.transformer.layers[0]
    with torch.no_grad():
        layer.attention.W_o.weight.normal_(generator=torch.Generator().manual_seed(0))
    return model


# One step.


@pytest.mark.parametrize("grad_accum", [2, 3, 6])
def test_accumulated_is_whole(grad_accum: int) -> None:
    """In float64 and without dropout: the same losses, gradients' norms and weights to 1e-12 relative."""
    results = []
    for parts in (1, grad_accum):
        settings = tiny_settings(grad_accum=parts)
        batches = batches_of(settings)
        counts = [[sum(batch.counts().values()) for batch in batches(step)] for step in range(12)]
        assert parts == 1 or all(len(set(step)) > 1 for step in counts[:6]), "parts have unequal numbers of targets"
        events, model = train(settings, model=tiny_gpt().double())
        steps = of_kind(events, StepFinished)
        results.append(
            (weights(model), [s.loss for s in steps], [s.grad_norm for s in steps], [s.num_targets for s in steps])
        )
    (one, losses, norms, targets), (other, losses_2, norms_2, targets_2) = results
    assert losses == pytest.approx(losses_2, rel=1e-12)
    assert norms == pytest.approx(norms_2, rel=1e-11)
    assert targets == targets_2
    assert float((one - other).abs().max()) < 1e-12


def test_the_loss_is_the_sum_over_all_targets_divided_by_their_number() -> None:
    settings = tiny_settings(grad_accum=3, batch_size=9)
    trainer = Trainer(NextToken(), tiny_gpt(), settings, batches_of(settings))
    whole = batches_of(replace(settings, grad_accum=1))
    for step in range(3):
        expected = mean_loss(trainer.model, whole(step)[0])
        result = trainer.step(step, 10)
        assert result.loss == pytest.approx(expected, rel=1e-6)
        assert result.num_targets == sum(whole(step)[0].counts().values())
        parts = [mean_loss(trainer.model, batch) for batch in batches_of(settings)(step)]
        assert abs(np.mean(parts) - mean_loss(trainer.model, whole(step)[0])) > 1e-3, (
            "a mean of means is another number"
        )


def test_a_step_learns_at_the_rate_of_the_schedule_and_clips_as_by_hand() -> None:
    """Against plain AdamW on the mean loss, with the gradient clipped by hand."""
    settings = tiny_settings(grad_clip=0.3, lr=0.02)
    trainer = Trainer(NextToken(), tiny_gpt(), settings, batches_of(settings))
    model = tiny_gpt()
    hidden = {n for n, _ in model.named_parameters() if n.endswith(".weight") and (".W_" in n)}
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n in hidden], "weight_decay": 0.05},
        {"params": [p for n, p in named.items() if n not in hidden], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95))
    factors = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5 / 6, 4 / 6]  # 2 of 12 steps rise, 6 fall
    clipped = []
    for step, factor in enumerate(factors):
        (batch,) = batches_of(settings)(step)
        targets = batch.targets["loss"]
        loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        plain.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in named.values() if p.grad is not None))
        for p in named.values():
            assert p.grad is not None
            p.grad.mul_(min(1.0, 0.3 / norm))
        for group in plain.param_groups:
            group["lr"] = 0.02 * factor
        plain.step()
        result = trainer.step(step, 12)
        assert result.grad_norm == pytest.approx(norm, rel=1e-4)
        assert result.clipped == (norm > 0.3)
        assert (result.lr, result.muon_lr) == (pytest.approx(0.02 * factor), None)
        clipped.append(result.clipped)
    assert float((weights(model) - weights(trainer.model)).abs().max()) < 1e-5
    assert any(clipped), "or nothing was tested"


def test_without_a_limit_nothing_is_clipped_and_the_norm_is_still_told() -> None:
    events, _ = train(tiny_settings(grad_clip=0.0))
    assert all(s.grad_norm > 0 and not s.clipped for s in of_kind(events, StepFinished))
    tight, _ = train(tiny_settings(grad_clip=1e-3))
    assert all(s.clipped for s in of_kind(tight, StepFinished))
    assert tight[-1].clipped == 12  # type: ignore[attr-defined]
    assert events[-1].clipped == 0  # type: ignore[attr-defined]


def test_dropout_is_drawn_anew_each_step_and_part_by_seed_alone() -> None:
    def losses(seed: int, noise: int) -> list[float]:
        settings = tiny_settings(seed=seed, grad_accum=2, lr=0.0, muon_lr=0.0, grad_clip=0.0)
        torch.manual_seed(noise)
        one_batch = batches_of(tiny_settings(grad_accum=2))(0)
        model = awake(tiny_gpt(dropout=0.5))
        events, _ = train(settings, model=model, batches=lambda step: one_batch)
        return [s.loss for s in of_kind(events, StepFinished)]

    first = losses(1, noise=5)
    assert len(set(first)) == 12, "the same batch and weights, another mask each step"
    assert first == losses(1, noise=6), "nothing depends on the global generator"
    assert first != losses(2, noise=5)


def test_micro_batches_drop_out_differently() -> None:
    """The same samples twice in a step, under two masks."""
    sums: list[torch.Tensor] = []

    class Watched(NextToken):
        def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
            terms = super().compute_loss(model, batch)
            sums.append(terms["loss"].sums.detach())
            return terms

    settings = tiny_settings()
    (batch,) = batches_of(settings)(0)
    model = awake(tiny_gpt(dropout=0.5)).train()
    Trainer(Watched(), model, settings, lambda step: [batch, batch]).step(0, 10)
    assert len(sums) == 2
    assert not torch.equal(*sums)


class TwoTerms(NextToken):
    """A main loss with half of its targets, a second one, and a term that is only measured."""

    def collate(self, samples: Any, context: BatchContext) -> Batch:
        batch = super().collate(samples, context)
        targets = batch.targets["loss"]
        return Batch(batch.streams, {"main": targets.masked_fill(targets % 2 == 0, IGNORE), "side": targets})

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        logits = model(batch)
        terms: LossTerms = {}
        for name, weight in (("main", 1.0), ("side", 0.25)):
            targets = batch.targets[name]
            found = cross_entropy_term(logits, targets)
            terms[name] = LossTerm(found.sums, found.counts, weight)
        terms["seen"] = LossTerm(torch.full((len(logits),), 7.0), torch.ones(len(logits)), weight=0.0)
        return terms

    metrics = (Metric("loss"), Metric("seen"))


def test_each_term_is_divided_by_its_own_count_and_weighted() -> None:
    task = TwoTerms()
    settings = tiny_settings(grad_accum=2)
    trainer = Trainer(task, tiny_gpt().double(), settings, batches_of(settings, task=task))
    (whole,) = batches_of(replace(settings, grad_accum=1), task=task)(0)
    sides = [mean_loss(trainer.model, Batch(whole.streams, {"loss": whole.targets[name]})) for name in ("main", "side")]
    counts = whole.counts()
    assert counts["main"] < counts["side"]
    loss, targets, *_ = trainer.step(0, 10)
    assert loss == pytest.approx(sides[0] + 0.25 * sides[1], rel=1e-10)
    assert targets == counts["side"]


def test_a_term_without_targets_of_its_name_is_a_mistake() -> None:
    class Misnamed(NextToken):
        def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
            return {"los": super().compute_loss(model, batch)["loss"]}

    settings = tiny_settings()
    with pytest.raises(ValueError, match="'los' has no targets"):
        Trainer(Misnamed(), tiny_gpt(), settings, batches_of(settings)).step(0, 10)


def test_a_model_with_nothing_to_train_is_a_mistake() -> None:
    settings = tiny_settings()
    with pytest.raises(ValueError, match="nothing to train"):
        Trainer(NextToken(), tiny_gpt().requires_grad_(False), settings, batches_of(settings))


# Nothing to learn from.


def test_a_step_without_targets_stops_with_its_number() -> None:
    settings = tiny_settings()
    batches = batches_of(settings)

    def some(step: int) -> list[Batch]:
        return [without_targets(batch) for batch in batches(step)] if step == 3 else batches(step)

    seen: list[Event] = []
    with pytest.raises(NoTargets, match="step 4: none of its samples"):
        seen.extend(fit(NextToken(), tiny_gpt(), settings, some, VALIDATION))


def test_a_micro_batch_without_targets_adds_nothing() -> None:
    settings = tiny_settings()
    batches = batches_of(settings)

    def padded(step: int) -> list[Batch]:
        (batch,) = batches(step)
        return [without_targets(batch), batch]

    one, model = train(settings, model=tiny_gpt().double())
    two, other = train(settings, model=tiny_gpt().double(), batches=padded)
    assert [s.loss for s in of_kind(one, StepFinished)] == pytest.approx(
        [s.loss for s in of_kind(two, StepFinished)], rel=1e-12
    )
    assert float((weights(model) - weights(other)).abs().max()) < 1e-12


def test_a_validation_part_without_targets_is_no_loss_of_zero() -> None:
    class Blind(NextToken):
        def collate(self, samples: Any, context: BatchContext) -> Batch:
            batch = super().collate(samples, context)
            return batch if context.training else without_targets(batch)

    with pytest.raises(NoTargets, match="none of the 30 samples"):
        train(tiny_settings(), task=Blind(), batches=batches_of(tiny_settings()))


# Measuring.


def test_evaluation_does_not_depend_on_the_batch_size_and_is_deterministic() -> None:
    task, model = NextToken(), awake(tiny_gpt(dropout=0.5))
    model.train()
    values = {
        batch: compute_metrics(task, evaluate(task, model, VALIDATION, batch_size=batch)) for batch in (1, 7, 30, 64)
    }
    again = compute_metrics(task, evaluate(task, model, VALIDATION, batch_size=64))
    assert again == values[64], "bit for bit"
    for value in values.values():
        assert value["loss"] == pytest.approx(values[64]["loss"], rel=1e-6)
        assert value["hits"] == values[64]["hits"]
        assert value["count"] == sum(len(row) - 1 for row in VALIDATION.items)
    assert model.training, "left as it was"
    whole = task.collate(VALIDATION.items, BatchContext(0, -1, VALIDATION.all()))
    assert again["loss"] == pytest.approx(mean_loss(model.eval(), whole), rel=1e-6)
    evaluate(task, model, VALIDATION)
    assert not model.training


def test_evaluation_leaves_no_trace_in_training() -> None:
    often, model = train(tiny_settings(eval_every=1), model=tiny_gpt(dropout=0.2))
    seldom, other = train(tiny_settings(eval_every=100), model=tiny_gpt(dropout=0.2))
    assert [s.loss for s in of_kind(often, StepFinished)] == [s.loss for s in of_kind(seldom, StepFinished)]
    assert torch.equal(weights(model), weights(other))


def test_evaluations_come_at_their_steps_and_at_the_end() -> None:
    events, _ = train(tiny_settings(steps=10, eval_every=4))
    assert [e.step for e in of_kind(events, Evaluated)] == [4, 8, 10]
    assert [type(e).__name__ for e in events[:6]] == ["StepFinished"] * 4 + ["Evaluated", "StepFinished"]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.step, finished.reason) == (10, "steps")
    best = min(of_kind(events, Evaluated), key=lambda e: e.metrics["loss"])
    assert (finished.best_step, finished.best) == (best.step, best.metrics)


def test_it_learns() -> None:
    events, _ = train(tiny_settings("muon", steps=80, eval_every=80, batch_size=20, grad_clip=0.0))
    assert of_kind(events, StepFinished)[0].loss > 2
    assert of_kind(events, Evaluated)[-1].metrics["loss"] < 1.6


# Who drives it.


def test_the_loop_does_nothing_until_asked_and_can_be_left_at_any_event() -> None:
    settings = tiny_settings()
    model, before = tiny_gpt(), weights(tiny_gpt())
    events = fit(NextToken(), model, settings, batches_of(settings), VALIDATION)
    assert torch.equal(weights(model), before)
    first = next(events)
    assert isinstance(first, StepFinished)
    assert first.step == 1
    assert not torch.equal(weights(model), before)
    assert isinstance(events, Iterator)
    events.close()  # type: ignore[attr-defined]
    assert list(events) == []


def test_whoever_drives_it_may_change_the_model_on_the_way() -> None:
    """The weights are the caller's: here they are set back after each step, and the first loss comes again."""
    settings = tiny_settings(seed=1)
    one_batch = batches_of(settings)(0)
    model = tiny_gpt()
    start = copy.deepcopy(model.state_dict())
    losses = []
    for event in fit(NextToken(), model, settings, lambda step: one_batch, VALIDATION):
        if isinstance(event, StepFinished):
            losses.append(event.loss)
            model.load_state_dict(start)
    assert len(losses) == 12
    assert len(set(losses)) == 1


def test_batches_may_come_from_outside(tmp_path: Path) -> None:
    """Any function of the step; also with checkpoints and resuming."""
    settings = tiny_settings(steps=6, eval_every=3)
    inner = batches_of(replace(settings, seed=77))
    asked: list[int] = []

    def given(step: int) -> list[Batch]:
        asked.append(step)
        return inner(step)

    straight, model = train(settings, batches=given)
    assert asked == list(range(6))
    train(settings, batches=given, run=run_in(tmp_path), stop=lambda: len(asked) >= 8)
    rest, other = train(settings, batches=given, run=run_in(tmp_path), resume=True)
    assert asked == [*range(6), 0, 1, 2, 3, 4, 5]
    assert torch.equal(weights(model), weights(other))
    losses = [s.loss for s in of_kind(straight, StepFinished)]
    assert [s.loss for s in of_kind(rest, StepFinished)] == losses[2:]


def test_steps_must_be_known() -> None:
    settings = replace(tiny_settings(), steps=None)
    with pytest.raises(ValueError, match="steps"):
        train(settings)
    with pytest.raises(ValueError, match="resume"):
        train(tiny_settings(), resume=True)


# Warmup over 2 of 12 steps, decay over the last 6.
FACTORS = [1 / 2, 1, 1, 1, 1, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]


def test_events_carry_the_learning_rates_that_were_used() -> None:
    settings = tiny_settings(lr=0.01)
    model = tiny_gpt()
    moved = []
    before = weights(model)
    for event in fit(NextToken(), model, replace(settings, eval_every=100), batches_of(settings), VALIDATION):
        if isinstance(event, StepFinished):
            assert event.lr == pytest.approx(0.01 * FACTORS[event.step - 1], rel=1e-12)
            assert event.muon_lr is None
            after = weights(model)
            moved.append(float((after - before).norm()) / event.lr)
            before = after
    assert moved[0] == pytest.approx(math.sqrt(len(before)), rel=0.5), "AdamW's first step moves each weight by lr"


def test_with_muon_events_carry_both_learning_rates() -> None:
    events, _ = train(tiny_settings("muon", lr=0.01, muon_lr=0.02))
    steps = of_kind(events, StepFinished)
    assert [s.lr for s in steps] == pytest.approx([0.01 * f for f in FACTORS], rel=1e-12)
    assert [s.muon_lr for s in steps] == pytest.approx([0.02 * f for f in FACTORS], rel=1e-12)
