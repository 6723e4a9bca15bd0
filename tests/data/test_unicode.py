import pytest
from traps import POEM, poems

from tokenloom.data.unicode import Unreadable, check_encoding, decode, fold_newlines
from tokenloom.errors import UserError


@pytest.mark.parametrize("ends", poems())
def test_one_poem_is_one_text_however_its_lines_end(ends: str) -> None:
    assert decode(poems()[ends]) == POEM


@pytest.mark.parametrize("ends", poems())
def test_keep_gives_the_original_bytes_back(ends: str) -> None:
    raw = poems()[ends]
    assert decode(raw, normalize_newlines=False).encode() == raw


def test_folding_against_the_definition() -> None:
    # Python's own universal newlines are the oracle.
    import io

    text = "a\r\n\r\rb\n\r\nc\r"
    assert fold_newlines(text) == io.StringIO(text, newline=None).read()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "UTF8", "utf-8-sig"])
def test_another_encoding_is_honoured(encoding: str) -> None:
    text = "Fluß, señor, naïve\n"
    assert decode(text.encode(encoding), encoding) == text


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"abc\nd\xe9f", ["0xe9", "byte offset 5", "line 2", "--encoding"]),
        (b"\xef\xbb\xbfab\xff", ["0xff", "byte offset 5"]),
        ("ab".encode("utf-16"), ["UTF-16", "offset 0", "--encoding utf-16"]),
        (b"\xfe\xff\0a", ["UTF-16", "--encoding utf-16"]),
        ("ab".encode("utf-32"), ["UTF-32", "--encoding utf-32"]),
        ("plain words".encode("utf-16-be"), ["offset 0", "--encoding utf-16-be"]),
        (b"text and\0a zero", ["binary", "byte offset 8"]),
        (b"\xed\xa0\xbd", ["0xed", "byte offset 0"]),  # A surrogate written as if it were a character.
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(raw: bytes, words: list[str]) -> None:
    with pytest.raises(Unreadable) as refused:
        decode(raw)
    for word in words:
        assert word in str(refused.value)


def test_binaries_and_half_characters_are_refused_in_other_encodings_too() -> None:
    with pytest.raises(Unreadable, match="character 1 is a zero"):
        decode(b"a\0b", "latin-1")
    with pytest.raises(Unreadable, match="surrogate"):
        decode(b"+2D0-", "utf-7")
    with pytest.raises(Unreadable, match="byte offset 2"):
        decode(b"a\0b", "utf-16-le")


def test_encoding_names() -> None:
    assert check_encoding("UTF8") == "utf-8"
    assert check_encoding("latin1") == "iso8859-1"
    for given, word in {
        "utf9": "'utf-8'",
        "lattin-1": "'latin-1'",
        "koi8-rr": "'koi8-r'",
        "hex": "not an encoding of text",
    }.items():
        with pytest.raises(UserError, match=word):
            check_encoding(given)
    with pytest.raises(UserError, match="unknown encoding"):
        check_encoding("a\0b")
