"""Trainings in processes of their own that are killed with SIGKILL, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

# Dropout, micro-batches, and steps that end inside an epoch.
SETTINGS = (
    "--size nano --context 16 --width 32 --depth 2 --heads 2 --dropout 0.1 --batch-size 6 --grad-accum 2 --threads 1"
)
TRAINING = f"{SETTINGS} --device cpu --seed 3".split()

# Commands, one a line, each run in a fork of a process that has imported everything already. `die` says when the fork
# kills itself: `step N`, before its N-th step; `save N SHARE`, when that share of the bytes of its N-th file of tensors
# is written; `rename N`, before the N-th rename that puts something into its place.
NURSERY = """
import json, os, signal, sys
from pathlib import Path
import tokenloom.cli.train, tokenloom.plotting.loss_curve, tokenloom.tasks.text_generation
import matplotlib.figure, torch._dynamo
from tokenloom.cli.main import main
from tokenloom.planning import estimate
from tokenloom.training import checkpoints, loop

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def counted(usual, number, instead):
    left = number
    def call(*arguments):
        nonlocal left
        left -= 1
        return instead(*arguments) if left == 0 else usual(*arguments)
    return call

def live(words, kind="never", number="0", share="0"):
    estimate.seconds_per_step = lambda *arguments, **more: 0.01
    if kind == "step":
        loop.Trainer.step = counted(loop.Trainer.step, int(number), die)
    elif kind == "rename":
        Path.replace = counted(Path.replace, int(number), die)
    elif kind == "save":
        usual = checkpoints.save_file
        def torn(tensors, path):
            usual(tensors, path)
            os.truncate(path, int(path.stat().st_size * float(share)))
            die()
        checkpoints.save_file = counted(usual, int(number), torn)
    return main(words)

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        told = os.open(order["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        code = live(order["words"], *order["die"].split())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Nursery:
    """Runs commands in processes that start at once."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    def live(self, words: list[str], die: str = "never") -> tuple[int, str]:
        """Run a command to its end, or to its death; the exit code, and what it told."""
        told = self.folder / "told.txt"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"words": words, "die": die, "told": str(told)}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()), told.read_text("utf-8")


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """A nursery, and its end."""
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Nursery(process, folder)
        process.communicate()


def kill_after(words: list[str], mark: str, delay: float) -> tuple[int, str]:
    """Run `tokenloom` as anyone would, and kill it so many seconds after it has told a line with this mark.

    Returns the exit code, and what it told.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenloom", *words], env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if mark in line:
            time.sleep(delay)
            break
    process.send_signal(signal.SIGKILL)
    _, rest = process.communicate(timeout=60)
    return process.returncode, "".join(told) + rest


def remains(out: Path) -> list[str]:
    """What a save that was cut short has left in a run: half-written files and folders."""
    return sorted(path.name for path in out.rglob(".*") if path.name.endswith((".part", ".old")))


def state_of(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint and of the run: weights, optimizer, the best weights."""
    newest = max((out / "checkpoints").glob("step-*"))
    files = {
        "best": out / "model.safetensors",
        newest.name: newest / "model.safetensors",
        "optimizer": newest / "optimizer.safetensors",
    }
    return {f"{what}: {name}": tensor for what, file in files.items() for name, tensor in load_file(file).items()}


def measured(out: Path) -> list[dict[str, Any]]:
    """Every evaluation, without the time it took."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows if "validation_loss" in row]


def assert_same(run: Path, straight: Path) -> None:
    """Bit for bit: weights, optimizer, best weights, and all evaluations on the way."""
    one, two = state_of(run), state_of(straight)
    assert sorted(one) == sorted(two)
    different = [name for name, tensor in one.items() if not torch.equal(tensor, two[name])]
    assert not different
    assert measured(run) == measured(straight)
