"""Run one comparison with one number of threads, and write its rows as JSON."""

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
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    if args.cpu_time:
        CLOCK.append(time.process_time)
    comparison = importlib.import_module(f"benchmarks.{args.name}")
    rows = comparison.measure(Setting(args.threads, args.quick, args.long))
    args.out.write_text(json.dumps([row_as_dict(row) for row in rows]), "utf-8")


if __name__ == "__main__":
    main()
