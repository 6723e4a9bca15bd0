"""A run that was interrupted goes on bit for bit, with its own settings and its own data."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import own_task
from kit.own_task import write_sums
from kit.session_helpers import OWN, TINY, after, files, stepped, weights

import tokenloom
from tokenloom.errors import UserError
from tokenloom.runs.events import Planned, Prepared
from tokenloom.runs.folder import RunFolder
from tokenloom.runs.session import start_session
from tokenloom.training.events import Evaluated, Event, Finished, Resumed, StepFinished
from tokenloom.training.loop import NonFiniteLoss


def straight_and_interrupted(data: str, folder: Path, stop_after: int, **settings: Any) -> list[list[Event]]:
    """The events of a straight training, of an interrupted one, and of its going on."""
    straight = list(tokenloom.start_session(data, out=folder / "straight", **settings))
    first = list(tokenloom.start_session(data, out=folder / "stopped", stop=after(stop_after), **settings))
    torch.manual_seed(4711)  # as in another process
    rest = list(tokenloom.start_session(out=folder / "stopped", resume=True))
    return [straight, first, rest]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights, checkpoints and optimizer states, byte for byte."""
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
    settings = {**TINY, "batch_size": 16, "steps": 16, "eval_every": 5, "dropout": 0.2, "grad_accum": 2}
    straight, first, rest = straight_and_interrupted(text, tmp_path, stop_after, optimizer=optimizer, **settings)
    planned = next(e.plan for e in straight if isinstance(e, Planned))
    assert stop_after % planned.steps_per_epoch
    assert first[-1].reason == "interrupt"  # type: ignore[attr-defined]
    assert next(e for e in rest if isinstance(e, Resumed)).step == stop_after
    assert stepped(first) + stepped(rest) == stepped(straight)
    assert rest[-1].best == straight[-1].best  # type: ignore[attr-defined]
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped")


def test_a_task_that_draws_in_its_batches_goes_on_bit_for_bit(sums: str, tmp_path: Path) -> None:
    settings = {"task": OWN, "steps": 20, "eval_every": 6, "grad_accum": 3, "threads": 1, "hidden": 0.4}
    straight, first, rest = straight_and_interrupted(sums, tmp_path, 10, **settings)
    assert stepped(first) + stepped(rest) == stepped(straight)
    assert len({step[2] for step in stepped(straight)}) > 3, "as many targets as were drawn"
    assert_equal_runs(tmp_path / "straight", tmp_path / "stopped")


def test_an_interrupted_run_leaves_usable_weights(sums: str, tmp_path: Path) -> None:
    """Before the first evaluation those of the last step, afterwards those of the best."""
    out = tmp_path / "early"
    fitting = tokenloom.start_session(sums, task=OWN, out=out, steps=50, threads=1, eval_every=20, stop=after(2))
    list(fitting)
    assert torch.equal(weights(tokenloom.load(out)), weights(fitting.task))
    out = tmp_path / "later"
    fitting = tokenloom.start_session(sums, task=OWN, out=out, steps=50, threads=1, eval_every=20, stop=after(23))
    kept = [weights(fitting.task) for event in fitting if isinstance(event, Evaluated)]
    assert torch.equal(weights(tokenloom.load(out)), kept[0])


def test_resuming_a_finished_run_changes_nothing(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    task = tokenloom.train(sums, task=OWN, out=out, steps=12, eval_every=4, threads=1)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for _ in range(2):
        fitting = tokenloom.start_session(out=out, resume=True)
        events = list(fitting)
        assert [type(e) for e in events] == [Prepared, Planned, Resumed, Finished]
        assert torch.equal(weights(fitting.task), weights(task))
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_run_may_be_made_longer_and_remembers_it(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=OWN, out=out, steps=12, eval_every=6, threads=1)
    list(tokenloom.start_session(out=out, resume=True, steps=20, stop=after(3)))
    assert RunFolder(out).read_config()["training"]["steps"] == 20
    events = list(tokenloom.start_session(out=out, resume=True))
    assert [step[0] for step in stepped(events)] == [16, 17, 18, 19, 20]
    assert sorted({row["step"] for row in RunFolder(out).read_metrics()}) == [6, 10, 12, 15, 18, 20]


def test_metrics_of_steps_that_are_done_again_are_not_kept_twice(sums: str, tmp_path: Path) -> None:
    """Killed after step 15, when the last checkpoint was that of step 10."""
    out = tmp_path / "run"
    for event in tokenloom.start_session(sums, task=OWN, out=out, steps=30, eval_every=10, threads=1):
        if isinstance(event, StepFinished) and event.step == 25:
            break
    shutil.rmtree(out / "checkpoints" / "step-00000020")
    list(tokenloom.start_session(out=out, resume=True))
    rows = RunFolder(out).read_metrics()
    assert [row["step"] for row in rows if "loss" in row] == [10, 20, 30]
    assert [row["step"] for row in rows if "validation_loss" in row] == [10, 20, 30]


REFUSED_ON_RESUME: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed is 0 in this run and cannot become 1"),
    ({"batch_size": 3}, "batch_size is 16 in this run"),
    ({"width": 4}, "width is 8 in this run"),
    ({"lr": 0.5}, "lr is 0.02 in this run"),
    ({"patience": 2}, "patience is None in this run"),
    ({"minutes": 3.0}, "length is fixed at 6 steps; --steps changes it"),
    ({"task": "text-generation"}, "task is .*own_task.py:Sums' in this run"),
    ({"wdith": 4}, "no setting 'wdith'; did you mean 'width'"),
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
            start_session(None, out=out, resume=True, **given)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    start_session(sums, task=OWN, out=out, resume=True, seed=0, width=8, lr=0.02, threads=1, steps=6)


def test_resume_needs_a_run(sums: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="say which run with --out"):
        start_session(sums, resume=True)
    with pytest.raises(UserError, match="no such run"):
        start_session(sums, resume=True, out=tmp_path / "none")
    out = tmp_path / "run"
    for event in tokenloom.start_session(sums, task=OWN, out=out, steps=6, eval_every=6, threads=1):
        if isinstance(event, StepFinished):
            break  # as a kill before the first checkpoint
    with pytest.raises(UserError, match="has no checkpoint to resume from; --overwrite starts over"):
        list(start_session(None, resume=True, out=out))


def test_changed_data_are_refused_on_resume_even_of_the_same_length(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.start_session(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    content = Path(sums).read_text()
    Path(sums).write_text(content.replace("00", "09", 1))
    assert len(Path(sums).read_text()) == len(content)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"step-00000002: the (training|validation) data"):
        list(tokenloom.start_session(out=out, resume=True, steps=9))
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    Path(sums).write_text(content)
    list(tokenloom.start_session(out=out, resume=True))


def test_the_data_may_have_been_moved(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.start_session(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    moved = Path(sums).rename(tmp_path / "moved.txt")
    with pytest.raises(UserError, match="cannot be read"):
        list(tokenloom.start_session(out=out, resume=True))
    events = list(tokenloom.start_session(moved, out=out, resume=True))
    assert events[-1].reason == "steps"  # type: ignore[attr-defined]


def test_a_run_is_gone_on_with_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task and the data were given by where they lay from there, and may be given so again."""
    here = tmp_path / "here"
    here.mkdir()
    shutil.copy(own_task.__file__, here / "mine.py")
    write_sums(here / "sums.txt")
    monkeypatch.chdir(here)
    given = {"task": "./mine.py:Sums", "out": tmp_path / "run"}
    list(tokenloom.start_session("sums.txt", steps=9, threads=1, stop=after(2), **given))
    list(tokenloom.start_session("sums.txt", resume=True, stop=after(2), **given))
    monkeypatch.chdir(tmp_path)
    list(tokenloom.start_session(out="run", resume=True, stop=after(2)))
    assert tokenloom.load("run").evaluate()["loss"] > 0


def test_a_dry_run_of_going_on_trains_nothing(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    list(tokenloom.start_session(sums, task=OWN, out=out, steps=6, threads=1, stop=after(2)))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert [type(e) for e in start_session(None, out=out, resume=True, dry_run=True)] == [Prepared, Planned]
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_training_that_breaks_down_keeps_its_last_good_state(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    events = []
    fitting = tokenloom.start_session(sums, task=OWN, out=out, steps=20, eval_every=5, threads=1)

    def go_on() -> None:
        for event in fitting:
            events.append(event)
            if isinstance(event, StepFinished) and event.step == 12:
                with torch.no_grad():
                    fitting.task.model.head.bias[0] = math.nan  # type: ignore[union-attr, index, operator]

    with pytest.raises(NonFiniteLoss, match="step 13: the loss is nan"):
        go_on()
    assert torch.isfinite(weights(tokenloom.load(out))).all()
    assert next(e for e in tokenloom.start_session(out=out, resume=True) if isinstance(e, Resumed)).step == 10
