"""From bytes to text without guessing: UTF-8 unless another encoding is asked for, a plain word on anything else."""

import codecs
from encodings.aliases import aliases
from typing import Literal

from tokenloom.data.names import did_you_mean
from tokenloom.errors import UserError

Newlines = Literal["fold", "keep"]

# The longer marks first: UTF-32's little-endian mark begins with UTF-16's.
_OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_COMMON = ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "ascii")
_SUCH_AS = "a name such as utf-8, utf-16, latin-1 or cp1252"


class Unreadable(Exception):
    """Why a file cannot be read as text; the caller knows the file's name and puts it in front."""


def check_encoding(encoding: str) -> str:
    """Python's own name of an encoding, e.g. `utf-8` for `UTF8`. Raises UserError, with the nearest, if unknown."""
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        spelt = encoding.replace("_", "-")
        every = sorted({alias.replace("_", "-") for pair in aliases.items() for alias in pair})
        hint = did_you_mean(spelt, _COMMON) or did_you_mean(spelt, every)
        raise UserError(f"unknown encoding {encoding!r}{hint} (--encoding takes {_SUCH_AS})") from None
    try:
        b"a".decode(encoding)
    except UnicodeError:
        return name
    except LookupError:  # Some of Python's codecs (hex, rot13) are known, but are no writing of text as bytes.
        raise UserError(f"{encoding!r} is no encoding of text (--encoding takes {_SUCH_AS})") from None
    return name


def check_newlines(newlines: str) -> None:
    """Raises UserError unless `newlines` is `fold` or `keep`."""
    if newlines not in ("fold", "keep"):
        raise UserError(f"newlines {newlines!r} is neither 'fold' (CRLF and CR become LF) nor 'keep'")


def fold_newlines(text: str) -> str:
    """CRLF and CR become LF. Nothing else changes."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decode(raw: bytes, encoding: str = "utf-8", newlines: Newlines = "fold") -> str:
    """The text of some bytes.

    With `fold`, a byte-order mark is dropped and CRLF and CR become LF. With `keep`, nothing is touched: a UTF-8
    file's text encodes to exactly the bytes it came from, its byte-order mark included. Raises Unreadable (with the
    byte offset) for bytes that are not in this encoding and for binaries.
    """
    name = codecs.lookup(encoding).name
    if name == "utf-8":
        _refuse_other_than_utf8(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(_undecodable(raw, error, name)) from None
    except UnicodeError as error:
        raise Unreadable(f"not {encoding} ({error}); --encoding NAME gives another encoding") from None
    if "\0" in text:
        raise Unreadable(
            f"read as {encoding}, character {text.index(chr(0)):,} is a zero: a binary file or another encoding"
        )
    if name != "utf-8":
        _refuse_surrogates(text, encoding)
    if newlines == "keep":
        return text
    return fold_newlines(text.removeprefix("\ufeff"))


def _refuse_other_than_utf8(raw: bytes) -> None:
    for mark, name in _OTHER_MARKS:
        if raw.startswith(mark):
            raise Unreadable(
                f"{name.upper()}, not UTF-8: a byte-order mark at byte offset 0; read it with --encoding {name}"
            )
    zero = raw.find(0)
    if zero < 0:
        return
    if (guess := _unmarked_utf16(raw[:4096])) is not None:
        raise Unreadable(
            f"probably UTF-16 without its mark (zero byte at byte offset {zero:,}); read it with --encoding {guess}"
        )
    raise Unreadable(f"a binary file, not text: zero byte at byte offset {zero:,}")


def _unmarked_utf16(head: bytes) -> str | None:
    """Text in European scripts has a zero in every second byte of UTF-16; on which side tells the byte order."""
    pairs = len(head) // 2
    if pairs < 4:  # Too little to tell from a binary file.
        return None
    even, odd = head[0 : 2 * pairs : 2].count(0) / pairs, head[1 : 2 * pairs : 2].count(0) / pairs
    if odd > 0.7 and even < 0.1:
        return "utf-16-le"
    if even > 0.7 and odd < 0.1:
        return "utf-16-be"
    return None


def _undecodable(raw: bytes, error: UnicodeDecodeError, encoding: str) -> str:
    line = raw.count(b"\n", 0, error.start) + 1
    hint = " (such as latin-1 or cp1252)" if encoding == "utf-8" else ""
    return (
        f"not {encoding.upper()}: byte 0x{raw[error.start]:02x} at byte offset {error.start:,} (line {line:,})"
        f" cannot be decoded; --encoding NAME gives the encoding it was written in{hint}"
    )


def _refuse_surrogates(text: str, encoding: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unreadable(
            f"read as {encoding}, character {error.start:,} is half of a surrogate pair; --encoding NAME gives another"
        ) from None
