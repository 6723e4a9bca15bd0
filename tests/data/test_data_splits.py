import random
from collections.abc import Sequence

import pytest

from tokenloom.data.documents import Document, TextData
from tokenloom.data.split import split
from tokenloom.errors import UserError


def several(texts: Sequence[str], documented: bool = True, **more: object) -> TextData:
    documents = [Document(f"{number:03}", text) for number, text in enumerate(texts)]
    return TextData(documents, documented, name="several", **more)  # type: ignore[arg-type]


def drawn(n: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefgh ", k=draw.randrange(50, 150))) + str(number) for number in range(n)]


def ids(data: TextData) -> list[str]:
    return [document.id for document in data.documents]


def test_one_text_is_cut_where_int_of_the_fraction_says() -> None:
    text = "".join(random.Random(3).choices("abc\n", k=1003))
    parts = split(TextData([Document("poem.txt", text)], skipped=[("x", "binary")], notes=["noted"]))
    assert parts.training.documents == [Document("poem.txt[:902]", text[:902])]
    assert parts.validation.documents == [Document("poem.txt[902:]", text[902:])]
    assert "902 train, 101 validate" in parts.how
    # What was noticed while reading is told once.
    assert (parts.training.skipped, parts.training.notes) == ([("x", "binary")], ["noted"])
    assert (parts.validation.skipped, parts.validation.notes) == ([], [])


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whole_documents_near_the_fraction(fraction: float, seed: int) -> None:
    data = several(drawn(200))
    parts = split(data, fraction, seed)
    assert abs(parts.validation.characters / data.characters - fraction) < 0.01
    assert sorted(ids(parts.training) + ids(parts.validation)) == ids(data)
    assert ids(parts.training) == sorted(ids(parts.training))
    assert split(data, fraction, seed) == parts
    assert ids(split(data, fraction, seed + 7).validation) != ids(parts.validation)


def test_no_other_choice_in_the_same_order_comes_nearer() -> None:
    # Each document taken brought the share nearer, and each left out would not have: the plain rule, once more.
    data = several(drawn(30, seed=5))
    held = set(ids(split(data, 0.2).validation))
    target, total = 0.2 * data.characters, sum(len(d.text) for d in data.documents if d.id in held)
    smallest = min(len(d.text) for d in data.documents)
    assert abs(total - target) <= smallest


def test_a_new_document_moves_few_others() -> None:
    texts = drawn(300)
    before, after = split(several(texts), 0.1), split(several([*texts, "a new one"]), 0.1)
    assert len(set(ids(before.validation)) ^ set(ids(after.validation))) <= 4


def test_identical_documents_stay_on_one_side() -> None:
    texts = [text for text in drawn(40) for _ in range(3)]
    parts = split(several(texts), 0.3)
    assert not {d.text for d in parts.training.documents} & {d.text for d in parts.validation.documents}
    assert len(parts.validation.documents) % 3 == 0
    assert any(note.startswith("80 exact repeats") for note in parts.notes)


def test_one_huge_document_does_not_take_over() -> None:
    parts = split(several(["x" * 10_000, *drawn(9)]), 0.1)
    assert "000" not in ids(parts.validation)
    assert len(parts.validation.documents) >= 1
    # Where every document is too large, the smallest validates.
    parts = split(several(["a" * 100, "b" * 100, "c" * 90, "d" * 100, "e" * 100]), 0.01)
    assert ids(parts.validation) == ["002"]


def test_training_always_keeps_a_document() -> None:
    parts = split(several(drawn(6)), 0.99)
    assert len(parts.training.documents) == 1


def test_a_few_documents_are_cut_like_one_text() -> None:
    parts = split(several(["aaaa", "bbbb", "cccc"]), 0.5)
    assert parts.training.documents == [Document("000", "aaaa"), Document("001[:2]", "bb")]
    assert parts.validation.documents == [Document("001[2:]", "bb"), Document("002", "cccc")]


def test_a_cut_on_a_border_cuts_no_document() -> None:
    parts = split(several(["aaaa", "bbbb"]), 0.5)
    assert (ids(parts.training), ids(parts.validation)) == (["000"], ["001"])


def test_repeats_are_left_out_before_a_cut() -> None:
    # Eight documents, but only two texts: a cut between equal ones would show validation text in training.
    parts = split(several(["once", "upon a time"] * 4), 0.1)
    assert "".join(d.text for d in [*parts.training.documents, *parts.validation.documents]) == "onceupon a time"
    assert parts.notes == ["left out 6 exact repeats of another document before the cut"]


def test_holding_out_by_name() -> None:
    data = several(["one", "two", "three", "two"])
    parts = split(data, held_out=["001"])
    # Its twin goes with it.
    assert (ids(parts.training), ids(parts.validation)) == (["000", "002"], ["001", "003"])
    assert "held out by name: 001" in parts.how
    assert ids(split(data, held_out="002").validation) == ["002"]  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"no document '0002' to hold out; did you mean '00"):
        split(data, held_out=["0002"])
    with pytest.raises(UserError, match="4 of 4 documents leaves nothing for training"):
        split(data, held_out=ids(data))
    with pytest.raises(UserError, match="0 of 4 documents leaves nothing for validation"):
        split(data, held_out=[])


def test_the_data_sets_own_wish_unless_another_fraction_is_asked_for() -> None:
    data = several(drawn(50), held_out=("007", "008"))
    assert ids(split(data).validation) == ["007", "008"]
    assert len(split(data, 0.5).validation.documents) > 10
    assert ids(split(data, held_out=["001"]).validation) == ["001"]
    tail = split(several(drawn(50), held_out="tail"))
    assert ids(tail.validation)[-1] == "049"
    assert "[" in ids(tail.training)[-1]


def test_a_validation_text_of_its_own() -> None:
    data = several(["one", "two", "three"])
    parts = split(data, validation=several(["two", "four"]))
    assert parts.training == data
    assert ids(parts.validation) == ["000", "001"]
    assert parts.notes == ["in the training text too, whole: 1 of 2 validation documents: 000"]
    assert split(data, validation=several(["four"])).notes == []
    with pytest.raises(UserError, match="leave one of them away"):
        split(data, held_out=["000"], validation=data)


def test_a_validation_file_that_is_a_part_of_the_training_file() -> None:
    data = several(["the whole story"], documented=False)
    assert len(split(data, validation=several(["whole"], documented=False)).notes) == 1
    assert split(data, validation=several(["another"], documented=False)).notes == []


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_fractions_that_are_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        split(several(drawn(10)), fraction)


def test_too_short_to_split() -> None:
    with pytest.raises(UserError, match="of 1 character, 0 would train and 1 validate"):
        split(several(["a"]))
    assert split(several(["ab"])).validation.characters == 1
