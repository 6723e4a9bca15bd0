"""Tokenizers of characters and words; choosing and loading any text tokenizer. Byte-pair encoding: `bpe.py`."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import UserError
from tokenloom.tokenizers.base import (
    UNKNOWN,
    Ids,
    TextStream,
    TextTokenizer,
    check_alphabet,
    check_texts,
    read_alphabet,
    read_strings,
    surrogate_error,
    unseen_error,
    utf8_length,
    with_unknown,
)
from tokenloom.tokenizers.bpe import BPE, ByteBPE
from tokenloom.tokenizers.pretokenize import WORDS, chunk_blocks, count_chunks, safe_split
from tokenloom.utils.names import did_you_mean

__all__ = [
    "BPE",
    "TOKENIZER_KINDS",
    "ByteBPE",
    "CharTokenizer",
    "TextStream",
    "TextTokenizer",
    "WordTokenizer",
    "choose_tokenizer",
    "load_tokenizer",
    "suggested_vocab_size",
]

TOKENIZER_KINDS = ("auto", "char", "word", "bpe", "byte-bpe")
AUTO_CHARACTERS = 512  # "auto" takes characters up to this many


class CharTokenizer(TextTokenizer):
    """One id per character (code point), sorted by code point.

    Characters not seen in training become the special token "unknown" if the tokenizer has it, else they are refused
    by name.
    """

    kind = "char"
    _keys = ("characters",)

    def __init__(self, characters: Sequence[str], specials: Sequence[str] = ()) -> None:
        """`characters` are distinct and sorted by code point; use `train` to find them in a text."""
        super().__init__([char.encode() for char in characters], specials)
        self._codes = np.array([ord(char) for char in characters], dtype=np.uint32)
        # One entry per code point up to the last known one, and one for all above.
        self._ids = np.full(int(self._codes[-1]) + 2, self.specials.get(UNKNOWN, -1), dtype=np.int32)
        self._ids[self._codes] = np.arange(len(characters), dtype=np.int32)

    @classmethod
    def train(
        cls,
        texts: str | Iterable[str],
        *,
        alphabet: Iterable[str] = (),
        specials: Sequence[str] = (),
        unknown: bool = False,
    ) -> "CharTokenizer":
        """Build the tokenizer of all characters of the texts.

        alphabet: characters (or texts) to include though the training texts may lack them. unknown: add the special
        token "unknown", for all other characters.
        """
        return cls(sorted(set(check_alphabet(alphabet)).union(*check_texts(texts))), with_unknown(specials, unknown))

    def encode(self, text: str) -> Ids:
        try:
            codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        except UnicodeEncodeError as error:
            raise surrogate_error(text, error) from None
        ids: Ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        if ids.size and ids.min() < 0:
            raise unseen_error(self.unseen(text))
        return ids

    def unseen(self, text: str) -> list[str]:
        known = set(map(chr, self._codes.tolist()))
        return [char for char in dict.fromkeys(text) if char not in known]

    def decode(self, ids: ArrayLike, *, specials: bool = False) -> str:
        array = self._check_ids(ids)
        if specials and array.size and array.max() >= len(self._table):
            return super().decode(array, specials=True)
        codes: NDArray[np.uint32] = self._codes[array[array < len(self._table)]]
        return codes.astype("<u4").tobytes().decode("utf-32-le")

    def _content(self) -> dict[str, Any]:
        return {"characters": "".join(map(chr, self._codes.tolist()))}

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        return cls(read_alphabet(content), specials)


class WordTokenizer(TextTokenizer):
    """One id per word, symbol or run of whitespace (the rule `pretokenize.WORDS`); all others are "unknown".

    Text of known words round-trips exactly. An unknown word decodes to nothing and counts 0 bytes.
    """

    kind = "word"
    _keys = ("words",)

    def __init__(self, words: Sequence[str], specials: Sequence[str] = (UNKNOWN,)) -> None:
        """words: in the order of their ids. specials: must contain "unknown"."""
        if UNKNOWN not in specials:
            raise ValueError('a word tokenizer needs the special token "unknown"')
        super().__init__([word.encode() for word in words], specials)
        self._ids = {word: i for i, word in enumerate(words)}

    @classmethod
    def train(cls, texts: str | Iterable[str], vocab_size: int, *, specials: Sequence[str] = ()) -> "WordTokenizer":
        """Keep the `vocab_size` most frequent words, ties by first appearance; special tokens are added on top."""
        if vocab_size < 1:
            raise UserError(f"a vocabulary of {vocab_size} has no word; it must be at least 1")
        counts = count_chunks(WORDS, check_texts(texts))
        words = sorted(counts, key=counts.__getitem__, reverse=True)[:vocab_size]
        tokenizer = cls(words, with_unknown(specials, True))
        if len(words) < vocab_size:
            tokenizer.notes.append(f"The text has only {len(words):,} distinct words, not {vocab_size:,}.")
        return tokenizer

    def encode(self, text: str) -> Ids:
        utf8_length(text)
        known, unknown = self._ids, self.specials[UNKNOWN]
        blocks = [
            np.fromiter((known.get(word, unknown) for word in words), np.int32, len(words))
            for words in chunk_blocks(WORDS, text)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int32)

    def safe_split(self, text: str) -> int:
        return safe_split(WORDS, text)

    def unseen(self, text: str) -> list[str]:
        words = count_chunks(WORDS, [text])
        return [word for word in words if word not in self._ids]

    def _content(self) -> dict[str, Any]:
        return {"words": list(self._ids)}

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        words = read_strings(content, "words")
        seen: set[str] = set()
        for i, word in enumerate(words):
            if word in seen or WORDS.findall(word) != [word]:
                raise UserError(f"word {i + 1}, {word!r}, is not a single word or is given twice")
            seen.add(word)
        if UNKNOWN not in specials:
            raise UserError("the special token 'unknown' is missing, which a word tokenizer needs")
        return cls(words, specials)


def load_tokenizer(path: str | os.PathLike[str], fingerprint: str | None = None) -> TextTokenizer:
    """Read a tokenizer that `save` wrote. fingerprint: of the tokenizer that a run was trained with.

    Raises UserError with the file and the first fault when it is missing, truncated, altered, of another format, or
    has another fingerprint.
    """
    try:
        data = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a tokenizer file: byte {error.start} is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise UserError(f"{path} is truncated or not a tokenizer file: invalid JSON at {where}") from None
    try:
        if isinstance(data, dict) and "fingerprint" not in data:
            raise UserError("the entry 'fingerprint' is missing")
        tokenizer = TextTokenizer.from_json(data)
    except UserError as error:
        raise UserError(f"{path} cannot be used as a tokenizer: {error}") from None
    if fingerprint is not None and tokenizer.fingerprint() != fingerprint:
        raise UserError(f"{path}: not the tokenizer that this run was trained with")
    return tokenizer


def suggested_vocab_size(num_bytes: int) -> int:
    """Return a vocabulary size for a text: 2·√bytes, rounded down to a multiple of 64, between 512 and 16,384."""
    size = 2 * math.isqrt(num_bytes)
    return min(max(size - size % 64, 512), 16384)


def check_choice(kind: str, vocab_size: int | None) -> None:
    """Raise UserError for a kind and size that `choose_tokenizer` refuses for any text."""
    if kind not in TOKENIZER_KINDS:
        hint = did_you_mean(kind, TOKENIZER_KINDS)
        raise UserError(f"unknown tokenizer {kind!r}{hint} ({', '.join(TOKENIZER_KINDS)})")
    if kind == "char" and vocab_size is not None:
        raise UserError(
            f"a vocabulary size ({vocab_size:,}) has no effect with 'char'; leave it out or take 'byte-bpe'"
        )


def choose_tokenizer(
    texts: str | Iterable[str],
    kind: str = "auto",
    vocab_size: int | None = None,
    specials: Sequence[str] = (),
    alphabet: Iterable[str] = (),
) -> TextTokenizer:
    """Train a tokenizer of the given kind; "auto" chooses by the texts, and `reason` of the result says why.

    "auto": char for at most 512 distinct characters and no vocab_size, else byte-bpe. vocab_size: number of tokens for
    text, special tokens are added on top; None: `suggested_vocab_size`, for "bpe" plus the alphabet. alphabet:
    characters (or texts, such as a validation text that merges should not be learned from) that "char" and "bpe"
    include though the texts may lack them. Raises UserError for an unknown kind, and for a vocab_size with "char".
    """
    check_choice(kind, vocab_size)
    texts = check_texts(texts)
    alphabet = check_alphabet(alphabet)
    num_characters = len(set(alphabet).union(*texts))
    num_bytes = sum(map(utf8_length, texts))
    few = num_characters <= AUTO_CHARACTERS
    why = "as asked"
    if kind == "auto" and vocab_size is None and few:
        kind, why = "char", f"at most {AUTO_CHARACTERS} distinct characters"
    elif kind == "auto":
        kind, why = "byte-bpe", "a size is given" if few else f"more than {AUTO_CHARACTERS} distinct characters"
    if vocab_size is None:
        vocab_size = suggested_vocab_size(num_bytes) + (num_characters if kind == "bpe" else 0)
    tokenizer: TextTokenizer
    if kind == "char":
        tokenizer = CharTokenizer.train(texts, alphabet=alphabet, specials=specials)
    elif kind == "word":
        tokenizer = WordTokenizer.train(texts, vocab_size, specials=specials)
    elif kind == "bpe":
        tokenizer = BPE.train(texts, vocab_size=vocab_size, alphabet=alphabet, specials=specials)
    else:
        tokenizer = ByteBPE.train(texts, vocab_size, specials=specials)
    tokenizer.reason = (
        f"{tokenizer.vocab_size:,} ids for {num_bytes:,} bytes with {num_characters:,} distinct characters ({why})"
    )
    return tokenizer
