"""Worker processes that make shards, a thread for each to talk to it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tokenloom
from tokenloom.data.pretokenized.shards import Shard
from tokenloom.errors import UserError

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """A shard to be made. pieces: UTF-8, whether a document begins, whether it ends; see `shard_worker.make_shard`."""

    name: str
    lead: bool
    pieces: list[tuple[bytes, bool, bool]]
    settings: dict[str, Any]


class WorkerPool:
    """So many worker processes. At most one job more than they are waits, so that memory stays bounded.

    A process of this kind needs nothing of the program that starts it, and ends by itself when that is killed.
    """

    def __init__(self, count: int, folder: Path, tokenizer: Path) -> None:
        self._processes = [_start(folder, tokenizer) for _ in range(count)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._room = threading.Semaphore(count + 1)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="shard")
        self._failed: BaseException | None = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            if kind is not None:
                process.kill()  # What it had begun is made again next time.
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def submit(self, job: Job, advance: Advance) -> Future[Shard]:
        """Have a shard made; waits while there is enough to do. Raises what an earlier job has raised."""
        self._room.acquire()
        if self._failed is not None:
            raise self._failed
        return self._threads.submit(self._run, job, advance)

    def _run(self, job: Job, advance: Advance) -> Shard:
        process = self._idle.get()
        try:
            return _ask(process, job, advance)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._idle.put(process)
            self._room.release()


def _start(folder: Path, tokenizer: Path) -> subprocess.Popen[bytes]:
    # It must import this very package, wherever that was found.
    here = str(Path(tokenloom.__file__).resolve().parents[1])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tokenloom.data.pretokenized.shard_worker", str(folder), str(tokenizer)]
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _ask(process: subprocess.Popen[bytes], job: Job, advance: Advance) -> Shard:
    assert process.stdin is not None
    assert process.stdout is not None
    sizes = [(len(raw), first, last) for raw, first, last in job.pieces]
    head = {"name": job.name, "lead": job.lead, "pieces": sizes, "settings": job.settings}
    with suppress(BrokenPipeError):  # Then the answer, or the lack of one, says why.
        process.stdin.write(json.dumps(head).encode() + b"\n")
        for raw, _, _ in job.pieces:
            process.stdin.write(raw)
        process.stdin.flush()
    job.pieces.clear()
    for line in process.stdout:
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(answer["error"])
        if "shard" in answer:
            return Shard.from_json(answer["shard"])
        advance(answer["bytes"])
    code = process.wait()
    how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
    raise UserError(
        f"a worker {how}; the same command goes on with what is finished, and fewer --workers need less memory"
    )
