"""Text tokenizers: characters, words, and the way to choose, load and rebuild any of them.

The byte-pair tokenizers live in `tokenizers/bpe.py`; they are named here too, so that this file is the one to import.
"""

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
    alphabet_of,
    as_texts,
    letters,
    strings,
    surrogate_error,
    unseen_error,
    utf8_length,
    with_unknown,
)
from tokenloom.tokenizers.bpe import BPE, ByteBPE
from tokenloom.tokenizers.pretokenize import WORDS, certain_border, chunk_blocks, count_chunks
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
    "suggested_size",
]

TOKENIZER_KINDS = ("auto", "char", "word", "bpe", "byte-bpe")
MOST_CHARACTERS = 512


class CharTokenizer(TextTokenizer):
    """One id a character (code point), ids in the order of code points.

    With an "unknown" special token, characters never seen in training become that token; without it they are
    refused by name.
    """

    kind = "char"
    _keys = ("characters",)

    def __init__(self, characters: Sequence[str], specials: Sequence[str] = ()) -> None:
        """`characters` are distinct and sorted by code point; use `train` to find them in a text."""
        super().__init__([char.encode() for char in characters], specials)
        self._codes = np.array([ord(char) for char in characters], dtype=np.uint32)
        # One entry a code point up to the last known one, and one more that stands for all above.
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
        """The tokenizer of all characters of the texts.

        `alphabet` names characters (or texts full of them) to include though the texts may lack them; `unknown` adds
        the special token that stands for all others.
        """
        return cls(sorted(set(letters(alphabet)).union(*as_texts(texts))), with_unknown(specials, unknown))

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
        return cls(alphabet_of(content), specials)


class WordTokenizer(TextTokenizer):
    """One id a word, symbol or run of whitespace (the rule `tokens.chunks.WORDS`); all others are "unknown".

    Text of kept words round-trips exactly. An unknown word decodes to nothing and counts 0 bytes.
    """

    kind = "word"
    _keys = ("words",)

    def __init__(self, words: Sequence[str], specials: Sequence[str] = (UNKNOWN,)) -> None:
        """`words` in the order of their ids; `specials` must hold "unknown"."""
        if UNKNOWN not in specials:
            raise ValueError('a tokenizer of words needs the special token "unknown"')
        super().__init__([word.encode() for word in words], specials)
        self._ids = {word: i for i, word in enumerate(words)}

    @classmethod
    def train(cls, texts: str | Iterable[str], size: int, *, specials: Sequence[str] = ()) -> "WordTokenizer":
        """Keep the `size` most frequent words, ties by first appearance; special tokens come on top of `size`."""
        if size < 1:
            raise UserError(f"a vocabulary of {size} leaves no word to keep; it must be at least 1")
        counts = count_chunks(WORDS, as_texts(texts))
        kept = sorted(counts, key=counts.__getitem__, reverse=True)[:size]
        tokenizer = cls(kept, with_unknown(specials, True))
        if len(kept) < size:
            tokenizer.notes.append(f"The text has only {len(kept):,} distinct words, not {size:,}.")
        return tokenizer

    def encode(self, text: str) -> Ids:
        utf8_length(text)
        known, unknown = self._ids, self.specials[UNKNOWN]
        blocks = [
            np.fromiter((known.get(word, unknown) for word in words), np.int32, len(words))
            for words in chunk_blocks(WORDS, text)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int32)

    def cut(self, text: str) -> int:
        return certain_border(WORDS, text)

    def unseen(self, text: str) -> list[str]:
        words = count_chunks(WORDS, [text])
        return [word for word in words if word not in self._ids]

    def _content(self) -> dict[str, Any]:
        return {"words": list(self._ids)}

    @classmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        words = strings(content, "words")
        seen: set[str] = set()
        for i, word in enumerate(words):
            if word in seen or WORDS.findall(word) != [word]:
                raise UserError(f"word {i + 1}, {word!r}, is no single word or is given twice")
            seen.add(word)
        if UNKNOWN not in specials:
            raise UserError("the special token 'unknown' is missing, which a tokenizer of words needs")
        return cls(words, specials)


def load_own_tokenizer(path: str | os.PathLike[str], fingerprint: object) -> TextTokenizer:
    """The tokenizer of a run, which keeps its fingerprint. Raises UserError as `load_tokenizer`, and for another."""
    tokenizer = load_tokenizer(path)
    if tokenizer.fingerprint() != fingerprint:
        raise UserError(f"{path}: not the tokenizer that this run was trained with")
    return tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> TextTokenizer:
    """Read a tokenizer that `save` wrote.

    Raises UserError with the file and the first fault when it is missing, cut, altered or of another format.
    """
    try:
        data = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no tokenizer file: byte {error.start} is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise UserError(f"{path} is cut or is no tokenizer file: no valid JSON at {where}") from None
    try:
        if isinstance(data, dict) and "fingerprint" not in data:
            raise UserError("the entry 'fingerprint' is missing")
        return TextTokenizer.from_json(data)
    except UserError as error:
        raise UserError(f"{path} cannot be used as a tokenizer: {error}") from None


def suggested_size(texts: Iterable[str]) -> int:
    """A vocabulary that grows with the text: 2·√bytes, cut to a multiple of 64, between 512 and 16,384."""
    return size_for(sum(map(utf8_length, texts)))


def size_for(length: int) -> int:
    """`suggested_size` for a text of that many bytes."""
    size = 2 * math.isqrt(length)
    return min(max(size - size % 64, 512), 16384)


def check_choice(kind: str, size: int | None) -> None:
    """Raise UserError for what `choose_tokenizer` refuses whatever the text."""
    if kind not in TOKENIZER_KINDS:
        hint = did_you_mean(kind, TOKENIZER_KINDS)
        raise UserError(f"there is no kind of tokenizer {kind!r}{hint} ({', '.join(TOKENIZER_KINDS)})")
    if kind == "char" and size is not None:
        raise UserError(f"a vocabulary size ({size:,}) has no effect with 'char'; leave it out or take 'byte-bpe'")


def choose_tokenizer(
    texts: str | Iterable[str],
    kind: str = "auto",
    size: int | None = None,
    specials: Sequence[str] = (),
    alphabet: Iterable[str] = (),
) -> TextTokenizer:
    """Train the tokenizer of the given kind, or the one that suits the texts; `why` of the result says which.

    "auto" takes characters when there are at most 512 distinct ones and no size is given, otherwise byte-bpe.
    `size` counts the tokens for text, special tokens come on top; None means `suggested_size`, to which kind "bpe"
    adds its alphabet. `alphabet` names characters (or texts full of them, such as a validation text from which no
    merge should be learned) that "characters" and "bpe" include though the texts may lack them. Pairs as frequent as
    each other are ordered by their ids, the fast rule. Raises UserError for an unknown kind, naming the nearest, and
    for a size with "characters", where it would have no effect.
    """
    check_choice(kind, size)
    texts = as_texts(texts)
    extra = letters(alphabet)
    found = len(set(extra).union(*texts))
    reason = "as asked"
    if kind == "auto" and size is None and found <= MOST_CHARACTERS:
        kind, reason = "char", f"at most {MOST_CHARACTERS} distinct characters"
    elif kind == "auto":
        kind = "byte-bpe"
        reason = "a size is given" if found <= MOST_CHARACTERS else f"more than {MOST_CHARACTERS} distinct characters"
    tokenizer = _train(texts, kind, size, specials, extra)
    length = sum(map(utf8_length, texts))
    tokenizer.why = f"{tokenizer.vocab_size:,} ids for {length:,} bytes with {found:,} distinct characters ({reason})"
    return tokenizer


def _train(texts: list[str], kind: str, size: int | None, specials: Sequence[str], extra: str) -> TextTokenizer:
    if kind == "char":
        return CharTokenizer.train(texts, alphabet=extra, specials=specials)
    if size is None:
        size = suggested_size(texts) + (len(set(extra).union(*texts)) if kind == "bpe" else 0)
    if kind == "word":
        return WordTokenizer.train(texts, size, specials=specials)
    if kind == "bpe":
        return BPE.train(texts, size=size, ties="id", alphabet=extra, specials=specials)
    return ByteBPE.train(texts, size, specials=specials)
