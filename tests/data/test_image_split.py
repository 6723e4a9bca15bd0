from dataclasses import replace

import numpy as np
import pytest

from tokenloom.data.image_split import ImageReport, split_images
from tokenloom.data.images import ImageData, of_arrays
from tokenloom.errors import UserError


def numbered(labels: list[int], classes: list[str], first: int = 0) -> ImageData:
    """Pictures of one pixel each, with different values."""
    pixels = np.arange(first, first + len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return of_arrays(pixels, [f"p{first + n}" for n in range(len(labels))], np.array(labels), classes)


def test_a_share_of_each_class_validates() -> None:
    data = numbered([0] * 10 + [1] * 30, ["a", "b"])
    parts = split_images(data, 0.2)
    assert np.bincount(parts.validation.labels).tolist() == [2, 6]
    assert np.bincount(parts.training.labels).tolist() == [8, 24]
    assert set(parts.training.ids) | set(parts.validation.ids) == set(data.ids)
    assert list(split_images(data, 0.2).validation.ids) == list(parts.validation.ids)
    assert list(split_images(data, 0.2, 1).validation.ids) != list(parts.validation.ids)


def test_a_new_picture_does_not_shuffle_the_others() -> None:
    data = numbered([0] * 40, ["a"])
    before = set(split_images(data, 0.5).validation.ids)
    after = set(split_images(numbered([0] * 41, ["a"]), 0.5).validation.ids)
    assert len(before ^ after) <= 2


def test_repeats_stay_together_and_are_named() -> None:
    data = numbered([0] * 10 + [1] * 10, ["a", "b"])
    data.pixels[10] = data.pixels[0]
    data.pixels[1] = data.pixels[0]
    parts = split_images(data, 0.5)
    sides = [{"p0", "p1", "p10"} <= set(part.ids) for part in (parts.training, parts.validation)]
    assert sorted(sides) == [False, True]
    assert "2 exact repeats" in parts.notes[0]
    assert "p0 (a) = p1 (a) = p10 (b)" in parts.notes[1]


def test_a_class_of_one_trains_and_is_named() -> None:
    parts = split_images(numbered([0] * 9 + [1], ["a", "b"]), 0.3)
    assert parts.training.labels.max() == 1
    assert "class 'b' has one picture alone, p9" in parts.notes[0]


def test_validation_classes_go_by_name() -> None:
    data = numbered([0, 1, 2], ["ant", "bee", "cow"])
    other = numbered([0, 1, 2, 2], ["bee", "cow", "dog"], first=3)
    parts = split_images(data, validation=replace(other, name="more"))
    assert parts.validation.labels.tolist() == [1, 2, -1, -1]
    assert "class 'dog' is in no training picture: 2 validation pictures, counted as wrong: p5, p6" in parts.notes
    assert ImageReport.of(parts).counts["(not learned)"] == (0, 2)


def test_what_validation_holds_is_not_learnt() -> None:
    data = numbered([0] * 5, ["a"])
    parts = split_images(data, validation=numbered([0, 0, 0], ["a"], first=3))
    assert list(parts.training.ids) == ["p0", "p1", "p2"]
    assert "left out 2 training pictures" in parts.notes[0]


def test_groups_are_held_out_by_default() -> None:
    data = numbered([0, 0, 0, 0], ["a"])
    data = replace(data, groups=["x", "y", "x", "y"], held_out=("y",))
    assert list(split_images(data).validation.ids) == ["p1", "p3"]
    assert "of each class" in split_images(data, 0.5).how


def test_too_few_are_refused() -> None:
    with pytest.raises(UserError, match="text: 1 picture: none is left to validate"):
        split_images(numbered([0], ["a"]))
    alike = numbered([0, 0, 1, 1], ["a", "b"])
    with pytest.raises(UserError, match="4 pictures, 2 different: none is left to validate"):
        split_images(replace(alike, pixels=alike.labels.astype(np.uint8).reshape(-1, 1, 1, 1)))
    with pytest.raises(UserError, match="--val-fraction 1"):
        split_images(numbered([0, 0], ["a"]), 1.0)


def test_the_report_says_what_there_is() -> None:
    lines = ImageReport.of(split_images(numbered([0] * 5 + [1] * 10, ["a", "b"]))).lines()
    assert lines[1] == "samples:  12 pictures to train, 3 to validate"
    assert lines[2] == "pictures: 1 × 1 pixels, gray; 0.0 MB"
    assert lines[4] == "classes:  2 (to train + to validate): b 8 + 2, a 4 + 1"
    assert lines[5] == "majority: b: 66.7% of the validation part"
