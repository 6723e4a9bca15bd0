"""Text read in pieces is the text read whole: the same documents, the same words on what cannot be read."""

import gzip
import json
import random
from pathlib import Path

import pytest
from traps import TEXTS, TextTrap

from tokenloom.data.documents import Document
from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized import streaming as streams
from tokenloom.data.pretokenized.scan import LEFT_OUT, VALIDATION, scan_text, split_corpus
from tokenloom.data.pretokenized.streaming import TextChunk, document_chunks, open_text
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.data.unicode import Unreadable, decode, decode_blocks
from tokenloom.errors import UserError


@pytest.fixture(autouse=True, params=[7, 1 << 20])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every border between blocks is met."""
    monkeypatch.setattr(streams, "BLOCK", request.param)
    return int(request.param)


def read_in_pieces(path: object, **how: str) -> tuple[list[Document], list[tuple[str, str]], list[str]]:
    text = open_text(str(path), **how)
    scan_text(text)
    documents = [
        Document(name, "".join(blocks))
        for entry in text.entries
        for name, blocks in entry.documents([], lambda n: None)
    ]
    return documents, text.skipped, text.notes


@pytest.mark.parametrize("trap", [trap for trap in TEXTS if trap.name != "unknown encoding"], ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_same_as_read_whole(trap: TextTrap, normalize: bool, block: int, tmp_path: Path) -> None:
    path = trap.write(tmp_path)
    if trap.expect == "refused" and trap.stage == "read":
        with pytest.raises(UserError) as expected_words:
            read_text(path, encoding=trap.encoding, normalize_newlines=normalize)
        with pytest.raises(UserError) as words:
            read_in_pieces(path, encoding=trap.encoding, normalize_newlines=normalize)
        # What comes first in a broken file is told; in very small blocks that may be something else.
        assert str(words.value) == str(expected_words.value) or block < 1000
        return
    expected = read_text(path, encoding=trap.encoding, normalize_newlines=normalize)
    documents, skipped, notes = read_in_pieces(path, encoding=trap.encoding, normalize_newlines=normalize)
    assert documents == expected.documents
    assert [name for name, _ in skipped] == [name for name, _ in expected.skipped]
    assert notes == expected.notes


ROWS = {
    "rows.jsonl": '{"text": "eins", "n": 1}\r\n\n{"text": " ", "n": 2}\n{"n": 3}\n{"text": "zwei\\u2028drei"}\n\n\n',
    "strings.jsonl": '"a"\n"b"\n3\n',
    "list.json": '[{"body": "x"}, {"body": "y"}]',
    "lines.json": '{"body": "x"}\n{"body": "y"}\n',
    "table.csv": 'id;text\r\n1;"one\r\ntwo;"\r\n\r\n2;three\r3;four;five\n4;\n\n',
    "table.tsv": "\n\nwords\nα\nβ\n",
    "bom.csv": "\ufefftext,n\nhello,1\n",
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("zipped", [False, True])
def test_rows_are_the_same(name: str, zipped: bool, tmp_path: Path) -> None:
    raw = ROWS[name].encode()
    path = tmp_path / (name + ".gz" * zipped)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    expected = read_text(path)
    assert read_in_pieces(path) == (expected.documents, expected.skipped, expected.notes)
    assert len(expected.documents) >= 1


def test_a_folder_is_the_same(tmp_path: Path) -> None:
    for name, text in ROWS.items():
        (tmp_path / name).write_text(text, "utf-8", newline="")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("plain text\n")
    (tmp_path / "inner" / "late.txt").write_bytes(b"good for a while, and then \xff not")
    (tmp_path / "broken.jsonl").write_text('{"text": "good"}\n{"text": \n')
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"much text " * 99)[:-9])
    (tmp_path / "empty.txt").write_bytes(b"")
    expected = read_text(tmp_path)
    documents, skipped, notes = read_in_pieces(tmp_path)
    assert documents == expected.documents
    assert dict(skipped) == dict(expected.skipped)
    assert sorted(notes) == sorted(expected.notes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "shift_jis"])
def test_bytes_in_blocks_decode_as_the_whole(encoding: str) -> None:
    text = "\ufeff" * (encoding == "utf-8") + "a\r\n\rb\r" + ("é" if "j" not in encoding else "水") * 9 + "\r\n\r"
    raw = text.encode(encoding)
    for normalize in (True, False):
        expected = decode(raw, encoding, normalize)
        for size in range(1, 9):
            blocks = [raw[i : i + size] for i in range(0, len(raw), size)]
            assert "".join(decode_blocks(blocks, encoding, normalize)) == expected


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"ab\ncd\xff", "utf-8"),
        (b"ab\ncd\xc3", "utf-8"),
        (b"ab\n\xe6\xb0\nab", "utf-8"),
        (b"abc\0", "utf-8"),
        ("x\0".encode("utf-16"), "utf-16"),
        (b"\x81 in this codepage", "cp1252"),
        (b"\xff\xfea\0\x00\xd8", "utf-16"),
    ],
)
def test_what_cannot_be_decoded_is_named_alike(raw: bytes, encoding: str) -> None:
    with pytest.raises(Unreadable) as whole:
        decode(raw, encoding)
    with pytest.raises(Unreadable) as pieces:
        list(decode_blocks([raw[i : i + 3] for i in range(0, len(raw), 3)], encoding))
    assert str(pieces.value) == str(whole.value)


def test_what_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (str(tmp_path / "nothing.txt"), str(tmp_path)):
        with pytest.raises(UserError) as refused:
            scan_text(open_text(given))
        with pytest.raises(UserError) as whole:
            read_text(given)
        assert str(refused.value) == str(whole.value)
    big = tmp_path / "big.json"
    big.write_text("[]")
    monkeypatch.setattr(streams, "MAX_JSON_BYTES", 1)
    with pytest.raises(UserError, match="JSON lines"):
        scan_text(open_text(big))


# TextChunks.


def test_pieces_join_to_the_document_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_CHARACTERS", 50)
    text = "some words, " * 100
    for border in (None, 1, 49, 600, 1199):
        pieces = list(document_chunks([text[i : i + 70] for i in range(0, 1200, 70)], lambda t: t.rfind(" "), border))
        assert "".join(piece.text for piece in pieces) == text
        assert max(len(piece.text) for piece in pieces) <= 120
        assert (
            sum(piece.first for piece in pieces) == sum(piece.last for piece in pieces) == (1 if border is None else 2)
        )
        if border is not None:
            first = pieces[: next(i for i, piece in enumerate(pieces) if piece.last) + 1]
            assert sum(len(piece.text) for piece in first) == border


def test_text_that_cannot_be_cut_grows_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_CHARACTERS", 4)
    monkeypatch.setattr(streams, "MAX_UNCUT", 40)
    assert list(document_chunks(["x" * 9, "x" * 9], lambda t: 0)) == [TextChunk("x" * 18, True, True)]
    with pytest.raises(UserError, match="byte-bpe"):
        list(document_chunks(["x" * 99], lambda t: 0))


# Splits.


def folder_of(root: Path, count: int, seed: int) -> Path:
    draw = random.Random(seed)
    for number in range(count):
        (root / f"{number:03}.txt").write_text(draw.choice(["twin\n", f"text {number}\n" * draw.randrange(1, 40)]))
    return root


@pytest.mark.parametrize("count", [1, 2, 3, 4, 30, 60])
@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_the_split_is_that_of_the_text_read_whole(count: int, fraction: float, tmp_path: Path) -> None:
    folder_of(tmp_path, count, count)
    source = tmp_path if count > 1 else tmp_path / "000.txt"
    expected = split(read_text(source), fraction)
    text = open_text(source)
    found = scan_text(text)
    sides = split_corpus(text, found, None if fraction == 0.1 else fraction)
    parts: list[list[str]] = [[], []]
    begun = [False, False]
    for side, piece in sides.chunks(text, lambda t: len(t) - 1):
        parts[side] += [""] if piece.first else []
        parts[side][-1] += piece.text
        begun[side] = not piece.last
    assert parts[0] == [document.text for document in expected.train.documents]
    assert parts[1] == [document.text for document in expected.validation.documents]
    assert sides.how == expected.how
    assert sides.notes == [note.partition(": ")[0] for note in expected.notes]
    assert sides.documents(VALIDATION) == len(parts[1])
    assert sides.characters(VALIDATION, found) == sum(map(len, parts[1]))
    assert sides.characters(0, found) == sum(map(len, parts[0]))
    assert sides.characters(LEFT_OUT, found) == found.characters - sum(len(t) for part in parts for t in part)


def test_of_very_many_documents_each_is_decided_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenloom.data.pretokenized import scan as module

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {n % 900}"}) + "\n" for n in range(1000)))
    monkeypatch.setattr(module, "MAX_CHOSEN", 100)
    text = open_text(path)
    found = scan_text(text)
    assert len(found.first_id) <= 102, "their names are not kept"
    sides = split_corpus(text, found, 0.2)
    assert 0.15 < sum(sides.side) / 1000 < 0.25
    assert sides.side[:100] == sides.side[900:], "identical ones stay on one side"
    assert found.duplicates == 100


def test_a_tenth_of_a_very_large_text_would_be_too_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tokenloom.data.pretokenized import scan as module

    monkeypatch.setattr(module, "MAX_VALIDATION_CHARACTERS", 50)
    path = tmp_path / "a.txt"
    path.write_text("a word " * 300)
    text = open_text(path)
    found = scan_text(text)
    assert split_corpus(text, found, None).characters(VALIDATION, found) == 50
    assert split_corpus(text, found, 0.1).characters(VALIDATION, found) == 210


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, 2.0])
def test_an_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="--val-fraction"):
        TokenizationSettings(val_fraction=fraction)
