"""A sheet of images: the place and the pixels of each."""

from pathlib import Path

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.plotting import image_grid
from tokenloom.plotting.image_grid import GAP, LINE, draw_sheet


def test_each_image_is_in_its_place(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    images = np.stack([np.full((1, 28, 28), value, dtype=np.uint8) for value in (0, 100, 200)])
    assert draw_sheet(images, tmp_path / "new" / "sheet.png", captions=["0", "one", "a very long caption indeed"]) == (
        2,
        2,
    )
    drawn = np.asarray(image.open(tmp_path / "new" / "sheet.png"))
    side = 4 * 28
    assert drawn.shape == (2 * (side + GAP + LINE) + GAP, 2 * (side + GAP) + GAP, 3)
    middle = GAP + side // 2
    across, down = side + GAP, side + GAP + LINE
    found = [drawn[middle, middle], drawn[middle, middle + across], drawn[middle + down, middle]]
    assert [tuple(pixel) for pixel in found] == [(0,) * 3, (100,) * 3, (200,) * 3]
    assert tuple(drawn[middle + down, middle + across]) == (255,) * 3, "nothing in the fourth place"
    caption = drawn[GAP + side + 2 : GAP + side + LINE, GAP : GAP + side]
    assert caption.min() < 100, "there is a caption"


def test_captions_in_any_script_that_there_is_a_font_for(tmp_path: Path) -> None:
    """▲ is not in Pillow's own font, where it would be the same box as ◆."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    white = np.full((3, 1, 8, 8), 255, dtype=np.uint8)
    draw_sheet(white, tmp_path / "s.png", captions=["▲", "◆", "n"], columns=3)
    found = np.asarray(image.open(tmp_path / "s.png"))[-LINE - GAP :]
    first, second = found[:, : 112 + GAP], found[:, 112 + GAP : 2 * (112 + GAP)]
    assert (first != second).any()
    assert first.min() < 128


def test_many_images_are_shown_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images on 400 pixels in all are 10 pixels high each."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image_grid, "MAX_PIXELS", 400)
    draw_sheet(np.zeros((4, 1, 5, 5), dtype=np.uint8), tmp_path / "s.png")
    assert image.open(tmp_path / "s.png").size == (2 * (10 + GAP) + GAP,) * 2


def test_colors_stay_and_a_bad_path_is_told(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    red = np.zeros((1, 3, 8, 8), dtype=np.uint8)
    red[:, 0] = 255
    draw_sheet(red, tmp_path / "red.png")
    assert tuple(np.asarray(image.open(tmp_path / "red.png"))[50, 50]) == (255, 0, 0)
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(UserError, match=r"cannot write the figure .*file is a file"):
        draw_sheet(red, tmp_path / "file" / "red.png")
