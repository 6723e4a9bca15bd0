import gzip
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from traps import MARKERS, POEM, TEXTS, TextTrap, poems

from tokenloom.data.documents import Document, TextData
from tokenloom.data.text import read_text
from tokenloom.errors import UserError


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("trap", [t for t in TEXTS if t.expect == "refused" and t.stage == "read"], ids=str)
def test_traps_are_refused_in_one_line_that_says_what_and_where(trap: TextTrap, tmp_path: Path) -> None:
    path = trap.write(tmp_path)
    with pytest.raises(UserError) as refused:
        read_text(str(path), encoding=trap.encoding)
    message = str(refused.value)
    assert "\n" not in message
    for word in trap.words:
        assert word in message


@pytest.mark.parametrize("trap", [t for t in TEXTS if t.expect != "refused" or t.stage == "train"], ids=str)
def test_traps_that_can_be_read_are_read(trap: TextTrap, tmp_path: Path) -> None:
    data = read_text(str(trap.write(tmp_path)), encoding=trap.encoding)
    assert all(document.text.strip() for document in data.documents)
    told = [path for path, _ in data.skipped]
    if trap.stage == "read":
        for word in trap.words:
            assert word in told


def test_a_file_is_one_document(tmp_path: Path) -> None:
    data = read_text(put(tmp_path / "poem.md", POEM))
    assert data == TextData([Document("poem.md", POEM)], documented=False, name="poem.md")
    assert (data.characters, data.counts()["bytes"]) == (len(POEM), len(POEM.encode()))


@pytest.mark.parametrize("ends", poems())
def test_a_file_kept_as_it_is(ends: str, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_bytes(poems()[ends])
    assert read_text(path, normalize_newlines=False).documents[0].text.encode() == poems()[ends]
    assert read_text(path).documents[0].text == POEM


def test_markers_stay_text(tmp_path: Path) -> None:
    assert read_text(put(tmp_path / "m.txt", MARKERS)).documents[0].text == MARKERS


def test_a_folder_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ["b.txt", "a/z.md", "a/b/c.py", "a.txt", "C.txt"]:
        put(tmp_path / "root" / name, f"this is {name}\n")
    put(tmp_path / "root" / "rows.csv", "id,text\n1,first\n2,second\n")
    put(tmp_path / "root" / ".git" / "config", "hidden")
    put(tmp_path / "root" / "a" / ".note", "hidden")
    put(tmp_path / "root" / "blank.txt", " \n")
    put(tmp_path / "root" / "broken.json", "{")
    (tmp_path / "root" / "latin.txt").write_bytes("é".encode("latin-1"))
    os.symlink(tmp_path / "root" / "a", tmp_path / "root" / "link")
    os.symlink(tmp_path / "nowhere", tmp_path / "root" / "dangling")
    os.mkfifo(tmp_path / "root" / "pipe")

    data = read_text(tmp_path / "root")

    ids = [document.id for document in data.documents]
    assert ids == ["C.txt", "a/b/c.py", "a/z.md", "a.txt", "b.txt", "rows.csv:2", "rows.csv:3"]
    assert data.documents[1].text == "this is a/b/c.py\n"
    assert data.documented
    assert data.name == "root"
    reasons = dict(data.skipped)
    assert list(reasons) == [".git/", "a/.note", "blank.txt", "broken.json", "dangling", "latin.txt", "link/", "pipe"]
    assert reasons[".git/"] == reasons["a/.note"] == "hidden"
    assert "white space" in reasons["blank.txt"]
    assert "line 1" in reasons["broken.json"]
    assert "byte offset 0" in reasons["latin.txt"]
    assert data.notes == ["rows.csv: the text is taken from 'text', a guess; --text-column NAME takes another"]


def test_the_same_remark_on_many_files_is_one_note(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / f"{number}.jsonl", '{"n": 1, "story": "once"}\n')
    (note,) = read_text(tmp_path).notes
    assert note.startswith("0.jsonl, 1.jsonl, 2.jsonl and 3 more: the text is taken from 'story'")


def test_a_file_name_that_is_no_unicode_gives_an_id_that_is(tmp_path: Path) -> None:
    try:
        with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
            file.write(b"hello")
    except OSError:
        pytest.skip("this file system takes no such name")
    (document,) = read_text(tmp_path).documents
    assert document == Document("\\xff.txt", "hello")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="empty folder"):
        read_text(tmp_path)


def test_gzip(tmp_path: Path) -> None:
    (tmp_path / "poem.txt.gz").write_bytes(gzip.compress(POEM.encode()))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
    assert [document.text for document in read_text(tmp_path).documents] == [POEM, "a", "b"]
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(POEM.encode())[:-9])
    with pytest.raises(UserError, match=r"cut\.txt\.gz.*not a gzip file"):
        read_text(tmp_path / "cut.txt.gz")


def standard_input(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    standard_input(monkeypatch, b"\xef\xbb\xbfone\r\ntwo")
    assert read_text("-") == TextData([Document("-", "one\ntwo")], name="standard input")
    standard_input(monkeypatch, b"caf\xe9")
    assert read_text("-", encoding="latin-1").documents[0].text == "café"
    standard_input(monkeypatch, b"")
    with pytest.raises(UserError, match="standard input: empty"):
        read_text("-")
    with pytest.raises(UserError, match="--text-column review does not apply"):
        read_text("-", text_column="review")


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"through a pipe")
    os.close(write_end)
    assert read_text(f"/dev/fd/{read_end}").documents[0].text == "through a pipe"
    os.close(read_end)
    with pytest.raises(UserError, match=r"/dev/zero.*neither a file nor a folder"):
        read_text("/dev/zero")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("peom.txt", "did you mean 'poem.txt'"),
        ("shakspeare", "did you mean 'shakespeare'"),
        ("tiny-shakespeare", "did you mean 'tinyshakespeare'"),
        ("quite else", "tokenloom data list"),
        ("nowhere/in/sight.txt", "has no 'nowhere' in it"),
        ("poem.txt/inside", "Not a directory"),
        ("a\0b", "null"),
        ("y" * 5000, "too long"),
        ("", "no data given"),
    ],
)
def test_what_does_not_exist(given: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "poem.txt", POEM)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        read_text(given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "poem.txt", POEM)
    with pytest.raises(UserError, match="plain text has no column 'text'"):
        read_text(path, text_column="text")
    with pytest.raises(UserError, match="--text-column text does not apply"):
        read_text(tmp_path, text_column="text")
    with pytest.raises(UserError, match=r"--encoding latin-1 does not apply.*python-docs"):
        read_text("python-docs", encoding="latin-1")


def test_a_built_in_name_comes_before_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "python-docs", "my own notes")
    monkeypatch.chdir(tmp_path)
    data = read_text("python-docs")
    assert len(data.documents) > 50
    assert any("./python-docs" in note for note in data.notes)
    assert read_text("./python-docs").documents[0].text == "my own notes"
    assert read_text(Path("python-docs")).documents[0].text == "my own notes"
