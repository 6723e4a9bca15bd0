"""The commands in README.md and docs/ run word for word, and so does their Python."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from several import TORCHRUN

from tokenloom.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- (.+?) -->\n```\w+\n(.*?)```", re.DOTALL)
BLOCKS = {mark: code for page in PAGES for mark, code in BLOCK.findall(page.read_text("utf-8"))}
# Blocks that start other programs than tokenloom.
APART = {"run: several processes"}


def write_messages(folder: Path) -> None:
    """messages.csv of docs/encoders.md."""
    spam, ham = ["win a prize", "cash for you", "a free prize"], ["see you soon", "call me later", "at home, mum"]
    rows = [
        f'"{text} {n}",{label}' for n in range(8) for label, texts in (("spam", spam), ("ham", ham)) for text in texts
    ]
    (folder / "messages.csv").write_text("\n".join(["text,label", *rows]), "utf-8")


def write_images(folder: Path) -> None:
    """my/seven.png and my/one.png of docs/images.md."""
    image = pytest.importorskip("PIL.Image")
    (folder / "my").mkdir()
    for name, size in (("seven", (60, 80)), ("one", (20, 20))):
        image.new("RGB", size, (10, 20, 30)).save(folder / f"my/{name}.png")


PREPARE: dict[str, Callable[[Path], None]] = {"run: labels": write_messages, "run: images": write_images}
# Files that the commands of a block must leave.
WRITTEN = {
    "run: tour": ["runs/docs/model.safetensors"],
    "run: language models": ["runs/sweep/unigram", "runs/sweep/gru", "runs/sweep/sweep.json"],
    "run: large text": ["tokens/docs/manifest.json", "runs/tokens/model.safetensors"],
    "run: translation": ["dates.png"],
    "run: images": ["attention.png"],
    "run: image generation": ["sheet.png", "threes.png", "codes.png"],
    "run: word vectors": ["words.txt", "words.png"],
    "run: labels": ["runs/messages/confusion.png"],
    "run: lab": ["runs/lab/report.html"],
    "run: plan": [],
    "run: encoder": [],
}
# What the output of a block must hold.
PRINTED = {"run: plan": "FLOPs", "run: translation": "exact match", "run: tour": "perplexity"}


def test_every_block_is_tested() -> None:
    assert {mark for mark in BLOCKS if mark.startswith("run: ")} == set(WRITTEN) | APART


@pytest.mark.parametrize("mark", WRITTEN)
def test_commands(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if mark == "run: translation":
        pytest.importorskip("babel")
    monkeypatch.chdir(tmp_path)
    PREPARE.get(mark, lambda folder: None)(tmp_path)
    printed: dict[str, str] = {}
    for line in [line for line in BLOCKS[mark].splitlines() if line and not line.startswith("#")]:
        program, *words = shlex.split(line)
        assert program == "tokenloom"
        assert main(words) == 0, f"{line}: {capsys.readouterr().err}"
        printed[line] = capsys.readouterr().out
        assert printed[line].strip(), f"{line} prints nothing"
    for name in WRITTEN[mark]:
        path = tmp_path / name
        assert path.is_dir() or path.stat().st_size > 100, name
    assert PRINTED.get(mark, "") in "".join(printed.values())
    if mark == "run: tour":
        generated = next(text for line, text in printed.items() if "--seed 3" in line)
        assert generated.startswith("The following ")
        assert len(generated.rstrip("\n")) > 150
        assert not (tmp_path / "runs/python-docs").exists(), "a dry run writes nothing"
    if mark == "run: plan":
        assert not list(tmp_path.iterdir()), "a plan writes nothing"


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS["python"], "docs/python.md", "exec"), {})
    assert (tmp_path / "runs/from-python/config.json").is_file()


def test_several_processes(tmp_path: Path) -> None:
    shutil.copy(ROOT / "README.md", tmp_path)
    lines = [line for line in BLOCKS["run: several processes"].splitlines() if line and not line.startswith("#")]
    programs = {"torchrun": TORCHRUN, "tokenloom": (sys.executable, "-m", "tokenloom")}
    for line, steps in zip(lines, (20, 30, 40), strict=True):
        program, *words = shlex.split(line)
        done = subprocess.run(
            [*programs[program], *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout.count("saved in runs/two") == 1
        state = tmp_path / f"runs/two/checkpoints/step-{steps:08d}"
        assert ((state / "model.safetensors").is_file()) != ("fsdp" in line)


def test_the_two_commands_are_one_line_each() -> None:
    for mark in ("command: main", "command: test"):
        lines = BLOCKS[mark].strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e ")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
