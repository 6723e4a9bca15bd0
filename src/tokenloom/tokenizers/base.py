"""What every text tokenizer offers, and what they share: decoding, streaming, saving."""

import codecs
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import UserError
from tokenloom.utils.files import sha256, write_text

FORMAT = 1
UNKNOWN = "unknown"
END = "end"  # Stands before, between and after documents.
Ids = NDArray[np.int32]

_KINDS: dict[str, type["TextTokenizer"]] = {}
_SPECIAL_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class TextTokenizer(ABC):
    """Turns text into ids and ids back into text.

    The ids 0 … K−1 stand for text, the special tokens come after them in the order of `specials`. Special ids
    come only from code that looks them up in `specials`: no text encodes to one (a literal "<|end|>" is plain
    text), but for the token "unknown" of a tokenizer that was trained to have one.

    `kind` is the name of the class in files and settings, `vocab_size` the number of ids with the special ones,
    `specials` their names and ids, `notes` what training has to say (one sentence each; not saved), `why` how this
    tokenizer came to be chosen (not saved).
    """

    kind: ClassVar[str]
    _keys: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    def __init__(self, table: list[bytes], specials: Sequence[str] = ()) -> None:
        """`table` holds the UTF-8 bytes of each text token, `specials` the names of the special ones."""
        for i, name in enumerate(specials):
            if not _SPECIAL_NAME.fullmatch(name) or name in specials[:i]:
                raise ValueError(f"{name!r} is not the name of a special token, or is given twice")
        self._table = table
        self.specials: dict[str, int] = {name: len(table) + i for i, name in enumerate(specials)}
        self.vocab_size: int = len(table) + len(specials)
        self.notes: list[str] = []
        self.why: str = ""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The ids of a text, (N,) int32; empty for an empty text.

        Raises UserError for a lone surrogate, and for what the tokenizer cannot represent (see `unseen`).
        """

    @abstractmethod
    def unseen(self, text: str) -> list[str]:
        """The distinct characters (or words) of a text that have no token, in order of first appearance."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """What a file has to hold beside format, kind and specials, under the names in `_keys`."""

    @classmethod
    @abstractmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        """The inverse of `_content`. Raises UserError with the first fault."""

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """`encode` for each of several texts."""
        return [self.encode(text) for text in texts]

    def cut(self, text: str) -> int:
        """A place where a text may be cut in two before it is encoded, whatever comes after it; 0 where there is none.

        For every `more`: encode(text + more) = encode(text[:cut]), then encode(text[cut:] + more). The text must be the
        beginning of what is encoded, or of what a cut has left of it. The place lies near the end of the text.
        """
        return max(0, len(text) - 1)

    def decode(self, ids: ArrayLike, *, specials: bool = False) -> str:
        """The text of ids (N,): the exact inverse of `encode` for text that can be represented.

        A special id gives nothing, or "<|name|>" with specials=True. Bytes that make no character (a byte-level
        model may choose such ids) give U+FFFD. Raises ValueError for ids out of range.
        """
        pieces = self._pieces(specials)
        joined = b"".join([pieces[i] for i in self._check_ids(ids).tolist()])
        return joined.decode("utf-8", "replace")

    def stream(self) -> "TextStream":
        """A fresh stream that turns ids into text one at a time."""
        return TextStream(self._pieces(specials=False))

    def token_text(self, id: int) -> str:
        """A printable form of one token, for tables and axes.

        A space is shown as ␣, a line feed as ⏎, a byte that is no character as \\xNN, any other character that
        does not print by its escape, a special token as <|name|>.
        """
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"id {id} is not in 0 … {self.vocab_size - 1}")
        if id >= len(self._table):
            return f"<|{list(self.specials)[id - len(self._table)]}|>"
        text = self._table[id].decode("utf-8", "backslashreplace")
        return "".join(map(printable, text.replace(" ", "␣").replace("\n", "⏎")))

    def byte_lengths(self) -> NDArray[np.int64]:
        """How many UTF-8 bytes of text each id stands for, (vocab,) int64; 0 for special tokens.

        That of "unknown" is 0 as well, since what it stands for varies: where a text has unknown parts, bits per
        byte must be taken over the bytes of the text itself.
        """
        return np.array([len(piece) for piece in self._pieces(specials=False)], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """All that is needed to rebuild the tokenizer, in types that JSON has."""
        return {"format": FORMAT, "kind": self.kind, **self._content(), "specials": list(self.specials)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The inverse of `to_json`; checks the entry "fingerprint" too when there is one.

        Raises UserError with the first fault.
        """
        chosen, content, specials = _checked(data)
        if not issubclass(chosen, cls):
            raise UserError(f"kind is {chosen.kind!r} where {cls.kind!r} is needed")
        tokenizer = chosen._from_content(content, specials)
        if isinstance(data, dict) and data.get("fingerprint", tokenizer.fingerprint()) != tokenizer.fingerprint():
            raise UserError("the content does not match its fingerprint, so it was altered or damaged")
        return tokenizer

    def fingerprint(self) -> str:
        """The SHA-256, in hexadecimal, of the canonical JSON (sorted keys, ASCII, no spaces) of `to_json()`."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return sha256(canonical)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer as readable JSON (UTF-8) with its fingerprint, all or nothing."""
        write_text(Path(path), readable_json({**self.to_json(), "fingerprint": self.fingerprint()}))

    def _pieces(self, specials: bool) -> list[bytes]:
        return self._table + [f"<|{name}|>".encode() if specials else b"" for name in self.specials]

    def _check_ids(self, ids: ArrayLike) -> NDArray[Any]:
        array = np.asarray(ids)
        if array.size == 0:
            return np.zeros(0, dtype=np.int32)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"ids must be whole numbers in one dimension, not {array.dtype} {array.shape}")
        if array.min() < 0 or array.max() >= self.vocab_size:
            raise ValueError(f"ids run from {array.min()} to {array.max()}, outside 0 … {self.vocab_size - 1}")
        return array


class TextStream:
    """Text from ids, one at a time, never half a character.

    An incomplete UTF-8 sequence is held back until its last byte has come. All that `push` and then `finish` return,
    joined, equals `decode` of all ids.
    """

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is certain now that `id` has come; may be empty. Raises ValueError for an id out of range."""
        if not 0 <= id < len(self._pieces):
            raise ValueError(f"id {id} is not in 0 … {len(self._pieces) - 1}")
        return self._decoder.decode(self._pieces[id])

    def finish(self) -> str:
        """What was held back (U+FFFD for bytes that stayed incomplete). The stream can then be used afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """Training texts as a list. Raises UserError when there is no text at all or one holds a lone surrogate."""
    checked = [texts] if isinstance(texts, str) else list(texts)
    for text in checked:
        utf8_length(text)
    if not any(checked):
        raise UserError("there is no text to build a tokenizer from: the training text is empty")
    return checked


def letters(alphabet: Iterable[str]) -> str:
    """All characters of an alphabet, given one by one or as texts. Raises UserError for a lone surrogate."""
    found = set(alphabet) if isinstance(alphabet, str) else set().union(*alphabet)
    joined = "".join(sorted(found))
    utf8_length(joined)
    return joined


def utf8_length(text: str) -> int:
    """The number of UTF-8 bytes of a text. Raises UserError for a lone surrogate, which UTF-8 cannot hold."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise surrogate_error(text, error) from None


def surrogate_error(text: str, error: UnicodeEncodeError) -> UserError:
    """The one line for a text that no Unicode encoding can hold."""
    return UserError(
        f"character {error.start + 1} of the text is U+{ord(text[error.start]):04X}, half of a surrogate pair, "
        "which is no character; remove it or read the text with its right encoding"
    )


def printable(char: str) -> str:
    """The character itself when it prints, else its escape (\\n, \\x00, \\u2028)."""
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def named(items: Sequence[str], what: str, limit: int = 5) -> str:
    """For a message: how many characters or words there are and which, at most `limit` of them."""
    shown = []
    for item in items[:limit]:
        code = f" (U+{ord(item):04X})" if len(item) == 1 else ""
        shown.append("'" + "".join(map(printable, item)) + "'" + code)
    more = f" and {len(items) - limit:,} more" if len(items) > limit else ""
    return f"{len(items):,} {what}{'' if len(items) == 1 else 's'}: {', '.join(shown)}{more}"


def with_unknown(specials: Sequence[str], unknown: bool) -> list[str]:
    """The names of the special tokens, "unknown" among them if and only if it is asked for there or here."""
    return [*specials, UNKNOWN] if unknown and UNKNOWN not in specials else list(specials)


def unseen_error(characters: Sequence[str]) -> UserError:
    """The one line for characters that have no token."""
    return UserError(
        f"the tokenizer has no token for {named(characters, 'character')}; take them out of the text, or train with "
        "text that holds them, with unknown=True, or with kind 'byte-bpe'"
    )


def strings(content: dict[str, Any], key: str) -> list[str]:
    """The entry `key` of a file's content, which must be a list of strings."""
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{key!r} is not a list of strings")
    for item in value:
        utf8_length(item)
    return value


def alphabet_of(content: dict[str, Any]) -> list[str]:
    """The entry "characters" of a file's content: one string of distinct characters in the order of code points."""
    value = content["characters"]
    if not isinstance(value, str) or not value:
        raise UserError("'characters' is not a text of at least one character")
    utf8_length(value)
    if sorted(set(value)) != list(value):
        raise UserError("'characters' are not distinct and sorted by code point")
    return list(value)


def readable_json(data: dict[str, Any]) -> str:
    """JSON with one line for each key and for each item of a list, characters unescaped where JSON allows it."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f" {json.dumps(key)}: [\n{items}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _checked(data: object) -> tuple[type[TextTokenizer], dict[str, Any], list[str]]:
    if not isinstance(data, dict):
        raise UserError("it holds no JSON object")
    if data.get("format") != FORMAT or isinstance(data.get("format"), bool):
        raise UserError(f"its format is {data.get('format')!r}, and this version reads only format {FORMAT}")
    kind = data.get("kind")
    chosen = _KINDS.get(kind) if isinstance(kind, str) else None
    if chosen is None:
        raise UserError(f"its kind is {kind!r}, not one of {', '.join(sorted(_KINDS))}")
    needed = ["format", "kind", "specials", *chosen._keys]
    for key in needed:
        if key not in data:
            raise UserError(f"the entry {key!r} is missing")
    for key in data:
        if key not in (*needed, "fingerprint"):
            raise UserError(f"the entry {key!r} does not belong in a tokenizer of kind {kind!r}")
    specials = strings(data, "specials")
    for i, name in enumerate(specials):
        if not _SPECIAL_NAME.fullmatch(name) or name in specials[:i]:
            raise UserError(f"special token {i + 1}, {name!r}, is no name or is given twice")
    return chosen, {key: data[key] for key in chosen._keys}, specials
