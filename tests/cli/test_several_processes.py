"""`torchrun … -m tokenloom train`: as a person starts it, on one host and on two."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from several import TORCHRUN, ip, torchrun, workers_of
from tiny_cli import SETTINGS, TINY
from torch.distributed.run import get_args_parser

import tokenloom
from tokenloom.cli.train import TrainOptions
from tokenloom.config import options
from tokenloom.tasks.registry import find_task, task_names
from tokenloom.training.settings import TrainingSettings

PLAIN = {**SETTINGS, "dropout": 0.0, "optimizer": "adamw"}
WORDS = [word for name, value in PLAIN.items() for word in (f"--{name}", str(value))] + ["--quiet", "--json"]


def finished(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """What it printed. It is not to hang."""
    try:
        printed, told = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, told
    return printed, told


def losses(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}


def same_losses(run: Path, other: Path) -> bool:
    a, b = losses(run), losses(other)
    assert a.keys() == b.keys()
    return max(abs(a[step] - b[step]) for step in a) < 1e-5


def test_a_killed_worker_is_restarted_and_goes_on_from_the_last_checkpoint(rhyme: Path, tmp_path: Path) -> None:
    steps = ("--steps", "120", "--eval-every", "20")
    before = ("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1")
    agent = torchrun("train", str(rhyme), *WORDS, *steps, "--out", "killed", cwd=tmp_path, before=before)
    checkpoints = tmp_path / "killed" / "checkpoints"
    for _ in range(6000):
        if list(checkpoints.glob("step-*")):
            break
        time.sleep(0.01)
        assert agent.poll() is None, agent.communicate()
    os.kill(workers_of(agent)[1], signal.SIGKILL)
    at = max(int(path.name[5:]) for path in checkpoints.glob("step-*"))
    printed, told = finished(agent)
    assert at < 100, "the kill came before the end"
    assert re.search(r"exitcode: -9\) local_rank: 1", told)
    result = json.loads(printed.splitlines()[-1])
    assert (result["steps"], result["reason"]) == (120, "steps")
    tokenloom.train(rhyme, out=tmp_path / "straight", steps=120, eval_every=20, **PLAIN)
    assert same_losses(tmp_path / "killed", tmp_path / "straight")


def test_a_refusal_is_one_line_and_exit_code_2(rhyme: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "something").touch()
    _, told = finished(torchrun("train", str(rhyme), *TINY, "--out", "there", cwd=tmp_path), code=1)
    lines = [line for line in told.splitlines() if line.startswith("tokenloom:")]
    assert len(lines) == 1
    assert "--out there: is there already" in lines[0]
    assert re.findall(r"exitcode *: (\d+)", told)[0] == "2", "torchrun itself ends with 1, and reports theirs"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["there"]


@pytest.mark.slow
def test_ctrl_c_saves_and_a_single_process_goes_on(rhyme: Path, tmp_path: Path) -> None:
    words = (*TINY, "--steps", "100000", "--eval-every", "50", "--parallel", "fsdp", "--quiet")
    agent = torchrun("train", str(rhyme), *words, "--out", "stopped", cwd=tmp_path)
    checkpoints = tmp_path / "stopped" / "checkpoints"
    for _ in range(6000):
        if list(checkpoints.glob("step-*")):
            break
        time.sleep(0.01)
    agent.send_signal(signal.SIGINT)
    _, told = agent.communicate(timeout=120)
    assert told.count("saving and stopping after this step") == 1
    step = max(int(path.name[5:]) for path in checkpoints.glob("step-*"))
    task = tokenloom.train(out=tmp_path / "stopped", resume=True, steps=step + 5)
    assert task.generate("One", max_new_tokens=3)


def test_one_process_is_told_how_to_be_several(rhyme: Path, tmp_path: Path) -> None:
    with pytest.raises(tokenloom.UserError, match=r"--parallel fsdp: .*torchrun --nproc-per-node=2"):
        tokenloom.train(rhyme, parallel="fsdp")


@pytest.mark.parametrize("task", task_names())
def test_torchrun_takes_none_of_our_options_for_its_own(task: str) -> None:
    """It knows its options by their beginnings too, also behind the module's name."""
    classes = (TrainOptions, find_task(task).Settings, TrainingSettings)
    names = [one.name for cls in classes for one in options(cls)]
    parser = get_args_parser()
    for name in names:
        words = [f"--{name.replace('_', '-')}", "1"]
        parsed = parser.parse_args(["--standalone", "--nproc-per-node=2", "-m", "tokenloom", "train", "x.txt", *words])
        assert parsed.training_script_args == ["train", "x.txt", *words]


# Two hosts are two network namespaces, joined by a cable of two ends.

HOSTS = {"tokenloom-a": "10.213.7.1", "tokenloom-b": "10.213.7.2"}


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """The words before a command that runs it on each host."""
    command = ip()
    names = list(HOSTS)

    def run(*words: str) -> None:
        subprocess.run([command, *words], check=True, capture_output=True, text=True)

    def remove() -> None:
        for name in names:
            subprocess.run([command, "netns", "del", name], capture_output=True)

    remove()
    try:
        try:
            for name in names:
                run("netns", "add", name)
            run("link", "add", "end", "netns", names[0], "type", "veth", "peer", "name", "end", "netns", names[1])
            for name, address in HOSTS.items():
                run("-n", name, "addr", "add", f"{address}/24", "dev", "end")
                run("-n", name, "link", "set", "end", "up")
                run("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine does not let us make two networks: {error.stderr.strip()}")
        yield [[command, "netns", "exec", name] for name in names]
    finally:
        remove()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_hosts_are_one_process(hosts: list[list[str]], mode: str, rhyme: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--steps", "12", "--eval-every", "4"]
    processes = []
    for rank, host in enumerate(hosts):
        where = ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1"]
        where += [f"--master-addr={HOSTS['tokenloom-a']}", "--master-port=29517"]
        command = [*host, *TORCHRUN, *where, "-m", "tokenloom", "train", str(rhyme), *words, "--parallel", mode]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "end"}
        processes.append(
            subprocess.Popen(
                [*command, "--out", "two"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    first, second = (finished(process) for process in processes)
    assert json.loads(first[0])["steps"] == 12
    assert second[0] == "", "the first of all processes prints"
    tokenloom.train(rhyme, out=tmp_path / "one", steps=12, eval_every=4, **PLAIN)
    assert same_losses(tmp_path / "two", tmp_path / "one")
