"""Machines by name, from a file, and measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tokenloom.errors import UserError
from tokenloom.planning import hardware
from tokenloom.planning.hardware import built_in, find_hardware, product_rate, read_hardware, this_machine


def test_every_built_in_machine_says_where_its_figures_are_from() -> None:
    machines = built_in()
    assert {"laptop", "rtx-4090", "a100-40", "a100-80", "h100", "h200"} == set(machines)
    text = built_in.__doc__ or ""
    for name, machine in machines.items():
        assert machine.name == name
        assert machine.source
        assert f"- {name}" in text or f", {name}:" in text
        assert machine.mfu is None
        assert 1e11 < machine.peaks["float32"] <= machine.peak(machine.usual_dtype) < 1e15
        assert 1e10 < machine.memory < 2e11
    assert machines["h100"].usual_dtype == "bfloat16"
    assert machines["laptop"].usual_dtype == "float32"
    assert machines["h200"].memory / machines["h100"].memory == pytest.approx(141 / 80)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h10", ["--hardware h10: unknown", "did you mean 'h100'?"]),
        ("A100", ["did you mean 'a100-80'?"]),
        ("RTX 3090", ["did you mean 'rtx-4090'?"]),
        ("abacus", ["unknown. There are this, laptop, rtx-4090", "file.toml"]),
        ("", ["unknown"]),
    ],
)
def test_a_name_that_there_is_not(name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        find_hardware(["h100", name])
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_may_be_written_as_on_the_box() -> None:
    assert [machine.name for machine in find_hardware(["RTX 4090", "H100", "A100 40"])] == [
        "rtx-4090",
        "h100",
        "a100-40",
    ]


def test_a_precision_without_a_rate_is_refused() -> None:
    with pytest.raises(UserError, match=r"--dtype bfloat16: no peak rate is known on laptop, only for float32"):
        built_in()["laptop"].peak("bfloat16")


def test_machines_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "[box]\nmemory_gb = 48\nfloat32_tflops = 38.7\nmfu = 0.35\n\n[old]\nmemory_gb=1.5\nbfloat16_tflops=9\n"
    )
    box, old = find_hardware([str(path)])
    assert (box.name, box.memory, box.peaks, box.mfu) == ("box", 48 * 10**9, {"float32": 38.7e12}, 0.35)
    assert (old.memory, old.peaks, old.usual_dtype) == (15 * 10**8, {"bfloat16": 9e12}, "bfloat16")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["has no hardware"]),
        ("memory_gb = 3", ["[memory_gb] is not a table"]),
        ("[box]\nmemory_gb = 3", ["[box] lacks float32_tflops"]),
        ("[box]\nfloat32_tflops = 3", ["[box] lacks memory_gb"]),
        ("[box]\nmemory = 3", ["no setting 'memory'", "did you mean 'memory_gb'?"]),
        ("[box]\nmemory_gb = -3", ["memory_gb -3: must be a number above 0"]),
        ("[box]\nmemory_gb = nan", ["memory_gb nan"]),
        ("[box]\nmemory_gb = true", ["memory_gb True"]),
        ("[box]\nmemory_gb = '24'", ["memory_gb '24'"]),
        ("[box]\nmemory_gb = 3\nfloat32_tflops = 1\nmfu = 40", ["mfu 40", "at most 1"]),
        ("[box\n", ["line 1"]),
        ("[box]\nmemory_gb = 1\n[box]\n", ["box"]),
    ],
)
def test_files_that_cannot_be(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_hardware(path)
    assert str(path) in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_file_that_is_not_there_or_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.toml: cannot be read \(No such file"):
        find_hardware([str(tmp_path / "missing.toml")])
    path = tmp_path / "raw.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"raw\.toml"):
        read_hardware(path)


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine(budget=0.02)
    assert machine.name.startswith("this (")
    assert machine.memory > 10**9
    assert 1e8 < machine.peak("float32") < 1e15
    # A product is 2 width³ operations in the shortest of the times.
    now = iter([0.0, 0.0, 3.0, 1.0, 1.0, 3.0, 10.0])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(now))
    assert math.isclose(product_rate(torch.device("cpu"), "float32", 5.0, 8), 2 * 8**3 / 2.0)
