"""The README tells the truth: the commands of its tour are run, word for word, and so is its Python."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from several import TORCHRUN

from tokenloom.cli.main import main

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def block(mark: str) -> str:
    """The code block under a marker."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"the README has no block marked {mark}"
    return found[1]


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in block("tour").splitlines() if line and not line.startswith("#")]
    assert len(lines) >= 6
    printed = {}
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        printed[line] = capsys.readouterr().out
    for line, text in printed.items():
        assert text.strip(), f"{line} prints nothing"
    generated = next(text for line, text in printed.items() if "--seed 3" in line)
    assert generated.startswith("The following ")
    assert len(generated.rstrip("\n")) > 150
    assert (tmp_path / "runs/docs/model.safetensors").is_file()
    assert not (tmp_path / "runs/python-docs").exists(), "a dry run writes nothing"


def test_the_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in block("plan").splitlines():
        assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
        printed = capsys.readouterr().out
        assert "FLOPs to train a token" in printed
        assert "h100" in printed
    assert not list(tmp_path.iterdir())


def test_the_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in [line for line in block("ladder").splitlines() if line and not line.startswith("#")]:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert {path.name for path in (tmp_path / "runs/ladder").iterdir()} >= {"unigram", "gru", "compare.json"}


def test_more_text_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in block("more text").splitlines() if line and not line.startswith("#")]
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
    assert (tmp_path / "tokens/docs/manifest.json").is_file()
    assert (tmp_path / "runs/tokens/model.safetensors").is_file()


def test_translating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("babel")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in block("translation").splitlines() if line and not line.startswith("#")]
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        out = capsys.readouterr().out
        if "--beam" in line:
            assert len(out.splitlines()) == 2
    assert "exact:" in out
    assert (tmp_path / "dates.png").is_file()


def test_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in [line for line in block("encoder").splitlines() if line and not line.startswith("#")]:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"


def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    Path("my").mkdir()
    for name, size in (("seven", (60, 80)), ("one", (20, 20))):
        image.new("RGB", size, (10, 20, 30)).save(f"my/{name}.png")
    for line in [line for line in block("pictures").splitlines() if line and not line.startswith("#")]:
        assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert Path("look.png").stat().st_size > 1000


def test_painting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    for line in [line for line in block("painting").splitlines() if line and not line.startswith("#")]:
        assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("sheet.png", "threes.png", "codes.png"))


def test_word_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in [line for line in block("word vectors").splitlines() if line and not line.startswith("#")]:
        assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert (tmp_path / "words.txt").read_text("utf-8").split()[1] == "100"
    assert (tmp_path / "words.png").is_file()


def test_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    spam, ham = ["win a prize", "cash for you", "a free prize"], ["see you soon", "call me later", "at home, mum"]
    rows = [
        f'"{text} {n}",{label}' for n in range(8) for label, texts in (("spam", spam), ("ham", ham)) for text in texts
    ]
    Path("messages.csv").write_text("\n".join(["text,label", *rows]), "utf-8")
    for line in [line for line in block("labels").splitlines() if line and not line.startswith("#")]:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert (tmp_path / "runs/messages/confusion.png").is_file()


def test_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in block("lab").splitlines():
        assert main(shlex.split(line)[1:]) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} prints nothing"
    assert (tmp_path / "runs/lab/report.html").is_file()


def test_the_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "README.md", "exec"), {})
    assert (tmp_path / "runs/from-python/config.json").is_file()


def test_several_processes(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent.parent / "README.md", tmp_path)
    lines = [line for line in block("several").splitlines() if line and not line.startswith("#")]
    programs = {"torchrun": TORCHRUN, "tokenloom": (sys.executable, "-m", "tokenloom")}
    for line, steps in zip(lines, (20, 30, 40), strict=True):
        program, *words = shlex.split(line)
        done = subprocess.run(
            [*programs[program], *words], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **ONE_THREAD}
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.count("saved in runs/two") == 1
        state = tmp_path / f"runs/two/checkpoints/step-{steps:08d}"
        assert ((state / "model.safetensors").is_file()) != ("sharded" in line)


def test_the_two_commands_stand_alone() -> None:
    """Each is one line that makes its own environment."""
    for name in ("command: main", "command: test"):
        lines = block(name).strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e ")
