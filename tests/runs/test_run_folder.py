"""The run folder: claimed before any work, never at the cost of what is no run, and loaded strictly."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import own_task
from kit.own_task import Sums, SumsSettings, write_sums

import tokenloom
from tokenloom.errors import UserError
from tokenloom.runs.folder import FORMAT, RunFolder, load
from tokenloom.training.settings import TrainingSettings

TASK = f"{own_task.__file__}:Sums"


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the task in own_task.py; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("trained")
    tokenloom.train(write_sums(folder / "sums.txt"), task=TASK, out=folder / "run", steps=6, threads=1)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def claim(path: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    RunFolder(path).claim(overwrite=overwrite, resume=resume)


# Claiming.


@pytest.mark.parametrize("name", ["new", "a/b/c", "größe und ein Leerzeichen/läufe é", "new "])
def test_a_folder_that_can_be_made_is_free_and_not_made_yet(name: str, tmp_path: Path) -> None:
    claim(tmp_path / name)
    assert tree(tmp_path) == {}, "looking leaves no trace"
    claim(tmp_path / name, overwrite=True)
    RunFolder(tmp_path / name).make(overwrite=False)
    assert (tmp_path / name).is_dir()
    claim(tmp_path / name)
    assert list((tmp_path / name).iterdir()) == [], "an empty folder is free too"


def test_a_run_that_is_there_asks_for_a_decision(run: Path) -> None:
    before = tree(run)
    with pytest.raises(UserError, match=r"--out .*: is there already; --overwrite starts over, --resume continues it"):
        claim(run)
    claim(run, overwrite=True)
    claim(run, resume=True)
    assert tree(run) == before, "only asked"


@pytest.mark.parametrize("how", [{}, {"overwrite": True}])
def test_a_file_is_refused(how: dict[str, bool], tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt: is a file; give the name of a folder"):
        claim(path, **how)
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\)"):
        claim(path / "below", **how)
    assert tree(tmp_path) == {"notes.txt": b"mine"}


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"cannot be written \(File name too long\)"):
        claim(tmp_path / ("x" * 300))
    with pytest.raises(UserError, match="cannot be written"):
        claim(tmp_path / "a\0b")
    (tmp_path / "shut").mkdir()

    def no(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    # Whoever runs the tests may be allowed to write everywhere.
    monkeypatch.setattr("tempfile.TemporaryFile", no)
    for path in (tmp_path / "shut", tmp_path / "shut" / "new" / "deep"):
        with pytest.raises(UserError, match=r"--out .*shut.*: cannot be written \(Permission denied\)"):
            claim(path)
    assert tree(tmp_path) == {"shut": None}


def test_what_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    before = tree(tmp_path)
    with pytest.raises(UserError, match=r"--overwrite: .*thesis is not a run \(it has no config.json\)"):
        claim(folder, overwrite=True)
    with pytest.raises(UserError, match="is there already"):
        claim(folder)
    with pytest.raises(UserError, match="not a run"):
        claim(folder, resume=True)
    with pytest.raises(UserError, match="there is no such run"):
        claim(tmp_path / "nowhere", resume=True)
    assert tree(tmp_path) == before


def test_overwriting_sets_the_run_aside_until_there_is_another(run: Path) -> None:
    (run / "notes.md").write_text("what I thought")
    before = tree(run)
    folder = RunFolder(run)
    folder.make(overwrite=True)
    assert [path.name for path in run.iterdir()] == [".replaced"]
    folder.config_file.write_text("of a training that comes to nothing")
    folder.restore_replaced()
    assert tree(run) == before
    folder.make(overwrite=True)
    folder.weights.write_text("new")
    folder.restore_replaced()
    assert folder.weights.read_text() == "new", "there is something in its place"
    folder.drop_replaced()
    assert tree(run) == {"notes.md": b"what I thought", "model.safetensors": b"new"}


@pytest.mark.parametrize("survived", range(12))
def test_a_kill_at_any_moment_of_overwriting_loses_nothing(
    run: Path, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting aside and putting back, stopped before the n-th file operation; then another process goes on."""
    before = tree(run)
    done = 0

    def counted(original: Any) -> Any:
        def operation(*args: Any, **more: Any) -> Any:
            nonlocal done
            done += 1
            if done > survived:
                raise KeyboardInterrupt
            return original(*args, **more)

        return operation

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for owner, name in ((Path, "replace"), (Path, "touch"), (Path, "unlink"), (Path, "rmdir"), (Path, "mkdir")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        RunFolder(run).make(overwrite=True)
        (run / "config.json").write_text("new")
        RunFolder(run).restore_replaced()
    RunFolder(run).restore_replaced()
    assert tree(run) == before


def test_a_run_that_another_training_began_meanwhile_is_left_alone(run: Path) -> None:
    before = tree(run)
    with pytest.raises(UserError, match="another training has begun there"):
        RunFolder(run).make(overwrite=False)
    assert tree(run) == before


# Loading.


def test_a_loaded_run_is_the_trained_one(run: Path) -> None:
    task = load(run)
    assert type(task).__name__ == "Sums"
    assert task.settings.width == 8
    assert task.model_config == {"width": 8, "dropout": 0.1}
    assert not task.model.training
    config = json.loads((run / "config.json").read_text())
    assert config["format"] == FORMAT
    assert config["training"]["steps"] == 6
    assert config["training"]["threads"] == 1
    assert config["training"]["batch_size"] == 16, "what the recipe gave is kept"
    assert task.evaluate() == load(run).evaluate(), "on the validation split of its own data"
    assert (run / "metrics.jsonl").read_text().count("\n") >= 2


def test_a_run_may_be_moved_and_have_any_name(trained: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(trained, tmp_path / "größe und ein Leerzeichen é"))
    model = load(str(moved)).model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), load(trained).model.parameters(), strict=True))


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        changed = change(config)
        (run / "config.json").write_text(json.dumps(config if changed is None else changed))

    return write


def set_to(key: str, value: Any) -> Callable[[Path], None]:
    return edit(lambda config: config.update({key: value}))


def cut_config(run: Path) -> None:
    path = run / "config.json"
    path.write_bytes(path.read_bytes()[:-20])


def cut_weights(run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-200])


BAD_RUNS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "gone": (shutil.rmtree, "", "there is no such run"),
    "no config": (lambda run: (run / "config.json").unlink(), "", "not a run (it has no config.json)"),
    "cut config": (cut_config, "config.json", "damaged"),
    "empty config": (lambda run: (run / "config.json").write_text(""), "config.json", "damaged"),
    "binary config": (lambda run: (run / "config.json").write_bytes(b"\xff\xfe"), "config.json", "damaged"),
    "config is a list": (edit(lambda config: [config]), "config.json", "damaged"),
    "another format": (set_to("format", FORMAT + 1), "config.json", f"format {FORMAT + 1}, written by tokenloom"),
    "no format": (edit(lambda config: {k: v for k, v in config.items() if k != "format"}), "config.json", "damaged"),
    "no task": (edit(lambda config: {k: v for k, v in config.items() if k != "task"}), "config.json", "damaged"),
    "settings are a number": (set_to("settings", 5), "config.json", "damaged (TypeError: settings is 5)"),
    "model is a text": (set_to("model", "x"), "config.json", "damaged (TypeError: model is 'x')"),
    "training is null": (set_to("training", None), "config.json", "damaged"),
    "data are a number": (set_to("data", 3), "config.json", "damaged"),
    "a task that is not there": (set_to("task", "./gone.py:Sums"), "gone.py", "there is no such file"),
    "an unknown setting": (
        set_to("settings", {"wdith": 8}),
        "config.json",
        "no setting 'wdith'; did you mean 'width'?",
    ),
    "a wrong type": (set_to("settings", {"width": "8"}), "config.json", "width: '8' is not a whole number"),
    "an unknown size": (set_to("model", {"depth": 3}), "config.json", "no model can be built from it (TypeError: "),
    "a negative size": (set_to("model", {"width": -3, "dropout": 0.0}), "config.json", "no model can be built from it"),
    "another size": (set_to("model", {"width": 9, "dropout": 0.0}), "model.safetensors", "has shape (10, 8)"),
    "no weights": (lambda run: (run / "model.safetensors").unlink(), "model.safetensors", "missing"),
    "cut weights": (cut_weights, "model.safetensors", "damaged or not a safetensors file"),
}


@pytest.mark.parametrize("fault", BAD_RUNS)
def test_a_run_that_is_not_whole_is_refused_by_name_in_one_line(fault: str, run: Path) -> None:
    harm, name, message = BAD_RUNS[fault]
    harm(run)
    with pytest.raises(UserError) as caught:
        load(run)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not a run"):
        load(tmp_path / "file")


def test_assets_that_are_not_read_back_are_a_mistake_of_the_task(run: Path) -> None:
    set_to("assets", {"tokenizer": "abc"})(run)
    with pytest.raises(ValueError, match="Sums saves assets but does not load them"):
        load(run)


# The text task's own part.


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    runs = []
    for name, text in (("one", "abcdefgh\n" * 40), ("two", "abcdefgi\n" * 40)):
        (tmp_path / f"{name}.txt").write_text(text)
        sizes = {"context": 8, "width": 16, "depth": 1, "heads": 2}
        tokenloom.train(tmp_path / f"{name}.txt", out=tmp_path / name, steps=1, threads=1, **sizes)
        runs.append(tmp_path / name)
    load(runs[0])
    shutil.copy(runs[1] / "tokenizer.json", runs[0] / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json: not the tokenizer that this run was trained with"):
        load(runs[0])
    (runs[0] / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(runs[0])
    (runs[0] / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(runs[0])


# Metrics.


def test_metrics_are_appended_read_and_cut_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    for step in (10, 20, 30):
        folder.append_metrics({"step": step, "loss": 1 / step})
    with folder.metrics.open("a") as file:
        file.write('17\n["step"]\n{"other": 1}\n{"step": 40, "lo')
    rows = [{"step": step, "loss": 1 / step} for step in (10, 20, 30)]
    assert folder.read_metrics() == rows, "whole lines only"
    folder.truncate_metrics(20)
    assert folder.metrics.read_text() == "".join(json.dumps(row) + "\n" for row in rows[:2])
    folder.append_metrics({"step": 21})
    assert [row["step"] for row in folder.read_metrics()] == [10, 20, 21]


def test_metrics_are_json_for_everyone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "interval": float("nan"), "norm": float("inf"), "loss": 0.5})
    assert folder.metrics.read_text() == '{"step": 1, "interval": null, "norm": null, "loss": 0.5}\n'


def test_the_config_keeps_what_a_resumed_training_changes(run: Path) -> None:
    before = RunFolder(run).read_config()
    RunFolder(run).update_training(TrainingSettings(steps=99))
    after = RunFolder(run).read_config()
    assert after["training"]["steps"] == 99
    assert {k: v for k, v in after.items() if k != "training"} == {k: v for k, v in before.items() if k != "training"}
    assert not [name for name in os.listdir(run) if name.startswith(".")]


def test_a_config_is_written_for_people(tmp_path: Path) -> None:
    task, training = Sums(SumsSettings(width=4)), TrainingSettings(steps=1)
    RunFolder(tmp_path).write_config(task, "digit-sums", "größe.txt", training, sequence_length=2)
    text = (tmp_path / "config.json").read_text("utf-8")
    assert '\n  "settings": {\n    "width": 4,' in text
    assert "größe.txt" in text
