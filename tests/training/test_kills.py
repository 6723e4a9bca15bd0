"""Saves are all-or-nothing: a kill at any instant leaves a checkpoint that loads."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from small_checkpoints import Small, save

from tokenloom.training import checkpoints as module
from tokenloom.training.checkpoints import (
    Checkpoints,
    load_weights,
    save_weights,
)
from tokenloom.utils.files import write_bytes, write_json


class Killed(BaseException):
    """What a kill is in these tests: nothing after it is done, not even what handles errors."""


class Machine:
    """Counts the file operations of this process, and dies at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self.last = 1 << 30
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        # That the disk has it makes no difference here, and costs time.
        monkeypatch.setattr(os, "fsync", self._watched(lambda handle: None))
        monkeypatch.setattr(module, "save_file", self._torn(save_file))

    def _count(self) -> None:
        self.done += 1
        if self.done > self.last:
            raise Killed

    def _watched(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return operation(*args, **kwargs)

        return call

    def _torn(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """A file that is killed while it is written is there, in part."""

        def call(tensors: Any, path: Path) -> None:
            try:
                self._count()
            except Killed:
                operation(tensors, path)
                raw = path.read_bytes()
                path.write_bytes(raw[: len(raw) // 2])
                raise
            operation(tensors, path)

        return call


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


STORY = [(1, 1), (2, 1), (3, 3), (3, 3), (4, 3)]  # (step, best step); one step is saved twice


def live(checkpoints: Checkpoints, machine: Machine, last: int) -> int | None:
    """Save as the story goes, dying after so many operations; returns the step of the last save that was done."""
    machine.done, machine.last = 0, last
    finished = None
    try:
        for step, best in STORY:
            save(checkpoints, step, best)
            finished = step
    except Killed:
        pass
    machine.last = 1 << 30
    return finished


@pytest.mark.parametrize("keep", [1, 2])
def test_a_kill_between_any_two_file_operations_leaves_the_last_good_checkpoint(
    keep: int, machine: Machine, tmp_path: Path
) -> None:
    live(Checkpoints(tmp_path / "whole", keep), machine, 1 << 30)
    operations = machine.done
    assert operations > 60, "the machine sees what the saves do"
    for last in range(operations):
        checkpoints = Checkpoints(tmp_path / str(last), keep)
        finished = live(checkpoints, machine, last)
        if finished is not None:
            checkpoints.newest_complete()
        for step in checkpoints.steps():
            checkpoints.read(step)  # what stands under its name is whole
        if finished is None:
            # Killed in the first save: it is there or not, but never by half.
            if checkpoints.steps():
                assert checkpoints.newest_complete()[0]["step"] == 1
            continue
        state, folder, damaged = checkpoints.newest_complete()
        step = state["step"]
        later = [s for s, _ in STORY if s > finished][:1]
        assert step in (finished, *later), f"killed after {last} operations"
        assert not damaged, f"killed after {last} operations: {damaged}"
        assert load_file(folder / "model.safetensors")["kept"].unique().tolist() == [step]
        assert load_file(folder / "optimizer.safetensors")["0/first.weight/exp_avg"].unique().tolist() == [step]
        best = dict(STORY)[step]
        assert checkpoints.read(best)[0]["step"] == best, "the best one is there too"
        # And training goes on from there, leaving no litter; also when it saves the same step once more.
        save(checkpoints, step, best)
        save(checkpoints, step + 1, step + 1)
        assert checkpoints.newest_complete()[0]["step"] == step + 1
        assert not [p.name for p in checkpoints.folder.iterdir() if p.name.startswith(".")]
        assert len(checkpoints.steps()) == keep


def test_a_kill_while_weights_are_saved_leaves_the_old_or_the_new(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    machine.done = 0
    save_weights(Small(1.0), path)
    operations = machine.done
    seen = set()
    for last in range(operations):
        save_weights(Small(1.0), path)
        machine.done, machine.last = 0, last
        with pytest.raises(Killed):
            save_weights(Small(2.0), path)
        machine.last = 1 << 30
        model = Small()
        load_weights(model, path)
        seen.add(model.first.weight[0, 0].item())
    assert seen == {1.0, 2.0}
    save_weights(Small(3.0), path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"], "what a kill left is used up"


def test_a_kill_while_a_small_file_is_written_leaves_the_old_or_the_new(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    machine.done = 0
    write_json(path, {"a": 1})
    operations = machine.done
    for last in range(operations):
        write_json(path, {"a": 1})
        machine.done, machine.last = 0, last
        with pytest.raises(Killed):
            write_json(path, {"a": 2, "ü": "→"})
        machine.last = 1 << 30
        assert json.loads(path.read_text("utf-8")) in ({"a": 1}, {"a": 2, "ü": "→"})
    write_bytes(path, b"now")
    assert path.read_bytes() == b"now"
