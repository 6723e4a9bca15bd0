"""Run one implementation of a comparison in its own process, so that process-wide settings do not affect the other.

The process reads lines from standard input, and answers each with the seconds per call.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time

from benchmarks.harness import CLOCK, Runner, Setting, timed


def in_subprocess(comparison: str, implementation: str, setting: Setting, times: int) -> Runner:
    """Return a runner of `IMPLEMENTATIONS[implementation]()` of a comparison, in a process that ends with this one."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.isolated",
        comparison,
        implementation,
        str(setting.threads),
        str(times),
    ]
    if CLOCK[-1] is time.process_time:
        command.append("--cpu-time")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def run() -> float:
        requests.write("go\n")
        requests.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"{comparison}, {implementation}: the process ended with {process.wait()}")
        return float(answer)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("comparison")
    parser.add_argument("implementation")
    parser.add_argument("threads", type=int)
    parser.add_argument("times", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    if args.cpu_time:
        CLOCK.append(time.process_time)
    work = importlib.import_module(f"benchmarks.{args.comparison}").IMPLEMENTATIONS[args.implementation]()
    run = timed(work, args.times)
    for _ in sys.stdin:
        print(run(), flush=True)


if __name__ == "__main__":
    main()
