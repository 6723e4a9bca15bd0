"""Settings by flat names: strict types, the nearest name for a wrong one, and files that say everything once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tokenloom.errors import UserError
from tokenloom.settings import build, fitting, flatten, nearest, options, read_config, refuse_unknown
from tokenloom.training.settings import option


@dataclass(frozen=True)
class Inner:
    """Stands inside another."""

    lr: float | None = option(None, "how fast")
    kind: Literal["small", "large"] = option("small", "how large")


@dataclass(frozen=True)
class Outer:
    """Holds another."""

    steps: int = option(10, "how many")
    name: str = option("x", "what it is called")
    fast: bool = option(False, "whether to hurry")
    stop: list[str] = option([], "where to stop")
    pair: tuple[float, ...] = option((), "two numbers")
    inner: Inner = field(default_factory=Inner)


def test_options_of_an_inner_dataclass_stand_beside_the_others() -> None:
    found = {option.name: (option.default, option.help) for option in options(Outer)}
    assert found == {
        "steps": (10, "how many"),
        "name": ("x", "what it is called"),
        "fast": (False, "whether to hurry"),
        "stop": ([], "where to stop"),
        "pair": ((), "two numbers"),
        "lr": (None, "how fast"),
        "kind": ("small", "how large"),
    }


def test_build_and_flatten_are_inverse() -> None:
    flat = {"steps": 3, "name": "y", "fast": True, "stop": ["a"], "pair": (1.0, 2.0), "lr": 0.5, "kind": "large"}
    built = build(Outer, flat)
    assert built == Outer(3, "y", True, ["a"], (1.0, 2.0), Inner(0.5, "large"))
    assert flatten(built) == flat
    assert build(Outer, {}) == Outer()
    assert build(Inner, flat) == Inner(0.5, "large"), "names of other dataclasses do not matter here"


def test_defaults_that_are_lists_are_not_shared() -> None:
    build(Outer, {}).stop.append("a")
    assert build(Outer, {}).stop == []


GOOD: list[tuple[Any, Any, Any]] = [
    (3, int, 3),
    (3, float, 3.0),
    (3, float | None, 3.0),
    (3, int | float, 3),
    (None, float | None, None),
    (None, None, None),
    (True, bool, True),
    ("a", Literal["a", "b"], "a"),
    (2, Literal[1, 2], 2),
    (["a", "b"], list[str], ["a", "b"]),
    ([1, 2.5], tuple[float, ...], (1.0, 2.5)),
    ((1, 2), list[float], [1.0, 2.0]),
    (object, Any, object),
]


@pytest.mark.parametrize(("value", "hint", "expected"), GOOD)
def test_a_value_of_the_type_passes(value: Any, hint: Any, expected: Any) -> None:
    found = fitting("x", value, hint)
    assert found == expected
    assert type(found) is type(expected)
    assert not isinstance(found, list | tuple) or [type(v) for v in found] == [type(v) for v in expected]


BAD: list[tuple[Any, Any, str]] = [
    ("3", int, "'3' is not a whole number"),
    (3.0, int, "3.0 is not a whole number"),
    (True, int, "True is not a whole number"),
    (True, float, "True is not a number"),
    (True, float | None, "True is not a number"),
    (1, bool, "1 is not true or false"),
    ("yes", bool, "'yes' is not true or false"),
    (3, str, "3 is not a text"),
    (None, int, "None is not a whole number"),
    ("c", Literal["a", "b"], "'c' is not one of a, b"),
    (True, Literal[1, 2], "True is not one of 1, 2"),
    ("ab", list[str], "'ab' is not a list, each a text"),
    (["a", 1], list[str], "is not a list, each a text"),
    ([True], tuple[float, ...], "is not a list, each a number"),
    ({"a": 1}, int | None, "is not a whole number"),
]


@pytest.mark.parametrize(("value", "hint", "message"), BAD)
def test_a_value_of_another_type_is_refused(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        fitting("x", value, hint)
    assert str(caught.value).startswith("x: ")
    assert message in str(caught.value)


def test_build_refuses_wrong_types_at_any_depth() -> None:
    with pytest.raises(UserError, match="lr: 'fast' is not a number"):
        build(Outer, {"lr": "fast"})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    refuse_unknown({"steps": 1, "lr": 2}, [Outer])
    with pytest.raises(UserError, match=r"^no setting 'step'; did you mean steps\?$"):
        refuse_unknown({"lr": 1, "step": 1}, [Outer])
    with pytest.raises(UserError, match=r"^a file: no setting 'knd'; did you mean kind\?$"):
        refuse_unknown({"knd": 1}, [Inner], "a file: ")
    with pytest.raises(UserError, match=r"^no setting 'zzzz'$"):
        refuse_unknown({"zzzz": 1}, [Outer])
    assert nearest("smal", ["small", "large"]) == "; did you mean small?"
    assert nearest("qqq", ["small", "large"]) == ""


# Files.


def config(tmp_path: Path, name: str, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_config(path)


TOML = """
steps = 3
name = "größer"
[training]
lr = 3e-3
eval-every = 5
[training.more]
stop = ["a", "b"]
fast = true
"""
YAML = """
steps: 3
name: größer
training:
  lr: 3e-3
  eval-every: 5
  more: {stop: [a, b], fast: true}
"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_tables_only_group(name: str, text: str, mark: bytes, tmp_path: Path) -> None:
    assert config(tmp_path, name, mark + text.encode()) == {
        "steps": 3,
        "name": "größer",
        "lr": 0.003,
        "eval_every": 5,
        "stop": ["a", "b"],
        "fast": True,
    }


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("2E5", 2e5), ("-1e+2", -100.0), ("1.5e3", 1500.0), ("1.5", 1.5), ("7", 7), ("'1e-3'", "1e-3")],
)
def test_numbers_in_yaml_are_numbers(written: str, value: Any, tmp_path: Path) -> None:
    found = config(tmp_path, "a.yaml", f"lr: {written}\n")["lr"]
    assert found == value
    assert type(found) is type(value)


TWICE = [
    ("a.toml", "steps = 1\n[a]\nsteps = 2\n", "steps is given twice"),
    ("a.toml", "eval-every = 1\n[a]\neval_every = 2\n", "eval_every is given twice"),
    ("a.toml", "steps = 1\nsteps = 2\n", "a.toml"),
    ("a.yaml", "steps: 1\na:\n  steps: 2\n", "steps is given twice"),
    ("a.yaml", "steps: 1\nlr: 1\nsteps: 2\n", "steps is given twice"),
    ("a.yaml", "a:\n  steps: 1\n  steps: 1\n", "steps is given twice"),
]


@pytest.mark.parametrize(("name", "text", "message"), TWICE)
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
    import sys

    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match=r"pip install 'tokenloom\[yaml\]'"):
        config(tmp_path, "a.yaml", "steps: 1\n")
