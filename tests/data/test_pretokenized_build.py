"""Tokenizing can be interrupted at any instant, and what comes out depends on text and settings alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded import content, folder_of, in_memory, make, prose

from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized import build as sharding
from tokenloom.data.pretokenized.build import tokenize
from tokenloom.data.pretokenized.shards import PretokenizedCorpus, ShardJob, open_pretokenized
from tokenloom.errors import UserError

# Two megabytes, in documents from a few bytes to a third of it all.
SIZES = [300_000, 5, 40_000, 600_000, 900, 120_000, 80_000, 250_000, 10, 150_000, 400_000, 2000]
WISH = TokenizationSettings(tokenizer="byte-bpe", vocab_size=600, shard_bytes=100_000)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("two-megabytes") / "docs", SIZES)


@pytest.fixture(scope="module")
def straight(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that comes out when nothing happens."""
    out = tmp_path_factory.mktemp("straight") / "out"
    tokenize(text, out, WISH, workers=2)
    return out


def test_two_megabytes_with_two_workers_are_as_in_memory(text: Path, straight: Path) -> None:
    tokenizer, ids = in_memory(text, "byte-bpe", 600)
    tokenized = open_pretokenized(straight)
    assert tokenized is not None
    assert tokenized.tokenizer().fingerprint() == tokenizer.fingerprint()
    for part, expected in ids.items():
        assert np.array_equal(tokenized.ids(part)[:], expected)
    assert len(tokenized.shards("training")) >= 8


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_makes_no_difference(workers: int, text: Path, straight: Path, tmp_path: Path) -> None:
    tokenize(text, tmp_path / "out", WISH, workers=workers)
    assert content(tmp_path / "out") == content(straight)


CHILD = """
import sys
from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized.build import tokenize
settings = TokenizationSettings(tokenizer="byte-bpe", vocab_size=600, shard_bytes=100_000)
tokenize(sys.argv[1], sys.argv[2], settings, workers=2)
"""


def start(text: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(text), str(out)], env=dict(os.environ, PYTHONPATH=SOURCE))


SOURCE = str(Path(sharding.__file__).resolve().parents[3])


def wait_for(out: Path, finished: int, process: subprocess.Popen[bytes]) -> None:
    """Until so many shards are finished."""
    while process.poll() is None and len(list(out.glob("*-?????.json"))) < finished:
        time.sleep(0.002)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_leaves_what_the_same_command_goes_on_with(
    seed: int, text: Path, straight: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    out = tmp_path / "out"
    process = start(text, out)
    wait_for(out, draw.randrange(1, 6), process)
    time.sleep(draw.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(UserError, match="not finished; the same tokenloom data tokenize command continues"):
        open_pretokenized(out)
    told: list[str] = []
    tokenize(text, out, WISH, workers=1, notify=told.append)
    assert content(out) == content(straight)
    kept = int(told[0].split()[1])
    assert 1 <= kept <= int(told[0].split()[3])
    assert "finished and intact" in told[0]


def unfinished(text: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder all of whose shards are made, but that has no manifest."""
    with monkeypatch.context() as patch:
        patch.setattr(sharding.OutputFolder, "finish", fail)
        with pytest.raises(RuntimeError):
            tokenize(text, out, WISH, workers=2)


def fail(*_: Any) -> PretokenizedCorpus:
    raise RuntimeError


def test_finished_shards_are_verified_and_the_rest_is_made_again(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    unfinished(text, out, monkeypatch)
    total = len(list(out.glob("*-?????.json")))

    def change(name: str, how: Callable[[bytes], bytes]) -> None:
        (out / name).write_bytes(how((out / name).read_bytes()))

    change("training-00001.ids", lambda raw: raw[:-2])
    change("training-00002.ids", lambda raw: raw[:50] + bytes([raw[50] ^ 1]) + raw[51:])
    change("training-00003.json", lambda raw: raw[:100])
    change("training-00004.json", lambda raw: raw.replace(b'"vocab_size": 600', b'"vocab_size": 601'))
    change("training-00005.starts", lambda raw: raw + b"\0" * 8)
    (out / "training-00006.ids").unlink()
    (out / "tokenizer.json").write_text("{")
    (out / ".training-00007.ids.123.part").write_text("left by a kill")
    written: list[str] = []
    submit = ProcessPoolExecutor.submit

    def recording(self: ProcessPoolExecutor, function: Callable[..., Any], job: ShardJob) -> Any:
        written.append(job.name)
        return submit(self, function, job)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", recording)
    told: list[str] = []
    tokenize(text, out, WISH, workers=2, notify=told.append)
    assert sorted(written) == [f"training-0000{n}" for n in range(1, 7)]
    assert told == [f"kept {total - 6} of {total} shards, which were finished and intact"]
    assert content(out) == content(straight)


def test_unfinished_work_of_another_kind_is_not_gone_on_with(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    unfinished(text, out, monkeypatch)
    before = content(out)
    other = folder_of(tmp_path / "other", [5000] * 8)
    for source, wish, match in (
        (text, TokenizationSettings(tokenizer="byte-bpe", vocab_size=700, shard_bytes=100_000), "--vocab-size was 600"),
        (
            text,
            TokenizationSettings(tokenizer="byte-bpe", vocab_size=600, val_fraction=0.2, shard_bytes=100_000),
            "--val-fraction was None",
        ),
        (other, WISH, "the text has changed"),
    ):
        with pytest.raises(UserError, match=f"{match}.*--overwrite starts over"):
            tokenize(source, out, wish, workers=1)
        assert content(out) == before
    tokenize(other, out, WISH, workers=1, overwrite=True)
    assert open_pretokenized(out) is not None
    (out / "manifest.json").unlink()
    (out / "unfinished.json").write_text('{"kind": "tokenloom tokens"}')
    with pytest.raises(UserError, match=r"unfinished\.json: damaged"):
        tokenize(other, out, WISH, workers=1)


class Killed(BaseException):
    """What a kill is here: nothing after it is done."""


def test_a_kill_between_any_two_changes_of_the_folder_leaves_it_whole_or_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the process that gives the jobs: an overwriting one, which has most to lose."""
    first, second = folder_of(tmp_path / "a", [3000] * 6), folder_of(tmp_path / "b", [2500] * 6, seed=9)
    expected = {}
    for name, source in (("a", first), ("b", second)):
        expected[name] = content(make(source, tmp_path / f"{name}-tokens").folder)
    done, last = 0, 1 << 30

    def counting(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done > last:
                raise Killed
            return operation(*args, **kwargs)

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    outcomes = set()
    for stop in range(1, 100, 3):
        out = tmp_path / f"out{stop}"
        last = 1 << 30
        make(first, out)
        done, last = 0, stop
        try:
            tokenize(second, out, TokenizationSettings(shard_bytes=3000), workers=1, overwrite=True)
        except Killed:
            pass
        else:
            break
        last = 1 << 30
        try:
            found = open_pretokenized(out)
        except UserError as error:
            outcomes.add("not finished" if "not finished" in str(error) else str(error))
            make(second, out)
        else:
            assert found is not None
            found.check()
            outcomes.add("whole")
            assert content(out) in expected.values() or (out / "unfinished.json").is_file()
            tokenize(second, out, TokenizationSettings(shard_bytes=3000), workers=1, overwrite=True)
        assert content(out) == expected["b"]
    else:
        pytest.fail("it never came to its end")
    assert outcomes == {"whole", "not finished"}


def test_a_worker_that_dies_is_told_and_the_rest_stays(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    submit = ProcessPoolExecutor.submit
    count = 0

    def deadly(self: ProcessPoolExecutor, function: Callable[..., Any], job: ShardJob) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            next(iter(self._processes.values())).kill()
        return submit(self, function, job)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPoolExecutor, "submit", deadly)
        with pytest.raises(UserError, match=r"^a worker process was killed, .*; the same command continues"):
            tokenize(text, out, WISH, workers=2)
    assert not list(out.glob(".*.part"))
    tokenize(text, out, WISH, workers=2)
    assert content(out) == content(straight)


def test_workers_end_when_their_master_is_killed(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(text, out)
    wait_for(out, 1, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not list the children of a process")
    workers = [int(pid) for pid in children.read_text().split()]
    process.kill()
    process.wait()
    assert workers
    for _ in range(500):
        if not any(alive(pid) for pid in workers):
            return
        time.sleep(0.01)
    pytest.fail("a worker lives on")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_progress_adds_up(text: Path, tmp_path: Path) -> None:
    from collections.abc import Iterator
    from contextlib import contextmanager

    seen: dict[str, list[int]] = {}

    @contextmanager
    def progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
        seen[what] = [size, 0]

        def advance(n: int) -> None:
            seen[what][1] += n

        yield advance

    tokenize(text, tmp_path / "out", WISH, workers=2, progress=progress)
    assert set(seen) == {"reading", "tokenizing"}
    for size, done in seen.values():
        assert size == done == sum(path.stat().st_size for path in text.iterdir())


def test_what_else_is_to_be_kept_is_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(prose(5000), "utf-8")
    seen = []

    def extra(tokenized: PretokenizedCorpus) -> dict[str, Any]:
        seen.append(len(tokenized.ids("training")[:]))
        return {"more": 1}

    made = tokenize(path, tmp_path / "out", TokenizationSettings(shard_bytes=1000), workers=1, extra=extra)
    assert made.content["more"] == 1
    assert seen == [made.total("training", "tokens")]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["more"] == 1


def test_what_fails_before_anything_is_made_stands_in_nobodys_way(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="vocabulary of 3"):
        make(text, out, tokenizer="byte-bpe", vocab_size=3)
    with pytest.raises(UserError, match="not finished"):
        open_pretokenized(out)
    assert (
        make(text, out, tokenizer="byte-bpe", vocab_size=300, shard_bytes=1 << 20).content["tokenizer"]["vocab_size"]
        == 301
    )
