"""A model that is fitted in one pass is evaluated, saved, loaded and used like all others."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from kit import fitted_task
from kit.fitted_task import Counts
from kit.session_helpers import files

import tokenloom
from tokenloom.cli.main import main
from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.runs.events import Fitted, Prepared
from tokenloom.runs.folder import RunFolder
from tokenloom.runs.session import start_session, summary
from tokenloom.training.events import Evaluated, Finished
from tokenloom.training.loop import NonFiniteLoss

FITTED = f"{fitted_task.__file__}:Counts"


def test_a_fitted_run_is_measured_saved_and_loaded(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "fitted"
    fitting = start_session(sums, task=FITTED, out=out)
    events = list(fitting)
    assert [type(event) for event in events] == [Prepared, Fitted, Evaluated, Finished]
    lines = Path(sums).read_text("utf-8").split()
    cut = len(lines) * 9 // 10
    counts, size = Counter(line[2] for line in lines[:cut]), 10
    expected = -sum(math.log((counts[line[2]] + 1) / (cut + size)) for line in lines[cut:]) / (len(lines) - cut)
    fitted, evaluated, finished = events[1:]
    assert isinstance(fitted, Fitted)
    assert isinstance(evaluated, Evaluated)
    assert isinstance(finished, Finished)
    assert (fitted.numbers, fitted.size, fitted.auto_settings) == (20, 160, {"smoothing": "add-one"})
    assert evaluated.metrics["loss"] == pytest.approx(expected, rel=1e-12)
    assert (finished.reason, finished.step, finished.best_step, finished.best) == ("fitted", 0, 0, evaluated.metrics)
    assert files(out) == {"config.json", "model.safetensors", "metrics.jsonl"}
    (row,) = RunFolder(out).read_metrics()
    assert row["validation_loss"] == evaluated.metrics["loss"]
    loaded = tokenloom.load(out)
    assert loaded.evaluate() == evaluated.metrics
    assert torch.equal(loaded.model.get_buffer("counts"), fitting.task.model.get_buffer("counts"))
    result = summary(fitting, events, 0.0)
    assert (result["reason"], result["saved_numbers"], result["memory_bytes"]) == ("fitted", 20, 160)
    assert "steps" not in result["settings"], "no setting that did nothing is told"


def test_a_loaded_run_is_strict_about_its_counts(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "fitted"
    tokenloom.train(sums, task=FITTED, out=out)
    config = json.loads((out / "config.json").read_text("utf-8"))
    config["model"]["digits"] = 9
    (out / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UserError, match=r"logs has shape \(10,\), the model needs \(9,\)"):
        tokenloom.load(out)


@pytest.mark.parametrize("name", ["steps", "minutes", "batch_size", "lr", "seed", "patience", "keep_checkpoints"])
def test_settings_of_training_without_effect_are_refused_by_name(sums: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{flag(name)} has no effect on a model that is fitted"):
        list(start_session(sums, task=FITTED, out=tmp_path / "run", **{name: 1}))
    assert not (tmp_path / "run").exists()


def test_device_and_threads_have_an_effect(sums: str) -> None:
    before = torch.get_num_threads()
    try:
        tokenloom.train(sums, task=FITTED, device="cpu", threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_dry_run_keeps_nothing(sums: str, tmp_path: Path) -> None:
    events = list(start_session(sums, task=FITTED, out=tmp_path / "run", dry_run=True))
    assert [type(event) for event in events] == [Prepared, Fitted]
    assert not (tmp_path / "run").exists()


def test_there_is_nothing_to_resume(sums: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=FITTED, out=out)
    with pytest.raises(UserError, match=r"--resume: .* fitted in one pass.*--overwrite fits again"):
        list(start_session(None, out=out, resume=True))


def test_another_run_is_replaced_once_the_new_one_can_be_used(
    sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    tokenloom.train(sums, task=FITTED, out=out)
    with pytest.raises(UserError, match="--overwrite"):
        start_session(sums, task=FITTED, out=out)
    before = (out / "model.safetensors").read_bytes()

    def broken(self: Counts, samples: object) -> torch.nn.Module:
        model = real(self, samples)
        model.get_buffer("logs").fill_(math.nan)
        return model

    real, broken_task = Counts._fit, type("Broken", (Counts,), {"_fit": broken})
    with monkeypatch.context() as patch:
        patch.setattr("tokenloom.runs.session.find_task", lambda name: broken_task)
        with pytest.raises(NonFiniteLoss, match="fitted model is nan"):
            tokenloom.train(sums, task=FITTED, out=out, overwrite=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert not (out / ".replaced").exists()
    tokenloom.train(sums, task=FITTED, out=out, overwrite=True)
    assert not (out / ".replaced").exists()


def test_the_command_line_reports_the_fit(sums: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", sums, "--task", FITTED, "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert "model:             20 numbers (160 B), fitted in" in printed.err
    assert "auto settings:     smoothing add-one" in printed.err
    assert "steps" not in printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert result["reason"] == "fitted"
    assert result["loss"] == tokenloom.load(out).evaluate()["loss"]
    assert main(["train", sums, "--task", FITTED, "--dry-run"]) == 0
    assert "dry run: nothing was saved" in capsys.readouterr().out
    assert main(["info", str(out)]) == 0
    assert "saved numbers:          20" in capsys.readouterr().out
    assert main(["train", sums, "--task", FITTED, "--steps", "3"]) == 2
    assert "--steps has no effect" in capsys.readouterr().err
