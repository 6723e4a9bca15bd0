"""Several processes in a test: the same function in each, with a store that outlives them, as torchrun has it."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from needs import lacking
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tokenloom.training.distributed import DistributedGroup, join

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
PRELOADED = (
    "pytest",
    "tokenloom.runs.session",
    "tokenloom.tasks.text_generation",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.hf_storage",
)
LAST_STRAW = 120  # seconds


def _child(rank: int, world: int, port: int, function: Callable[..., Any], arguments: Any, answer: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    processes = join()
    assert isinstance(processes, DistributedGroup)
    result = function(processes, *arguments)
    processes.shutdown()
    answer.send(result)


def in_each(function: Callable[..., Any], *arguments: Any, world: int = 2) -> list[Any]:
    """What a function (of a module; processes, *arguments) returns in each of so many processes."""
    context = multiprocessing.get_context("forkserver")
    # Imported once, not once a process.
    context.set_forkserver_preload([*PRELOADED])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children, answers = [], []
    for rank in range(world):
        answer, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(rank, world, store.port, function, arguments, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append(child)
        answers.append(answer)
    found = [_heard(answer) for answer in answers]
    for child in children:
        child.join(10)
        child.kill()
    codes = [child.exitcode for child in children]
    assert codes == [0] * world, f"exit codes {codes}"
    return found


def _heard(answer: Any) -> Any:
    """What a child says; None when it dies, or says nothing for too long."""
    try:
        return answer.recv() if answer.poll(LAST_STRAW) else None
    except EOFError:
        return None


def torchrun(
    *words: str, cwd: Path, before: tuple[str, ...] = ("--standalone", "--nproc-per-node=2")
) -> subprocess.Popen[str]:
    """`torchrun … -m tokenloom …` on its way."""
    return subprocess.Popen(
        [*TORCHRUN, *before, "-m", "tokenloom", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(agent: subprocess.Popen[str]) -> list[int]:
    """The processes that a torchrun has started, in order."""
    try:
        return [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]
    except OSError:
        lacking("the children of a process can only be listed where /proc is")


def ip() -> str:
    """The command that makes networks, where this machine lets us make them."""
    found = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if os.geteuid() or found is None:
        lacking("two hosts are two network namespaces, for which root and iproute2 are needed")
    return found
