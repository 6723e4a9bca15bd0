import json
from pathlib import Path

import numpy as np

from tokenloom.data.documents import Document, TextData
from tokenloom.data.images import from_arrays
from tokenloom.data.labeled import Labeled, LabeledData
from tokenloom.data.report import data_report
from tokenloom.data.split import Split, split
from tokenloom.data.text import read_text


def a_split() -> Split[TextData]:
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
    report = data_report(a_split())
    assert report.train == {"documents": 3, "characters": 11, "bytes": 13, "lines": 4}
    assert report.validation == {"documents": 1, "characters": 8, "bytes": 12, "lines": 1}
    assert report.facts["distinct_characters"] == len(set("onetw\né \u2003ßx"))
    assert report.facts["unseen_characters"] == {" ": 1, "x": 1, "ß": 2, "\u2003": 1}
    assert report.facts["longest"] == ("d", 8)
    assert report.facts["duplicates"] == 1
    assert report.facts["duplicate_share"] == 2 / 19
    assert report.notes == ["a guess", "a remark"]


def test_the_lines_that_a_person_reads() -> None:
    lines = data_report(a_split(), {"tokens": "12 in training"}).lines()
    text = "\n".join(lines)
    assert all("\n" not in line for line in lines)
    assert lines[0] == "data:              tales (CC0-1.0)"
    assert "training:          3 documents, 11 characters, 13 bytes, 4 lines" in lines
    assert "split:             by hand" in lines
    assert "not in training data: U+0020 (1×), x (1×), ß (2×), U+2003 (1×)" in text
    assert "duplicates:        1 document (10.5% of the characters): exact repeats of another" in lines
    assert "skipped:           2 × a binary file, not text: x.png, y.png" in lines
    assert "skipped:           1 × hidden: z" in lines
    assert "note:              a remark" in lines
    assert lines[-1] == "tokens:            12 in training"


def test_nothing_to_say_says_nothing() -> None:
    parts = split(TextData([Document("a", "ab" * 100)]))
    labels = [line.split(":")[0] for line in data_report(parts).lines()]
    assert labels == ["data", "training", "validation", "split", "characters", "longest"]


def test_plain_values_for_json() -> None:
    plain = json.loads(json.dumps(data_report(a_split()).as_dict()))
    assert plain["train"]["characters"] == 11
    assert plain["skipped"][2] == ["z", "hidden"]
    assert plain["unseen_characters"]["ß"] == 2


def test_a_folder_from_reading_to_report(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text(f"This is tale {number}.\n", encoding="utf-8")
        (tmp_path / f"{number:02}.bin").write_bytes(b"a\0")
    report = data_report(split(read_text(tmp_path)))
    assert report.train["documents"] + report.validation["documents"] == 30
    assert report.validation["documents"] == 3
    (skipped,) = [line for line in report.lines() if line.startswith("skipped")]
    assert "30 × a binary file, not text: 00.bin, 01.bin, 02.bin, 03.bin, 04.bin and 25 more" in skipped


def test_a_flood_of_notes_and_reasons_is_kept_short() -> None:
    data = TextData(
        [Document("a", "ab" * 100)],
        skipped=[(str(number), f"reason {number}") for number in range(9)],
        notes=[f"note {number}" for number in range(50)],
    )
    lines = data_report(split(data)).lines()
    assert sum(line.startswith("note") for line in lines) == 21
    assert any(line.endswith("30 more like these") for line in lines)
    assert any(line.endswith("4 more for other reasons") for line in lines)


def test_the_report_on_labeled_texts() -> None:
    def data_of(*rows: tuple[str, str], name: str) -> LabeledData:
        return LabeledData([Labeled(f"{name}:{n}", *row) for n, row in enumerate(rows, start=2)], name=name)

    training = data_of(("aa", "x"), ("bbbb", "x"), ("c", "y"), name="a")
    held = data_of(("dddddd", "x"), ("e", "z"), name="h")
    report = data_report(Split(training, held, "given", ["a note"]), {"more": "said"})
    assert report.facts["counts"] == {"x": (2, 1), "y": (1, 0), "z": (0, 1)}
    assert (report.facts["majority"], report.facts["majority_share"]) == ("x", 0.5)
    assert report.facts["lengths"] == (1, 2, 6)
    assert report.facts["longest"] == ("h:2", 6)
    lines = "\n".join(report.lines())
    assert "classes:    3 (training + validation): x 2 + 1, y 1 + 0, z 0 + 1" in lines
    assert "note:       a note" in lines
    assert "more:       said" in lines


def test_the_report_on_images() -> None:
    pixels = np.arange(15, dtype=np.uint8).reshape(-1, 1, 1, 1)
    data = from_arrays(pixels, [f"p{n}" for n in range(15)], np.array([0] * 5 + [1] * 10), ["a", "b"])
    assert data_report(split(data)).lines()[1:] == [
        "training:   12 images",
        "validation: 3 images",
        "split:      0.2 of each class, by a hash with seed 0: 12 images train, 3 validate",
        "images:     1 × 1 pixels, gray; 0.0 MB",
        "classes:    2 (training + validation): b 8 + 2, a 4 + 1",
        "majority:   b: 66.7% of the validation data",
    ]
