"""Byte-pair encoding, fast: `BPE` on the characters of a text, `ByteBPE` on its UTF-8 bytes.

Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), on characters;
Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2, on bytes.
`bpe_reference.py` shows the algorithm in its simplest form.

Merges are learned by the package `tokenizers`. Encoding is one call of compiled code (`kernels/bpe.cpp`), or, without a
C++ compiler, done by `tokenizers` chunk by chunk, seven to ten times slower.
"""

from __future__ import annotations

import ctypes
import json
import re
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby, repeat
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import UserError
from tokenloom.kernels.loader import library
from tokenloom.tokenizers import bpe_reference
from tokenloom.tokenizers.base import (
    UNKNOWN,
    Ids,
    TextTokenizer,
    check_alphabet,
    check_texts,
    read_alphabet,
    unseen_error,
    utf8_length,
    with_unknown,
)
from tokenloom.tokenizers.bpe_reference import Pair, Ties
from tokenloom.tokenizers.pretokenize import (
    BLOCK,
    CLASSES,
    SCRIPTED,
    SPACED,
    chunk_blocks,
    count_chunks,
    safe_split,
)

BYTES = [bytes([byte]) for byte in range(256)]
CACHED_CHUNKS = 1 << 18  # Without compiled code: chunks whose ids are cached, about 60 MB.
# The time of the trainer of `tokenizers` grows with the square of a chunk's length, that of the reference does not.
LONGEST_CHUNK = 4096
# Code points past the first plane that a class names lie in these; all others are letters.
_HIGH_CODES = (range(0x1F000, 0x20000), range(0xE0000, 0xE1000))


class _MergingTokenizer(TextTokenizer):
    """Shared by both kinds: ids 0 … A−1 are the alphabet, id A+m is made by merge m from two earlier ids.

    Encoding splits the text into chunks and applies the merges within each, in the order in which they were learned.
    """

    _chunks: ClassVar[re.Pattern[str]]

    def __init__(self, alphabet: list[bytes], merges: Sequence[Pair], specials: Sequence[str]) -> None:
        table = list(alphabet)
        for a, b in merges:
            table.append(table[a] + table[b])
        if len(set(table)) < len(table):
            raise ValueError("two tokens of the alphabet and the merges have the same text")
        super().__init__(table, specials)
        self.merges: list[Pair] = list(merges)
        self._native: NativeEncoder | None = None
        self._encode_chunk: Callable[[str], list[int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy builds its own encoders.
        return {**self.__dict__, "_native": None, "_encode_chunk": None}

    @staticmethod
    @abstractmethod
    def _library_text(data: bytes) -> str:
        """Return a token or chunk as the package `tokenizers` gets it: one character per letter of the alphabet."""

    @abstractmethod
    def _load_native(self) -> NativeEncoder | None:
        """Return the compiled encoder of these merges, or None where there is none."""

    def encode(self, text: str) -> Ids:
        utf8_length(text)
        if library("bpe") is not None:
            self._native = self._native or self._load_native()
            if self._native is not None and (ids := self._native.encode(text)) is not None:
                return ids
        if UNKNOWN not in self.specials and (unseen := self.unseen(text)):
            raise unseen_error(unseen)
        self._encode_chunk = self._encode_chunk or self._library_encoder()
        blocks = [
            np.fromiter(chain.from_iterable(map(self._encode_chunk, chunks)), dtype=np.int32)
            for chunks in chunk_blocks(self._chunks, text)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int32)

    def _library_encoder(self) -> Callable[[str], list[int]]:
        """Return the function chunk → ids of the package `tokenizers`, with a cache."""
        from tokenizers.models import BPE as LibraryBPE

        names = [self._library_text(piece) for piece in self._table]
        ids = {name: i for i, name in enumerate(names)}
        model = LibraryBPE(vocab=ids, merges=[(names[a], names[b]) for a, b in self.merges])

        @lru_cache(CACHED_CHUNKS)
        def encode_chunk(chunk: str) -> list[int]:
            found: list[int] = []
            # The library drops characters without a token, so it must not see them.
            for known, chars in groupby(self._library_text(chunk.encode()), ids.__contains__):
                part = "".join(chars)
                tokens = [token.id for token in model.tokenize(part)] if known else [self.specials[UNKNOWN]] * len(part)
                found += tokens
            return found

        return encode_chunk

    def safe_split(self, text: str) -> int:
        return safe_split(self._chunks, text)

    def _content(self) -> dict[str, Any]:
        return {"merges": [[escape(self._table[a]), escape(self._table[b])] for a, b in self.merges]}


class BPE(_MergingTokenizer):
    """Byte-pair encoding on characters.

    A chunk is one optional whitespace character and the non-space run after it, or one whitespace character; so no
    pair is merged whose second token starts with whitespace. Characters that are not in the alphabet are refused by
    name, or become "unknown" when the tokenizer was trained with that token.
    """

    kind = "bpe"
    _keys = ("characters", "merges")
    _chunks = SPACED

    def __init__(self, characters: Sequence[str], merges: Sequence[Pair], specials: Sequence[str] = ()) -> None:
        """characters: distinct, sorted by code point. Use `train` to learn the merges from a text."""
        super().__init__([char.encode() for char in characters], merges, specials)
        self._alphabet = {char: i for i, char in enumerate(characters)}

    @classmethod
    def train(
        cls,
        texts: str | Iterable[str],
        *,
        num_merges: int | None = None,
        vocab_size: int | None = None,
        ties: Ties = "id",
        alphabet: Iterable[str] = (),
        specials: Sequence[str] = (),
        unknown: bool = False,
    ) -> BPE:
        """Learn `num_merges` merges, or as many as make `vocab_size` tokens (special tokens are added on top).

        alphabet: characters (or texts) to include though the training texts may lack them. ties: which of several
        equally frequent pairs is merged first, see `bpe_reference.train`; "id" is the rule of the package `tokenizers`,
        "first" is slow. Training ends early when no pair occurs twice; `notes` says so. Raises UserError for a size
        below the alphabet's.
        """
        texts = check_texts(texts)
        counts = count_chunks(SPACED, texts)
        characters = sorted(set(check_alphabet(alphabet)).union(*counts))
        num_merges = _number_of_merges(num_merges, vocab_size, len(characters), "characters of the text")
        merges = train_merges(counts, characters, num_merges, ties)
        tokenizer = cls(characters, merges, with_unknown(specials, unknown))
        tokenizer.notes += _early_end(len(merges), num_merges)
        return tokenizer

    def unseen(self, text: str) -> list[str]:
        return [char for char in dict.fromkeys(text) if char not in self._alphabet]

    def _load_native(self) -> NativeEncoder | None:
        return NativeEncoder.load(list(self._alphabet), self.merges, self.specials.get(UNKNOWN, -1))

    @staticmethod
    def _library_text(data: bytes) -> str:
        return data.decode()

    def _content(self) -> dict[str, Any]:
        return {"characters": "".join(self._alphabet), **super()._content()}

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        characters = read_alphabet(content)
        return cls(characters, _read_merges(content["merges"], [char.encode() for char in characters]), specials)


class ByteBPE(_MergingTokenizer):
    """Byte-pair encoding on the UTF-8 bytes of any text: nothing is unseen, and every text round-trips.

    Chunks follow the rule `pretokenize.SCRIPTED`, which serves every script. Ids 0 … 255 are the bytes.
    """

    kind = "byte-bpe"
    _keys = ("merges",)
    _chunks = SCRIPTED

    def __init__(self, merges: Sequence[Pair], specials: Sequence[str] = ()) -> None:
        """Use `train` to learn the merges from a text."""
        super().__init__(BYTES, merges, specials)

    @classmethod
    def train(
        cls, texts: str | Iterable[str], vocab_size: int, *, ties: Ties = "id", specials: Sequence[str] = ()
    ) -> ByteBPE:
        """Learn merges until there are `vocab_size` tokens, the 256 bytes included; special tokens are added on top.

        ties, early end: as in `BPE.train`. Raises UserError for a size below 256.
        """
        counts = count_chunks(SCRIPTED, check_texts(texts))
        num_merges = _number_of_merges(None, vocab_size, len(BYTES), "bytes")
        as_bytes = {cls._library_text(chunk.encode()): count for chunk, count in counts.items()}
        merges = train_merges(as_bytes, [cls._library_text(byte) for byte in BYTES], num_merges, ties)
        tokenizer = cls(merges, specials)
        tokenizer.notes += _early_end(len(merges), num_merges)
        return tokenizer

    def unseen(self, text: str) -> list[str]:
        return []

    def _load_native(self) -> NativeEncoder | None:
        return NativeEncoder.load(None, self.merges, -1)

    @staticmethod
    def _library_text(data: bytes) -> str:
        return data.decode("latin-1")

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        return cls(_read_merges(content["merges"], BYTES), specials)


def train_merges(counts: Mapping[str, int], alphabet: Sequence[str], num_merges: int, ties: Ties) -> list[Pair]:
    """Learn merges as `bpe_reference.train` does; by the package `tokenizers` where its rule is asked for."""
    if ties not in ("first", "id"):
        raise ValueError(f"ties must be 'first' or 'id', not {ties!r}")
    if num_merges == 0 or not counts:
        return []
    if ties == "first" or max(map(len, counts)) > LONGEST_CHUNK:
        return bpe_reference.train(counts.items(), alphabet, num_merges, ties)
    from tokenizers import Tokenizer
    from tokenizers.models import BPE as LibraryBPE
    from tokenizers.trainers import BpeTrainer

    trainer = BpeTrainer(
        vocab_size=len(alphabet) + num_merges, min_frequency=2, initial_alphabet=list(alphabet), show_progress=False
    )
    model = Tokenizer(LibraryBPE())
    model.train_from_iterator(chain.from_iterable(map(repeat, counts, counts.values())), trainer)
    ids = {char: i for i, char in enumerate(alphabet)}
    pairs = []
    for first, second in json.loads(model.to_str())["model"]["merges"]:
        pairs.append((ids[first], ids[second]))
        ids[first + second] = len(ids)
    return pairs


class NativeEncoder:
    """The compiled encoder of one tokenizer, with a cache of chunks. Calls from several threads wait for each other."""

    def __init__(self, lib: Any, alphabet: Sequence[str] | None, merges: Sequence[Pair], unknown: int) -> None:
        char_ids = np.zeros(0, dtype=np.int32)
        if alphabet is not None:
            char_ids = np.full(max(map(ord, alphabet), default=-1) + 1, -1, dtype=np.int32)
            char_ids[[ord(char) for char in alphabet]] = np.arange(len(alphabet))
        self._bytes = alphabet is None
        size = len(BYTES if alphabet is None else alphabet)
        pairs = np.array(merges, dtype=np.int32).reshape(-1, 2)
        self._lib = lib
        self._classes = character_classes()
        self._handle: int = lib.bpe_new(
            self._bytes,
            self._classes.ctypes.data,
            char_ids.ctypes.data,
            len(char_ids),
            unknown,
            size,
            pairs.ctypes.data,
            len(pairs),
        )
        weakref.finalize(self, lib.bpe_free, self._handle)

    @classmethod
    def load(cls, alphabet: Sequence[str] | None, merges: Sequence[Pair], unknown: int) -> NativeEncoder | None:
        """Return the encoder, or None without compiled code.

        alphabet: the characters by their ids, split by `SPACED`; None for bytes, split by `SCRIPTED`. unknown: the id
        of all other characters, or −1.
        """
        lib = library("bpe")
        return None if lib is None else cls(_typed(lib), alphabet, merges, unknown)

    def encode(self, text: str) -> Ids | None:
        """Return the ids of a text without surrogates; None where it has a character without an id."""
        blocks = [np.zeros(0, dtype=np.int32)]
        start, block = 0, BLOCK
        read = ctypes.c_int64()
        while start < len(text):
            part = text[start : start + block]
            codes = np.frombuffer(part.encode("utf-32-le"), dtype="<u4")
            most = len(part) if not self._bytes or part.isascii() else len(part.encode())
            ids = np.empty(most + 3, dtype=np.int32)
            last = start + len(part) >= len(text)
            count = self._lib.bpe_encode(
                self._handle, codes.ctypes.data, len(codes), last, ids.ctypes.data, ctypes.byref(read)
            )
            if count < 0:
                return None
            # A chunk may be longer than a block.
            block = BLOCK if read.value else 2 * block
            start += read.value
            blocks.append(ids[:count])
        return np.concatenate(blocks)


@lru_cache(maxsize=1)
def character_classes() -> NDArray[np.uint8]:
    """Return the class of each code point, (0x110000,): 0 for a letter, else 1 + its index in `CLASSES`."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for codes in (range(0x10000), *_HIGH_CODES):
        text = np.arange(codes.start, codes.stop, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
        for number, characters in enumerate(CLASSES, start=1):
            for run in re.finditer(f"[{characters}]+", text):
                table[codes.start + run.start() : codes.start + run.end()] = number
    return table


@lru_cache(maxsize=1)
def _typed(lib: Any) -> Any:
    """Set the types of the library's functions."""
    pointer, number, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    lib.bpe_new.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer, number]
    lib.bpe_new.restype = pointer
    lib.bpe_free.argtypes = [pointer]
    lib.bpe_free.restype = None
    lib.bpe_encode.argtypes = [pointer, pointer, long, ctypes.c_int, pointer, pointer]
    lib.bpe_encode.restype = long
    return lib


def escape(data: bytes) -> str:
    """Return bytes as readable text: \\xNN for a byte that is part of no character, and \\\\ for a backslash."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    """Return the inverse of `escape`."""

    def plain(match: re.Match[bytes]) -> bytes:
        return b"\\" if match[1] is None else bytes.fromhex(match[1].decode())

    return re.sub(rb"\\(?:x([0-9a-f]{2})|\\)", plain, text.encode())


def _read_merges(value: object, alphabet: Sequence[bytes]) -> list[Pair]:
    """Return the merges of a file as pairs of ids. Raises UserError with the first fault."""
    if not isinstance(value, list):
        raise UserError("'merges' is not a list")
    ids = {piece: i for i, piece in enumerate(alphabet)}
    pairs: list[Pair] = []
    for number, item in enumerate(value, start=1):
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
            raise UserError(f"merge {number} is not a pair of strings")
        utf8_length(item[0] + item[1])
        a, b = unescape(item[0]), unescape(item[1])
        if a not in ids or b not in ids:
            raise UserError(f"merge {number} joins {item[0]!r} and {item[1]!r}, one of which is not a token yet")
        if a + b in ids:
            raise UserError(f"merge {number} of {item[0]!r} and {item[1]!r} makes a token that exists already")
        ids[a + b] = len(ids)
        pairs.append((ids[a], ids[b]))
    return pairs


def _number_of_merges(num_merges: int | None, vocab_size: int | None, least: int, what: str) -> int:
    if (num_merges is None) == (vocab_size is None):
        raise ValueError("give either num_merges or vocab_size, not both")
    if vocab_size is not None and vocab_size < least:
        raise UserError(
            f"a vocabulary of {vocab_size:,} is less than the {least:,} {what}, each of which needs a token"
        )
    if num_merges is not None and num_merges < 0:
        raise UserError(f"num_merges {num_merges} is negative; 0 gives single characters")
    return num_merges if num_merges is not None else (vocab_size or 0) - least


def _early_end(done: int, wanted: int) -> list[str]:
    if done == wanted:
        return []
    return [f"Merging ended after {done:,} of {wanted:,} merges: no pair of tokens occurs twice any more."]
