import gzip
from pathlib import Path

import pytest
from needs import lacking

from tokenloom.data import registry
from tokenloom.data.labeled import LabelColumns, LabeledData, looks_labeled, read_column, read_labeled
from tokenloom.errors import UserError


def read(folder: Path, name: str, content: str | bytes, **columns: str | bool) -> LabeledData:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_labeled(str(path), columns=LabelColumns(**columns))  # type: ignore[arg-type]


def pairs(data: LabeledData) -> list[tuple[str, str, str]]:
    return [(item.id.rpartition(":")[2], item.text, item.label) for item in data.items]


def refusal(folder: Path, name: str, content: str | bytes, **columns: str | bool) -> str:
    with pytest.raises(UserError) as refused:
        read(folder, name, content, **columns)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_table_with_every_row_accounted_for(tmp_path: Path) -> None:
    content = (
        '\ufefftext,label\r\n"one, ""two""\r\nthree",very good\r\n\r\nfour,\r\n,bad\r\nfive\r\nsix,bad,more\r\n'
        "seven, bad \r\neight,1\r\nnine,01\r\n"
    )
    data = read(tmp_path, "a.csv", content)
    assert pairs(data) == [
        ("2", 'one, "two"\nthree', "very good"),
        ("8", "seven", "bad"),
        ("9", "eight", "1"),
        ("10", "nine", "01"),
    ]
    assert data.classes == ["01", "1", "bad", "very good"]
    assert data.notes == [
        "a.csv: the text is taken from 'text', a guess; --text-column NAME takes another",
        "a.csv: the label is taken from 'label', a guess; --label-column NAME takes another",
        "a.csv: left out 1 row with more cells than the header's 2: 7",
        "a.csv: left out 2 rows with empty text: 3, 5",
        "a.csv: left out 1 row with an empty label in 'label': 4",
        "a.csv: left out 1 row without a label in 'label': 6",
        "a.csv: removed white space around the labels of 1 row",
    ]


def test_json_lines_with_every_row_accounted_for(tmp_path: Path) -> None:
    content = (
        '{"text": "a", "label": 1}\n{"text": "b", "label": 1.5}\n{"text": "c", "label": true}\n{"text": "d"}\n\n'
        '{"text": "e", "label": ["x"]}\n{"text": 5, "label": "x"}\n"bare"\n{"text": "f", "label": "  "}\n'
    )
    data = read(tmp_path, "a.jsonl", content)
    assert pairs(data) == [("1", "a", "1"), ("2", "b", "1.5"), ("3", "c", "true")]
    assert [note for note in data.notes if "left out" in note] == [
        "a.jsonl: left out 2 rows without a label in 'label': 4, 8",
        "a.jsonl: left out 1 row with empty text: 5",
        "a.jsonl: left out 1 row whose label is neither a text nor a number in 'label': 6",
        "a.jsonl: left out 1 row with something other than text in 'text': 7",
        "a.jsonl: left out 1 row with an empty label in 'label': 9",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "Review;Stars;id\ngood it is;5;1\nbad it is;1;2\nso so really;5;3\nquite bad;1;4\n"),
        ("a.tsv", "id\tStars\tReview\n1\t5\tgood it is\n2\t1\tbad it is\n3\t5\tso so really\n4\t1\tquite bad\n"),
        (
            "a.json",
            '[{"Review": "good it is", "Stars": 5}, {"Review": "bad it is", "Stars": 1},'
            ' {"Review": "so so really", "Stars": 5}, {"Review": "quite bad", "Stars": 1}]',
        ),
    ],
)
def test_columns_are_known_by_what_stands_in_them(name: str, content: str, tmp_path: Path) -> None:
    data = read(tmp_path, name, content)
    assert [(text, label) for _, text, label in pairs(data)] == [
        ("good it is", "5"),
        ("bad it is", "1"),
        ("so so really", "5"),
        ("quite bad", "1"),
    ]
    assert any("'Stars', a guess" in note for note in data.notes)


def test_a_table_without_a_header_is_seen_by_a_label_that_comes_again(tmp_path: Path) -> None:
    content = "spam,win now\nham,hello you\nspam,cash\nham,soon\n"
    data = read(tmp_path, "a.csv", content)
    assert pairs(data) == [
        ("1", "win now", "spam"),
        ("2", "hello you", "ham"),
        ("3", "cash", "spam"),
        ("4", "soon", "ham"),
    ]
    assert "looks like an example" in data.notes[0]
    assert pairs(read(tmp_path, "a.csv", content, text="2", label="1")) == pairs(data)
    # As said, the first row is a header: two labels come again in its column called spam.
    assert len(read(tmp_path, "a.csv", content + "ham,x\nspam,y\n", header=True).items) == 5


def test_other_encodings_and_gzip(tmp_path: Path) -> None:
    raw = "text,label\nFluß,de\nrivière,fr\n".encode("latin-1")
    path = tmp_path / "a.csv"
    path.write_bytes(raw)
    assert [item.text for item in read_labeled(str(path), encoding="latin-1").items] == ["Fluß", "rivière"]
    assert "byte offset 14" in refusal(tmp_path, "b.csv", raw)
    zipped = read(tmp_path, "c.csv.gz", gzip.compress(b"text,label\na,x\nb,y\n"))
    assert zipped.classes == ["x", "y"]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("text,label\n", {}, "has no rows"),
        ("text\na\nb\n", {}, "has only the column"),
        ("text,label\na,x\n", {"label": "labl"}, "did you mean 'label'?"),
        ("text,label\na,x\n", {"text": "text", "label": "text"}, "cannot be both"),
        (
            "text,a,b\none,1,x\ntwo,1,x\nthree,2,y\nfour,2,y\n",
            {},
            "which column is the label? Give --label-column NAME: a, b",
        ),
        ("text,label,label\na,x,y\n", {}, "has 2 columns called 'label'"),
        ('text,label\n"a,x\n', {}, "a quote is not closed"),
        ("text,label\na,\nb, \n", {}, "none of its rows can be used: 2 rows with an empty label in 'label'"),
        ("", {}, "empty (0 bytes)"),
    ],
)
def test_tables_that_cannot_be_used(content: str, columns: dict[str, str], message: str, tmp_path: Path) -> None:
    assert message in refusal(tmp_path, "a.csv", content, **columns)


def test_plain_text_has_no_labels(tmp_path: Path) -> None:
    assert "plain text has no labels" in refusal(tmp_path, "a.txt", "one\ntwo\n")


def test_a_folder_a_class(tmp_path: Path) -> None:
    for name, text in {
        "very good/1.txt": "fine\n",
        "very good/deep/2.txt": "nice\n",
        "bad/a.csv": "text\nugh\nbah\n",
        "readme.txt": "outside\n",
        "bad/.hidden": "no\n",
    }.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "set/void").mkdir()
    data = read_labeled(str(tmp_path / "set"))
    assert [(item.id, item.text, item.label) for item in data.items] == [
        ("bad/a.csv:2", "ugh", "bad"),
        ("bad/a.csv:3", "bah", "bad"),
        ("very good/1.txt", "fine\n", "very good"),
        ("very good/deep/2.txt", "nice\n", "very good"),
    ]
    assert "left out 1 file outside of class folders: readme.txt" in data.notes
    assert "1 folder without text, not used as a class: void" in data.notes
    assert ("bad/.hidden", "hidden") in data.skipped
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/a.txt").write_text("x", "utf-8")
    with pytest.raises(UserError, match="no folder in it contains text"):
        read_labeled(str(tmp_path / "flat"))


def test_what_looks_labeled(tmp_path: Path) -> None:
    for name, content, looks in [
        ("a.csv", "id,Text,Label\n1,a,b\n", True),
        ("b.csv", "source,target\na,b\n", False),
        ("c.jsonl", '{"review": "a", "sentiment": "b"}\n', True),
        ("d.json", '[{"text": "a"}]', False),
        ("e.txt", "text,label\na,b\n", False),
    ]:
        (tmp_path / name).write_text(content, "utf-8")
        assert (looks_labeled(str(tmp_path / name)) is not None) is looks, name
    assert looks_labeled("sms-spam")
    assert looks_labeled("python-docs") is None


def test_texts_to_be_labeled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", "utf-8")
    (tmp_path / "a.csv").write_text("n,review\n1,one\n2,two\n", "utf-8")
    assert read_column(str(tmp_path / "a.txt"), column=None) == ["one", "two"]
    assert read_column(str(tmp_path / "a.csv"), column="review") == ["one", "two"]


def builtin(name: str) -> LabeledData:
    try:
        return read_labeled(name)
    except UserError as error:
        lacking(str(error))


def test_the_messages_are_4522_and_each_stands_once() -> None:
    data = builtin("sms-spam")
    assert len(data.items) == len({item.text for item in data.items}) == 4_522
    assert sum(item.label == "spam" for item in data.items) == 567
    assert len(registry.load("sms-spam").documents) == 4_522


def test_the_glosses_of_ten_classes_are_53063() -> None:
    data = builtin("glosses")
    assert len(data.items) == len({item.text for item in data.items}) == 53_063
    assert " ".join(data.classes) == "animal artifact body food location person plant state substance time"
    by_id = {item.id: item for item in data.items}
    assert by_id["noun:02084071"].label == "animal", "the dog"
    everything = builtin("glosses-all")
    assert len(everything.items) == 117_659
    assert len(everything.classes) == 45


def test_the_genres_hold_out_a_play_of_each() -> None:
    data = builtin("shakespeare-genre")
    assert len(data.classes) == 6
    assert all(len(item.text) >= 80 for item in data.items)
    assert isinstance(data.held_out, tuple)
    assert {play.split("/")[0] for play in data.held_out} == set(data.classes)
    assert set(data.held_out) <= {item.group for item in data.items}
