"""Config files: tables only group, every name stands once, and broken files are refused in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tokenloom.config import read_config
from tokenloom.errors import UserError


def config(tmp_path: Path, name: str, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_config(path)


TOML = """
steps = 3
name = "größer"
[training]
rate = 3e-3
eval-every = 5
[training.more]
stop = ["a", "b"]
fast = true
"""
YAML = """
steps: 3
name: größer
training:
  rate: 3e-3
  eval-every: 5
  more: {stop: [a, b], fast: true}
"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_tables_only_group(name: str, text: str, mark: bytes, tmp_path: Path) -> None:
    assert config(tmp_path, name, mark + text.encode()) == {
        "steps": 3,
        "name": "größer",
        "rate": 0.003,
        "eval_every": 5,
        "stop": ["a", "b"],
        "fast": True,
    }


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("2E5", 2e5), ("-1e+2", -100.0), ("1.5e3", 1500.0), ("1.5", 1.5), ("7", 7), ("'1e-3'", "1e-3")],
)
def test_numbers_in_yaml_are_numbers(written: str, value: Any, tmp_path: Path) -> None:
    found = config(tmp_path, "a.yaml", f"rate: {written}\n")["rate"]
    assert found == value
    assert type(found) is type(value)


REPEATED = [
    ("a.toml", "steps = 1\n[a]\nsteps = 2\n", "steps is given twice"),
    ("a.toml", "eval-every = 1\n[a]\neval_every = 2\n", "eval_every is given twice"),
    ("a.toml", "steps = 1\nsteps = 2\n", "a.toml"),
    ("a.yaml", "steps: 1\na:\n  steps: 2\n", "steps is given twice"),
    ("a.yaml", "steps: 1\nrate: 1\nsteps: 2\n", "steps is given twice"),
    ("a.yaml", "a:\n  steps: 1\n  steps: 1\n", "steps is given twice"),
]


@pytest.mark.parametrize(("name", "text", "message"), REPEATED)
def test_what_is_given_twice_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        config(tmp_path, name, text)


BROKEN = [
    ("a.toml", "steps = \n"),
    ("a.toml", "steps: 3\n"),
    ("a.toml", b"name = '\xff'\n"),
    ("a.yaml", "steps: [1\n"),
    ("a.yaml", "- 1\n- 2\n"),
    ("a.yaml", "just words\n"),
    ("a.yaml", ""),
    ("a.yaml", "a: !!python/object/apply:os.getcwd []\n"),
]


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_a_broken_file_is_refused_by_name_in_one_line(name: str, text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        config(tmp_path, name, text)
    message = str(caught.value)
    assert message.startswith(f"--config {tmp_path / name}: ")
    assert "\n" not in message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_config(path)


def test_an_empty_toml_says_nothing(tmp_path: Path) -> None:
    assert config(tmp_path, "a.toml", "# nothing\n") == {}


def test_without_yaml_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match=r"pip install 'tokenloom\[yaml\]'"):
        config(tmp_path, "a.yaml", "steps: 1\n")
