"""A tiny run to use, and a way to call the command line in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_cli import RHYME, TINY, Answer, Call

from tokenloom.cli.main import main
from tokenloom.planning.estimate import seconds_per_step


@pytest.fixture(scope="session", autouse=True)
def quick_plans() -> Iterator[None]:
    """Two steps are enough to time a tiny model by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(seconds_per_step.__kwdefaults__, "budget", 0.0)
        yield


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process."""

    def run(*words: str | Path) -> Answer:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """Run a command that cannot be used: one line on standard error, exit code 2, nothing else. Returns the line."""

    def run(*words: str | Path) -> str:
        answer = call(*words)
        assert answer.code == 2, answer
        assert answer.out == ""
        assert answer.err.startswith("tokenloom: ")
        assert answer.err.count("\n") == 1, answer.err
        return answer.err.removeprefix("tokenloom: ").rstrip("\n")

    return run


@pytest.fixture(scope="session")
def rhyme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text."""
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    path.write_text(RHYME * 30, "utf-8")
    return path


@pytest.fixture(scope="session")
def run(quick_plans: None, rhyme: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny trained run on the small text. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "rhyme"
    assert main(["train", str(rhyme), *TINY, "--steps", "12", "--quiet", "--out", str(out)]) == 0
    return out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def environment() -> dict[str, str]:
    """For a process of its own: one thread, plain output."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
