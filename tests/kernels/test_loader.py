"""Native code is compiled once, kept whole, and never missed where it cannot be had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenloom.kernels import loader

SOURCE = '#include "by.h"\nextern "C" __attribute__((visibility("default"))) int times(int x) { return x * BY; }\n'


@pytest.fixture
def room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room with one small file and a header, in a process that has loaded nothing yet, with an empty cache."""
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "small.cpp").write_text(SOURCE)
    (folder / "by.h").write_text("#define BY 3\n")
    monkeypatch.setattr(loader, "_HERE", folder)
    monkeypatch.setattr(loader, "_found", {})
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    return folder


@pytest.fixture
def compiler(room: Path) -> None:
    try:
        loader._compiler()
    except loader._No as no:
        pytest.skip(str(no))


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "native").iterdir()) if (cache / "native").is_dir() else []


def forget() -> None:
    """As a fresh process would be."""
    loader._found.clear()


@pytest.mark.usefixtures("compiler")
def test_compiled_once_and_again_when_anything_changed(
    room: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loader.summary() == ""
    library = loader.library("small")
    assert library is not None
    assert library.times(14) == 42
    assert loader.unavailable_reason("small") == ""
    assert loader.summary() == "kernels small"
    (first,) = kept(cache)
    assert loader.library("small") is library

    def never(*_: object) -> None:
        raise AssertionError("compiled a second time")

    with monkeypatch.context() as patched:
        patched.setattr(loader, "_compile", never)
        forget()
        again = loader.library("small")
        assert again is not None
        assert again.times(2) == 6
    (room / "by.h").write_text("#define BY 5\n")
    forget()
    other = loader.library("small")
    assert other is not None
    assert other.times(2) == 10
    assert len(kept(cache)) == 2
    assert first in kept(cache)
    monkeypatch.setattr(loader, "FLAGS", (*loader.FLAGS, "-DUNUSED"))
    forget()
    assert loader.library("small") is not None
    assert len(kept(cache)) == 3


@pytest.mark.usefixtures("compiler")
def test_disabled(room: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.VARIABLE, "0")
    assert loader.library("small") is None
    assert loader.unavailable_reason("small") == "TOKENLOOM_NATIVE=0"
    monkeypatch.delenv(loader.VARIABLE)
    with loader.disabled():
        assert loader.library("small") is None
        assert loader.unavailable_reason("small") == "disabled"
        assert loader.summary() == "no kernels (disabled)"
    assert not kept(cache), "and nothing was compiled for that"
    assert loader.library("small") is not None


def test_without_a_compiler(room: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(room))
    assert loader.library("small") is None
    assert "no C++ compiler" in loader.unavailable_reason("small")
    assert "no kernels (no C++ compiler" in loader.summary()
    assert not kept(cache)


def test_a_compiler_that_does_not_work(room: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = room / "g++"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{room}:{os.environ['PATH']}")
    assert loader.library("small") is None
    assert "does not work" in loader.unavailable_reason("small")
    fake.write_text(f"#!/bin/sh\ntouch {room}/half.so\n[ $1 = --version ]\n")
    forget()
    assert loader.library("small") is None
    assert "gave up: exit code 1" in loader.unavailable_reason("small")
    fake.write_text("#!/nowhere/sh\n")
    forget()
    assert loader.library("small") is None
    assert loader.unavailable_reason("small")


@pytest.mark.usefixtures("compiler")
def test_a_mistake_in_the_source_leaves_nothing(room: Path, cache: Path) -> None:
    (room / "small.cpp").write_text("int f() { return nothing; }\n")
    assert loader.library("small") is None
    assert "nothing" in loader.unavailable_reason("small")
    assert "\n" not in loader.unavailable_reason("small")
    assert not kept(cache)
    assert loader.library("absent") is None
    assert "absent.cpp" in loader.unavailable_reason("absent")


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_used(room: Path, cache: Path) -> None:
    cache.write_text("in the way")
    assert loader.library("small") is None
    assert loader.unavailable_reason("small")
    cache.unlink()
    forget()
    assert loader.library("small") is not None
    (path,) = kept(cache)
    path.chmod(0o666)
    forget()
    assert loader.library("small") is None
    assert "by others" in loader.unavailable_reason("small")


@pytest.mark.usefixtures("compiler")
def test_a_library_that_was_cut_short_is_made_again(room: Path, cache: Path) -> None:
    loader._compile(room / "small.cpp", loader._compiler(), cache / "elsewhere.so")
    target = cache / "native" / f"small-{loader._key(room / 'small.cpp', loader._compiler())}.so"
    target.parent.mkdir()
    target.write_bytes((cache / "elsewhere.so").read_bytes()[:1000])
    library = loader.library("small")
    assert library is not None
    assert library.times(5) == 15


@pytest.mark.usefixtures("compiler")
def test_processes_that_come_at_once(room: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tokenloom.kernels import loader\n"
        f"loader._HERE = Path({str(room)!r})\n"
        "print(loader.library('small').times(7))"
    )
    at_once = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0] for process in at_once] == ["21\n"] * 4
    assert len(kept(cache)) == 1
    assert not kept(cache)[0].name.startswith(".")
