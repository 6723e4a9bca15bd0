from pathlib import Path

import pytest
from tiny_cli import Call, Refused

from tokenloom.data import registry


def test_list(call: Call, cache: Path) -> None:
    out = call("data", "list").out
    for name in ("shakespeare", "tinyshakespeare", "python-docs", "python-source"):
        assert f"\n{name} " in out
    assert "license: MIT" in out
    assert all(len(line) <= 130 for line in out.splitlines())
    rows = {row["name"]: row for row in call("data", "list", "--json").json["data"]}
    assert rows["python-docs"]["cached"]
    assert not rows["tinyshakespeare"]["cached"]
    assert rows["tinyshakespeare"]["license"]


def test_add_and_check(call: Call, refused: Refused, cache: Path, tmp_path: Path, tinyshakespeare: str) -> None:
    own = tmp_path / "mine.txt"
    own.write_bytes(tinyshakespeare.encode())
    stored = call("data", "add", "tinyshakespeare", own)
    assert stored.code == 0
    path = Path(stored.out.strip())
    assert path.is_relative_to(cache)
    assert path.read_bytes() == own.read_bytes()
    assert call("data", "download", "tinyshakespeare").out.strip() == str(path)
    assert call("data", "download", "tinyshakespeare", "--json").json["files"] == [str(path)]
    rows = call("data", "check", "tinyshakespeare", "--json").json["data"]
    assert [row["state"] for row in rows] == ["intact"]
    own.write_bytes(tinyshakespeare.encode()[:-1])
    message = refused("data", "add", "tinyshakespeare", own)
    assert "mine.txt" in message
    assert "SHA-256" in message
    path.write_bytes(b"spoilt")
    damaged = call("data", "check")
    assert damaged.code == 2
    assert "damaged" in damaged.out
    assert "tokenloom data download tinyshakespeare" in damaged.err
    assert damaged.err.count("\n") == 1


def test_what_comes_with_python_needs_no_fetching(call: Call, refused: Refused, cache: Path, tmp_path: Path) -> None:
    assert "comes with Python" in call("data", "download", "python-docs").out
    assert "comes with Python" in call("data", "check", "python-docs").out
    assert "comes with Python" in refused("data", "add", "python-docs", tmp_path / "x")


@pytest.mark.parametrize("verb", ["download", "check", "add"])
def test_names_that_there_are_not(verb: str, refused: Refused, cache: Path, tmp_path: Path) -> None:
    message = refused("data", verb, "shakespear", *([tmp_path / "x"] if verb == "add" else []))
    assert "'shakespear'" in message
    assert "'shakespeare'" in message
    for name in registry.names():
        assert name in message


def test_words_that_are_missing_or_wrong(refused: Refused, cache: Path, tmp_path: Path) -> None:
    assert "NAME" in refused("data", "download")
    assert "FILE" in refused("data", "add", "tinyshakespeare")
    assert "nothing.txt" in refused("data", "add", "tinyshakespeare", tmp_path / "nothing.txt")
    assert "lsit" in refused("data", "lsit")
