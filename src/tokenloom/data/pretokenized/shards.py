"""Tokenized text in files: the manifest that describes them, and the ids as one run that is mapped, not read.

A folder holds `manifest.json`, `tokenizer.json`, and for each part (training, validation) shards `training-00000.ids`:
the ids one after the other, little-endian, two bytes each up to 65,536 different ids and four bytes above. Beside each
shard, `training-00000.starts` says at which of its ids documents begin (eight bytes each). The manifest has the sha256
of every file and of itself. It is written last: a folder without it is not finished.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.samples import fingerprint_of
from tokenloom.errors import UserError
from tokenloom.tokenizers.base import END, TextTokenizer
from tokenloom.tokenizers.text import load_tokenizer
from tokenloom.utils.files import file_sha256, sha256

FORMAT = 1
KIND = "tokenloom tokens"
MANIFEST, UNFINISHED, TOKENIZER = "manifest.json", "unfinished.json", "tokenizer.json"
PARTS = ("training", "validation")
_OPEN = 64  # Shards that are mapped at a time.
_HEAD = 1 << 10


def width(vocab_size: int) -> str:
    """The type of ids that so many different ones need, as numpy calls it: as narrow as goes."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def self_hash(content: dict[str, Any]) -> str:
    """The sha256 of what a JSON file says, without the entry that holds it."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")))


@dataclass(frozen=True)
class Shard:
    """One file of ids, and what is known of it. `documents` begin in it; `unknown` ids are the token of that name."""

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
        """The inverse of `asdict`. Raises TypeError for another shape."""
        shard = cls(**data)
        if any(type(value) is not (str if name in _TEXTS else int) for name, value in asdict(shard).items()):
            raise TypeError(f"the shard {shard.file!r} is described wrongly")
        return shard

    def check(self, folder: Path, dtype: str, *, content: bool) -> None:
        """Raise UserError, naming the file, when it is missing or cut; and with `content`, when it was altered."""
        ids, starts = folder / self.file, folder / self.starts
        for path, size in ((ids, self.tokens * np.dtype(dtype).itemsize), (starts, 8 * self.documents)):
            try:
                found = path.stat().st_size
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
            if found != size:
                raise UserError(f"{path}: has {found:,} bytes and should have {size:,}: cut or altered; {_AGAIN}")
        if content:
            for path, expected in ((ids, self.sha256), (starts, self.starts_sha256)):
                if _hash_of(path) != expected:
                    raise UserError(f"{path}: altered or damaged (its sha256 is another than the manifest's); {_AGAIN}")


_TEXTS = ("file", "sha256", "starts", "starts_sha256")
_AGAIN = "tokenloom data tokenize makes it anew (with --overwrite)"


def _hash_of(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


class ShardedIds:
    """The ids of one part as one run, through memory maps: only what is asked for is read.

    A shard is held against its sha256 when it is first touched, so that nothing is learned from an altered one.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: str) -> None:
        self.folder, self.shards, self.dtype = folder, tuple(shards), np.dtype(dtype)
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self._maps: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: NDArray[np.int64] | slice) -> NDArray[Any]:
        """The ids at some places, in the shape of `index`; or a slice of them. Raises UserError as `Shard.check`."""
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
            if len(self._maps) >= _OPEN:
                self._maps.popitem(last=False)
            self._maps[number] = np.memmap(self.folder / shard.file, dtype=self.dtype, mode="r")
        self._maps.move_to_end(number)
        return self._maps[number]

    def starts(self) -> NDArray[np.int64]:
        """At which ids documents begin."""
        begins = self._ends - [shard.tokens for shard in self.shards]
        parts = [np.fromfile(self.folder / shard.starts, dtype="<i8") for shard in self.shards]
        return np.concatenate([part + begin for part, begin in zip(parts, begins, strict=True)]).astype(np.int64)

    def fingerprint(self) -> str:
        """A hash of all the ids, from the hashes of the shards: nothing is read."""
        return fingerprint_of([self.dtype.str, *((shard.sha256, shard.tokens) for shard in self.shards)])


@dataclass(frozen=True)
class PretokenizedCorpus:
    """A folder of tokenized text. `content` is the manifest."""

    folder: Path
    content: dict[str, Any]

    def shards(self, part: str) -> list[Shard]:
        """The shards of the training or the validation part, in order."""
        return [Shard.from_json(data) for data in self.content["parts"][part]]

    def total(self, part: str, what: str) -> int:
        """The sum of one of the counts over a part's shards."""
        return sum(int(data[what]) for data in self.content["parts"][part])

    def ids(self, part: str) -> ShardedIds:
        """The ids of a part as one run."""
        return ShardedIds(self.folder, self.shards(part), self.content["dtype"])

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer. Raises UserError when it is not the one that made the ids."""
        path = self.folder / TOKENIZER
        tokenizer = load_tokenizer(path)
        if tokenizer.fingerprint() != self.content["tokenizer"]["fingerprint"]:
            raise UserError(f"{path}: not the tokenizer that made these ids; {_AGAIN}")
        tokenizer.reason, tokenizer.notes = (
            self.content["tokenizer"]["why"],
            list(self.content["tokenizer"]["notes"]),
        )
        return tokenizer

    def all_ids(self) -> ShardedIds:
        """The ids of the training part, then those of the validation part."""
        return ShardedIds(self.folder, [shard for part in PARTS for shard in self.shards(part)], self.content["dtype"])

    @property
    def borders(self) -> bool:
        """Whether an end token stands between documents."""
        return bool(self.content["borders"])

    def check(self, *, content: bool = True) -> int:
        """Hold every file against the manifest; returns how many shards there are. Raises UserError naming the first
        that is not as it was written."""
        if content:
            self.tokenizer()
        shards = [shard for part in PARTS for shard in self.shards(part)]
        for shard in shards:
            shard.check(self.folder, self.content["dtype"], content=content)
        return len(shards)


def is_marked(folder: Path, name: str) -> bool:
    """Whether a file in a folder says that it is about tokenized text: another program's may have the same name."""
    try:
        with (folder / name).open("rb") as file:
            return json.dumps(KIND).encode() in file.read(_HEAD)
    except OSError:
        return False


def is_ours(folder: Path) -> bool:
    """Whether a folder holds tokenized text, finished or not, whole or not."""
    return is_marked(folder, MANIFEST) or is_marked(folder, UNFINISHED) or (folder / f"{PARTS[0]}-00000.ids").is_file()


def open_pretokenized(given: str | Path) -> PretokenizedCorpus | None:
    """The tokenized text in a folder, or None where there is none.

    Sizes are checked, contents only as they are read. Raises UserError when the manifest or a file is damaged, and for
    a folder whose tokenization was not finished.
    """
    folder = Path(given)
    if not is_ours(folder):
        return None
    if not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder}: its tokenization was not finished; the same tokenloom data tokenize command goes on with it"
        )
    tokenized = PretokenizedCorpus(folder, read_manifest(folder / MANIFEST))
    tokenized.check(content=False)
    return tokenized


def read_manifest(path: Path) -> dict[str, Any]:
    """What a manifest says. Raises UserError when it is damaged or of another format."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"{path}: format {content['format']}; this tokenloom reads format {FORMAT}")
        if content["sha256"] != self_hash(content):
            raise ValueError("its content does not match its own sha256")
        for part in PARTS:
            for data in content["parts"][part]:
                Shard.from_json(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}); {_AGAIN}") from None
    assert isinstance(content, dict)
    return content


def end_of(tokenizer: TextTokenizer) -> int | None:
    """The id that stands between documents, where the tokenizer has one."""
    return tokenizer.specials.get(END)
