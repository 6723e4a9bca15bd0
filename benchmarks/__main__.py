"""Run comparisons: `python -m benchmarks [NAME …] [--quick] [--long] [--threads 1 2]`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# By name: with how many threads each is run. What never uses a second thread is measured with one.
COMPARISONS: dict[str, tuple[int, ...]] = {
    "training": (1, 2),
    "images": (1, 2),
    "quality": (1, 2),
    "decoding": (1, 2),
    "tokenizing": (1,),
    "length": (1, 2),
    "start": (1,),
}


def environment(threads: int) -> dict[str, str]:
    """Of a process that measures: this checkout of tokenloom, and so many threads in every library."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def measured(name: str, threads: int, more: list[str]) -> list[dict[str, Any]]:
    """The rows of one comparison, from a fresh process. Raises CalledProcessError when that fails."""
    print(f"{name}, {threads} thread{'s' if threads > 1 else ''}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        words = [sys.executable, "-m", "benchmarks.worker", name, "--threads", str(threads), "--out", str(out), *more]
        subprocess.run(words, cwd=ROOT, env=environment(threads), check=True)
        rows: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(COMPARISONS)}; all when none")
    parser.add_argument("--quick", action="store_true", help="a try: fewer and shorter measurements, nothing is kept")
    parser.add_argument("--long", action="store_true", help="also what takes more than ten minutes")
    parser.add_argument("--threads", type=int, nargs="+", help="other numbers of threads; nothing is kept")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor seconds of one thread, for a busy machine; nothing is kept"
    )
    given = parser.parse_args()
    unknown = set(given.names) - set(COMPARISONS)
    if unknown:
        parser.error(f"no such comparison: {', '.join(sorted(unknown))}; there are {', '.join(COMPARISONS)}")
    sys.path.insert(0, str(ROOT))
    from benchmarks.report import keep, machine, section

    more = ["--quick"] * given.quick + ["--long"] * given.long + ["--cpu-time"] * given.cpu_time
    kept = not (given.quick or given.threads or given.cpu_time)
    for name in given.names or list(COMPARISONS):
        rows = [
            row
            for threads in given.threads or ([1] if given.cpu_time else COMPARISONS[name])
            for row in measured(name, threads, more)
        ]
        command = " ".join(["python -m benchmarks", name, *more])
        result = {"machine": machine(), "command": command, "rows": rows}
        print(section(name, result), flush=True)
        if kept:
            keep(HERE / "results.json", HERE / "README.md", {name: result}, list(COMPARISONS))
    if not kept:
        print("A try: nothing was kept.", file=sys.stderr)


if __name__ == "__main__":
    main()
