"""One side of a comparison in a process of its own, so that neither side's settings of the process reach the other.

It reads lines from standard input, and answers each with the seconds that one time of the work took.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time

from benchmarks.harness import CLOCK, Runner, Setting, timed


def apart(comparison: str, side: str, setting: Setting, times: int) -> Runner:
    """A runner whose work is `SIDES[side]()` of a comparison, made in a process that ends with this one."""
    command = [sys.executable, "-m", "benchmarks.side", comparison, side, str(setting.threads), str(times)]
    if CLOCK[-1] is time.process_time:
        command.append("--cpu-time")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answers = process.stdin, process.stdout

    def run() -> float:
        ask.write("go\n")
        ask.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"{comparison}, {side}: the process ended with {process.wait()}")
        return float(answer)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("comparison")
    parser.add_argument("side")
    parser.add_argument("threads", type=int)
    parser.add_argument("times", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    if given.cpu_time:
        CLOCK.append(time.process_time)
    work = importlib.import_module(f"benchmarks.{given.comparison}").SIDES[given.side]()
    run = timed(work, given.times)
    for _ in sys.stdin:
        print(run(), flush=True)


if __name__ == "__main__":
    main()
