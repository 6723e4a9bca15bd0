"""From data to a trained run and back: trained, saved, resumed bit for bit, loaded and used."""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import own_task
import pytest
import torch
from own_task import write_sums

import tokenloom
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.tasks.frame import fitting as module
from tokenloom.tasks.frame.base import Task
from tokenloom.tasks.frame.fitting import Fitting, begin, summary
from tokenloom.tasks.frame.runs import RunFolder
from tokenloom.training.events import (
    Baseline,
    Evaluated,
    Event,
    Finished,
    Planned,
    Prepared,
    Resumed,
    Saved,
    Stepped,
)
from tokenloom.training.loop import NonFiniteLoss

OWN = f"{own_task.__file__}:Sums"
TINY = {"context": 12, "width": 16, "depth": 1, "heads": 2, "threads": 1, "batch": 8}
VERSE = "the moon is up and the tide is low\nthe boat is out and the wind is slow\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "verse é.txt"
    lines = [f"{n} {VERSE}" for n in range(12)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def sums(tmp_path: Path) -> str:
    return write_sums(tmp_path / "sums.txt")


@pytest.fixture(autouse=True)
def no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the curve takes longer than these trainings; one test does it."""
    if "curve" not in request.node.name:
        monkeypatch.setattr(module, "draw_curve", lambda folder, baseline: None)


def after(steps: int) -> Callable[[], bool]:
    """Asks for a stop after so many steps."""
    asked = itertools.count(1)
    return lambda: next(asked) >= steps


def stepped(events: list[Event]) -> list[tuple[Any, ...]]:
    """All that a step tells, but for the time."""
    steps = [e for e in events if isinstance(e, Stepped)]
    return [(e.step, e.loss, e.targets, e.rate, e.norm, e.clipped) for e in steps]


def weights(task: Task) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in task.model.parameters()]).clone()


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# End to end.


def test_a_text_is_trained_saved_loaded_and_continued(text: str, tmp_path: Path) -> None:
    out = tmp_path / "läufe und mehr" / "verse"
    task = tokenloom.train(text, out=out, steps=12, evaluate_every=6, **TINY)
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


def test_a_task_of_ones_own_learns_its_rule(sums: str, tmp_path: Path) -> None:
    task = tokenloom.train(sums, task=OWN, out=tmp_path / "run", steps=150, dropout=0.0, hidden=0.0, threads=1)
    assert task.evaluate()["loss"] < math.log(10) / 2
    loaded = tokenloom.load(tmp_path / "run")
    shown: list[str] = []
    options = loaded.uses["predict"](digits="25")
    assert loaded.use("predict", options, shown.append) == {"answer": int(shown[0])}
    assert task.metric_lines({"loss": 1.5}) == ["loss:              1.5000"]


def test_events_come_in_order(text: str, tmp_path: Path) -> None:
    events = list(begin(text, out=tmp_path / "run", steps=4, evaluate_every=2, **TINY))
    kinds = [type(event) for event in events]
    once = [Stepped, Stepped, Evaluated, Saved]
    assert kinds == [Prepared, Planned, Baseline, *once, *once, Finished]
    prepared, plan = events[0], events[1]
    assert isinstance(prepared, Prepared)
    assert any("train" in line for line in prepared.lines)
    assert isinstance(plan, Planned)
    assert plan.plan.derived["width"] == 16
    assert plan.plan.derived["rate"] > 0, "what the recipe gave is shown"


def test_the_curve_is_drawn_and_its_rows_are_means(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    events = list(begin(sums, task=OWN, out=out, steps=25, evaluate_every=10, threads=1))
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    rows = RunFolder(out).read_metrics()
    losses = [e.loss for e in events if isinstance(e, Stepped)]
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
    fitting = tokenloom.fit(sums, task=OWN, steps=5, threads=1)
    assert isinstance(fitting, Fitting)
    events = iter(fitting)
    assert isinstance(events, Iterator)
    assert isinstance(next(events), Prepared)
    assert isinstance(next(events), Planned)
    before = weights(fitting.task)
    step = next(events)
    assert isinstance(step, Stepped)
    assert not torch.equal(weights(fitting.task), before), "the model in training is at hand"
    for event in events:
        if isinstance(event, Stepped) and event.step == 3:
            break
    events.close()  # type: ignore[attr-defined]
    assert fitting.task.evaluate()["loss"] > 0, "left early, and usable as it is"


def test_mistakes_are_told_at_once(sums: str) -> None:
    """Not only when the first event is asked for."""
    with pytest.raises(UserError, match="no setting 'step'"):
        tokenloom.fit(sums, task=OWN, step=5)


# What is kept where.


def test_without_out_nothing_is_written_and_the_best_weights_come_back(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate is so high that the last weights are far from the best."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = {"steps": 30, "evaluate_every": 3, "schedule": "linear", "decay_share": 0.0, "rate": 0.3, "threads": 1}
    fitting = tokenloom.fit(sums, task=OWN, seed=2, **settings)
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
    events = list(begin(text, out=out, dry_run=True, minutes=1.0, **TINY))
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
    tokenloom.train(sums, task=OWN, out=out, steps=12, evaluate_every=4, threads=1)
    with pytest.raises(UserError, match="is there already"):
        tokenloom.train(sums, task=OWN, out=out, steps=3, threads=1)
    tokenloom.train(sums, task=OWN, out=out, steps=3, threads=1, overwrite=True)
    assert [p.name for p in (out / "checkpoints").iterdir()] == [f"step-{s:08d}" for s in (2, 3)] or sorted(
        p.name for p in (out / "checkpoints").iterdir()
    ) == [f"step-{s:08d}" for s in (2, 3)]
    assert RunFolder(out).read_config()["training"]["steps"] == 3
    assert max(row["step"] for row in RunFolder(out).read_metrics()) == 3


# Going on.


def straight_and_interrupted(data: str, folder: Path, stop_after: int, **settings: Any) -> list[list[Event]]:
    """The events of a straight training, of an interrupted one, and of its going on."""
    straight = list(tokenloom.fit(data, out=folder / "straight", **settings))
    first = list(tokenloom.fit(data, out=folder / "stopped", stop=after(stop_after), **settings))
    torch.manual_seed(4711)  # as in another process
    rest = list(tokenloom.fit(out=folder / "stopped", resume=True))
    return [straight, first, rest]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights, checkpoints and optimiser states, byte for byte."""
    names = [name for name in files(one) if name.endswith(".safetensors")]
    assert len(names) >= 5
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("stop_after", [3, 13])
def test_a_text_run_that_was_interrupted_goes_on_bit_for_bit(
    optimizer: str, stop_after: int, text: str, tmp_path: Path
) -> None:
    """With dropout and accumulation, and not at the end of an epoch."""
    settings = {**TINY, "batch": 16, "steps": 16, "evaluate_every": 5, "dropout": 0.2, "accumulate": 2}
    straight, first, rest = straight_and_interrupted(text, tmp_path, stop_after, optimizer=optimizer, **settings)
    planned = next(e.plan for e in straight if isinstance(e, Planned))
    assert stop_after % planned.steps_per_epoch
    assert first[-1].reason == "interrupt"  # type: ignore[attr-defined]
    assert next(e for e in rest if isinstance(e, Resumed)).step == stop_after
    assert stepped(first) + stepped(rest) == stepped(straight)
    assert rest[-1].best == straight[-1].best  # type: ignore[attr-defined]
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped")


def test_a_task_that_draws_in_its_batches_goes_on_bit_for_bit(sums: str, tmp_path: Path) -> None:
    settings = {"task": OWN, "steps": 20, "evaluate_every": 6, "accumulate": 3, "threads": 1, "hidden": 0.4}
    straight, first, rest = straight_and_interrupted(sums, tmp_path, 10, **settings)
    assert stepped(first) + stepped(rest) == stepped(straight)
    assert len({step[2] for step in stepped(straight)}) > 3, "as many targets as were drawn"
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped")


def test_an_interrupted_run_leaves_usable_weights(sums: str, tmp_path: Path) -> None:
    """Before the first evaluation those of the last step, afterwards those of the best."""
    out = tmp_path / "early"
    fitting = tokenloom.fit(sums, task=OWN, out=out, steps=50, threads=1, evaluate_every=20, stop=after(2))
    list(fitting)
    assert torch.equal(weights(tokenloom.load(out)), weights(fitting.task))
    out = tmp_path / "later"
    fitting = tokenloom.fit(sums, task=OWN, out=out, steps=50, threads=1, evaluate_every=20, stop=after(23))
    kept = [weights(fitting.task) for event in fitting if isinstance(event, Evaluated)]
    assert torch.equal(weights(tokenloom.load(out)), kept[0])


def test_resuming_a_finished_run_changes_nothing(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    task = tokenloom.train(sums, task=OWN, out=out, steps=12, evaluate_every=4, threads=1)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for _ in range(2):
        fitting = tokenloom.fit(out=out, resume=True)
        events = list(fitting)
        assert [type(e) for e in events] == [Prepared, Planned, Resumed, Finished]
        assert torch.equal(weights(fitting.task), weights(task))
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_run_may_be_made_longer_and_remembers_it(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=OWN, out=out, steps=12, evaluate_every=6, threads=1)
    list(tokenloom.fit(out=out, resume=True, steps=20, stop=after(3)))
    assert RunFolder(out).read_config()["training"]["steps"] == 20
    events = list(tokenloom.fit(out=out, resume=True))
    assert [step[0] for step in stepped(events)] == [16, 17, 18, 19, 20]
    assert sorted({row["step"] for row in RunFolder(out).read_metrics()}) == [6, 10, 12, 15, 18, 20]


def test_metrics_of_steps_that_are_done_again_are_not_kept_twice(sums: str, tmp_path: Path) -> None:
    """Killed after step 15, when the last checkpoint was that of step 10."""
    out = tmp_path / "run"
    for event in tokenloom.fit(sums, task=OWN, out=out, steps=30, evaluate_every=10, threads=1):
        if isinstance(event, Stepped) and event.step == 25:
            break
    shutil.rmtree(out / "checkpoints" / "step-00000020")
    list(tokenloom.fit(out=out, resume=True))
    rows = RunFolder(out).read_metrics()
    assert [row["step"] for row in rows if "loss" in row] == [10, 20, 30]
    assert [row["step"] for row in rows if "validation_loss" in row] == [10, 20, 30]


REFUSED_ON_RESUME: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed is 0 in this run and cannot become 1"),
    ({"batch": 3}, "batch is 16 in this run"),
    ({"width": 4}, "width is 8 in this run"),
    ({"rate": 0.5}, "rate is 0.02 in this run"),
    ({"patience": 2}, "patience is None in this run"),
    ({"minutes": 3.0}, "length is fixed at 6 steps; --steps changes it"),
    ({"task": "text-generation"}, "task is .*own_task.py:Sums' in this run"),
    ({"wdith": 4}, "no setting 'wdith'; did you mean width"),
    ({"overwrite": True}, "do not ask for --overwrite"),
    ({"steps": 0}, "--steps 0"),
    ({"device": "tpu"}, "--device tpu"),
]


def test_other_settings_are_refused_on_resume_and_the_same_are_not(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=OWN, out=out, steps=6, threads=1)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for given, message in REFUSED_ON_RESUME:
        with pytest.raises(UserError, match=message):
            begin(None, out=out, resume=True, **given)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    begin(sums, task=OWN, out=out, resume=True, seed=0, width=8, rate=0.02, threads=1, steps=6)


def test_resume_needs_a_run(sums: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="say which run with --out"):
        begin(sums, resume=True)
    with pytest.raises(UserError, match="no such run"):
        begin(sums, resume=True, out=tmp_path / "none")
    out = tmp_path / "run"
    for event in tokenloom.fit(sums, task=OWN, out=out, steps=6, evaluate_every=6, threads=1):
        if isinstance(event, Stepped):
            break  # as a kill before the first checkpoint
    with pytest.raises(UserError, match="holds no checkpoint to go on from; --overwrite starts anew"):
        list(begin(None, resume=True, out=out))


def test_changed_data_are_refused_on_resume_even_of_the_same_length(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.fit(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    content = Path(sums).read_text()
    Path(sums).write_text(content.replace("00", "09", 1))
    assert len(Path(sums).read_text()) == len(content)
    with pytest.raises(UserError, match=r"step-00000002: the (training|validation) data"):
        list(tokenloom.fit(out=out, resume=True))
    Path(sums).write_text(content)
    list(tokenloom.fit(out=out, resume=True))


def test_the_data_may_have_been_moved(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.fit(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    moved = Path(sums).rename(tmp_path / "moved.txt")
    with pytest.raises(UserError, match="cannot be read"):
        list(tokenloom.fit(out=out, resume=True))
    events = list(tokenloom.fit(moved, out=out, resume=True))
    assert events[-1].reason == "steps"  # type: ignore[attr-defined]


def test_a_dry_run_of_going_on_trains_nothing(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.fit(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert [type(e) for e in begin(None, out=out, resume=True, dry_run=True)] == [Prepared, Planned]
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_training_that_breaks_down_keeps_its_last_good_state(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    events = []
    fitting = tokenloom.fit(sums, task=OWN, out=out, steps=20, evaluate_every=5, threads=1)

    def go_on() -> None:
        for event in fitting:
            events.append(event)
            if isinstance(event, Stepped) and event.step == 12:
                with torch.no_grad():
                    fitting.task.model.readout.bias[0] = math.nan  # type: ignore[union-attr, index, operator]

    with pytest.raises(NonFiniteLoss, match="step 13: the loss is nan"):
        go_on()
    assert torch.isfinite(weights(tokenloom.load(out))).all()
    assert next(e for e in tokenloom.fit(out=out, resume=True) if isinstance(e, Resumed)).step == 10


# What is told at the end.


def test_the_summary_is_json(text: str, tmp_path: Path) -> None:
    fitting = begin(text, out=tmp_path / "run", steps=3, **TINY)
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
    fitting = begin(sums, task=OWN, dry_run=True, threads=1)
    result = summary(fitting, list(fitting), 0.0)
    assert "loss" not in result
    assert result["steps"] == 40
    assert result["out"] is None


def test_minutes_are_turned_into_steps_that_are_recorded(sums: str, tmp_path: Path) -> None:
    """A hundredth of a minute, on whatever machine this is."""
    fitting = begin(sums, task=OWN, out=tmp_path / "run", minutes=0.002, threads=1)
    (plan,) = [e.plan for e in fitting if isinstance(e, Planned)]
    training = RunFolder(tmp_path / "run").read_config()["training"]
    assert training["steps"] == plan.steps == fitting.training.steps
    assert training["minutes"] is None


def test_a_batch_larger_than_the_data_is_all_of_them(sums: str) -> None:
    events = list(tokenloom.fit(sums, task=OWN, batch=1000, hidden=0.0, steps=2, threads=1))
    assert {e.targets for e in events if isinstance(e, Stepped)} == {108}
