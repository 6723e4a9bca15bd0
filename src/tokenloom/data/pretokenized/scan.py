"""The first pass over a large text: what must be known of the whole before a part of it is tokenized.

It finds the readable files, the alphabet, and the length and a hash of each document. From these follow a hash of the
text and the split, which is that of `split.split` for up to `MAX_CHOSEN` documents.

Memory: 17 bytes per document, and about 300 more for each of the first `MAX_CHOSEN`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tokenloom.data.documents import DataSet, SplitKeys
from tokenloom.data.pretokenized.streaming import (
    Advance,
    Cut,
    Source,
    StreamedText,
    TextChunk,
    document_chunks,
    empty_folder_error,
)
from tokenloom.data.split import (
    LEFT_OUT,
    MIN_DOCUMENTS,
    TRAIN,
    VALIDATION,
    Sides,
    choose_by_size,
    finish,
    side_of,
    tail,
)
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

MAX_CHOSEN = 200_000
MAX_VALIDATION_CHARACTERS = 10_000_000


@dataclass
class Scan:
    """What the pass over all text has found; sizes and digests: characters and hash of each document."""

    characters: int = 0
    bytes: int = 0
    alphabet: set[str] = field(default_factory=set)
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    longest: tuple[str, int] = ("", 0)
    first_id: dict[int, str] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    duplicate_characters: int = 0
    sha256: str = ""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.sizes)

    def add(self, name: str, characters: int, size: int, digest: int) -> None:
        """Count a document."""
        self.sizes.append(characters)
        self.digests.append(digest)
        self.characters += characters
        self.bytes += size
        if characters > self.longest[1]:
            self.longest = (name, characters)


def scan_text(text: StreamedText, advance: Advance = lambda n: None) -> Scan:
    """Read all of a text once. Unreadable files of a folder are left out, and listed in `text`.

    Raises UserError for a single file that cannot be read, and when nothing is left.
    """
    found = Scan()
    wanted = set(text.held_out) if isinstance(text.held_out, tuple) else set()
    whole = hashlib.sha256()
    remarks: dict[str, list[str]] = {}
    kept: list[Source] = []
    for entry in text.entries:
        notes: list[str] = []
        part = Scan()
        names: list[tuple[str, int]] = []
        try:
            for name, digest in _documents(entry, part, notes, advance):
                if name in wanted:
                    found.named[name] = digest
                if len(names) + len(found.first_id) <= MAX_CHOSEN:
                    names.append((name, digest))
                whole.update(f"{len(name.encode())}:{name}:{digest:x}\n".encode())
        except Unreadable as error:
            if not text.folder:
                raise UserError(f"{text.given}: {error}") from None
            text.skipped.append((entry.name, str(error)))
            whole.update(b"left out\n")
            continue
        kept.append(entry)
        _join(found, part, names)
        for note in notes:
            remarks.setdefault(note, []).append(entry.name)
    text.entries = kept
    text.notes += [f"{some(files, 3)}: {note}" for note, files in remarks.items()]
    if not kept or not found.documents:
        raise empty_folder_error(text)
    _count_repeats(found)
    found.sha256 = whole.hexdigest()
    return found


def _documents(entry: Source, part: Scan, notes: list[str], advance: Advance) -> Iterator[tuple[str, int]]:
    for name, blocks in entry.documents(notes, advance):
        digest = hashlib.blake2b(digest_size=8)
        characters = size = 0
        for block in blocks:
            raw = block.encode()
            digest.update(raw)
            part.alphabet.update(block)
            characters, size = characters + len(block), size + len(raw)
        value = int.from_bytes(digest.digest(), "little")
        part.add(name, characters, size, value)
        yield name, value


def _join(found: Scan, part: Scan, names: list[tuple[str, int]]) -> None:
    found.characters += part.characters
    found.bytes += part.bytes
    found.alphabet |= part.alphabet
    found.sizes.extend(part.sizes)
    found.digests.extend(part.digests)
    if part.longest[1] > found.longest[1]:
        found.longest = part.longest
    for name, digest in names:
        found.first_id[digest] = min(found.first_id.get(digest, name), name)


def _count_repeats(found: Scan) -> None:
    digests = np.frombuffer(found.digests, dtype=np.uint64)
    first = np.unique(digests, return_index=True)[1]
    found.duplicates = found.documents - len(first)
    found.duplicate_characters = found.characters - int(np.frombuffer(found.sizes, dtype=np.uint64)[first].sum())


@dataclass
class CorpusSplit(Sides):
    """The side of every document."""

    def documents(self, side: int) -> int:
        """Return how many documents, or parts of one, are on a side."""
        return self.side.count(side) + (self.cut is not None and side == VALIDATION)

    def characters(self, side: int, found: Scan) -> int:
        """Return how many characters are on a side."""
        total = sum(size for size, one in zip(found.sizes, self.side, strict=True) if one == side)
        if self.cut is None or side == LEFT_OUT:
            return total
        number, place = self.cut
        after = found.sizes[number] - place
        return total - after if side == TRAIN else total + after

    def chunks(self, text: StreamedText, cut: Cut) -> Iterator[tuple[int, TextChunk]]:
        """Yield (side, chunk) of all text in order, without what is left out."""
        documents = (found for entry in text.entries for found in entry.documents([], lambda n: None))
        for number, (_, blocks) in enumerate(documents):
            if number >= len(self.side):
                raise UserError(f"{text.name} has changed while it was read: it has more documents")
            side = self.side[number]
            if side == LEFT_OUT:
                for _ in blocks:
                    pass
            elif self.cut is not None and self.cut[0] == number:
                for chunk in document_chunks(blocks, cut, self.cut[1]):
                    yield side, chunk
                    side = VALIDATION if chunk.last else side
            else:
                for chunk in document_chunks(blocks, cut):
                    yield side, chunk


def split_corpus(text: StreamedText, found: Scan, fraction: float | None, seed: int = 0) -> CorpusSplit:
    """Choose the validation documents by the rules of `split.split`, from what the scan has kept of the documents.

    fraction: None for a tenth, or less where that is over `MAX_VALIDATION_CHARACTERS` characters, or what the data set
    holds out. Of more than `MAX_CHOSEN` documents, each is decided by a hash of its text alone.
    """
    default = DataSet.default_fraction
    share = fraction if fraction is not None else min(default, MAX_VALIDATION_CHARACTERS / found.characters)
    own = text.held_out if fraction in (None, default) else None
    distinct = found.documents - found.duplicates
    ids = [found.first_id[digest] for digest in found.digests] if found.documents <= MAX_CHOSEN else []
    keys = SplitKeys(ids=ids, content=found.digests, sizes=found.sizes)
    if own == "tail" or (own is None and (not text.documented or distinct < MIN_DOCUMENTS)):
        return CorpusSplit(**vars(tail(text.name, keys, share)))
    if isinstance(own, tuple):
        chosen = {found.named[name] for name in own if name in found.named}
        how = f"held out by name ({some(own, 8)})"
    elif found.documents > MAX_CHOSEN:
        limit = int(share * 2**64)
        chosen = {digest for digest in found.digests if _order(seed, digest) < limit}
        how = f"whole documents, by a hash of their text with seed {seed}"
    else:
        sizes: dict[int, int] = {}
        for digest, size in zip(found.digests, found.sizes, strict=True):
            sizes[digest] = sizes.get(digest, 0) + size
        chosen = choose_by_size(sizes, found.first_id, share, seed)
        how = f"whole documents, by a hash with seed {seed}"
    notes = []
    if found.duplicates:
        notes.append(f"{counted(found.duplicates, 'repeat')} of another document, kept on the same side")
    return CorpusSplit(**vars(finish(text.name, keys, side_of(keys, chosen), how, notes)))


def _order(seed: int, digest: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{digest}".encode(), digest_size=8).digest(), "little")
