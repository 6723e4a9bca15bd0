"""One comparison with one number of threads, in a process of its own: rows as JSON into a file."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

from benchmarks.harness import CLOCK, Setting
from benchmarks.report import row_as_dict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    if given.cpu_time:
        CLOCK.append(time.process_time)
    comparison = importlib.import_module(f"benchmarks.{given.name}")
    rows = comparison.measure(Setting(given.threads, given.quick, given.long))
    given.out.write_text(json.dumps([row_as_dict(row) for row in rows]), "utf-8")


if __name__ == "__main__":
    main()
