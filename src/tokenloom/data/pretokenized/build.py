"""Tokenize text of any size into shards, in parallel; after an interruption the same command continues.

The output depends on the text and the settings only, not on the number of processes or on interruptions: the text is
cut into shards of about `shard_bytes` in reading order, and each is written by one process. Finished shards whose
record and hashes match are kept; all others are written again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import tokenloom
from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized.output_folder import Extra, OutputFolder
from tokenloom.data.pretokenized.scan import CorpusSplit, Scan, scan_text, split_corpus
from tokenloom.data.pretokenized.shards import (
    FORMAT,
    KIND,
    PARTS,
    PretokenizedCorpus,
    Shard,
    ShardJob,
    end_of,
    id_dtype,
    record_path,
    write_shard,
)
from tokenloom.data.pretokenized.streaming import Advance, StreamedText, open_text
from tokenloom.data.split import LEFT_OUT, TRAIN
from tokenloom.errors import UserError
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer, quote_list
from tokenloom.tokenizers.text import (
    AUTO_CHARACTERS,
    check_choice,
    choose_tokenizer,
    load_tokenizer,
    suggested_vocab_size,
)

# A tokenizer is trained on at most so many characters, in stretches at even distances.
SAMPLE_CHARACTERS = 1 << 24
STRETCH_CHARACTERS = 1 << 16
_MAX_SKIPPED = 1000

Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""(what is done, its size in bytes) → a context with a function that is called with the number of bytes done."""


def no_progress(what: str, size: int) -> AbstractContextManager[Advance]:
    """Show nothing."""
    return nullcontext(lambda n: None)


def tokenize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: TokenizationSettings | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = lambda line: None,
    extra: Extra = lambda corpus: {},
) -> PretokenizedCorpus:
    """Tokenize text into a folder of shards.

    source: as in `read_text`. An unfinished folder is continued if text and settings are the same. workers: number of
    processes; one per core when None. notify: called with lines for the user. extra: see `OutputFolder.finish`.

    Raises UserError for text that cannot be read, an `out` that is something else or finished (without `overwrite`),
    or unfinished work on other text or with other settings. After an error the folder is finished or can be continued.
    """
    settings = settings or TokenizationSettings()
    workers = usable_cores() if workers is None else workers
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    given = _given_tokenizer(settings)
    folder = OutputFolder(Path(out))
    folder.claim(overwrite=overwrite)
    try:
        text = open_text(
            source,
            encoding=settings.encoding,
            normalize_newlines=settings.normalize_newlines,
            text_column=settings.text_column,
            standard_input=folder.spool() if os.fspath(source) == "-" else None,
        )
        with progress("reading", text.size) as advance:
            scan = scan_text(text, advance)
        parts = split_corpus(text, scan, settings.val_fraction)
        identity = {**asdict(settings), "tokenizer": settings.tokenizer if given is None else given.fingerprint()}
        state = folder.begin({"text": scan.sha256, "settings": identity}, overwrite=overwrite)
        tokenizer = _restore_tokenizer(folder, state)
        if tokenizer is None:
            tokenizer = given if given is not None else _train(settings, text, scan, parts)
            _keep_tokenizer(folder, state, tokenizer, settings, text, scan)
        work = _Shards(folder, tokenizer, parts.chunks(text, tokenizer.safe_split), state)
        with progress("tokenizing", _bytes_to_tokenize(scan, parts)) as advance:
            shards = work.write(workers, advance)
        if work.kept:
            notify(f"kept {work.kept:,} of {sum(map(len, shards.values())):,} shards, which were finished and intact")
        return folder.finish(_manifest(text, scan, parts, state, shards), extra)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"--out {folder.path}: {where}{error.strerror or error}") from None
    finally:
        folder.remove_temporary()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bytes_to_tokenize(scan: Scan, parts: CorpusSplit) -> int:
    if LEFT_OUT not in parts.side:
        return scan.bytes
    kept = sum(size for size, side in zip(scan.sizes, parts.side, strict=True) if side != LEFT_OUT)
    return scan.bytes * kept // scan.characters


def _manifest(
    text: StreamedText,
    scan: Scan,
    parts: CorpusSplit,
    state: dict[str, Any],
    shards: dict[str, list[Shard]],
) -> dict[str, Any]:
    skipped = text.skipped[:_MAX_SKIPPED]
    notes = [*text.notes, *parts.notes]
    if len(text.skipped) > len(skipped):
        notes.append(f"{len(text.skipped) - len(skipped):,} more files were skipped")
    return {
        "format": FORMAT,
        "kind": KIND,
        "tokenloom": tokenloom.__version__,
        "name": text.name,
        "license": text.license,
        "text": scan.sha256,
        "settings": state["settings"],
        "tokenizer": state["tokenizer"],
        "dtype": id_dtype(state["tokenizer"]["vocab_size"]),
        "normalize_newlines": state["settings"]["normalize_newlines"],
        "separate_documents": state["tokenizer"]["separate_documents"],
        "split": parts.how,
        "report": {
            "facts": {
                "distinct_characters": len(scan.alphabet),
                "unseen_characters": {},
                "longest": list(scan.longest),
                "duplicates": scan.duplicates,
                "duplicate_share": scan.duplicate_characters / scan.characters,
            },
            "skipped": [list(one) for one in skipped],
            "notes": notes,
        },
        "parts": {part: [asdict(shard) for shard in shards[part]] for part in PARTS},
    }


# The tokenizer.


def _given_tokenizer(settings: TokenizationSettings) -> TextTokenizer | None:
    if not settings.tokenizer.endswith(".json"):
        check_choice(settings.tokenizer, settings.vocab_size)
        return None
    if settings.vocab_size is not None:
        raise UserError(f"--vocab-size {settings.vocab_size}: has no effect with a given tokenizer: leave it out")
    tokenizer = load_tokenizer(settings.tokenizer)
    if settings.separate_documents and end_of(tokenizer) is None:
        raise UserError(f"--separate-documents: {settings.tokenizer} has no token {END!r} to put between documents")
    if settings.separate_documents is False and end_of(tokenizer) is not None:
        raise UserError(f"--no-separate-documents: {settings.tokenizer} has a token {END!r} for between documents")
    return tokenizer


def _restore_tokenizer(folder: OutputFolder, state: dict[str, Any]) -> TextTokenizer | None:
    """Return the tokenizer of earlier work, if it is intact; otherwise it is made again, with the same result."""
    known = state.get("tokenizer")
    if known is None or not folder.tokenizer.is_file():
        return None
    try:
        tokenizer = load_tokenizer(folder.tokenizer)
    except UserError:
        return None
    if tokenizer.fingerprint() != known["fingerprint"]:
        return None
    tokenizer.reason, tokenizer.notes = known["reason"], list(known["notes"])
    return tokenizer


def _keep_tokenizer(
    folder: OutputFolder,
    state: dict[str, Any],
    tokenizer: TextTokenizer,
    settings: TokenizationSettings,
    text: StreamedText,
    scan: Scan,
) -> None:
    if UNKNOWN not in tokenizer.specials and (unseen := tokenizer.unseen("".join(sorted(scan.alphabet)))):
        raise UserError(
            f"{text.name}: {settings.tokenizer} has no token for {quote_list(unseen, 'character')}; another tokenizer"
            " is needed"
        )
    tokenizer.save(folder.tokenizer)
    state["tokenizer"] = {
        "fingerprint": tokenizer.fingerprint(),
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "reason": tokenizer.reason or f"taken from {Path(settings.tokenizer).name}",
        "notes": tokenizer.notes,
        "separate_documents": end_of(tokenizer) is not None,
    }
    folder.write_state(state)


def _train(settings: TokenizationSettings, text: StreamedText, scan: Scan, parts: CorpusSplit) -> TextTokenizer:
    """Train the tokenizer that `choose_tokenizer` makes of the training part, on at most `SAMPLE_CHARACTERS` of it.

    The alphabet is that of all text. A larger part is sampled in stretches; the vocabulary size still suits the whole.
    """
    kind, size = settings.tokenizer, settings.vocab_size
    separate = settings.separate_documents
    if separate is None:
        separate = text.documented and parts.documents(TRAIN) > 1
    specials = (END,) if separate else ()
    alphabet = "".join(sorted(scan.alphabet))
    total = parts.characters(TRAIN, scan)
    if total <= SAMPLE_CHARACTERS:
        return choose_tokenizer(list(_training_documents(text, parts)), kind, size, specials, [alphabet])
    if kind == "auto":
        kind = "char" if size is None and len(alphabet) <= AUTO_CHARACTERS else "byte-bpe"
    if kind == "char":
        tokenizer = choose_tokenizer([alphabet], kind, size, specials)
        tokenizer.reason = f"{tokenizer.vocab_size:,} ids, for all {len(alphabet):,} distinct characters of the text"
        return tokenizer
    if size is None and kind in ("bpe", "byte-bpe", "word"):
        size = suggested_vocab_size(scan.bytes * total // scan.characters) + (len(alphabet) if kind == "bpe" else 0)
    tokenizer = choose_tokenizer(_training_sample(text, parts, total), kind, size, specials, [alphabet])
    tokenizer.reason = (
        f"{tokenizer.vocab_size:,} ids, trained on {SAMPLE_CHARACTERS:,} of {total:,} training characters"
    )
    return tokenizer


def _cut_anywhere(text: str) -> int:
    return len(text) - 1


def _training_documents(text: StreamedText, parts: CorpusSplit) -> Iterator[str]:
    chunks: list[str] = []
    for side, chunk in parts.chunks(text, _cut_anywhere):
        if side == TRAIN:
            chunks.append(chunk.text)
            if chunk.last:
                yield "".join(chunks)
                chunks.clear()


def _training_sample(text: StreamedText, parts: CorpusSplit, total: int) -> Iterator[str]:
    period = STRETCH_CHARACTERS * total // SAMPLE_CHARACTERS
    position = 0
    for side, chunk in parts.chunks(text, _cut_anywhere):
        if side != TRAIN:
            continue
        here = 0
        while here < len(chunk.text):
            within = (position + here) % period
            if within < STRETCH_CHARACTERS:
                yield chunk.text[here : here + STRETCH_CHARACTERS - within]
                here += STRETCH_CHARACTERS - within
            else:
                here += period - within
        position += len(chunk.text)


# The shards.

_worker: tuple[Path, TextTokenizer] | None = None


def _start_worker(folder: Path, tokenizer: Path) -> None:
    """Prepare a worker process. Ctrl-C is left to the parent, and the process ends when the parent does."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = folder, load_tokenizer(tokenizer)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _write_shard(job: ShardJob) -> Shard:
    assert _worker is not None
    return write_shard(*_worker, job)


@dataclass
class _OpenShard:
    """The shard of a part that is being filled with (UTF-8, whether a document starts, whether it ends)."""

    number: int = 0
    size: int = 0
    chunks: list[tuple[bytes, bool, bool]] = field(default_factory=list)


class _Shards:
    """Cuts text into shards, and has those written that are not finished."""

    def __init__(
        self, folder: OutputFolder, tokenizer: TextTokenizer, chunks: Iterator[tuple[int, Any]], state: dict[str, Any]
    ) -> None:
        self.folder, self.tokenizer_file = folder.path, folder.tokenizer
        self.dtype = id_dtype(tokenizer.vocab_size)
        self.settings = {"text": state["text"], **state["settings"], "tokenizer": state["tokenizer"]["fingerprint"]}
        self.kept = 0
        self._chunks = chunks
        self._shards: list[dict[int, Shard]] = [{}, {}]

    def write(self, workers: int, advance: Advance) -> dict[str, list[Shard]]:
        """Return all shards of both parts, in order. At most one job more than workers waits, to bound memory."""
        # Not forked: this process may have threads, of PyTorch or of a progress bar.
        spawn = multiprocessing.get_context("spawn")
        pending: dict[Future[Shard], tuple[int, _OpenShard]] = {}
        with ProcessPoolExecutor(workers, spawn, _start_worker, (self.folder, self.tokenizer_file)) as pool:
            try:
                for side, shard in self._unfinished(advance):
                    job = ShardJob(f"{PARTS[side]}-{shard.number:05}", shard.number == 0, shard.chunks, self.settings)
                    pending[pool.submit(_write_shard, job)] = side, shard
                    shard.chunks = []
                    while len(pending) > workers + 1:
                        self._collect(pending, advance)
                while pending:
                    self._collect(pending, advance)
            except BrokenProcessPool:
                raise UserError(
                    "a worker process was killed, perhaps for lack of memory; the same command continues with the"
                    " finished shards, and fewer --workers need less memory"
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return {
            part: [shard for _, shard in sorted(shards.items())]
            for part, shards in zip(PARTS, self._shards, strict=True)
        }

    def _collect(self, pending: dict[Future[Shard], tuple[int, _OpenShard]], advance: Advance) -> None:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            side, shard = pending.pop(future)
            self._shards[side][shard.number] = future.result()
            advance(shard.size)

    def _unfinished(self, advance: Advance) -> Iterator[tuple[int, _OpenShard]]:
        """Yield (side, shard) of the shards to be written; finished ones are kept."""
        filling = [_OpenShard(), _OpenShard()]
        for side, chunk in self._chunks:
            raw, shard = chunk.text.encode(), filling[side]
            shard.chunks.append((raw, chunk.first, chunk.last))
            shard.size += len(raw)
            if shard.size >= self.settings["shard_bytes"]:
                filling[side] = _OpenShard(shard.number + 1)
                if not self._keep(side, shard, advance):
                    yield side, shard
        for side, shard in enumerate(filling):
            if shard.chunks and not self._keep(side, shard, advance):
                yield side, shard

    def _keep(self, side: int, open_shard: _OpenShard, advance: Advance) -> bool:
        """Return whether earlier work has written a shard, and it is intact."""
        try:
            record = json.loads(record_path(self.folder, f"{PARTS[side]}-{open_shard.number:05}").read_text("utf-8"))
            if record.pop("settings") != self.settings or record["bytes"] != open_shard.size:
                return False
            shard = Shard.from_json(record)
            shard.check(self.folder, self.dtype, content=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
            return False
        self._shards[side][open_shard.number] = shard
        self.kept += 1
        advance(open_shard.size)
        return True
