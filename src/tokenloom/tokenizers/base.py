"""The interface of text tokenizers, and what they share: decoding, streaming, saving."""

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
END = "end"  # Before, between and after documents.
Ids = NDArray[np.int32]

_KINDS: dict[str, type["TextTokenizer"]] = {}
_SPECIAL_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class TextTokenizer(ABC):
    """Encodes text as ids and decodes ids to text.

    Ids 0 … K−1 stand for text; the special tokens follow in the order of `specials`. No text encodes to a special token
    (a literal "<|end|>" is plain text), except to "unknown" in a tokenizer trained with it; code looks special ids up
    in `specials`.

    kind: the name in files and settings. vocab_size: number of ids, special tokens included. specials: name → id.
    notes: remarks of training, one sentence each; not saved. reason: why this tokenizer was chosen; not saved.
    """

    kind: ClassVar[str]
    _keys: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    def __init__(self, table: list[bytes], specials: Sequence[str] = ()) -> None:
        """table: the UTF-8 bytes of each text token. specials: names of the special tokens."""
        for i, name in enumerate(specials):
            if not _SPECIAL_NAME.fullmatch(name) or name in specials[:i]:
                raise ValueError(f"{name!r} is not the name of a special token, or is given twice")
        self._table = table
        self.specials: dict[str, int] = {name: len(table) + i for i, name in enumerate(specials)}
        self.vocab_size: int = len(table) + len(specials)
        self.notes: list[str] = []
        self.reason: str = ""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of a text, (N,) int32.

        Raises UserError for a lone surrogate, and for text that the tokenizer cannot represent (see `unseen`).
        """

    @abstractmethod
    def unseen(self, text: str) -> list[str]:
        """Return the distinct characters (or words) of a text that have no token, in order of first appearance."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return the entries of a file beside format, kind and specials; their names are `_keys`."""

    @classmethod
    @abstractmethod
    def _from_content(cls, content: dict[str, Any], specials: list[str]) -> Self:
        """Build the tokenizer from `_content`. Raises UserError with the first fault."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode several texts."""
        return [self.encode(text) for text in texts]

    def safe_split(self, text: str) -> int:
        """Return an index at which a text can be split before encoding, whatever follows it; 0 where there is none.

        For every `more`: encode(text + more) = encode(text[:index]) followed by encode(text[index:] + more). The text
        must begin where encoding begins, or at such an index. The index is near the end of the text.
        """
        return max(0, len(text) - 1)

    def decode(self, ids: ArrayLike, *, specials: bool = False) -> str:
        """Return the text of ids (N,), the exact inverse of `encode`.

        A special token gives nothing, or "<|name|>" with specials=True. Bytes that are not valid UTF-8 (a byte-level
        model may generate them) give U+FFFD. Raises ValueError for ids out of range.
        """
        pieces = self._pieces(specials)
        joined = b"".join([pieces[i] for i in self._check_ids(ids).tolist()])
        return joined.decode("utf-8", "replace")

    def stream(self) -> "TextStream":
        """Return a stream that decodes ids one at a time."""
        return TextStream(self._pieces(specials=False))

    def token_text(self, id: int) -> str:
        """Return a printable form of one token, for tables and axes.

        Space is ␣, line feed ⏎, a byte that is no character \\xNN, any other unprintable character its escape, a
        special token <|name|>.
        """
        if not 0 <= id < self.vocab_size:
            raise ValueError(f"id {id} is not in 0 … {self.vocab_size - 1}")
        if id >= len(self._table):
            return f"<|{list(self.specials)[id - len(self._table)]}|>"
        text = self._table[id].decode("utf-8", "backslashreplace")
        return "".join(map(printable, text.replace(" ", "␣").replace("\n", "⏎")))

    def byte_lengths(self) -> NDArray[np.int64]:
        """Return the number of UTF-8 bytes of each id, (vocab,) int64; 0 for special tokens.

        "unknown" counts 0 too: for a text with unknown parts, compute bits per byte over the bytes of the text.
        """
        return np.array([len(piece) for piece in self._pieces(specials=False)], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return everything needed to rebuild the tokenizer, as JSON types."""
        return {"format": FORMAT, "kind": self.kind, **self._content(), "specials": list(self.specials)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Rebuild a tokenizer from `to_json`; checks the entry "fingerprint" too when there is one.

        Raises UserError with the first fault.
        """
        chosen, content, specials = _check_json(data)
        if not issubclass(chosen, cls):
            raise UserError(f"kind is {chosen.kind!r} where {cls.kind!r} is needed")
        tokenizer = chosen._from_content(content, specials)
        if isinstance(data, dict) and data.get("fingerprint", tokenizer.fingerprint()) != tokenizer.fingerprint():
            raise UserError("the content does not match its fingerprint, so it was altered or damaged")
        return tokenizer

    def fingerprint(self) -> str:
        """Return the SHA-256, in hexadecimal, of the canonical JSON (sorted keys, ASCII, no spaces) of `to_json()`."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return sha256(canonical)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer as readable JSON (UTF-8) with its fingerprint, atomically."""
        write_text(Path(path), readable_json({**self.to_json(), "fingerprint": self.fingerprint()}))

    def _pieces(self, specials: bool) -> list[bytes]:
        return self._table + [f"<|{name}|>".encode() if specials else b"" for name in self.specials]

    def _check_ids(self, ids: ArrayLike) -> NDArray[Any]:
        array = np.asarray(ids)
        if array.size == 0:
            return np.zeros(0, dtype=np.int32)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"ids must be integers in one dimension, not {array.dtype} {array.shape}")
        if array.min() < 0 or array.max() >= self.vocab_size:
            raise ValueError(f"ids run from {array.min()} to {array.max()}, outside 0 … {self.vocab_size - 1}")
        return array


class TextStream:
    """Decodes ids one at a time, never emitting half a character.

    An incomplete UTF-8 sequence is buffered until its last byte arrives. The joined results of `push` and `finish`
    equal `decode` of all ids.
    """

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Return the text completed by `id`, possibly empty. Raises ValueError for an id out of range."""
        if not 0 <= id < len(self._pieces):
            raise ValueError(f"id {id} is not in 0 … {len(self._pieces) - 1}")
        return self._decoder.decode(self._pieces[id])

    def finish(self) -> str:
        """Return the buffered rest (U+FFFD for incomplete bytes) and reset the stream."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def check_texts(texts: str | Iterable[str]) -> list[str]:
    """Return training texts as a list. Raises UserError when all are empty or one holds a lone surrogate."""
    checked = [texts] if isinstance(texts, str) else list(texts)
    for text in checked:
        utf8_length(text)
    if not any(checked):
        raise UserError("there is no text to build a tokenizer from: the training text is empty")
    return checked


def check_alphabet(alphabet: Iterable[str]) -> str:
    """Return all characters of an alphabet given as characters or texts. Raises UserError for a lone surrogate."""
    found = set(alphabet) if isinstance(alphabet, str) else set().union(*alphabet)
    joined = "".join(sorted(found))
    utf8_length(joined)
    return joined


def utf8_length(text: str) -> int:
    """Return the number of UTF-8 bytes of a text. Raises UserError for a lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise surrogate_error(text, error) from None


def surrogate_error(text: str, error: UnicodeEncodeError) -> UserError:
    """Return the error for a text with a lone surrogate."""
    return UserError(
        f"character {error.start + 1} of the text is U+{ord(text[error.start]):04X}, half of a surrogate pair, "
        "which is not a character; remove it or read the text with the right encoding"
    )


def printable(char: str) -> str:
    """Return the character itself when it is printable, else its escape (\\n, \\x00, \\u2028)."""
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def quote_list(items: Sequence[str], what: str, limit: int = 5) -> str:
    """Return for a message how many characters or words there are, and the first `limit` of them."""
    shown = []
    for item in items[:limit]:
        code = f" (U+{ord(item):04X})" if len(item) == 1 else ""
        shown.append("'" + "".join(map(printable, item)) + "'" + code)
    more = f" and {len(items) - limit:,} more" if len(items) > limit else ""
    return f"{len(items):,} {what}{'' if len(items) == 1 else 's'}: {', '.join(shown)}{more}"


def with_unknown(specials: Sequence[str], unknown: bool) -> list[str]:
    """Return the names of the special tokens, with "unknown" if asked for."""
    return [*specials, UNKNOWN] if unknown and UNKNOWN not in specials else list(specials)


def unseen_error(characters: Sequence[str]) -> UserError:
    """Return the error for characters that have no token."""
    return UserError(
        f"the tokenizer has no token for {quote_list(characters, 'character')}; remove them from the text, or train "
        "with text that contains them, with unknown=True, or with kind 'byte-bpe'"
    )


def read_strings(content: dict[str, Any], key: str) -> list[str]:
    """Return the entry `key` of a file's content, which must be a list of strings."""
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{key!r} is not a list of strings")
    for item in value:
        utf8_length(item)
    return value


def read_alphabet(content: dict[str, Any]) -> list[str]:
    """Return the entry "characters" of a file's content: one string of distinct characters, sorted by code point."""
    value = content["characters"]
    if not isinstance(value, str) or not value:
        raise UserError("'characters' is not a string of at least one character")
    utf8_length(value)
    if sorted(set(value)) != list(value):
        raise UserError("'characters' are not distinct and sorted by code point")
    return list(value)


def readable_json(data: dict[str, Any]) -> str:
    """Return JSON with one line per key and per list item, characters unescaped where JSON allows it."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f" {json.dumps(key)}: [\n{items}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _check_json(data: object) -> tuple[type[TextTokenizer], dict[str, Any], list[str]]:
    if not isinstance(data, dict):
        raise UserError("it is not a JSON object")
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
    specials = read_strings(data, "specials")
    for i, name in enumerate(specials):
        if not _SPECIAL_NAME.fullmatch(name) or name in specials[:i]:
            raise UserError(f"special token {i + 1}, {name!r}, is not a name or is given twice")
    return chosen, {key: data[key] for key in chosen._keys}, specials
