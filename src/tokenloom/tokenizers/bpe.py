"""Byte-pair encoding: tokens made by merging the most frequent pair of tokens again and again.

Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), on characters;
Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2, on bytes.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np

from tokenloom.errors import UserError
from tokenloom.kernels.loader import library
from tokenloom.tokenizers.base import (
    UNKNOWN,
    Ids,
    TextTokenizer,
    alphabet_of,
    as_texts,
    letters,
    unseen_error,
    utf8_length,
    with_unknown,
)
from tokenloom.tokenizers.bpe_kernel import NativeEncoder
from tokenloom.tokenizers.bpe_training import Ties, train_merges
from tokenloom.tokenizers.pretokenize import SCRIPTED, SPACED, certain_border, chunk_blocks, count_chunks

Pair = tuple[int, int]
BYTES = [bytes([byte]) for byte in range(256)]
# Distinct chunks whose ids are remembered; about 60 MB of short chunks.
MOST_CHUNKS = 1 << 18


class _Merging(TextTokenizer):
    """What both kinds share: ids 0 … A−1 are the alphabet, id A+m is made by merge m from two earlier ids.

    Encoding cuts the text into chunks, and in each chunk applies the merges in the order in which they were learned,
    each from left to right. A chunk that was met before is looked up.
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
        self._engine: Any = None
        self._native: NativeEncoder | None = None
        self._known: dict[str, tuple[int, ...]] = {}

    @property
    def merges_done(self) -> int:
        """How many merges were made; fewer than asked for when no pair of tokens occurred twice any more."""
        return len(self.merges)

    @staticmethod
    @abstractmethod
    def _engine_text(data: bytes) -> str:
        """The bytes of a token or chunk as the engine sees them: one character for each letter of the alphabet."""

    @abstractmethod
    def _encode_chunk(self, chunk: str) -> list[int]:
        """The ids of a chunk that was not met before."""

    def encode(self, text: str) -> Ids:
        utf8_length(text)
        if library("bpe") is not None:
            if self._native is None:
                self._native = self._load_native()
            if self._native is not None and (ids := self._native.encode(text)) is not None:
                return ids
        blocks = [self._encode_block(chunks) for chunks in chunk_blocks(self._chunks, text)]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int32)

    @abstractmethod
    def _load_native(self) -> NativeEncoder | None:
        """The compiled encoder for these merges, where there is one."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes a compiled encoder of its own.
        return {**self.__dict__, "_native": None}

    def cut(self, text: str) -> int:
        return certain_border(self._chunks, text)

    def _encode_block(self, chunks: list[str]) -> Ids:
        known = self._known
        new = set(chunks).difference(known)
        if len(known) + len(new) > MOST_CHUNKS:
            known, new = {}, set(chunks)
            self._known = known if len(new) <= MOST_CHUNKS else {}
        for chunk in new:
            known[chunk] = tuple(self._encode_chunk(chunk))
        return np.fromiter(chain.from_iterable(map(known.__getitem__, chunks)), dtype=np.int32)

    def _run_engine(self, text: str) -> list[int]:
        if self._engine is None:
            self._engine = self._load_engine()
        return [token.id for token in self._engine.tokenize(text)]

    def _load_engine(self) -> Any:
        from tokenizers.models import BPE as Engine

        names = [self._engine_text(piece) for piece in self._table]
        vocab = {name: i for i, name in enumerate(names)}
        return Engine(vocab=vocab, merges=[(names[a], names[b]) for a, b in self.merges])

    def _content(self) -> dict[str, Any]:
        return {"merges": [[escaped(self._table[a]), escaped(self._table[b])] for a, b in self.merges]}


class BPE(_Merging):
    """Byte-pair encoding on characters, by the rule of the chapter.

    A chunk is one optional whitespace character and the non-space run after it, or one whitespace character; so no
    pair is merged whose second token starts with whitespace. The most frequent pair goes first. Characters that are
    not in the alphabet are refused by name, or become "unknown" when the tokenizer was trained with it.
    """

    kind = "bpe"
    _keys = ("characters", "merges")
    _chunks = SPACED

    def __init__(self, characters: Sequence[str], merges: Sequence[Pair], specials: Sequence[str] = ()) -> None:
        """`characters` are distinct and sorted by code point; use `train` to learn the merges from a text."""
        super().__init__([char.encode() for char in characters], merges, specials)
        self._alphabet = {char: i for i, char in enumerate(characters)}

    @classmethod
    def train(
        cls,
        texts: str | Iterable[str],
        *,
        merges: int | None = None,
        size: int | None = None,
        ties: Ties = "first",
        alphabet: Iterable[str] = (),
        specials: Sequence[str] = (),
        unknown: bool = False,
    ) -> "BPE":
        """Learn `merges` merges, or as many as make `size` tokens (the special ones come on top).

        `alphabet` names characters (or texts full of them) to include though the texts may lack them. Of pairs
        equally frequent, ties="first" takes the one met first in the texts as they stand after the merges so far
        (by the place of its first token), "id" the one with the smallest pair of ids, the rule of the package
        `tokenizers`. Pairs are counted where they overlap: "aaa" holds (a, a) twice. Training ends early when no
        pair occurs twice; `merges_done` and `notes` say so. Raises UserError for a size below the alphabet.
        """
        texts = as_texts(texts)
        counts = count_chunks(SPACED, texts)
        characters = sorted(set(letters(alphabet)).union(*counts))
        wanted = _wanted(merges, size, len(characters), "characters of the text")
        learned = train_merges(counts, characters, wanted, ties)
        tokenizer = cls(characters, learned, with_unknown(specials, unknown))
        tokenizer.notes += _early(len(learned), wanted)
        return tokenizer

    def unseen(self, text: str) -> list[str]:
        return [char for char in dict.fromkeys(text) if char not in self._alphabet]

    def encode(self, text: str) -> Ids:
        try:
            return super().encode(text)
        except _UnseenError:
            raise unseen_error(self.unseen(text)) from None

    def _load_native(self) -> NativeEncoder | None:
        return NativeEncoder.of(list(self._alphabet), len(self._alphabet), self.merges, self.specials.get(UNKNOWN, -1))

    @staticmethod
    def _engine_text(data: bytes) -> str:
        return data.decode()

    def _encode_chunk(self, chunk: str) -> list[int]:
        # The engine drops a character without a token, so it must never see one.
        if not self._alphabet.keys() >= set(chunk):
            return self._encode_with_unknown(chunk)
        return self._run_engine(chunk)

    def _encode_with_unknown(self, chunk: str) -> list[int]:
        if UNKNOWN not in self.specials:
            raise _UnseenError
        ids: list[int] = []
        start = 0
        for i, char in enumerate(chunk):
            if char not in self._alphabet:
                ids += [*self._run_engine(chunk[start:i]), self.specials[UNKNOWN]]
                start = i + 1
        return ids + self._run_engine(chunk[start:])

    def _content(self) -> dict[str, Any]:
        return {"characters": "".join(self._alphabet), **super()._content()}

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        characters = alphabet_of(content)
        return cls(characters, _pairs(content["merges"], [char.encode() for char in characters]), specials)


class ByteBPE(_Merging):
    """Byte-pair encoding on the UTF-8 bytes of any text: nothing is ever unseen, and every text round-trips.

    The chunks are those of `tokens.chunks.SCRIPTED`, a rule for every script. Ids 0 … 255 are the bytes.
    """

    kind = "byte-bpe"
    _keys = ("merges",)
    _chunks = SCRIPTED

    def __init__(self, merges: Sequence[Pair], specials: Sequence[str] = ()) -> None:
        """Use `train` to learn the merges from a text."""
        super().__init__(BYTES, merges, specials)

    @classmethod
    def train(
        cls, texts: str | Iterable[str], size: int, *, ties: Ties = "id", specials: Sequence[str] = ()
    ) -> "ByteBPE":
        """Learn merges until there are `size` tokens, the 256 bytes included; special tokens come on top.

        `ties` and the early end as in `BPE.train`. Raises UserError for a size below 256.
        """
        counts = count_chunks(SCRIPTED, as_texts(texts))
        words = {cls._engine_text(chunk.encode()): count for chunk, count in counts.items()}
        wanted = _wanted(None, size, len(BYTES), "bytes")
        learned = train_merges(words, [cls._engine_text(byte) for byte in BYTES], wanted, ties)
        tokenizer = cls(learned, specials)
        tokenizer.notes += _early(len(learned), wanted)
        return tokenizer

    def unseen(self, text: str) -> list[str]:
        return []

    def _load_native(self) -> NativeEncoder | None:
        return NativeEncoder.of(None, len(BYTES), self.merges, -1)

    @staticmethod
    def _engine_text(data: bytes) -> str:
        return data.decode("latin-1")

    def _encode_chunk(self, chunk: str) -> list[int]:
        return self._run_engine(self._engine_text(chunk.encode()))

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        return cls(_pairs(content["merges"], BYTES), specials)


class _UnseenError(Exception):
    """A chunk holds a character without a token; the text it comes from names them all."""


def escaped(data: bytes) -> str:
    """Bytes as readable text: \\xNN for a byte that is part of no character, and \\\\ for a backslash."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescaped(text: str) -> bytes:
    """The inverse of `escaped`."""

    def plain(match: re.Match[bytes]) -> bytes:
        return b"\\" if match[1] is None else bytes.fromhex(match[1].decode())

    return re.sub(rb"\\(?:x([0-9a-f]{2})|\\)", plain, text.encode())


def _pairs(value: object, alphabet: Sequence[bytes]) -> list[Pair]:
    """The merges of a file as pairs of ids. Raises UserError with the first that cannot be."""
    if not isinstance(value, list):
        raise UserError("'merges' is not a list")
    ids = {piece: i for i, piece in enumerate(alphabet)}
    pairs: list[Pair] = []
    for number, item in enumerate(value, start=1):
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
            raise UserError(f"merge {number} is not a pair of strings")
        utf8_length(item[0] + item[1])
        a, b = unescaped(item[0]), unescaped(item[1])
        if a not in ids or b not in ids:
            raise UserError(f"merge {number} joins {item[0]!r} and {item[1]!r}, of which one is no token yet")
        if a + b in ids:
            raise UserError(f"merge {number} of {item[0]!r} and {item[1]!r} makes a token that there is already")
        ids[a + b] = len(ids)
        pairs.append((ids[a], ids[b]))
    return pairs


def _wanted(merges: int | None, size: int | None, least: int, what: str) -> int:
    if (merges is None) == (size is None):
        raise ValueError("give either merges or size, not both")
    if size is not None and size < least:
        raise UserError(f"a vocabulary of {size:,} is less than the {least:,} {what}, each of which needs a token")
    if merges is not None and merges < 0:
        raise UserError(f"merges {merges} is negative; 0 keeps single characters")
    return merges if merges is not None else (size or 0) - least


def _early(done: int, wanted: int) -> list[str]:
    if done == wanted:
        return []
    return [f"Merging ended after {done:,} of {wanted:,} merges: no pair of tokens occurs twice any more."]
