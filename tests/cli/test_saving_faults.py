"""What goes wrong in training and saving, as the command line tells it.

Where the other faults of this kind are held: kills in `training/test_kills.py` and `training/test_sigkill.py`; going on
in `tasks/test_resuming.py`; Ctrl-C in `test_processes.py`; folders, rates and losses in `test_train_command.py`; runs
that were altered in `test_use_commands.py`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_cli import RHYME, TINY, Call, Refused

from tokenloom.models.batch import IGNORE, Batch
from tokenloom.tasks.text_generation import TextGeneration
from tokenloom.training.batches import BatchContext

NAMES = ("model.safetensors", "optimizer.safetensors", "state.json")


@pytest.fixture(scope="module")
def saved(rhyme: Path, tmp_path_factory: pytest.TempPathFactory, quick_plans: None) -> Path:
    """A run of 6 steps of 8, with checkpoints of the steps 3 and 6. Not to be changed."""
    import tokenloom

    out = tmp_path_factory.mktemp("saved") / "run"
    words = {name.removeprefix("--"): value for name, value in zip(TINY[::2], TINY[1::2], strict=True)}
    settings: dict[str, Any] = {k: int(v) if v.isdecimal() else v for k, v in words.items()}
    fitting = tokenloom.start_session(rhyme, out=out, steps=8, eval_every=8, save_every=3, **settings)
    for event in fitting:
        if type(event).__name__ == "Saved" and event.step == 6:  # type: ignore[attr-defined]
            break
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    return out


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def cut(path: Path) -> None:
    os.truncate(path, max(0, path.stat().st_size - 200))


def altered(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", [cut, altered, Path.unlink])
def test_a_checkpoint_that_was_cut_is_named_and_the_one_before_taken(
    harm: Callable[[Path], None], name: str, call: Call, copy: Path
) -> None:
    file = copy / "checkpoints" / "step-00000006" / name
    harm(file)
    answer = call("train", "--resume", "--out", copy, "--json")
    assert answer.code == 0, answer.err
    assert "resumed:           from step 3" in answer.err
    assert str(file) in answer.err
    assert answer.json["steps"] == 8


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_cut_checkpoints_is_refused_by_name(name: str, refused: Refused, copy: Path) -> None:
    for step in ("step-00000003", "step-00000006"):
        cut(copy / "checkpoints" / step / name)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    line = refused("train", "--resume", "--out", copy, "-q")
    assert str(copy / "checkpoints" / "step-00000006" / name) in line
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_run_that_was_killed_before_its_first_checkpoint_says_so(refused: Refused, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    line = refused("train", "--resume", "--out", copy, "-q")
    assert "has no checkpoint to resume from; --overwrite starts over" in line


def test_a_run_without_its_tokenizer_or_with_another_is_not_resumed(
    call: Call, refused: Refused, copy: Path, tmp_path: Path
) -> None:
    """Another: trained on a text with one more letter."""
    file = copy / "tokenizer.json"
    other = tmp_path / "other.txt"
    other.write_text(RHYME * 20 + "X", "utf-8")
    assert call("train", other, *TINY, "--steps", "1", "--out", tmp_path / "other", "-q").code == 0
    shutil.copy(tmp_path / "other" / "tokenizer.json", file)
    assert f"{file}: not the tokenizer" in refused("train", "--resume", "--out", copy, "-q")
    file.unlink()
    assert "tokenizer.json" in refused("train", "--resume", "--out", copy, "-q")


def lacking(tensors: dict[str, torch.Tensor]) -> str:
    del tensors["lm_head.bias"]
    return "lacks lm_head.bias"


def foreign(tensors: dict[str, torch.Tensor]) -> str:
    tensors["lm_head.extra"] = torch.zeros(2)
    return "has lm_head.extra"


def of_another_shape(tensors: dict[str, torch.Tensor]) -> str:
    tensors["lm_head.bias"] = torch.zeros(5)
    return "lm_head.bias"


@pytest.mark.parametrize("change", [lacking, foreign, of_another_shape])
def test_weights_that_do_not_fit_are_refused_with_the_first_difference(
    change: Callable[[dict[str, torch.Tensor]], str], refused: Refused, run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    file = copy / "model.safetensors"
    tensors = load_file(file)
    word = change(tensors)
    save_file(tensors, file)
    for words in (["generate", copy], ["evaluate", copy], ["score", copy, "--continuation", "One"], ["info", copy]):
        line = refused(*words)
        assert word in line, line
        assert str(file) in line


def ignoring(monkeypatch: pytest.MonkeyPatch, which: Callable[[BatchContext], bool]) -> None:
    """Batches of some moments ask for nothing."""
    usual = TextGeneration.collate

    def collate(self: TextGeneration, samples: Any, moment: BatchContext) -> Batch:
        batch = usual(self, samples, moment)
        if which(moment):
            batch.targets["loss"] = torch.full_like(batch.targets["loss"], IGNORE)
        return batch

    monkeypatch.setattr(TextGeneration, "collate", collate)


def test_a_step_in_which_all_labels_are_ignored_stops_with_its_number(
    call: Call, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignoring(monkeypatch, lambda moment: moment.step == 5)
    out = tmp_path / "run"
    answer = call("train", rhyme, *TINY, "--steps", "9", "--save-every", "2", "--out", out, "-q")
    assert answer.code == 1
    assert answer.out == ""
    what = r"step 6: none of its samples has a target that counts; the checkpoint of step \d is in"
    assert re.fullmatch(rf"tokenloom: {what} {out}\n", answer.err), answer.err


def test_a_validation_part_in_which_all_labels_are_ignored_is_no_loss_of_zero(
    call: Call, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignoring(monkeypatch, lambda moment: not moment.training)
    answer = call("train", rhyme, *TINY, "--steps", "3", "--out", tmp_path / "run", "-q", "--json")
    assert answer.code == 1
    assert answer.out == ""
    assert "has a target that counts" in answer.err
    assert "Traceback" not in answer.err


def test_part_of_a_step_may_be_without_labels(
    call: Call, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two micro-batches: counted as no targets, and the loss is a number."""
    seen: list[int] = []

    def every_other(moment: BatchContext) -> bool:
        seen.append(moment.step)
        return moment.training and len(seen) % 2 == 0

    ignoring(monkeypatch, every_other)
    words = ("--steps", "3", "--grad-accum", "2", "--out", tmp_path / "run", "-q", "--json")
    answer = call("train", rhyme, *TINY, *words)
    assert answer.code == 0, answer.err
    assert 0 < answer.json["loss"] < 10


def test_how_often_to_save_is_an_option(call: Call, refused: Refused, rhyme: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (
        "--steps",
        "7",
        "--eval-every",
        "7",
        "--save-every",
        "3",
        "--keep-checkpoints",
        "5",
        "--out",
        out,
        "--json",
    )
    answer = call("train", rhyme, *TINY, *words)
    assert answer.code == 0, answer.err
    assert answer.json["settings"]["save_every"] == 3
    assert sorted(path.name[-1] for path in (out / "checkpoints").iterdir()) == ["3", "6", "7"]
    assert "--save-every 0: must be at least 1" in refused("train", rhyme, *TINY, "--save-every", "0", "-q")
    derived = call("train", rhyme, *TINY, "--steps", "4", "--out", tmp_path / "derived", "-q", "--json")
    assert derived.json["settings"]["save_every"] == derived.json["settings"]["eval_every"]
    assert not list(tmp_path.rglob(".tokenloom-*")), "the trial save leaves nothing"
