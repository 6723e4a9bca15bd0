"""Startup times of new processes, after one warm-up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import data
from benchmarks.harness import Row, Runner, Setting, at_most, seconds


def run_time(*words: str) -> Runner:
    """Return a measurement of the seconds until a process ends. Raise CalledProcessError if it fails."""

    def run() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return run


def first_output(*words: str) -> Runner:
    """Return a measurement of the seconds until the first byte of output. Raise RuntimeError without output."""

    def run() -> float:
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            elapsed = time.perf_counter() - began
            process.stdout.read()
        if not first or process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
        return elapsed

    return run


def measure(setting: Setting) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        train = ["-m", "tokenloom", "train", data.name(), "--steps", "3", "--threads", "1", "--out", run]
        subprocess.run([sys.executable, *train], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Without a prompt nothing is printed before the first token.
        generate = first_output("-m", "tokenloom", "generate", run, "--max-new-tokens", "2")
        return [
            seconds("tokenloom generate, small run: first token", generate, setting, goal=at_most(2.5)),
            seconds("import torch", run_time("-c", "import torch"), setting),
            seconds("import tokenloom", run_time("-c", "import tokenloom"), setting),
            seconds("tokenloom --help", run_time("-m", "tokenloom", "--help"), setting),
        ]
