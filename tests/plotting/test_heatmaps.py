from pathlib import Path

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.plotting import style
from tokenloom.plotting.heatmaps import confusion_table, draw_alignment, draw_confusion

COUNTS = [[8, 2, 0], [0, 5, 0], [1, 0, 4]]
NAMES = ["ham", "very good", "an uncommonly long name of a class"]


def test_the_table_says_what_is_what() -> None:
    assert confusion_table([[8, 2], [0, 5]], ["a", "b c"]).splitlines() == [
        "true \\ predicted  a  b c",
        "------------------------",
        "a                 8    2",
        "b c               0    5",
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_shades_are_shares_of_the_row_and_numbers_are_counts(dark: bool, tmp_path: Path) -> None:
    figure = draw_confusion(COUNTS, NAMES, tmp_path / "c.png", title="t", dark=dark)
    (axes,) = figure.axes
    shades = np.asarray(axes.images[0].get_array())
    assert np.allclose(shades, [[0.8, 0.2, 0], [0, 1, 0], [0.2, 0, 0.8]])
    assert [text.get_text() for text in axes.texts] == ["8", "2", "5", "1", "4"]
    look = style.palette(dark)
    assert [text.get_color() for text in axes.texts] == [
        look.background if share > 0.5 else look.ink for share in (0.8, 0.2, 1.0, 0.2, 0.8)
    ]
    assert (tmp_path / "c.png").stat().st_size > 5_000


def test_a_class_that_is_not_there_and_many_classes(tmp_path: Path) -> None:
    draw_confusion([[0, 0], [1, 2]], ["a", "b"], tmp_path / "a.png", title="t")
    figure = draw_confusion(np.eye(45, dtype=int).tolist(), [f"c{n}" for n in range(45)], tmp_path / "b.png", title="t")
    assert not figure.axes[0].texts, "numbers would be too small"
    short = draw_confusion(np.eye(10, dtype=int).tolist(), list("0123456789"), tmp_path / "c.png", title="t")
    turned = [one.axes[0].get_xticklabels()[0].get_rotation() for one in (short, figure)]
    assert turned == [0, 90], "short names stand upright"


@pytest.mark.parametrize("dark", [False, True])
def test_an_alignment_shows_its_weights_and_its_tokens(tmp_path: Path, dark: bool) -> None:
    weights = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]
    figure = draw_alignment(["a", "$b$", "⟨end⟩"], ["x", "⟨end⟩"], weights, tmp_path / "a.png", dark=dark)
    axes = figure.axes[0]
    assert axes.get_images()[0].get_array().tolist() == weights
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "$b$", "⟨end⟩"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "⟨end⟩"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "translation")
    look = style.palette(dark)
    assert axes.xaxis.label.get_color() == look.ink
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw_alignment(["a"], ["b"], [[1.0]], tmp_path / "none" / "a.png")
