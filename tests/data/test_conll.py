"""Labeled words from CoNLL columns and from any text: read, refused by row, split, restored."""

from pathlib import Path

import pytest

from tokenloom.data import registry
from tokenloom.data.conll import Columns, TaggedData, bare_words, looks_tagged, punctuated, read_tagged, restored
from tokenloom.data.documents import Document, TextData
from tokenloom.data.report import data_report
from tokenloom.data.sets.punctuation import without_names
from tokenloom.data.split import split
from tokenloom.errors import UserError

ROWS = "-DOCSTART- X O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nGerman JJ B-MISC\n"


def written(folder: Path, text: str, name: str = "a.conll") -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def test_columns_with_blank_lines_between_sentences(tmp_path: Path) -> None:
    data = read_tagged(written(tmp_path, ROWS))
    assert [(s.id, s.words, s.labels) for s in data.sentences] == [
        ("a.conll:3", ("EU", "rejects"), ("B-ORG", "O")),
        ("a.conll:7", ("German",), ("B-MISC",)),
    ]
    assert "a.conll: left out 1 -DOCSTART- lines" in data.notes
    assert any("column 3 of 3" in note for note in data.notes)
    other = read_tagged(written(tmp_path, ROWS), columns=Columns(label=2))
    assert other.labels() == {"NNP": 1, "VBZ": 1, "JJ": 1}


def test_tabs_keep_spaces_in_words_and_labels(tmp_path: Path) -> None:
    data = read_tagged(written(tmp_path, "New York\ta place\r\nis\t7\r\n"))
    assert data.sentences[0].words == ("New York", "is")
    assert data.sentences[0].labels == ("a place", "7")


def test_universal_columns(tmp_path: Path) -> None:
    rest = "\t_" * 6
    text = f"# text = vámonos\n1-2\tvámonos\t_\t_{rest}\n1\tvamos\tir\tVERB{rest}\n2\tnos\tnos\tPRON{rest}\n"
    data = read_tagged(written(tmp_path, text, "a.conllu"))
    assert data.sentences[0].words == ("vamos", "nos")
    assert data.sentences[0].labels == ("VERB", "PRON")
    assert sum("left out 1" in note for note in data.notes) == 2


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a X\nb Y\nc\n", None, r"a.conll: row 3 has 1 column where the first has 2: 'c'"),
        ("a X\n\nb Y Z\n", None, r"row 3 has 3 columns where the first has 2"),
        ("a\tX\nb\t\n", None, r"row 2 has no label"),
        ("\tX\n", None, r"row 1 has no word"),
        ("only\nwords\n", None, r"row 1 has one column.*--labels punctuation"),
        ("a X\n", Columns(label=3), r"--label-column 3: .*columns 1 to 2"),
        ("a X\n", Columns(word=2), r"--token-column 2 and --label-column 2 are the same"),
        ("-DOCSTART- O\n", None, r"contains no words"),
    ],
)
def test_what_cannot_be_read_is_named_by_row(tmp_path: Path, text: str, columns: Columns | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_tagged(written(tmp_path, text), columns=columns)


def test_a_folder_of_files(tmp_path: Path) -> None:
    written(tmp_path, "b X\n", "b.conll")
    written(tmp_path, "a Y\n", "a.conll")
    assert [s.id for s in read_tagged(str(tmp_path)).sentences] == ["a.conll:1", "b.conll:1"]


def test_equal_sentences_stay_on_one_side_and_what_is_odd_is_noted(tmp_path: Path) -> None:
    text = "\n\n".join(["same X"] * 3 + [f"w{n} X" for n in range(30)] + ["rare R"])
    data = read_tagged(written(tmp_path, text))
    parts = split(data, 0.1)
    sides = [{s.words for s in part.sentences} for part in (parts.train, parts.validation)]
    assert not sides[0] & sides[1]
    assert sum(len(part.sentences) for part in (parts.train, parts.validation)) == len(data.sentences)
    assert any("rare labels" in line and "'R'" in line for line in data_report(parts).lines())


def test_labels_that_training_never_shows_are_named(tmp_path: Path) -> None:
    training = read_tagged(written(tmp_path, "a X\n\nb X\n\nb Y"))
    validation = read_tagged(written(tmp_path, "a Z\n", "b.conll"))
    report = data_report(split(training, 0.1, validation=validation))
    assert report.facts["unseen_labels"] == {"Z": 1}
    assert any("unseen labels" in line and "'Z' (1×)" in line for line in report.lines())
    assert any("rare labels" in line and "'Y'" in line for line in report.lines())


def test_too_few_sentences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 sentences, 2 different: at least 5 different ones"):
        split(read_tagged(written(tmp_path, "a X\n\nb X\n")), 0.1)


def test_bare_words_and_their_labels() -> None:
    text = 'O Romeo! "Wherefore -- well-known 3.14 --, Don\'t?" it\nsaid; _so_ : …'
    assert list(bare_words(text)) == [
        ("o", "none|capital"),
        ("romeo", "!|capital"),
        ("wherefore", "none|capital"),
        ("well-known", "none|lower"),
        ("3.14", ",|lower"),
        ("don't", "?|capital"),
        ("it", "none|lower"),
        ("said", ";|lower"),
        ("so", ":|lower"),
    ]


def test_labels_restore_the_text() -> None:
    text = "Romeo, wherefore art thou? Deny thy father; refuse thy name!"
    words, labels = zip(*bare_words(text), strict=True)
    assert restored(list(words), list(labels)) == text


def test_paragraphs_are_sentences_and_documents_groups() -> None:
    text = TextData(
        [Document("a", "One two.\nThree!\n \n\n* * *\n\nFour"), Document("b", "Five")], True, held_out=("b",)
    )
    data = punctuated(text)
    assert [(s.id, s.words, s.group) for s in data.sentences] == [
        ("a:1", ("one", "two", "three"), "a"),
        ("a:3", ("four",), "a"),
        ("b:1", ("five",), "b"),
    ]
    assert data.notes == ["left out 1 paragraph without a letter or digit"]
    parts = split(TaggedData(data.sentences * 2, held_out=("b",)), 0.1)
    assert {s.group for s in parts.validation.sentences} == {"b"}
    with pytest.raises(UserError, match="no word"):
        punctuated(TextData([Document("a", "* * *")]))


def test_speeches_lose_the_names_of_their_speakers() -> None:
    assert without_names("ROMEO:\nAy me!\nAy.\n\nJULIET:\nO!\n\n") == "Ay me!\nAy.\n\nO!\n\n"


def test_what_looks_like_labeled_words() -> None:
    assert looks_tagged("x/train.CONLL") == "CoNLL columns"
    assert looks_tagged("punctuation") == "labeled words"
    assert looks_tagged("shakespeare") is None
    assert looks_tagged("notes.txt") is None
    assert registry.find("punctuation").held_out == registry.find("shakespeare").held_out
