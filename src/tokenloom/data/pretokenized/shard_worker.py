"""A process of its own that turns text into shards: `python -m tokenloom.data.pretokenized.shard_worker FOLDER TOKENIZER`.

It reads jobs from standard input: a line of JSON, then the UTF-8 bytes of the pieces that the line lists. It answers on
standard output in lines of JSON: how many bytes are done, and in the end what is known of the shard. A shard's files
are written beside their place and renamed, and the shard counts as finished when its record is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenloom.data.pretokenized.shards import Shard, end_of, width
from tokenloom.errors import UserError
from tokenloom.tokenizers.base import UNKNOWN, TextTokenizer
from tokenloom.tokenizers.text import load_tokenizer
from tokenloom.utils.files import write_bytes, write_json

_TELL = 1 << 20


class Gone(Exception):
    """Whoever gave the job is no longer there."""


def record_of(folder: Path, name: str) -> Path:
    """Where what is known of a shard is kept until the manifest has it."""
    return folder / f"{name}.json"


def serve(folder: Path, tokenizer: TextTokenizer, jobs: BinaryIO, answer: Callable[[dict[str, Any]], None]) -> None:
    """Do jobs until there are no more."""
    while line := jobs.readline():
        if not line.endswith(b"\n"):
            return
        job = json.loads(line)
        try:
            answer({"shard": asdict(make_shard(folder, tokenizer, job, jobs, lambda n: answer({"bytes": n})))})
        except Gone:
            return
        except (UserError, OSError) as error:
            answer({"error": f"{folder}: {error}"})
            return


def make_shard(
    folder: Path, tokenizer: TextTokenizer, job: dict[str, Any], source: BinaryIO, tell: Callable[[int], None]
) -> Shard:
    """Encode the pieces of a job and write them as a shard.

    job: `name` of the shard, `lead` (whether it is the first of its part), `pieces` as lists of (bytes, whether a
    document begins, whether it ends), and `settings`, which the record keeps.
    """
    writing = _Writing(folder / f"{job['name']}.ids", np.dtype(width(tokenizer.vocab_size)), tokenizer)
    try:
        if job["lead"]:
            writing.border()
        untold = 0
        for size, first, last in job["pieces"]:
            raw = source.read(size)
            if len(raw) < size:
                raise Gone
            writing.add(raw, first, last)
            untold += size
            if untold >= _TELL:
                tell(untold)
                untold = 0
        tell(untold)
        shard = writing.finish()
    finally:
        writing.close()
    record = {**asdict(shard), "made": job["settings"]}
    write_json(record_of(folder, job["name"]), record)
    return shard


@dataclass
class _Counts:
    tokens: int = 0
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    lines: int = 0
    unknown: int = 0


@dataclass
class _Writing:
    """A shard on its way to the disk."""

    path: Path
    dtype: np.dtype[Any]
    tokenizer: TextTokenizer
    counts: _Counts = field(default_factory=_Counts)
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._file = self._part.open("wb")
        self._digest = hashlib.sha256()
        self._end = end_of(self.tokenizer)
        self._unknown = self.tokenizer.specials.get(UNKNOWN)

    def border(self) -> None:
        """The token between documents, where there is one."""
        if self._end is not None:
            self._write(np.array([self._end]))

    def add(self, raw: bytes, first: bool, last: bool) -> None:
        """A piece of a document."""
        text, counts = raw.decode(), self.counts
        if first:
            self.starts.append(counts.tokens)
            counts.documents += 1
        counts.characters += len(text)
        counts.bytes += len(raw)
        counts.lines += text.count("\n") + (last and not text.endswith("\n"))
        ids = self.tokenizer.encode(text)
        if self._unknown is not None:
            counts.unknown += int((ids == self._unknown).sum())
        self._write(ids)
        if last:
            self.border()

    def _write(self, ids: np.ndarray[Any, Any]) -> None:
        raw = ids.astype(self.dtype).tobytes()
        self._file.write(raw)
        self._digest.update(raw)
        self.counts.tokens += len(ids)

    def finish(self) -> Shard:
        """Put both files into their places."""
        starts = np.array(self.starts, dtype="<i8").tobytes()
        place = self.path.with_suffix(".starts")
        write_bytes(place, starts)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self.path)
        return Shard(
            file=self.path.name,
            sha256=self._digest.hexdigest(),
            starts=place.name,
            starts_sha256=hashlib.sha256(starts).hexdigest(),
            **asdict(self.counts),
        )

    def close(self) -> None:
        """Leave nothing half-written."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def main() -> None:
    """Serve standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the jobs; it ends this one.
    folder, tokenizer = Path(sys.argv[1]), load_tokenizer(sys.argv[2])
    out = sys.stdout

    def answer(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=out, flush=True)

    try:
        serve(folder, tokenizer, sys.stdin.buffer, answer)
    except BrokenPipeError:
        os._exit(1)  # Nobody is left to tell, and flushing at exit would complain.


if __name__ == "__main__":
    main()
