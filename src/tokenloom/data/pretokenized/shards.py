"""The files of a pretokenized corpus: writing a shard, the manifest, and the ids as one memory-mapped sequence.

A folder contains `manifest.json`, `tokenizer.json`, and shards per part (training, validation). `training-00000.ids`
has the ids, little-endian, two bytes each for a vocabulary of up to 65,536 and four bytes above. The file
`training-00000.starts` has the indices of ids at which documents start, eight bytes each. The manifest has the SHA-256
of every file and of itself. It is written last: a folder without it is not finished.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.samples import fingerprint_of
from tokenloom.errors import UserError
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer
from tokenloom.tokenizers.text import load_tokenizer
from tokenloom.utils.files import atomic_path, file_sha256, sha256, write_bytes, write_json

FORMAT = 1
KIND = "tokenloom tokens"
MANIFEST, UNFINISHED, TOKENIZER = "manifest.json", "unfinished.json", "tokenizer.json"
PARTS = ("training", "validation")
_MAX_OPEN = 64  # Shards that are mapped at a time.
_HEAD = 1 << 10


def id_dtype(vocab_size: int) -> str:
    """Return the narrowest NumPy type for ids of a vocabulary."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def self_hash(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its entry `sha256`."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")))


@dataclass(frozen=True)
class Shard:
    """A file of ids, and its counts. documents: those that start in it. unknown: ids of the unknown token."""

    file: str
    tokens: int
    sha256: str
    starts: str
    starts_sha256: str
    documents: int
    characters: int
    bytes: int
    lines: int
    unknown: int

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the inverse of `asdict`. Raises TypeError for other fields or types."""
        shard = cls(**data)
        if any(type(value) is not (str if name in _TEXTS else int) for name, value in asdict(shard).items()):
            raise TypeError(f"the shard {shard.file!r} has a wrong entry")
        return shard

    def check(self, folder: Path, dtype: str, *, content: bool) -> None:
        """Raise UserError, naming the file, for a missing or truncated file; with `content`, for an altered one."""
        ids, starts = folder / self.file, folder / self.starts
        for path, size in ((ids, self.tokens * np.dtype(dtype).itemsize), (starts, 8 * self.documents)):
            try:
                found = path.stat().st_size
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
            if found != size:
                raise UserError(f"{path}: has {found:,} bytes and should have {size:,}: truncated or altered; {_AGAIN}")
        if content:
            for path, expected in ((ids, self.sha256), (starts, self.starts_sha256)):
                if _hash_of(path) != expected:
                    raise UserError(f"{path}: altered or damaged (its SHA-256 is not that of the manifest); {_AGAIN}")


_TEXTS = ("file", "sha256", "starts", "starts_sha256")
_AGAIN = "tokenloom data tokenize --overwrite makes it again"


def _hash_of(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


@dataclass
class ShardJob:
    """A shard to be written.

    first: whether it is the first of its part. chunks: (UTF-8, whether a document starts, whether it ends). settings:
    kept in the record.
    """

    name: str
    first: bool
    chunks: list[tuple[bytes, bool, bool]]
    settings: dict[str, Any]


def record_path(folder: Path, name: str) -> Path:
    """Return the file with the entry of a shard until the manifest is written; with it the shard counts as finished."""
    return folder / f"{name}.json"


def write_shard(folder: Path, tokenizer: TextTokenizer, job: ShardJob) -> Shard:
    """Tokenize the chunks of a job, and write its files. The end token stands before and after every document."""
    dtype, end, unknown = id_dtype(tokenizer.vocab_size), end_of(tokenizer), tokenizer.specials.get(UNKNOWN)
    path = folder / f"{job.name}.ids"
    counts = Counter(dict.fromkeys(("tokens", "documents", "characters", "bytes", "lines", "unknown"), 0))
    starts: list[int] = []
    digest = hashlib.sha256()
    with atomic_path(path, shared=True) as part, part.open("wb") as file:

        def write(ids: NDArray[Any]) -> None:
            raw = ids.astype(dtype).tobytes()
            file.write(raw)
            digest.update(raw)
            counts["tokens"] += len(ids)

        border = np.array([] if end is None else [end])
        if job.first:
            write(border)
        for raw, first, last in job.chunks:
            text = raw.decode()
            if first:
                starts.append(counts["tokens"])
                counts["documents"] += 1
            counts["characters"] += len(text)
            counts["bytes"] += len(raw)
            counts["lines"] += text.count("\n") + (last and not text.endswith("\n"))
            ids = tokenizer.encode(text)
            if unknown is not None:
                counts["unknown"] += int((ids == unknown).sum())
            write(ids)
            if last:
                write(border)
    starts_raw = np.array(starts, dtype="<i8").tobytes()
    starts_path = path.with_suffix(".starts")
    write_bytes(starts_path, starts_raw, shared=True)
    shard = Shard(
        file=path.name,
        sha256=digest.hexdigest(),
        starts=starts_path.name,
        starts_sha256=sha256(starts_raw),
        **counts,
    )
    write_json(record_path(folder, job.name), {**asdict(shard), "settings": job.settings}, shared=True)
    return shard


class ShardedIds:
    """The ids of one part as one sequence of memory maps: only what is indexed is read.

    The SHA-256 of a shard is checked when it is first read, so that nothing is trained on an altered one.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: str) -> None:
        self.folder, self.shards, self.dtype = folder, tuple(shards), np.dtype(dtype)
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self._maps: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: NDArray[np.int64] | slice) -> NDArray[Any]:
        """Return the ids at some positions, in the shape of `index`, or a slice. Raises UserError as `Shard.check`."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)), dtype=np.int64)
        flat = np.ravel(index)
        taken = np.empty(flat.shape, dtype=self.dtype)
        which = np.searchsorted(self._ends, flat, side="right")
        for number in np.unique(which).tolist():
            here = which == number
            begin = int(self._ends[number]) - self.shards[number].tokens
            taken[here] = self._map(number)[flat[here] - begin]
        return taken.reshape(np.shape(index))

    def _map(self, number: int) -> NDArray[Any]:
        shard = self.shards[number]
        if number not in self._checked:
            shard.check(self.folder, self.dtype.str, content=True)
            self._checked.add(number)
        if number not in self._maps:
            if len(self._maps) >= _MAX_OPEN:
                self._maps.popitem(last=False)
            self._maps[number] = np.memmap(self.folder / shard.file, dtype=self.dtype, mode="r")
        self._maps.move_to_end(number)
        return self._maps[number]

    def starts(self) -> NDArray[np.int64]:
        """Return the positions at which documents start."""
        begins = self._ends - [shard.tokens for shard in self.shards]
        parts = [np.fromfile(self.folder / shard.starts, dtype="<i8") for shard in self.shards]
        return np.concatenate([part + begin for part, begin in zip(parts, begins, strict=True)]).astype(np.int64)

    def fingerprint(self) -> str:
        """Return a hash of all ids, computed from the hashes of the shards without reading them."""
        return fingerprint_of([self.dtype.str, *((shard.sha256, shard.tokens) for shard in self.shards)])


@dataclass(frozen=True)
class PretokenizedCorpus:
    """A finished folder. content: the manifest."""

    folder: Path
    content: dict[str, Any]

    def shards(self, part: str) -> list[Shard]:
        """Return the shards of a part, in order."""
        return [Shard.from_json(data) for data in self.content["parts"][part]]

    def total(self, part: str, what: str) -> int:
        """Return the sum of a count over the shards of a part."""
        return sum(int(data[what]) for data in self.content["parts"][part])

    def ids(self, part: str) -> ShardedIds:
        """Return the ids of a part as one sequence."""
        return ShardedIds(self.folder, self.shards(part), self.content["dtype"])

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer. Raises UserError when it is not the one that made the ids."""
        path = self.folder / TOKENIZER
        tokenizer = load_tokenizer(path)
        if tokenizer.fingerprint() != self.content["tokenizer"]["fingerprint"]:
            raise UserError(f"{path}: not the tokenizer that made these ids; {_AGAIN}")
        tokenizer.reason, tokenizer.notes = (
            self.content["tokenizer"]["reason"],
            list(self.content["tokenizer"]["notes"]),
        )
        return tokenizer

    def all_ids(self) -> ShardedIds:
        """Return the ids of the training part, then those of the validation part."""
        return ShardedIds(self.folder, [shard for part in PARTS for shard in self.shards(part)], self.content["dtype"])

    @property
    def separate_documents(self) -> bool:
        """Whether an end token stands between documents."""
        return bool(self.content["separate_documents"])

    def check(self, *, content: bool = True) -> int:
        """Check every file against the manifest; return the number of shards. Raises UserError naming the first file
        that is missing, truncated or (with `content`) altered."""
        if content:
            self.tokenizer()
        shards = [shard for part in PARTS for shard in self.shards(part)]
        for shard in shards:
            shard.check(self.folder, self.content["dtype"], content=content)
        return len(shards)


def is_marked(folder: Path, name: str) -> bool:
    """Return whether a file is one of ours: another program's may have the same name."""
    try:
        with (folder / name).open("rb") as file:
            return json.dumps(KIND).encode() in file.read(_HEAD)
    except OSError:
        return False


def is_corpus(folder: Path) -> bool:
    """Return whether a folder contains a pretokenized corpus, finished or not, intact or not."""
    return is_marked(folder, MANIFEST) or is_marked(folder, UNFINISHED) or (folder / f"{PARTS[0]}-00000.ids").is_file()


def open_pretokenized(given: str | Path) -> PretokenizedCorpus | None:
    """Return the pretokenized corpus in a folder, or None where there is none.

    Sizes are checked now, contents when they are read. Raises UserError when the manifest or a file is damaged, and for
    an unfinished folder.
    """
    folder = Path(given)
    if not is_corpus(folder):
        return None
    if not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder}: its tokenization was not finished; the same tokenloom data tokenize command continues it"
        )
    corpus = PretokenizedCorpus(folder, read_manifest(folder / MANIFEST))
    corpus.check(content=False)
    return corpus


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises UserError when it is damaged or of another format."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"{path}: format {content['format']}; this tokenloom reads format {FORMAT}")
        if content["sha256"] != self_hash(content):
            raise ValueError("its content does not match its own SHA-256")
        for part in PARTS:
            for data in content["parts"][part]:
                Shard.from_json(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}); {_AGAIN}") from None
    assert isinstance(content, dict)
    return content


def end_of(tokenizer: TextTokenizer) -> int | None:
    """Return the id that stands between documents, if the tokenizer has one."""
    return tokenizer.specials.get(END)
