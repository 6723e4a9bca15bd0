import json
from pathlib import Path

from tokenloom.data.documents import Document, TextData
from tokenloom.data.report import Part, TextReport
from tokenloom.data.split import Split, split
from tokenloom.data.text import read_text


def a_split() -> Split:
    training = TextData(
        [Document("a", "one\ntwo"), Document("b", "é\n"), Document("c", "é\n")],
        True,
        name="tales",
        skipped=[
            ("x.png", "a binary file, not text: zero byte at byte offset 4"),
            ("y.png", "a binary file, not text: zero byte at byte offset 9"),
            ("z", "hidden"),
        ],
        notes=["a guess"],
        license="CC0-1.0",
    )
    validation = TextData([Document("d", "two\u2003ß ßx")], True, name="tales")
    return Split(training, validation, "by hand", ["a remark"])


def test_every_count_by_hand() -> None:
    report = TextReport.of(a_split())
    assert report.training == Part(documents=3, characters=11, bytes=13, lines=4)
    assert report.validation == Part(documents=1, characters=8, bytes=12, lines=1)
    assert report.distinct_characters == len(set("onetw\né \u2003ßx"))
    assert report.unseen == {" ": 1, "x": 1, "ß": 2, "\u2003": 1}
    assert report.longest == ("d", 8)
    assert report.duplicates == 1
    assert report.duplicate_share == 2 / 19
    assert report.notes == ["a guess", "a remark"]


def test_the_lines_that_a_person_reads() -> None:
    lines = TextReport.of(a_split(), {"tokens": "12 in training"}).lines()
    text = "\n".join(lines)
    assert all("\n" not in line for line in lines)
    assert lines[0] == "data:       tales (CC0-1.0)"
    assert "training:   3 documents, 11 characters, 13 bytes, 4 lines" in lines
    assert "split:      by hand" in lines
    assert "never shows: U+0020 (1×), x (1×), ß (2×), U+2003 (1×)" in text
    assert "duplicates: 1 document (10.5% of the characters): exact repeats of another" in lines
    assert "skipped:    2 × a binary file, not text: x.png, y.png" in lines
    assert "skipped:    1 × hidden: z" in lines
    assert "note:       a remark" in lines
    assert lines[-1] == "tokens:     12 in training"


def test_nothing_to_say_says_nothing() -> None:
    parts = split(TextData([Document("a", "ab" * 100)]))
    labels = [line.split(":")[0] for line in TextReport.of(parts).lines()]
    assert labels == ["data", "training", "validation", "split", "characters", "longest"]


def test_plain_values_for_json() -> None:
    plain = json.loads(json.dumps(TextReport.of(a_split()).as_dict()))
    assert plain["training"]["characters"] == 11
    assert plain["skipped"][2] == ["z", "hidden"]
    assert plain["unseen"]["ß"] == 2


def test_a_folder_from_reading_to_report(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text(f"This is tale {number}.\n", encoding="utf-8")
        (tmp_path / f"{number:02}.bin").write_bytes(b"a\0")
    report = TextReport.of(split(read_text(tmp_path)))
    assert report.training.documents + report.validation.documents == 30
    assert report.validation.documents == 3
    (skipped,) = [line for line in report.lines() if line.startswith("skipped")]
    assert "30 × a binary file, not text: 00.bin, 01.bin, 02.bin, 03.bin, 04.bin and 25 more" in skipped


def test_a_flood_of_notes_and_reasons_is_kept_short() -> None:
    data = TextData(
        [Document("a", "ab" * 100)],
        skipped=[(str(number), f"reason {number}") for number in range(9)],
        notes=[f"note {number}" for number in range(50)],
    )
    lines = TextReport.of(split(data)).lines()
    assert sum(line.startswith("note") for line in lines) == 21
    assert any(line.endswith("30 more like these") for line in lines)
    assert any(line.endswith("4 more for other reasons") for line in lines)
