"""From data to a trained run and back: trained, saved, loaded and used, and nothing written too early."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.own_task import write_sums
from kit.session_helpers import OWN, TINY, files, weights

import tokenloom
from tokenloom.cli.metrics import metric_lines
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.runs.events import Planned, Prepared
from tokenloom.runs.folder import RunFolder
from tokenloom.runs.session import TrainingSession, start_session, summary
from tokenloom.tasks.base import actions_of
from tokenloom.training.events import Baseline, Evaluated, Finished, Saved, StepFinished

# End to end.


def test_a_text_is_trained_saved_loaded_and_continued(text: str, tmp_path: Path) -> None:
    out = tmp_path / "läufe und mehr" / "verse"
    task = tokenloom.train(text, out=out, steps=12, eval_every=6, **TINY)
    loaded = tokenloom.load(out)
    batch = Batch({"text": Stream(ids=torch.arange(20).view(2, 10))})
    with torch.no_grad():
        assert torch.equal(task.model(batch), loaded.model(batch)), "bit for bit"
    assert not task.model.training
    options = {"max_new_tokens": 30, "seed": 3}
    continued = loaded.generate("the ", **options)  # type: ignore[attr-defined]
    assert continued == task.generate("the ", **options)  # type: ignore[attr-defined]
    assert len(continued) == 30
    assert set(continued) <= set(Path(text).read_text("utf-8"))
    measured = loaded.evaluate()
    assert measured == task.evaluate()
    rows = RunFolder(out).read_metrics()
    best = min(row["validation_loss"] for row in rows if "validation_loss" in row)
    assert measured["loss"] == pytest.approx(best, rel=1e-6)
    names = {"config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl"}
    checkpoint = {
        f"checkpoints/step-{step:08d}/{name}"
        for step in (6, 12)
        for name in ("model.safetensors", "optimizer.safetensors", "state.json")
    }
    assert files(out) == names | checkpoint


def test_a_task_of_ones_own_learns_its_rule(tmp_path: Path) -> None:
    """Every pair of digits is there often enough to be learned by heart."""
    sums = write_sums(tmp_path / "sums.txt", lines=400)
    task = tokenloom.train(
        sums, task=OWN, out=tmp_path / "run", steps=200, width=32, dropout=0.0, hidden=0.0, threads=1
    )
    measured = task.evaluate()
    assert measured["loss"] < math.log(10) / 4
    assert measured["accuracy"] > 0.9
    loaded = tokenloom.load(tmp_path / "run")
    shown: list[str] = []
    predict = actions_of(type(loaded))["predict"]
    assert predict.run(loaded, predict.options(digits="25"), shown.append) == {"answer": int(shown[0])}  # type: ignore[call-arg]
    assert metric_lines(task.metrics, {"loss": 1.5}) == ["loss: 1.5000 nats/digit"]


def test_events_come_in_order(text: str, tmp_path: Path) -> None:
    events = list(start_session(text, out=tmp_path / "run", steps=4, eval_every=2, **TINY))
    kinds = [type(event) for event in events]
    once = [StepFinished, StepFinished, Evaluated, Saved]
    assert kinds == [Prepared, Planned, Baseline, *once, *once, Finished]
    prepared, plan = events[0], events[1]
    assert isinstance(prepared, Prepared)
    assert any("train" in line for line in prepared.lines)
    assert isinstance(plan, Planned)
    assert plan.plan.derived["width"] == 16
    assert plan.plan.derived["lr"] > 0, "what the recipe gave is shown"


def test_the_curve_is_drawn_and_its_rows_are_means(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    events = list(start_session(sums, task=OWN, out=out, steps=25, eval_every=10, threads=1))
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    rows = RunFolder(out).read_metrics()
    losses = [e.loss for e in events if isinstance(e, StepFinished)]
    trained = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert trained == {
        10: pytest.approx(sum(losses[:10]) / 10),
        20: pytest.approx(sum(losses[10:20]) / 10),
        25: pytest.approx(sum(losses[20:]) / 5),
    }
    measured = {e.step: e.metrics["loss"] for e in events if isinstance(e, Evaluated)}
    assert {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row} == measured
    assert all(row["seconds"] >= 0 for row in rows)


def test_fit_gives_events_on_demand_and_the_task(sums: str) -> None:
    fitting = tokenloom.start_session(sums, task=OWN, steps=5, threads=1)
    assert isinstance(fitting, TrainingSession)
    events = iter(fitting)
    assert isinstance(events, Iterator)
    assert isinstance(next(events), Prepared)
    assert isinstance(next(events), Planned)
    before = weights(fitting.task)
    step = next(events)
    assert isinstance(step, StepFinished)
    assert not torch.equal(weights(fitting.task), before), "the model in training is at hand"
    for event in events:
        if isinstance(event, StepFinished) and event.step == 3:
            break
    events.close()  # type: ignore[attr-defined]
    assert fitting.task.evaluate()["loss"] > 0, "left early, and usable as it is"


def test_mistakes_are_told_at_once(sums: str) -> None:
    """Not only when the first event is asked for."""
    with pytest.raises(UserError, match="no setting 'step'"):
        tokenloom.start_session(sums, task=OWN, step=5)


# What is kept where.


def test_without_out_nothing_is_written_and_the_best_weights_come_back(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate is so high that the last weights are far from the best."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = {"steps": 30, "eval_every": 3, "lr_schedule": "wsd", "decay_fraction": 0.0, "lr": 0.3, "threads": 1}
    fitting = tokenloom.start_session(sums, task=OWN, seed=2, **settings)
    kept: dict[int, torch.Tensor] = {}
    finished: Any = None
    for event in fitting:
        if isinstance(event, Evaluated):
            kept[event.step] = weights(fitting.task)
        finished = event
    assert isinstance(finished, Finished)
    assert finished.best_step < 30
    assert torch.equal(weights(fitting.task), kept[finished.best_step])
    assert not torch.equal(weights(fitting.task), kept[30])
    assert fitting.task.evaluate()["loss"] == pytest.approx(finished.best["loss"], rel=1e-6)
    assert list(elsewhere.iterdir()) == []
    saved = tokenloom.train(sums, task=OWN, seed=2, out=tmp_path / "run", **settings)
    assert torch.equal(weights(saved), weights(fitting.task)), "with a folder it is the same"
    assert torch.equal(weights(tokenloom.load(tmp_path / "run")), weights(saved))


def test_a_dry_run_plans_and_writes_nothing(text: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    events = list(start_session(text, out=out, dry_run=True, minutes=1.0, **TINY))
    assert [type(e) for e in events] == [Prepared, Planned]
    planned = events[1]
    assert isinstance(planned, Planned)
    assert planned.plan.steps > 0
    assert not out.exists()


def test_what_is_refused_writes_nothing_and_removes_nothing(text: str, sums: str, tmp_path: Path) -> None:
    """Neither a mistake in the settings nor one that only the data show."""
    out = tmp_path / "new"
    short = tmp_path / "short.txt"
    short.write_text("")
    refused: list[dict[str, Any]] = [
        {"data": str(tmp_path / "nowhere.txt")},
        {"data": str(short)},
        {"data": text, "wdith": 3},
        {"data": text, "steps": 0},
        {"data": text, "width": "16"},
        {"data": text, "width": 15, "heads": 2},
        {"data": text, "device": "tpu"},
        {"data": text, "task": "no-such-task"},
        {"data": sums, "task": OWN, "steps": 1, "minutes": 1.0},
        {"data": None},
        {"data": None, "task": OWN},
    ]
    old = tmp_path / "old"
    tokenloom.train(sums, task=OWN, out=old, steps=2, threads=1)
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    for case in refused:
        for where, more in ((out, {}), (old, {"overwrite": True})):
            arguments = {"threads": 1, **case, **more}
            with pytest.raises(UserError) as caught:
                tokenloom.train(arguments.pop("data"), out=where, **arguments)
            assert "\n" not in str(caught.value)
    assert not out.exists()
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


def test_a_run_that_is_there_is_refused_or_replaced(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=OWN, out=out, steps=12, eval_every=4, threads=1)
    with pytest.raises(UserError, match="is there already"):
        tokenloom.train(sums, task=OWN, out=out, steps=3, threads=1)
    tokenloom.train(sums, task=OWN, out=out, steps=3, threads=1, overwrite=True)
    assert {p.name for p in (out / "checkpoints").iterdir()} <= {f"step-{s:08d}" for s in (1, 2, 3)}
    assert RunFolder(out).read_config()["training"]["steps"] == 3
    assert max(row["step"] for row in RunFolder(out).read_metrics()) == 3


# What is told at the end.


def test_the_summary_is_json(text: str, tmp_path: Path) -> None:
    fitting = start_session(text, out=tmp_path / "run", steps=3, **TINY)
    events = list(fitting)
    result = summary(fitting, events, 0.0)
    assert json.loads(json.dumps(result)) == result
    for key in ("loss", "perplexity", "bits_per_byte", "parameters", "tokens_per_second", "seconds", "flops_per_token"):
        assert result[key] > 0, key
    assert (result["steps"], result["reason"], result["task"]) == (3, "steps", "text-generation")
    assert result["out"] == str(tmp_path / "run")
    assert result["baseline"]["value"] > 0
    assert result["settings"]["width"] == 16
    assert Path(result["checkpoint"]).is_dir()


def test_the_summary_of_a_dry_run_has_no_loss(sums: str) -> None:
    fitting = start_session(sums, task=OWN, dry_run=True, threads=1)
    result = summary(fitting, list(fitting), 0.0)
    assert "loss" not in result
    assert result["steps"] == 40
    assert result["out"] is None


def test_minutes_are_turned_into_steps_that_are_recorded(sums: str, tmp_path: Path) -> None:
    """A hundredth of a minute, on whatever machine this is."""
    fitting = start_session(sums, task=OWN, out=tmp_path / "run", minutes=0.002, threads=1)
    (plan,) = [e.plan for e in fitting if isinstance(e, Planned)]
    training = RunFolder(tmp_path / "run").read_config()["training"]
    assert training["steps"] == plan.steps == fitting.training.steps
    assert training["minutes"] is None


def test_a_batch_larger_than_the_data_is_all_of_them(sums: str) -> None:
    events = list(tokenloom.start_session(sums, task=OWN, batch_size=1000, hidden=0.0, steps=2, threads=1))
    assert {e.num_targets for e in events if isinstance(e, StepFinished)} == {108}
