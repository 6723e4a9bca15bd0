"""Tokenizing text of any size into shards, in parallel, so that it can be interrupted at any instant and gone on with.

What is written depends on the text and the settings alone, not on the number of workers or on interruptions: the text
is cut into shards of about `SHARD` bytes in its own order, and each is made whole by one process. A shard that has its
record and matches it is kept; all others are made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenloom
from tokenloom.data.pretokenized.output_folder import Extra, OutputFolder
from tokenloom.data.pretokenized.scan import CorpusSplit, Survey, check_fraction, split_corpus, survey
from tokenloom.data.pretokenized.shard_worker import record_of
from tokenloom.data.pretokenized.shards import FORMAT, KIND, PARTS, PretokenizedCorpus, Shard, end_of, width
from tokenloom.data.pretokenized.streaming import Advance, StreamedText, open_text
from tokenloom.data.pretokenized.train_tokenizer import train_tokenizer
from tokenloom.data.pretokenized.workers import Job, WorkerPool
from tokenloom.data.split import LEFT_OUT, TRAIN
from tokenloom.errors import UserError
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer, quote_list
from tokenloom.tokenizers.text import check_choice, load_tokenizer

SHARD = 1 << 24
_MOST_SKIPPED = 1000

Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""From what is being done, and how many bytes it takes, to what is called as they are done."""


def no_progress(what: str, size: int) -> AbstractContextManager[Advance]:
    """Show nothing."""
    return nullcontext(lambda n: None)


@dataclass(frozen=True)
class TokenizationRequest:
    """How text is to be tokenized.

    tokenizer: a kind, as in `choose_tokenizer`, or the path of a tokenizer's file (`.json`). vocab: ids of a tokenizer
    that is trained. borders: keep documents apart with an end token; None where there are several that mean something.
    holdout: share of the text kept for validation; None as in `split_corpus`. The rest as in `read_text`.
    """

    tokenizer: str = "auto"
    vocab_size: int | None = None
    borders: bool | None = None
    val_fraction: float | None = None
    column: str | None = None
    encoding: str = "utf-8"
    newlines: str = "fold"
    shard: int = SHARD


def tokenize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    wish: TokenizationRequest = TokenizationRequest(),
    *,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    tell: Callable[[str], None] = lambda line: None,
    extra: Extra = lambda tokenized: {},
) -> PretokenizedCorpus:
    """Tokenize text into a folder of shards.

    source: as in `read_text`. An unfinished folder is gone on with, if text and settings are the same. workers:
    processes; one for each core when None. tell: called with what there is to say meanwhile.

    Raises UserError for text that cannot be read, an `out` that is something else or finished already (without
    `overwrite`), or unfinished work of another kind. Whatever happens, the folder is finished or can be gone on with.
    """
    count = usable_cores() if workers is None else workers
    for name, value in (("workers", count), ("vocab_size", wish.vocab_size), ("shard", wish.shard)):
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    check_fraction(wish.val_fraction)
    given = _given_tokenizer(wish)
    place = OutputFolder(Path(out))
    place.claim(overwrite=overwrite)
    try:
        spooled = place.spool() if os.fspath(source) == "-" else None
        text = open_text(
            source, encoding=wish.encoding, newlines=wish.newlines, column=wish.column, standard_input=spooled
        )
        with progress("reading", text.size) as advance:
            found = survey(text, advance)
        sides = split_corpus(text, found, wish.val_fraction)
        begun = place.begin(_begun(found, wish, given), overwrite=overwrite)
        tokenizer = _tokenizer(place, begun, given, wish, text, found, sides)
        work = _Work(place, tokenizer, text, sides, begun)
        size = _bytes_to_do(found, sides)
        with progress("tokenizing", size) as advance, WorkerPool(count, place.folder, place.tokenizer) as crew:
            shards = work.done(crew, advance)
        if work.kept:
            tell(f"kept {work.kept:,} of {sum(map(len, shards.values())):,} shards, which were finished and whole")
        return place.finish(_manifest(text, found, sides, wish, begun, shards), extra)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"--out {place.folder}: {where}{error.strerror or error}") from None
    finally:
        place.sweep()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _given_tokenizer(wish: TokenizationRequest) -> TextTokenizer | None:
    if not wish.tokenizer.endswith(".json"):
        check_choice(wish.tokenizer, wish.vocab_size)
        return None
    if wish.vocab_size is not None:
        raise UserError(f"--vocab-size {wish.vocab_size}: has no effect with a tokenizer that is given: leave it out")
    tokenizer = load_tokenizer(wish.tokenizer)
    if wish.borders and end_of(tokenizer) is None:
        raise UserError(f"--borders: {wish.tokenizer} has no token {END!r} to stand between documents")
    if wish.borders is False and end_of(tokenizer) is not None:
        raise UserError(f"--no-borders: {wish.tokenizer} has a token {END!r}, which stands between documents")
    return tokenizer


def _begun(found: Survey, wish: TokenizationRequest, given: TextTokenizer | None) -> dict[str, Any]:
    """What must be the same when unfinished work is gone on with."""
    settings = {**asdict(wish), "tokenizer": wish.tokenizer if given is None else given.fingerprint()}
    return {"text": found.sha256, "settings": settings}


def _bytes_to_do(found: Survey, sides: CorpusSplit) -> int:
    if LEFT_OUT not in sides.side:
        return found.bytes
    kept = sum(size for size, side in zip(found.sizes, sides.side, strict=True) if side != LEFT_OUT)
    return found.bytes * kept // found.characters


# The tokenizer.


def _tokenizer(
    place: OutputFolder,
    begun: dict[str, Any],
    given: TextTokenizer | None,
    wish: TokenizationRequest,
    text: StreamedText,
    found: Survey,
    sides: CorpusSplit,
) -> TextTokenizer:
    """The tokenizer that is in the folder already, else the given one, else a new one; kept in the folder."""
    known = begun.get("tokenizer")
    if known is not None and place.tokenizer.is_file():
        try:
            tokenizer = load_tokenizer(place.tokenizer)
            if tokenizer.fingerprint() == known["fingerprint"]:
                tokenizer.reason, tokenizer.notes = known["why"], list(known["notes"])
                return tokenizer
        except UserError:
            pass  # It is made again, and comes out the same.
    tokenizer = _learn(wish, text, found, sides) if given is None else given
    if UNKNOWN not in tokenizer.specials and (unseen := tokenizer.unseen("".join(sorted(found.alphabet)))):
        raise UserError(
            f"{text.name}: {wish.tokenizer} has no token for {quote_list(unseen, 'character')}; choose another"
        )
    tokenizer.save(place.tokenizer)
    begun["tokenizer"] = {
        "fingerprint": tokenizer.fingerprint(),
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "why": tokenizer.reason or f"taken from {Path(wish.tokenizer).name}",
        "notes": tokenizer.notes,
        "borders": end_of(tokenizer) is not None,
    }
    place.note(begun)
    return tokenizer


def _learn(wish: TokenizationRequest, text: StreamedText, found: Survey, sides: CorpusSplit) -> TextTokenizer:
    borders = wish.borders
    if borders is None:
        borders = text.documented and sides.documents(TRAIN) > 1
    return train_tokenizer(wish.tokenizer, wish.vocab_size, (END,) if borders else (), text, found, sides)


# The shards.


@dataclass
class _Open:
    """The shard of a part that is being filled."""

    number: int = 0
    size: int = 0
    pieces: list[tuple[bytes, bool, bool]] = field(default_factory=list)


class _Work:
    """Fills shards, and has those made that are not there yet."""

    def __init__(
        self,
        place: OutputFolder,
        tokenizer: TextTokenizer,
        text: StreamedText,
        sides: CorpusSplit,
        begun: dict[str, Any],
    ) -> None:
        self.folder, self.tokenizer, self.text, self.sides = place.folder, tokenizer, text, sides
        self.shard = int(begun["settings"]["shard"])
        self.settings = {"text": begun["text"], "tokenizer": begun["tokenizer"]["fingerprint"], **begun["settings"]}
        self.kept = 0
        self._open = [_Open(), _Open()]
        self._shards: list[list[Shard | Future[Shard]]] = [[], []]

    def done(self, crew: WorkerPool, advance: Advance) -> dict[str, list[Shard]]:
        """All shards of both parts, in order."""
        for side, piece in self.sides.pieces(self.text, self.tokenizer.safe_split):
            raw, filling = piece.text.encode(), self._open[side]
            filling.pieces.append((raw, piece.first, piece.last))
            filling.size += len(raw)
            if filling.size >= self.shard:
                self._close(side, crew, advance)
        for side, filling in enumerate(self._open):
            if filling.pieces:
                self._close(side, crew, advance)
        return {
            part: [shard if isinstance(shard, Shard) else shard.result() for shard in shards]
            for part, shards in zip(PARTS, self._shards, strict=True)
        }

    def _close(self, side: int, crew: WorkerPool, advance: Advance) -> None:
        full = self._open[side]
        self._open[side] = _Open(full.number + 1)
        job = Job(f"{PARTS[side]}-{full.number:05}", full.number == 0, full.pieces, self.settings)
        shard = self._finished(job.name, full.size)
        if shard is None:
            self._shards[side].append(crew.submit(job, advance))
        else:
            self.kept += 1
            self._shards[side].append(shard)
            advance(full.size)

    def _finished(self, name: str, size: int) -> Shard | None:
        """The shard of that name, if an earlier work made it and it is whole."""
        try:
            record = json.loads(record_of(self.folder, name).read_text("utf-8"))
            if record.pop("made") != self.settings or record["bytes"] != size:
                return None
            shard = Shard.from_json(record)
            shard.check(self.folder, width(self.tokenizer.vocab_size), content=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
            return None
        return shard


def _manifest(
    text: StreamedText,
    found: Survey,
    sides: CorpusSplit,
    wish: TokenizationRequest,
    begun: dict[str, Any],
    shards: dict[str, list[Shard]],
) -> dict[str, Any]:
    skipped = text.skipped[:_MOST_SKIPPED]
    notes = [*text.notes, *sides.notes]
    if len(text.skipped) > len(skipped):
        notes.append(f"{len(text.skipped) - len(skipped):,} more files were skipped")
    return {
        "format": FORMAT,
        "kind": KIND,
        "tokenloom": tokenloom.__version__,
        "name": text.name,
        "license": text.license,
        "text": found.sha256,
        "settings": begun["settings"],
        "tokenizer": begun["tokenizer"],
        "dtype": width(begun["tokenizer"]["vocab_size"]),
        "newlines": wish.newlines,
        "borders": begun["tokenizer"]["borders"],
        "split": sides.how,
        "report": {
            "facts": {
                "distinct_characters": len(found.alphabet),
                "unseen_characters": {},
                "longest": list(found.longest),
                "duplicates": found.duplicates,
                "duplicate_share": found.repeated / found.characters,
            },
            "skipped": [list(one) for one in skipped],
            "notes": notes,
        },
        "parts": {part: [asdict(shard) for shard in shards[part]] for part in PARTS},
    }
