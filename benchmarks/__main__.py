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
# Name → numbers of threads. Comparisons that never use a second thread are measured with one.
COMPARISONS: dict[str, tuple[int, ...]] = {
    "training": (1, 2),
    "images": (1, 2),
    "quality": (1, 2),
    "decoding": (1, 2),
    "tokenizing": (1,),
    "length": (1, 2),
    "startup": (1,),
}


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a measuring process: this checkout, and the number of threads of every library."""
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
    """Return the rows of one comparison, measured in a new process. Raise CalledProcessError if it fails."""
    print(f"{name}, {threads} thread{'s' if threads > 1 else ''}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        words = [sys.executable, "-m", "benchmarks.worker", name, "--threads", str(threads), "--out", str(out), *more]
        subprocess.run(words, cwd=ROOT, env=environment(threads), check=True)
        rows: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(COMPARISONS)} [default: all]")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements; results are not saved")
    parser.add_argument("--long", action="store_true", help="also measurements of more than ten minutes")
    parser.add_argument("--threads", type=int, nargs="+", help="other numbers of threads; results are not saved")
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU seconds of one thread, for a busy machine; results are not saved"
    )
    args = parser.parse_args()
    unknown = set(args.names) - set(COMPARISONS)
    if unknown:
        parser.error(f"no such comparison: {', '.join(sorted(unknown))}; choose from {', '.join(COMPARISONS)}")
    sys.path.insert(0, str(ROOT))
    from benchmarks.report import machine, save_results, section

    more = ["--quick"] * args.quick + ["--long"] * args.long + ["--cpu-time"] * args.cpu_time
    save = not (args.quick or args.threads or args.cpu_time)
    for name in args.names or list(COMPARISONS):
        rows = [
            row
            for threads in args.threads or ([1] if args.cpu_time else COMPARISONS[name])
            for row in measured(name, threads, more)
        ]
        command = " ".join(["python -m benchmarks", name, *more])
        result = {"machine": machine(), "command": command, "rows": rows}
        print(section(name, result), flush=True)
        if save:
            save_results(HERE / "results.json", HERE / "README.md", {name: result}, list(COMPARISONS))
    if not save:
        print("Results were not saved.", file=sys.stderr)


if __name__ == "__main__":
    main()
