import gzip
import json
from pathlib import Path

import pytest

from tokenloom.data.pairs import Pair, PairColumns, PairData, looks_like_pairs, read_pairs
from tokenloom.data.report import data_report
from tokenloom.data.split import split
from tokenloom.errors import UserError


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def texts(data: PairData) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in data.pairs]


def test_a_table_with_known_names_is_read_and_the_guess_is_noted(tmp_path: Path) -> None:
    data = read_pairs(write(tmp_path / "a.csv", 'id,source,target\n1,"a, b","x\ny"\n2,c,"z ""q"""\n'))
    assert data.pairs == [Pair("a.csv:2", "a, b", "x\ny"), Pair("a.csv:3", "c", 'z "q"')]
    assert any("'source'" in note and "a guess" in note for note in data.notes)


@pytest.mark.parametrize("header", ["en\tde\n", "src\ttgt\n", "Question\tAnswer\n", "text\ttranslation\ngo\tgeh\n"])
def test_headers_of_languages_and_of_other_names(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "a.tsv", header + "one\teins\n")
    columns = PairColumns("text", "translation") if "text" in header else None
    assert texts(read_pairs(path, columns=columns))[-1] == ("one", "eins")


def test_a_table_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Go.\tVa !\nHi!\tSalut !\n")
    data = read_pairs(path)
    assert texts(data) == [("Go.", "Va !"), ("Hi!", "Salut !")]
    assert any("read as a pair" in note for note in data.notes)
    assert len(read_pairs(path, columns=PairColumns("Go.", "Va !", True)).pairs) == 1


def test_what_may_be_a_header_or_a_pair_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "hello\tbonjour\ncat\tchat\n")
    with pytest.raises(UserError, match=r"a\.tsv.*'hello', 'bonjour'.*--header or --no-header"):
        read_pairs(path)
    assert len(read_pairs(path, columns=PairColumns(header=False)).pairs) == 2
    assert texts(read_pairs(path, columns=PairColumns(header=True))) == [("cat", "chat")]


def test_columns_by_number_where_there_is_no_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Go.\tVa !\tCC-BY, somebody\nHi!\tSalut !\tCC-BY\n")
    with pytest.raises(UserError, match="which columns are the source and the target"):
        read_pairs(path)
    assert texts(read_pairs(path, columns=PairColumns("2", "1")))[0] == ("Va !", "Go.")


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    rows = ["source;target", "a;b", "c", "d;", " ;e", "f;g;h", "", "i;j"]
    data = read_pairs(write(tmp_path / "a.csv", "\n".join(rows)))
    assert texts(data) == [("a", "b"), ("i", "j")]
    notes = " | ".join(data.notes)
    assert "1 row without a target: 3" in notes
    assert "1 row with an empty target: 4" in notes
    assert "1 row with an empty source: 5" in notes
    assert "1 row with more cells than the first row's 2: 6" in notes
    assert "1 row with nothing in it: 7" in notes


def test_json_rows(tmp_path: Path) -> None:
    rows = [{"en": "a", "de": "b"}, {"en": 3, "de": "c"}, {"en": "d"}, ["x", "y"], {"en": "\ud800", "de": "e"}]
    data = read_pairs(write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert texts(data) == [("a", "b")]
    notes = " | ".join(data.notes)
    assert "whose source is no text: 2" in notes
    assert "without a target: 3" in notes
    assert "no objects with fields: 4" in notes
    assert "half of a surrogate pair, which is no character: 5" in notes
    assert texts(read_pairs(write(tmp_path / "b.json", '[["a", "b"], ["c", "d"]]'))) == [("a", "b"), ("c", "d")]


def test_aligned_files(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "\ufeffone\r\ntwo\r\n\r\nfour\r\n")
    target = write(tmp_path / "a.de.gz", gzip.compress(b"eins\nzwei\ndrei\nvier"))
    data = read_pairs(source, target=target)
    assert data.pairs == [
        Pair("a.en + a.de.gz:1", "one", "eins"),
        Pair("a.en + a.de.gz:2", "two", "zwei"),
        Pair("a.en + a.de.gz:4", "four", "vier"),
    ]
    assert data.notes == ["left out 1 line with an empty source: 3"]


def test_aligned_files_of_unequal_length_are_refused_with_both_counts(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\ntwo\n"), write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    with pytest.raises(UserError, match=r"a\.en' has 2 lines and .*a\.de' has 3 lines"):
        read_pairs(source, target=target)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "empty"),
        ("a.csv", "\n\n\n", "empty"),
        ("a.csv", "source,target\n", "no pair in it"),
        ("a.csv", "source,target\n,\n", "no pair in it; 1 row with an empty source: 2"),
        ("a.csv", "en,de,fr\na,b,c\n", "is the first row"),
        ("a.csv", 'source,target\na,"b\n', "a quote is not closed"),
        ("a.csv", "source,target,source\na,b,c\n", "2 columns called 'source'"),
        ("a.csv", b"source,target\n\xe9t\xe9,b\n", "byte offset 14"),
        ("a.jsonl", '{"source": "a", \n', "broken JSON at line 1"),
        ("a.txt", "some text\n", "plain text contains no pairs"),
        ("a.csv", b"\x00\x01\x02", "binary"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        read_pairs(write(tmp_path / name, content))
    assert name in str(refusal.value)


def test_other_things_than_files_are_refused(tmp_path: Path) -> None:
    for source, message in (
        (str(tmp_path), "is a folder"),
        ("-", "read from a file"),
        (str(tmp_path / "none.csv"), "there is no file"),
        ("python-docs", "python-docs contains no pairs"),
    ):
        with pytest.raises(UserError, match=message):
            read_pairs(source)
    table = write(tmp_path / "a.csv", "source,target\na,b\n")
    with pytest.raises(UserError, match=r"no column 'sorce'.*did you mean 'source'"):
        read_pairs(table, columns=PairColumns("sorce", "target"))
    with pytest.raises(UserError, match="cannot be the source and the target"):
        read_pairs(table, columns=PairColumns("source", "source"))


def test_pairs_with_one_source_stay_on_one_side() -> None:
    pairs = [Pair(f"p:{i}", f"source {i % 40}", f"target {i}") for i in range(120)] + [
        Pair("p:120", "source 0", "target 0")
    ]
    parts = split(PairData(pairs, name="p"))
    known = {pair.source for pair in parts.train.pairs}
    assert not any(pair.source in known for pair in parts.validation.pairs)
    assert len(parts.train.pairs) + len(parts.validation.pairs) == 121
    assert 6 <= len(parts.validation.pairs) <= 20
    assert parts.notes[0].startswith("81 pairs with the source of another, kept on the same side: p:0 = p:40 = p:80")
    assert data_report(parts).facts["duplicates"] == len(pairs) - 120
    assert split(PairData(pairs, name="p")) == parts


def test_a_new_pair_does_not_shuffle_the_others() -> None:
    pairs = [Pair(f"p:{i}", f"source {i}", "t") for i in range(200)]
    before = {pair.id for pair in split(PairData(pairs[:-1])).validation.pairs}
    after = {pair.id for pair in split(PairData(pairs)).validation.pairs}
    assert len(before ^ after) <= 3


def test_given_validation_pairs_that_are_in_training_are_told() -> None:
    training = PairData([Pair("a:1", "x", "y"), Pair("a:2", "u", "v")], name="a")
    held = PairData([Pair("b:1", "x", "z"), Pair("b:2", "w", "w")], name="b")
    parts = split(training, validation=held)
    assert parts.notes == ["in the training data too: 1 of 2 validation pairs: b:1"]


def test_one_source_alone_cannot_be_split() -> None:
    with pytest.raises(UserError, match="2 pairs, 1 different: at least 2"):
        split(PairData([Pair("a", "x", "y"), Pair("b", "x", "z")], name="d"))


def test_pairs_are_texts_too() -> None:
    data = PairData([Pair("a", "x", "y")], name="d", license="free")
    assert [(d.id, d.text) for d in data.as_text().documents] == [("a", "x\ny\n")]
    assert data.as_text().license == "free"


def test_tables_of_pairs_are_recognized_and_others_are_not(tmp_path: Path) -> None:
    assert looks_like_pairs(write(tmp_path / "a.csv", "source,target\na,b\n"))
    assert looks_like_pairs(write(tmp_path / "a.jsonl", '{"en": "a", "fr": "b"}\n'))
    for name, content in (("b.csv", "text,label\na,b\n"), ("b.jsonl", '{"text": "a"}\n'), ("b.txt", "source,target\n")):
        assert not looks_like_pairs(write(tmp_path / name, content))
    assert not looks_like_pairs(str(tmp_path / "none.csv"))
