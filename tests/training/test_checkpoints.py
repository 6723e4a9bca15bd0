"""Saves hold everything once, loads are strict, and what is cut or altered is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_checkpoints import Small, save, state_of
from torch import nn

from tokenloom.errors import UserError
from tokenloom.training import checkpoints as module
from tokenloom.training.checkpoints import (
    Checkpoints,
    copy_tensors,
    load_weights,
    model_tensors,
    read_tensors,
    save_weights,
    total_bytes,
)

# Weights.


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = Small()
    with torch.no_grad():
        model.first.weight.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    save_weights(model, path)
    other = Small(9.0)
    load_weights(other, path)
    assert all(
        torch.equal(a, b) for a, b in zip(model_tensors(model).values(), model_tensors(other).values(), strict=True)
    )
    assert other.derived.tolist() == [9, 9], "what is not kept is not touched"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors"]


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(Small(2.0), path)
    assert set(load_file(path)) == {"first.weight", "first.bias", "kept"}
    other = Small(7.0)
    load_weights(other, path)
    assert other.second.weight is other.first.weight
    assert other.second.weight.tolist() == [[2.0] * 3] * 3


def test_a_parameter_that_lies_crosswise_in_memory_is_saved_and_restored(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    def make() -> nn.Module:
        model = nn.Module()
        model.crosswise = nn.Parameter(torch.zeros(4, 3).T)
        return model

    model, other = make(), make()
    with torch.no_grad():
        model.crosswise.copy_(torch.arange(12.0).view(3, 4))
    assert not model.crosswise.is_contiguous()
    save_weights(model, path)
    load_weights(other, path)
    assert torch.equal(other.crosswise, model.crosswise)


def test_weights_in_memory_are_put_back() -> None:
    model = Small(1.0)
    kept = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    with torch.no_grad():
        model.first.weight.fill_(5)
    copy_tensors(model, kept)
    assert model.first.weight.unique().tolist() == [1.0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200] if path.stat().st_size > 200 else b"")


def altered(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return write


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "damaged or not a safetensors file"),
    "text": (lambda path: path.write_text("not a model"), "damaged or not a safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "damaged or not a safetensors file"),
    "gone": (lambda path: path.unlink(), "no such file"),
    "key missing": (changed(lambda t: t.pop("first.bias")), "lacks first.bias"),
    "key too many": (changed(lambda t: t.update(third=torch.zeros(1))), "has third, which the model does not"),
    "other shape": (
        changed(lambda t: t.update({"first.bias": torch.zeros(4)})),
        r"first.bias has shape \(4,\).*\(3,\)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_do_not_fit_are_refused_by_name(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(Small(1.0), path)
    harm, message = DAMAGES[damage]
    harm(path)
    model = Small(7.0)
    with pytest.raises(UserError, match=message) as caught:
        load_weights(model, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert model.first.weight.unique().tolist() == [7.0], "nothing was half loaded"


# Checkpoints.


def test_a_checkpoint_holds_everything(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = save(checkpoints, 5, best_step=5)
    assert path == checkpoints.path(5)
    assert sorted(p.name for p in path.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    state, folder = checkpoints.read(5)
    assert folder == path
    assert state["step"] == 5
    assert state["more"] == [1, 0.1]
    assert read_tensors(path / "optimizer.safetensors")["0/first.weight/exp_avg"].unique().tolist() == [5]
    model = Small()
    load_weights(model, path / "model.safetensors")
    assert model.first.weight.unique().tolist() == [5]


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    best = {1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 6, 7: 6, 8: 6}
    for step, best_step in best.items():
        save(checkpoints, step, best_step)
        expected = sorted({*range(max(1, step - 1), step + 1), best_step})
        assert checkpoints.steps() == expected, f"after step {step}"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-{s:08d}" for s in (6, 7, 8)]


def test_one_is_enough_and_none_needs_to_be_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2, 3):
        checkpoints.save(step, Small(), {}, {})
        assert checkpoints.steps() == [step]


def test_going_back_removes_what_came_later(tmp_path: Path) -> None:
    """Resumed from step 10 because 20 is damaged: with keep=1, the new checkpoint of 15 must not give way to 20."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 10, best_step=10)
    save(checkpoints, 20, best_step=10)
    cut(checkpoints.path(20) / "model.safetensors")
    assert checkpoints.newest_complete()[0]["step"] == 10
    save(checkpoints, 15, best_step=10)
    assert checkpoints.steps() == [10, 15]


def test_a_step_saved_again_is_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 3)
    checkpoints.save(3, Small(8.0), state_of(8), {})
    _, folder, damaged = checkpoints.newest_complete()
    assert not damaged
    assert load_file(folder / "model.safetensors")["first.weight"].unique().tolist() == [8]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", [cut, altered, Path.unlink, lambda path: path.write_text("{}")])
def test_a_damaged_file_is_refused_by_name_and_the_one_before_is_taken(
    name: str, harm: Callable[[Path], Any], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    file = checkpoints.path(2) / name
    harm(file)
    with pytest.raises(UserError) as caught:
        checkpoints.read(2)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    state, folder, damaged = checkpoints.newest_complete()
    assert state["step"] == 1
    assert folder == checkpoints.path(1)
    assert damaged == [str(caught.value)]


def test_a_state_that_was_edited_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    file = save(checkpoints, 2) / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "more": [2, 0.1]}))
    with pytest.raises(UserError, match=r"state\.json: altered"):
        checkpoints.read(2)
    file.write_text(json.dumps([1]))
    with pytest.raises(UserError, match=r"state\.json: damaged"):
        checkpoints.read(2)


def test_numbers_that_are_not_finite_survive_in_the_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Small(), {}, {"best": {"interval": float("nan"), "loss": 0.1 + 0.2}})
    state, _ = checkpoints.read(1)
    assert state["best"]["loss"] == 0.1 + 0.2
    assert state["best"]["interval"] != state["best"]["interval"]


def test_without_a_whole_checkpoint_it_is_said(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint"):
        checkpoints.newest_complete()
    save(checkpoints, 1)
    cut(checkpoints.path(1) / "model.safetensors")
    with pytest.raises(UserError, match=r"step-00000001.model\.safetensors: cut or altered"):
        checkpoints.newest_complete()


def test_strange_folders_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 4)
    for name in ("step-00000004 copy", "step-x", "notes"):
        (tmp_path / name).mkdir()
    assert checkpoints.steps() == [4]
    save(checkpoints, 5)
    assert (tmp_path / "notes").is_dir()


def test_a_full_disk_is_told_in_one_line_and_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    save(checkpoints, 1)
    save_weights(Small(1.0), tmp_path / "model.safetensors")

    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"the beginning")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(UserError, match=r"step-00000002: cannot be written \(.*No space left on device\)") as caught:
        save(checkpoints, 2)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be written"):
        save_weights(Small(2.0), tmp_path / "model.safetensors")
    assert checkpoints.newest_complete()[0]["step"] == 1
    assert load_file(tmp_path / "model.safetensors")["kept"].tolist() == [1, 1]


def test_bytes_are_counted() -> None:
    assert total_bytes([torch.zeros(3, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.int16)]) == 32
