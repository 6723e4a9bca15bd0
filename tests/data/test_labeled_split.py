from collections import Counter

import pytest

from tokenloom.data.labeled import Labeled, LabeledData
from tokenloom.data.labeled_split import LabeledReport, LabeledSplit, split_labeled
from tokenloom.errors import UserError


def data_of(*rows: tuple[str, str], name: str = "a.csv") -> LabeledData:
    items = [Labeled(f"{name}:{n}", text, label) for n, (text, label) in enumerate(rows, start=2)]
    return LabeledData(items, name=name)


def many(n: int = 100, share: float = 0.25) -> LabeledData:
    return data_of(*((f"text {i}", "rare" if i < share * n else "common") for i in range(n)))


def texts(data: LabeledData) -> set[str]:
    return {item.text for item in data.items}


def test_each_class_gives_its_share() -> None:
    parts = split_labeled(many(), 0.2)
    assert Counter(item.label for item in parts.validation.items) == {"rare": 5, "common": 15}
    assert texts(parts.training) | texts(parts.validation) == texts(many())
    assert not texts(parts.training) & texts(parts.validation)


def test_the_seed_decides_and_a_new_text_shuffles_nothing() -> None:
    first, again = split_labeled(many(), 0.2, 1), split_labeled(many(), 0.2, 1)
    assert first == again
    assert texts(split_labeled(many(), 0.2, 2).validation) != texts(first.validation)
    more = data_of(*((item.text, item.label) for item in many().items), ("new", "common"))
    moved = texts(split_labeled(more, 0.2, 1).validation) ^ texts(first.validation)
    assert len(moved) <= 2


def test_repeats_count_once_and_doubtful_texts_stay_on_one_side() -> None:
    rows = [(f"t{i}", "ab"[i % 2]) for i in range(40)]
    data = data_of(*rows, ("t0", "a"), *((f"t{i}", "ba"[i % 2]) for i in range(10)), (" t1", "b"))
    for seed in range(5):
        parts = split_labeled(data, 0.3, seed)
        stripped = [{text.strip() for text in texts(side)} for side in (parts.training, parts.validation)]
        assert not stripped[0] & stripped[1]
        assert len(parts.training.items) + len(parts.validation.items) == len(data.items) - 1
    assert "left out 1 exact repeat of a text with the same label, which counts once: a.csv:42" in parts.notes
    assert any(note.startswith("10 texts with several labels") and "a.csv:2 (a)" in note for note in parts.notes)


def test_a_class_of_one_text_trains_and_is_named() -> None:
    parts = split_labeled(data_of(*((f"t{i}", "a") for i in range(9)), ("alone", "b")))
    assert parts.classes == ["a", "b"]
    assert "class 'b' has one text alone, a.csv:11: it trains, and nothing measures it" in parts.notes


def test_labels_that_training_lacks_are_named_and_classes_never_shift() -> None:
    training = data_of(("one", "b"), ("two", "d"), ("three", "b"))
    held = data_of(("four", "a"), ("five", "d"), ("one", "b"), name="held.csv")
    parts = split_labeled(training, validation=held)
    assert parts.classes == ["b", "d"]
    assert "label 'a' is in no training sample: 1 validation text, counted as wrong: held.csv:2" in parts.notes
    assert texts(parts.training) == {"two", "three"}
    assert "left out 1 training text that the validation data hold too: a.csv:2" in parts.notes


def test_groups_that_are_held_out_stay_together() -> None:
    plays = [(play, n) for play in ("a1", "a2", "b1") for n in range(4)]
    items = [Labeled(f"{play}:{n}", f"speech {play} {n}", play[0], play) for play, n in plays]
    items.append(Labeled("b1:9", "speech a2 0", "b", "b1"))
    parts = split_labeled(LabeledData(items, name="plays", held_out=("a2",)))
    assert {item.group for item in parts.validation.items} == {"a2"}
    assert "left out 1 training text that is held out too: b1:9" in parts.notes
    assert {item.group for item in split_labeled(LabeledData(items, held_out=("a2",)), 0.5).validation.items} != {"a2"}


def test_labels_that_differ_in_case_alone_are_named() -> None:
    parts = split_labeled(data_of(*((f"t{i}", ("Spam", "spam", "ham")[i % 3]) for i in range(30))))
    assert "labels that differ in the case of letters alone are different classes: 'Spam', 'spam'" in parts.notes


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(UserError, match="all samples to train on have the label 'a'"):
        split_labeled(data_of(("one", "a"), ("two", "a")))


def test_the_report_counts_by_hand() -> None:
    training = data_of(("aa", "x"), ("bbbb", "x"), ("c", "y"))
    held = data_of(("dddddd", "x"), ("e", "z"), name="h")
    report = LabeledReport.of(LabeledSplit(training, held, "given", ["a note"]), {"more": "said"})
    assert report.counts == {"x": (2, 1), "y": (1, 0), "z": (0, 1)}
    assert (report.majority, report.majority_share) == ("x", 0.5)
    assert report.lengths == (1, 2, 6)
    assert report.longest == ("h:2", 6)
    lines = "\n".join(report.lines())
    assert "classes:  3 (to train + to validate): x 2 + 1, y 1 + 0, z 0 + 1" in lines
    assert "note:     a note" in lines
    assert "more:     said" in lines
