"""Decode bytes to text without guessing: UTF-8 unless another encoding is given, and errors that say what to do."""

import codecs
from collections.abc import Iterable, Iterator
from encodings.aliases import aliases

from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean

# Longer marks first: the little-endian mark of UTF-32 starts with that of UTF-16.
_OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_COMMON = ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "ascii")
_SUCH_AS = "a name such as utf-8, utf-16, latin-1 or cp1252"


class Unreadable(Exception):
    """Why a file cannot be read as text; the caller adds the name of the file."""


def check_encoding(encoding: str) -> str:
    """Return Python's name of an encoding, e.g. `utf-8` for `UTF8`. Raises UserError, with a suggestion, if unknown."""
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        spelled = encoding.replace("_", "-")
        every = sorted({alias.replace("_", "-") for pair in aliases.items() for alias in pair})
        hint = did_you_mean(spelled, _COMMON) or did_you_mean(spelled, every)
        raise UserError(f"unknown encoding {encoding!r}{hint} (--encoding takes {_SUCH_AS})") from None
    try:
        b"a".decode(encoding)
    except UnicodeError:
        return name
    except LookupError:  # Some codecs (hex, rot13) are not encodings of text.
        raise UserError(f"{encoding!r} is not an encoding of text (--encoding takes {_SUCH_AS})") from None
    return name


def fold_newlines(text: str) -> str:
    """Convert CRLF and CR to LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decode(raw: bytes, encoding: str = "utf-8", normalize_newlines: bool = True) -> str:
    """Decode bytes.

    normalize_newlines: remove a byte-order mark, and convert CRLF and CR to LF. Otherwise a UTF-8 text encodes to
    exactly the same bytes again. Raises Unreadable, with the byte offset, for undecodable bytes and binaries.
    """
    name = codecs.lookup(encoding).name
    if name == "utf-8":
        _refuse_other_than_utf8(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Unreadable(_undecodable(raw[error.start], error.start, line, name)) from None
    except UnicodeError as error:
        raise Unreadable(f"not {encoding} ({error}); --encoding NAME gives another encoding") from None
    if "\0" in text:
        raise _zero(encoding, text.index("\0"))
    if name != "utf-8":
        _refuse_surrogates(text, encoding)
    if not normalize_newlines:
        return text
    return fold_newlines(text.removeprefix("\ufeff"))


def decode_blocks(blocks: Iterable[bytes], encoding: str = "utf-8", normalize_newlines: bool = True) -> Iterator[str]:
    """`decode` for blocks of bytes: yield the same text in blocks, with the same errors."""
    pieces = _decoded(blocks, encoding)
    return pieces if not normalize_newlines else _normalized(pieces)


def _decoded(blocks: Iterable[bytes], encoding: str) -> Iterator[str]:
    name = codecs.lookup(encoding).name
    if codecs.lookup(encoding).incrementaldecoder is None:
        raise Unreadable(f"{encoding} cannot be decoded in blocks; convert it to utf-8")
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = lines = characters = 0
    for raw, last in _with_last(blocks):
        if name == "utf-8":
            _refuse_other_than_utf8(raw, offset)
        waiting = decoder.getstate()[0]
        try:
            text = decoder.decode(raw, last)
        except UnicodeDecodeError as error:
            here = offset - len(waiting) + error.start
            line = lines + (waiting + raw).count(b"\n", 0, error.start) + 1
            raise Unreadable(_undecodable((waiting + raw)[error.start], here, line, name)) from None
        except UnicodeError as error:
            raise Unreadable(f"not {encoding} ({error}); --encoding NAME gives another encoding") from None
        if "\0" in text:
            raise _zero(encoding, characters + text.index("\0"))
        if name != "utf-8":
            _refuse_surrogates(text, encoding, characters)
        offset, lines, characters = offset + len(raw), lines + raw.count(b"\n"), characters + len(text)
        yield text


def _with_last(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for block in blocks:
        yield block, False
    yield b"", True


def _normalized(pieces: Iterable[str]) -> Iterator[str]:
    first, held = True, ""
    for piece in pieces:
        if first and piece:
            piece, first = piece.removeprefix("\ufeff"), False
        piece = held + piece
        held = "\r" if piece.endswith("\r") else ""  # A line feed may follow.
        yield fold_newlines(piece[: len(piece) - len(held)])
    if held:
        yield "\n"


def _zero(encoding: str, place: int) -> Unreadable:
    return Unreadable(f"read as {encoding}, character {place:,} is a zero: a binary file or another encoding")


def _refuse_other_than_utf8(raw: bytes, offset: int = 0) -> None:
    """offset: number of bytes of the file before these."""
    for mark, name in _OTHER_MARKS:
        if not offset and raw.startswith(mark):
            raise Unreadable(
                f"{name.upper()}, not UTF-8: a byte-order mark at byte offset 0; read it with --encoding {name}"
            )
    zero = raw.find(0)
    if zero < 0:
        return
    if not offset and (guess := _unmarked_utf16(raw[:4096])) is not None:
        raise Unreadable(
            f"probably UTF-16 without its mark (zero byte at byte offset {zero:,}); read it with --encoding {guess}"
        )
    raise Unreadable(f"a binary file, not text: zero byte at byte offset {offset + zero:,}")


def _unmarked_utf16(head: bytes) -> str | None:
    """Guess UTF-16 without a mark: text in European scripts then has a zero in every second byte."""
    pairs = len(head) // 2
    if pairs < 4:  # Too short to distinguish from a binary file.
        return None
    even, odd = head[0 : 2 * pairs : 2].count(0) / pairs, head[1 : 2 * pairs : 2].count(0) / pairs
    if odd > 0.7 and even < 0.1:
        return "utf-16-le"
    if even > 0.7 and odd < 0.1:
        return "utf-16-be"
    return None


def _undecodable(byte: int, offset: int, line: int, encoding: str) -> str:
    hint = " (such as latin-1 or cp1252)" if encoding == "utf-8" else ""
    return (
        f"not {encoding.upper()}: byte 0x{byte:02x} at byte offset {offset:,} (line {line:,})"
        f" cannot be decoded; --encoding NAME gives the encoding it was written in{hint}"
    )


def _refuse_surrogates(text: str, encoding: str, before: int = 0) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unreadable(
            f"read as {encoding}, character {before + error.start:,} is half of a surrogate pair;"
            " --encoding NAME gives another"
        ) from None
