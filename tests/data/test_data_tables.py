import csv
import io
import json
import random
from pathlib import Path

import pytest

from tokenloom.data.text import read_text
from tokenloom.errors import UserError


def read(tmp_path: Path, name: str, content: str, **options: str) -> tuple[list[tuple[str, str]], list[str]]:
    path = tmp_path / name
    path.write_bytes(content.encode())
    data = read_text(path, **options)  # type: ignore[arg-type]
    assert data.documented
    return [(document.id.removeprefix(name + ":"), document.text) for document in data.documents], data.notes


def refusal(tmp_path: Path, name: str, content: str, **options: str) -> str:
    with pytest.raises(UserError) as refused:
        read(tmp_path, name, content, **options)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_json_lines_with_every_row_accounted_for(tmp_path: Path) -> None:
    content = (
        '{"text": "one\\r\\ntwo", "n": 1}\n\n{"n": 2}\n{"text": "  "}\r\n{"text": 5}\n"bare"\n{"text": "\\ud83d"}\n'
        '{"text": "a\u2028b\u0085c"}\n[1]\n\n'
    )
    rows, notes = read(tmp_path, "a.jsonl", content)
    assert rows == [("1", "one\ntwo"), ("6", "bare"), ("8", "a\u2028b\u0085c")]
    assert notes == [
        "a.jsonl: the text is taken from 'text', a guess; --text-column NAME takes another",
        "a.jsonl: left out 2 rows with empty text: 2, 4",
        "a.jsonl: left out 1 row without 'text': 3",
        "a.jsonl: left out 2 rows with something other than text in 'text': 5, 9",
        "a.jsonl: left out 1 row with half of a surrogate pair, which is no character: 7",
    ]


def test_line_ends_inside_json_are_kept_when_asked(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, "a.ndjson", '{"text": "one\\r\\ntwo"}\r\n{"text": "three"}\r', normalize_newlines=False)
    assert rows == [("1", "one\r\ntwo"), ("2", "three")]


@pytest.mark.parametrize(
    "content",
    [
        '[\n {"review": "x", "stars": 1},\n {"review": "y", "stars": 2}\n]\n',
        '{"review": "x", "stars": 1}\n{"review": "y", "stars": 2}\n',
        '["x", "y"]',
        '\ufeff{"review": "x"}\n{"review": "y"}',
    ],
)
def test_a_json_file_is_a_list_or_lines(content: str, tmp_path: Path) -> None:
    rows, _ = read(tmp_path, "a.json", content)
    assert rows == [("1", "x"), ("2", "y")]


def test_a_json_file_with_one_object(tmp_path: Path) -> None:
    assert read(tmp_path, "a.json", '{\n "n": 3,\n "story": "once"\n}\n')[0] == [("1", "once")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "a"\n', "line 2, column"),
        ("a.json", '[\n{"a": "x"},\n{"a" "y"}]', "line 3, column"),
        ("a.json", '{"a": "x"}\n{"a": "z"}\n{', "line 3, column"),
        ("a.jsonl", '{"text": "a"}\n' + "[" * 100_000, "line 2"),
        ("a.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}", "line 1"),
        ("a.jsonl", '{"q": "a", "r": "b"}', "Give --text-column NAME: q, r"),
        ("a.jsonl", '{"q": 1}', "none of its columns contains text: q"),
        ("a.json", "[]", "no rows"),
        ("a.json", "3", "no text in any of its 1 row"),
        ("a.jsonl", '{"text": ""}\n{"text": " "}', "no text in 'text' in any of its 2 rows"),
    ],
)
def test_json_that_is_refused(name: str, content: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, name, content)


def test_an_unknown_json_column(tmp_path: Path) -> None:
    content = '{"question": "a", "answer": "b"}'
    assert read(tmp_path, "a.jsonl", content, text_column="answer")[0] == [("1", "b")]
    assert "did you mean 'answer'" in refusal(tmp_path, "a.jsonl", content, text_column="anwser")
    assert "leave out --text-column" in refusal(tmp_path, "a.json", '["x"]', text_column="answer")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_against_the_writer_of_the_standard_library(delimiter: str, tmp_path: Path) -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices('ab ,;\t"\n\r\u2028é', k=draw.randrange(1, 12))) + "x" for _ in range(60)]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(["id", "text", "by, whom; and\twhen"])
    writer.writerows([number, text, "someone"] for number, text in enumerate(texts))
    rows, _ = read(tmp_path, "a.csv", out.getvalue(), normalize_newlines=False)
    assert rows == [(str(number), text) for number, text in enumerate(texts, start=2)]
    folded, _ = read(tmp_path, "a.csv", out.getvalue())
    assert [text for _, text in folded] == [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]


def test_a_table_with_every_row_accounted_for(tmp_path: Path) -> None:
    content = 'id;text\n1;"a; b\nc"\n2;\n\n3\n4;x;y\n5;"say ""hi"""\n\n'
    rows, notes = read(tmp_path, "a.csv", content)
    assert rows == [("2", "a; b\nc"), ("7", 'say "hi"')]
    assert notes == [
        "a.csv: the text is taken from 'text', a guess; --text-column NAME takes another",
        "a.csv: left out 2 rows with empty text: 3, 4",
        "a.csv: left out 1 row without 'text': 5",
        "a.csv: left out 1 row with more cells than the header's 2: 6",
    ]


def test_guessing_the_column_of_a_table(tmp_path: Path) -> None:
    assert read(tmp_path, "a.csv", "n,story\n1,once\n2.5,upon\n")[0] == [("2", "once"), ("3", "upon")]
    assert read(tmp_path, "a.csv", "label,Text\nham,once\n")[0] == [("2", "once")]
    assert "Give --text-column NAME: label, story" in refusal(tmp_path, "a.csv", "label,story\nham,once\n")
    assert read(tmp_path, "a.csv", "label,story\nham,once\n", text_column="label")[0] == [("2", "ham")]
    assert "none of its columns contains text" in refusal(tmp_path, "a.csv", "a,b\n1,2\n")


def test_a_table_of_one_column_needs_no_quotes(tmp_path: Path) -> None:
    rows, notes = read(tmp_path, "a.csv", 'line\nHello, world; all\n"quoted, too"\n')
    assert rows == [("2", "Hello, world; all"), ("3", "quoted, too")]
    assert notes == []


def test_tabs_only_in_a_tsv_file(tmp_path: Path) -> None:
    assert read(tmp_path, "a.tsv", "n\tstory, long; one\n1\tx, y\n")[0] == [("2", "x, y")]


def test_a_field_of_any_length_and_the_limit_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    assert len(read(tmp_path, "a.csv", "n,text\n1," + "z" * 300_000 + "\n")[0][0][1]) == 300_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('id,text\n1,fine\n2,"never closed\nand on\n', "begins at line 3: a quote is not closed"),
        ('id,text\n1,"shut" too early\n', "begins at line 2"),
        ("id,text\n", "no rows"),
        ("text,text\na,b\n", "2 columns called 'text'"),
        ("id,text\n1,\n2, \n", "none of its columns contains text"),
    ],
)
def test_tables_that_are_refused(content: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, "a.csv", content)


def test_many_rows_left_out_are_counted_and_the_first_named(tmp_path: Path) -> None:
    content = '{"text": "a"}\n' + '{"n": 1}\n' * 2000
    notes = read(tmp_path, "a.jsonl", content)[1]
    assert "left out 2,000 rows without 'text': 2, 3, 4" in notes[1]
    assert notes[1].endswith("21 and 1,980 more")


def test_exact_text_through_json(tmp_path: Path) -> None:
    texts = ['"', "\\", "a\tb", "a\nb", "🌊\u200d", " x "]
    rows, _ = read(tmp_path, "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert [text for _, text in rows] == texts
