"""What only a process of its own can show: signals, pipes, terminals, what is imported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_cli import TINY

import tokenloom

COMMAND = (sys.executable, "-m", "tokenloom")
LONG = ("--steps", "100000", "--eval-every", "20")


def test_help_is_quick_and_imports_nothing_heavy(environment: dict[str, str]) -> None:
    began = time.perf_counter()
    done = subprocess.run([*COMMAND, "--help"], env=environment, capture_output=True, text=True, check=True)
    assert time.perf_counter() - began < 3, "it takes a third of a second where nothing else runs"
    assert "train" in done.stdout
    listing = "import sys, tokenloom.cli.main as m; m.main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", listing], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "cyclopts" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "matplotlib", "tokenizers"})


def test_importing_the_package_imports_no_torch(environment: dict[str, str]) -> None:
    check = "import sys, tokenloom; assert 'torch' not in sys.modules; tokenloom.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", check], env=environment, check=True)


@pytest.fixture
def training(
    rhyme: Path, tmp_path: Path, environment: dict[str, str]
) -> Iterator[Callable[..., tuple[subprocess.Popen[str], Path]]]:
    """Start a training that would take very long; returns the process after its first saved checkpoint."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], Path]:
        out = tmp_path / "long run"
        process = subprocess.Popen(
            [*COMMAND, "train", str(rhyme), *TINY, *LONG, "--out", str(out), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        for _ in range(3000):
            if list(out.glob("checkpoints/step-*")):
                break
            time.sleep(0.02)
            assert process.poll() is None, process.communicate()
        return process, out

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_ctrl_c_once_saves_and_says_how_to_go_on(
    training: Callable[..., tuple[subprocess.Popen[str], Path]], environment: dict[str, str]
) -> None:
    process, out = training("--json")
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saving and stopping after this step" in told
    assert "Traceback" not in told
    result = json.loads(printed.splitlines()[-1])
    assert result["reason"] == "interrupt"
    hint = re.search(r"stopped and saved at step ([\d,]+); resume with: (.*)", printed)
    assert hint is not None
    step = int(hint[1].replace(",", ""))
    assert step == result["steps"] > 0
    assert hint[2] == f"tokenloom train --resume --out '{out}'"
    assert tokenloom.load(out).generate("One", max_new_tokens=3)
    resume = [*COMMAND, "train", "--resume", "--out", str(out), "--steps", str(step + 5), "--json", "--quiet"]
    done = subprocess.run(resume, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == step + 5


def with_signals(before: str, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command after some lines of Python that break in on it."""
    script = f"import os, signal, sys\nfrom tokenloom.cli.main import main\n{before}\nsys.exit(main(sys.argv[1:]))\n"
    return subprocess.run([sys.executable, "-c", script, *words], env=environment, capture_output=True, text=True)


def test_ctrl_c_twice_stops_now(rhyme: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "run"
    twice_in_step_5 = """
from tokenloom.training.loop import Trainer
usual = Trainer.step
def step(self, number, steps):
    if number == 4 and self.settings.lr:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    return usual(self, number, steps)
Trainer.step = step
"""
    words = ["train", str(rhyme), *TINY, "--steps", "9", "--eval-every", "2", "--out", str(out), "--quiet"]
    done = with_signals(twice_in_step_5, words, environment)
    assert done.returncode == 130
    assert done.stdout == ""
    way_on = f"stopped; resume from step 4 with: tokenloom train --resume --out {out}"
    assert done.stderr.strip().splitlines()[-1] == f"tokenloom: {way_on}"
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]


def test_ctrl_c_before_training_stops_at_once(rhyme: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    while_reading = """
from tokenloom.tasks.text_generation import TextGeneration
TextGeneration.load = lambda self, source, **more: os.kill(os.getpid(), signal.SIGINT)
"""
    words = ["train", str(rhyme), *TINY, "--out", str(tmp_path / "run")]
    done = with_signals(while_reading, words, environment)
    assert done.returncode == 130
    assert done.stderr == "tokenloom: stopped\n"
    assert not (tmp_path / "run").exists()
    out = str(tmp_path / "run")
    assert with_signals("", ["train", str(rhyme), *TINY, "--steps", "2", "--out", out], environment).returncode == 0
    done = with_signals(while_reading, ["train", "--resume", "--steps", "4", "--out", out], environment)
    assert done.returncode == 130
    assert done.stderr == "tokenloom: stopped; the run is unchanged\n"


@pytest.mark.parametrize(
    "words", [["generate", "{run}", "--max-new-tokens", "3000"], ["info", "{run}"], ["data", "list"], ["tasks"]]
)
def test_a_reader_that_goes_away_is_no_error(words: list[str], run: Path, environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, *(word.format(run=run) for word in words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_generated_text_streams(run: Path, environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", str(run), "--prompt", "One", "--max-new-tokens", "100000"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(20).startswith(b"One"), "long before the end"
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(60) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b"tokenloom: stopped\n"


def test_letters_that_the_terminal_lacks(run: Path, environment: dict[str, str]) -> None:
    plain = {**environment, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*COMMAND, "evaluate", str(run)], env=plain, capture_output=True, check=True)
    assert rb"\xb1" in done.stdout
    done = subprocess.run([*COMMAND, "generate", str(run), "--prompt", "☃"], env=plain, capture_output=True)
    assert done.returncode == 2
    assert b"U+2603" in done.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_a_terminal_gets_a_progress_bar(rhyme: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    import fcntl
    import struct
    import termios

    master, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    usual = {k: v for k, v in environment.items() if k not in ("CI", "NO_COLOR")} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, "train", str(rhyme), *TINY, "--steps", "200", "--out", str(tmp_path / "run")],
        env=usual,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    pieces = []
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(master)
    assert process.wait(60) == 0
    assert process.stdout is not None
    assert b"\x1b" not in process.stdout.read()
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode())
    assert re.search(r"━.*\d+/200 loss \d\.\d{4}.*tokens/s  ETA \d:\d\d", told)
    assert re.search(r" 20/200  loss \d", told)
