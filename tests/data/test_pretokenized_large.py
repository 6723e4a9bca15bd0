"""200 MB of text: tokenized on both cores in less than 1 GB, and trained on within seconds."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenloom.data.pretokenized import build as sharding
from tokenloom.data.text import read_text

SIZE = 200_000_000
SOURCE = str(Path(sharding.__file__).resolve().parents[3])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """python-source again and again, with a line of its own in each copy of a file."""
    root = tmp_path_factory.mktemp("large")
    documents = read_text("python-source").documents
    written = copies = 0
    while written < SIZE:
        for document in documents:
            if written < SIZE:
                path = root / "text" / f"{copies:02}" / document.id
                path.parent.mkdir(parents=True, exist_ok=True)
                raw = f"# copy {copies}\n{document.text}".encode()
                path.write_bytes(raw)
                written += len(raw)
        copies += 1
    yield root / "text"
    shutil.rmtree(root)


def status(pid: int) -> tuple[int, int]:
    """Resident megabytes of a process: all of them, and without what is mapped from files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = dict(line.split(":", 1) for line in lines)
    total, anonymous = (int(found.get(name, "0 kB").split()[0]) // 1000 for name in ("VmRSS", "RssAnon"))
    return total, anonymous


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def python(*words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment)


def peak_of(process: "subprocess.Popen[str]") -> int:
    """The most megabytes that a process and its children had at one time."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(status(pid)[0] for pid in (process.pid, *children(process.pid))))
        time.sleep(0.05)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "byte-bpe"])
def test_two_hundred_megabytes(kind: str, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    began = time.perf_counter()
    words = ["-m", "tokenloom", "data", "tokenize", str(corpus), "--out", str(out), "--tokenizer", kind, "--json"]
    process = python(*words, "--workers", "2")
    peak = peak_of(process)
    seconds = time.perf_counter() - began
    assert process.stdout is not None
    made = json.loads(process.stdout.read().splitlines()[-1])
    assert process.returncode == 0
    assert made["training"]["bytes"] + made["validation"]["bytes"] >= SIZE
    lr = SIZE / seconds / 1e6
    print(f"\n{kind}: tokenized in {seconds:.1f} s, {lr:.1f} MB/s, at most {peak:,} MB in all processes")
    assert peak < 1000
    began = time.perf_counter()
    python("-c", "import torch").wait()
    quiet = time.perf_counter() - began
    first, anonymous, mapped = first_step(out, tmp_path / "run")
    print(f"{kind}: first step after {first:.1f} s, of which {quiet:.1f} s bring torch;", end=" ")
    print(f"{anonymous:,} MB, and {mapped:,} MB mapped from files; load {os.getloadavg()[0]:.1f}")
    assert anonymous + mapped < 1000
    assert first < max(5, 4 * quiet), "on a machine with other things to do, all of it takes longer"


# More steps than are done, so that no evaluation is among them. One thread, so that others are not waited for.
CHILD = """
import sys
from tokenloom.runs.session import start_session
from tokenloom.training.events import StepFinished
for event in start_session(sys.argv[1], size="nano", steps=1000, threads=1, out=sys.argv[2], overwrite=True):
    if isinstance(event, StepFinished):
        print(event.step, flush=True)
        if event.step == 40:
            break
"""


def first_step(data: Path, out: Path) -> tuple[float, int, int]:
    """Seconds from the start of a process to its first training step, and its memory after 40 steps."""
    began = time.perf_counter()
    process = python("-c", CHILD, str(data), str(out))
    assert process.stdout is not None
    first, all_of_it, anonymous = 0.0, 0, 0
    for line in process.stdout:
        first = first or time.perf_counter() - began
        if line.strip() in ("1", "39"):
            now = status(process.pid)
            all_of_it, anonymous = max(all_of_it, now[0]), max(anonymous, now[1])
    assert process.wait() == 0
    return first, anonymous, all_of_it - anonymous
