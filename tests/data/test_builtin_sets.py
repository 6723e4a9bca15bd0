import time
from pathlib import Path

from tokenloom.data import registry
from tokenloom.data.documents import TextData
from tokenloom.data.download import cached
from tokenloom.data.sets.shakespeare import speeches
from tokenloom.data.split import split

PLAY = """# A Play

## ACT I

### SCENE I. A hill.

_Enter ANNA and BEN_

**ANNA**  
Good morrow, Ben:  
a line, **bold** in it.

_Exit BEN_

And on.

**BEN & ANNA**  
_\\[Aside]_  
Farewell.
"""


def test_speeches_by_hand() -> None:
    assert speeches(PLAY) == (
        "ANNA:\nGood morrow, Ben:\na line, **bold** in it.\nAnd on.\n\nBEN & ANNA:\nFarewell.\n\n"
    )


def test_shakespeare_is_38_plays(shakespeare: TextData) -> None:
    assert len(shakespeare.documents) == 38
    assert shakespeare.documented
    text = "".join(document.text for document in shakespeare.documents)
    assert (len(text), len(text.encode()), len(set(text))) == (4_805_825, 4_805_953, 81)
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert len(blocks) == 31_354
    # Every block is a speech: a name with a colon, then at least a line.
    assert all(block.split("\n")[0].endswith(":") and "\n" in block for block in blocks)
    (hamlet,) = [document for document in shakespeare.documents if document.id == "tragedies/hamlet"]
    assert hamlet.text.startswith("BERNARDO:\nWho's there?\n\nFRANCISCO:\n")


def test_shakespeare_holds_out_whole_plays(shakespeare: TextData) -> None:
    parts = split(shakespeare)
    assert len(parts.validation.documents) == 5
    assert "tragedies/macbeth" in [document.id for document in parts.validation.documents]
    assert 0.09 < parts.validation.characters / shakespeare.characters < 0.11


def test_shakespeare_is_read_in_half_a_second(shakespeare: TextData) -> None:
    begin = time.process_time()
    again = registry.load("shakespeare")
    assert time.process_time() - begin < 0.5
    assert again == shakespeare


def test_tinyshakespeare_through_the_command_for_a_copy(tinyshakespeare: str, cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "input.txt"
    copy.write_bytes(tinyshakespeare.encode())
    added = registry.add("tinyshakespeare", copy)
    assert added.is_relative_to(cache)
    assert added == cached(registry.find("tinyshakespeare").sources[0][0])
    data = registry.load("tinyshakespeare")
    assert not data.documented
    assert data.documents[0].text == tinyshakespeare
    assert len(set(tinyshakespeare)) == 65
    parts = split(data)
    assert (parts.train.characters, parts.validation.characters) == (1_003_854, 111_540)
    assert parts.train.documents[0].text == tinyshakespeare[:1_003_854]
    assert parts.validation.documents[0].text == tinyshakespeare[1_003_854:]


def test_python_docs_need_nothing() -> None:
    data = registry.load("python-docs")
    assert 300_000 < data.characters < 1_000_000
    assert {"assert", "strings"} <= {document.id for document in data.documents}
    assert any("Python 3." in note for note in data.notes)


def test_python_source_is_sorted_and_without_tests() -> None:
    data = registry.load("python-source")
    ids = [document.id for document in data.documents]
    assert ids == sorted(ids, key=lambda name: name.split("/"))
    assert {"json/decoder.py", "argparse.py"} <= set(ids)
    for name in ids:
        assert not {"test", "tests", "site-packages", "__pycache__"} & set(name.split("/"))
    assert data.characters > 5_000_000
    assert all(reason == "empty" or "UTF-8" in reason for _, reason in data.skipped)
