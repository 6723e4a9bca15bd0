"""The split of every kind of data. Its choices are recorded: published figures depend on them."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tokenloom.data.conll import Sentence, TaggedData, read_tagged
from tokenloom.data.documents import Document, TextData
from tokenloom.data.images import ImageData, from_arrays, read_images
from tokenloom.data.labeled import Labeled, LabeledData, read_labeled
from tokenloom.data.pairs import Pair, PairData, read_pairs
from tokenloom.data.report import data_report
from tokenloom.data.split import Split, split
from tokenloom.data.text import read_text
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
    assert parts.train.documents == [Document("poem.txt[:902]", text[:902])]
    assert parts.validation.documents == [Document("poem.txt[902:]", text[902:])]
    assert "902 train, 101 validate" in parts.how
    # What was noticed while reading is reported once.
    assert (parts.train.skipped, parts.train.notes) == ([("x", "binary")], ["noted"])
    assert (parts.validation.skipped, parts.validation.notes) == ([], [])


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whole_documents_near_the_fraction(fraction: float, seed: int) -> None:
    data = several(drawn(200))
    parts = split(data, fraction, seed)
    assert abs(parts.validation.characters / data.characters - fraction) < 0.01
    assert sorted(ids(parts.train) + ids(parts.validation)) == ids(data)
    assert ids(parts.train) == sorted(ids(parts.train))
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
    assert not {d.text for d in parts.train.documents} & {d.text for d in parts.validation.documents}
    assert len(parts.validation.documents) % 3 == 0
    assert any(note.startswith("80 repeats of another document") for note in parts.notes)


def test_one_huge_document_does_not_take_over() -> None:
    parts = split(several(["x" * 10_000, *drawn(9)]), 0.1)
    assert "000" not in ids(parts.validation)
    assert len(parts.validation.documents) >= 1
    # Where every document is too large, the smallest validates.
    parts = split(several(["a" * 100, "b" * 100, "c" * 90, "d" * 100, "e" * 100]), 0.01)
    assert ids(parts.validation) == ["002"]


def test_training_always_keeps_a_document() -> None:
    parts = split(several(drawn(6)), 0.99)
    assert len(parts.train.documents) == 1


def test_a_few_documents_are_cut_like_one_text() -> None:
    parts = split(several(["aaaa", "bbbb", "cccc"]), 0.5)
    assert parts.train.documents == [Document("000", "aaaa"), Document("001[:2]", "bb")]
    assert parts.validation.documents == [Document("001[2:]", "bb"), Document("002", "cccc")]


def test_a_cut_on_a_border_cuts_no_document() -> None:
    parts = split(several(["aaaa", "bbbb"]), 0.5)
    assert (ids(parts.train), ids(parts.validation)) == (["000"], ["001"])


def test_repeats_are_left_out_before_a_cut() -> None:
    # Eight documents, but only two texts: a cut between equal ones would show validation text in training.
    parts = split(several(["once", "upon a time"] * 4), 0.1)
    assert "".join(d.text for d in [*parts.train.documents, *parts.validation.documents]) == "onceupon a time"
    assert parts.notes == ["left out 6 exact repeats of another document before the cut"]


def test_holding_out_by_name() -> None:
    data = several(["one", "two", "three", "two"])
    parts = split(replace(data, held_out=("001",)))
    # The repeat goes with it.
    assert (ids(parts.train), ids(parts.validation)) == (["000", "002"], ["001", "003"])
    assert "held out by name (001): 2 documents train, 2 validate" in parts.how
    with pytest.raises(UserError, match=r"of 4 documents .3 different., 0 would train and 4 validate"):
        split(replace(data, held_out=tuple(ids(data))))
    with pytest.raises(UserError, match="4 would train and 0 validate"):
        split(replace(data, held_out=()))


def test_what_the_data_set_holds_out_unless_another_fraction_or_seed_is_given() -> None:
    data = several(drawn(50), held_out=("007", "008"))
    assert ids(split(data).validation) == ["007", "008"]
    assert len(split(data, 0.5).validation.documents) > 10
    assert len(split(data, seed=1).validation.documents) > 2
    tail = split(several(drawn(50), held_out="tail"))
    assert ids(tail.validation)[-1] == "049"
    assert "[" in ids(tail.train)[-1]


def test_a_validation_text_of_its_own() -> None:
    data = several(["one", "two", "three"])
    parts = split(data, validation=several(["two", "four"]))
    assert parts.train == data
    assert ids(parts.validation) == ["000", "001"]
    assert parts.notes == ["in the training data too: 1 of 2 validation documents: 000"]
    assert split(data, validation=several(["four"])).notes == []


def test_a_validation_file_that_is_a_part_of_the_training_file() -> None:
    data = several(["the whole story"], documented=False)
    assert len(split(data, validation=several(["whole"], documented=False)).notes) == 1
    assert split(data, validation=several(["another"], documented=False)).notes == []


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_fractions_that_are_refused(fraction: float) -> None:
    with pytest.raises(UserError, match=r"--val-fraction .* must be above 0 and below 1"):
        split(several(drawn(10)), fraction)


def test_too_short_to_split() -> None:
    with pytest.raises(UserError, match="of 1 character, 0 would train and 1 validate"):
        split(several(["a"]))
    assert split(several(["ab"])).validation.characters == 1


# Labeled texts.


def labeled(*rows: tuple[str, str], name: str = "a.csv") -> LabeledData:
    items = [Labeled(f"{name}:{n}", text, label) for n, (text, label) in enumerate(rows, start=2)]
    return LabeledData(items, name=name)


def many(n: int = 100, share: float = 0.25) -> LabeledData:
    return labeled(*((f"text {i}", "rare" if i < share * n else "common") for i in range(n)))


def texts(data: LabeledData) -> set[str]:
    return {item.text for item in data.items}


def test_each_class_gives_its_share() -> None:
    parts = split(many(), 0.2)
    assert Counter(item.label for item in parts.validation.items) == {"rare": 5, "common": 15}
    assert texts(parts.train) | texts(parts.validation) == texts(many())
    assert not texts(parts.train) & texts(parts.validation)


def test_the_seed_decides_and_a_new_text_shuffles_nothing() -> None:
    first, again = split(many(), 0.2, 1), split(many(), 0.2, 1)
    assert first == again
    assert texts(split(many(), 0.2, 2).validation) != texts(first.validation)
    more = labeled(*((item.text, item.label) for item in many().items), ("new", "common"))
    assert len(texts(split(more, 0.2, 1).validation) ^ texts(first.validation)) <= 2


def test_repeats_count_once_and_texts_with_several_labels_stay_on_one_side() -> None:
    rows = [(f"t{i}", "ab"[i % 2]) for i in range(40)]
    data = labeled(*rows, ("t0", "a"), *((f"t{i}", "ba"[i % 2]) for i in range(10)), (" t1", "b"))
    for seed in range(5):
        parts = split(data, 0.3, seed)
        stripped = [{text.strip() for text in texts(side)} for side in (parts.train, parts.validation)]
        assert not stripped[0] & stripped[1]
        assert len(parts.train.items) + len(parts.validation.items) == len(data.items) - 1
    assert "left out 1 exact repeat: a.csv:42" in parts.notes
    assert any(note.startswith("10 texts with several labels") and "a.csv:2 (a)" in note for note in parts.notes)


def test_a_class_of_one_text_trains_and_is_named() -> None:
    parts = split(labeled(*((f"t{i}", "a") for i in range(9)), ("alone", "b")))
    assert parts.train.classes == ["a", "b"]
    assert "class 'b' has a single text, a.csv:11: it trains and is not validated" in parts.notes


def test_labels_that_training_lacks_are_named_and_classes_never_shift() -> None:
    training = labeled(("one", "b"), ("two", "d"), ("three", "b"))
    held = labeled(("four", "a"), ("five", "d"), ("one", "b"), ("one", "b"), name="held.csv")
    parts = split(training, validation=held)
    assert parts.train.classes == ["b", "d"]
    assert "label 'a' is in no training text: 1 validation text, counted as wrong: held.csv:2" in parts.notes
    assert texts(parts.train) == {"two", "three"}
    assert "left out 1 training text also in the validation data: a.csv:2" in parts.notes
    assert "left out 1 exact repeat in the validation data: held.csv:5" in parts.notes
    assert len(parts.validation.items) == 3
    with pytest.raises(UserError, match="every text is in the validation data too"):
        split(training, validation=training)


def test_groups_that_are_held_out_stay_together() -> None:
    plays = [(play, n) for play in ("a1", "a2", "b1") for n in range(4)]
    items = [Labeled(f"{play}:{n}", f"speech {play} {n}", play[0], play) for play, n in plays]
    items.append(Labeled("b1:9", "speech a2 0", "b", "b1"))
    parts = split(LabeledData(items, name="plays", held_out=("a2",)))
    assert {item.group for item in parts.validation.items} == {"a2"}
    assert "left out 1 training text that are also held out: b1:9" in parts.notes
    assert {item.group for item in split(LabeledData(items, held_out=("a2",)), 0.5).validation.items} != {"a2"}


def test_labels_that_differ_only_in_case_are_named() -> None:
    parts = split(labeled(*((f"t{i}", ("Spam", "spam", "ham")[i % 3]) for i in range(30))))
    assert "labels that differ only in case are different classes: 'Spam', 'spam'" in parts.notes


def test_a_single_class_is_refused() -> None:
    with pytest.raises(UserError, match="all training data have the label 'a'"):
        split(labeled(("one", "a"), ("two", "a")))


# Images.


def numbered(labels: list[int], classes: list[str], first: int = 0) -> ImageData:
    """Images of one pixel each, with different values."""
    pixels = np.arange(first, first + len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return from_arrays(pixels, [f"p{first + n}" for n in range(len(labels))], np.array(labels), classes)


def test_a_fraction_of_each_class_validates() -> None:
    data = numbered([0] * 10 + [1] * 30, ["a", "b"])
    parts = split(data)
    assert np.bincount(parts.validation.labels).tolist() == [2, 6]
    assert np.bincount(parts.train.labels).tolist() == [8, 24]
    assert set(parts.train.ids) | set(parts.validation.ids) == set(data.ids)
    assert list(split(data, 0.2).validation.ids) == list(parts.validation.ids)
    assert list(split(data, 0.2, 1).validation.ids) != list(parts.validation.ids)


def test_repeated_images_stay_together_and_are_named() -> None:
    data = numbered([0] * 10 + [1] * 10, ["a", "b"])
    data.pixels[10] = data.pixels[0]
    data.pixels[1] = data.pixels[0]
    parts = split(data, 0.5)
    sides = [{"p0", "p1", "p10"} <= set(part.ids) for part in (parts.train, parts.validation)]
    assert sorted(sides) == [False, True]
    assert "2 repeats of another image" in parts.notes[0]
    assert "1 image with several labels, all kept: p0 (a) = p1 (a) = p10 (b)" in parts.notes


def test_validation_classes_go_by_name() -> None:
    data = numbered([0, 1, 2], ["ant", "bee", "cow"])
    other = numbered([0, 1, 2, 2], ["bee", "cow", "dog"], first=3)
    parts = split(data, validation=replace(other, name="more"))
    assert parts.validation.labels.tolist() == [1, 2, -1, -1]
    assert "label 'dog' is in no training image: 2 validation images, counted as wrong: p5, p6" in parts.notes
    assert data_report(parts).facts["counts"]["(not learned)"] == (0, 2)


def test_images_of_the_validation_data_do_not_train() -> None:
    data = numbered([0] * 5, ["a"])
    parts = split(data, validation=numbered([0, 0, 0], ["a"], first=3))
    assert list(parts.train.ids) == ["p0", "p1", "p2"]
    assert "left out 2 training images" in parts.notes[0]


def test_groups_of_images_are_held_out_by_default() -> None:
    data = numbered([0, 0, 0, 0], ["a"])
    data = replace(data, groups=["x", "y", "x", "y"], held_out=("y",))
    assert list(split(data).validation.ids) == ["p1", "p3"]
    assert "of each class" in split(data, 0.5).how


def test_too_few_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"text: of 1 image .1 different., 1 would train and 0 validate"):
        split(numbered([0], ["a"]))
    alike = numbered([0, 0, 1, 1], ["a", "b"])
    with pytest.raises(UserError, match=r"of 4 images .2 different., 4 would train and 0 validate"):
        split(replace(alike, pixels=alike.labels.astype(np.uint8).reshape(-1, 1, 1, 1)))


# Recorded splits: (training examples, validation examples, hash of their ids).

RECORDED = {
    "text 0.05 0": (189, 11, "4fb542c20b7062eb"),
    "text 0.05 1": (190, 10, "a75da95afeba4ed6"),
    "text 0.1 0": (179, 21, "ba16782750060991"),
    "text 0.1 1": (180, 20, "b1f2c18306a2acc8"),
    "text 0.3 0": (139, 61, "9a7f37476d81b096"),
    "text 0.3 1": (138, 62, "544fea514a27d383"),
    "text repeats": (84, 36, "e76aafbe2eff670e"),
    "text uneven": (1, 9, "2a96f35c8c191306"),
    "text tail": (182, 19, "d8a977b7bd0d8d19"),
    "text few": (3, 2, "b42c432248ac93b1"),
    "labels 0.1 0": (109, 11, "862e0dbce3742658"),
    "labels 0.1 3": (108, 12, "1af4da6c14472f37"),
    "labels 0.3 0": (86, 34, "52c2b3a1fc79571e"),
    "labels 0.3 3": (83, 37, "a4adf8c369b16c9d"),
    "labels repeats 0": (38, 14, "fcbdc77a6dccfe71"),
    "labels repeats 1": (37, 15, "a8643b6564911f84"),
    "labels groups": (8, 4, "ac1f9461f81dd2c2"),
    "labels given": (48, 2, "d81ad70f2ec4c2b7"),
    "pairs 0.1": (109, 12, "ddab03274f393db4"),
    "pairs 0.4": (73, 48, "079d7a67db6f7cfd"),
    "pairs given": (121, 3, "70e94061b67656d4"),
    "tags 0.1": (59, 6, "d72618ca667337ad"),
    "tags 0.3": (47, 18, "0c94aa78409978e4"),
    "tags groups": (33, 32, "9448792c591aba98"),
    "images 0.2 0": (244, 56, "937f2eca6a4a93be"),
    "images 0.2 2": (244, 56, "86ad705d2b5675a3"),
    "images 0.4 0": (187, 113, "c02c24bed9652c44"),
    "images 0.4 2": (178, 122, "6059d039fa0b4cf3"),
    "images no classes": (80, 20, "4631b38867b65e4e"),
    "images groups": (29, 30, "214e8154cf386f48"),
    "images given": (52, 20, "69e183ebcba307e3"),
}

RECORDED_BUILT_IN = {
    "text shakespeare": (33, 5, "0484160e66d8350c"),
    "text shakespeare 0.2": (30, 8, "5c9fee0d3d258ba4"),
    "text python-docs": (56, 23, "38c5d906defc4108"),
    "labels sms-spam": (4069, 453, "17c4813817bb61e7"),
    "labels sms-spam 0.2 1": (3616, 906, "b3518048bcfe3e26"),
    "labels shakespeare-genre": (12266, 1870, "bae024b3ac86d741"),
    "labels shakespeare-genre 0.2 1": (11309, 2827, "360b435e04d05458"),
    "pairs dates-iso": (5400, 600, "afbb1c6c0e19419b"),
    "pairs verses-en-es": (9195, 1022, "ec52ef761c54165a"),
    "tags punctuation": (27906, 3448, "618afc42257508ee"),
    "images digits": (1438, 359, "2cc27b2b99c2d458"),
    "images digits 0.1 5": (1618, 179, "567c1850fb6ef1c8"),
    "images mnist-5k": (4000, 1000, "fcc784f289100992"),
    "images mnist-5k 0.1 5": (4500, 500, "11bd0329156bea1b"),
}


def record(parts: Split[Any]) -> tuple[int, int, str]:
    """Return the sizes of both parts, and a hash of the ids in order."""
    train, held = (list(part.split_keys().ids) for part in (parts.train, parts.validation))
    raw = "\n".join(train) + "\n|\n" + "\n".join(held)
    return len(train), len(held), hashlib.sha256(raw.encode()).hexdigest()[:16]


def images(n: int, classes: int = 3, groups: Sequence[str] = ()) -> ImageData:
    draw = random.Random(n)
    pixels = np.array([draw.randrange(200) for _ in range(n)], dtype=np.uint8).reshape(n, 1, 1, 1)
    labels = np.array([draw.randrange(classes) if classes else -1 for _ in range(n)])
    names = [f"c{i}" for i in range(classes)]
    return replace(from_arrays(pixels, [f"p{i}" for i in range(n)], labels, names, groups), name="p")


def labels_of(n: int) -> LabeledData:
    rows = ((f"a:{i}", f"text {i % (n - 7)}", "rare" if i < 0.25 * n else "common") for i in range(n))
    return LabeledData([Labeled(*row) for row in rows], name="a")


def sentences(groups: str = "") -> TaggedData:
    found = []
    for i, text in enumerate([*drawn(200)[:60], *drawn(200)[:5]]):
        words = tuple(text.split())
        group = groups[i % 2] if groups else ""
        found.append(Sentence(f"s:{i}", words, tuple("AB"[j % 2] for j, _ in enumerate(words)), group))
    return TaggedData(found, name="s")


def cases() -> Iterable[tuple[str, Split[Any]]]:
    T = drawn(200)
    for fraction in (0.05, 0.1, 0.3):
        for seed in (0, 1):
            yield f"text {fraction} {seed}", split(several(T), fraction, seed)
    yield "text repeats", split(several([text for text in T[:40] for _ in range(3)]), 0.3)
    yield "text uneven", split(several(["x" * 10000, *T[:9]]), 0.1)
    yield "text tail", split(several(T, False), 0.1)
    yield "text few", split(several(T[:4]), 0.25)
    for fraction in (0.1, 0.3):
        for seed in (0, 3):
            yield f"labels {fraction} {seed}", split(labels_of(120), fraction, seed)
    rows = [(f"t{i}", "ab"[i % 2]) for i in range(40)] + [("t0", "a")]
    rows += [(f"t{i}", "ba"[i % 2]) for i in range(10)] + [(" t1", "b"), ("alone", "c")]
    repeats = LabeledData([Labeled(f"a:{i}", text, label) for i, (text, label) in enumerate(rows)], name="a")
    for seed in (0, 1):
        yield f"labels repeats {seed}", split(repeats, 0.3, seed)
    items = [Labeled(f"{p}:{n}", f"speech {p} {n}", p[0], p) for p in ("a1", "a2", "b1") for n in range(4)]
    items.append(Labeled("b1:9", "speech a2 0", "b", "b1"))
    yield "labels groups", split(LabeledData(items, name="p", held_out=("a2",)))
    given = LabeledData([Labeled("h:1", "text 3", "rare"), Labeled("h:2", "new", "rare")])
    yield "labels given", split(labels_of(50), validation=given)
    pairs = [Pair(f"p:{i}", f"source {i % 40}", f"target {i}") for i in range(120)]
    pairs.append(Pair("p:120", "source 0", "target 0"))
    for fraction in (0.1, 0.4):
        yield f"pairs {fraction}", split(PairData(pairs, name="p"), fraction)
    yield "pairs given", split(PairData(pairs, name="p"), validation=PairData(pairs[:3], name="q"))
    for fraction in (0.1, 0.3):
        yield f"tags {fraction}", split(sentences(), fraction)
    yield "tags groups", split(replace(sentences("gh"), held_out=("h",)))
    for fraction in (0.2, 0.4):
        for seed in (0, 2):
            yield f"images {fraction} {seed}", split(images(300), fraction, seed)
    yield "images no classes", split(images(100, 0))
    yield "images groups", split(replace(images(60, 3, ["g", "h"] * 30), held_out=("h",)))
    yield "images given", split(images(60), validation=images(20))


def test_splits_are_as_recorded() -> None:
    assert {name: record(parts) for name, parts in cases()} == RECORDED


@pytest.mark.parametrize("name", sorted(RECORDED_BUILT_IN))
def test_splits_of_built_in_data_are_as_recorded(name: str) -> None:
    kind, source, *given = name.split()
    read: dict[str, Any] = {
        "text": read_text,
        "labels": read_labeled,
        "pairs": read_pairs,
        "tags": read_tagged,
        "images": read_images,
    }
    try:
        data = read[kind](source)
    except UserError as error:
        pytest.skip(str(error))
    fraction = float(given[0]) if given else None
    assert record(split(data, fraction, int(given[1]) if len(given) > 1 else 0)) == RECORDED_BUILT_IN[name]
