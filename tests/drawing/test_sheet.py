"""A sheet of pictures: where each stands, and what its pixels are."""

from pathlib import Path

import numpy as np
import pytest

from tokenloom.drawing.sheet import GAP, LINE, draw_sheet
from tokenloom.errors import UserError


def test_each_picture_stands_in_its_place(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = np.stack([np.full((1, 28, 28), value, dtype=np.uint8) for value in (0, 100, 200)])
    assert draw_sheet(
        pictures, tmp_path / "new" / "sheet.png", captions=["0", "one", "a very long caption indeed"]
    ) == (2, 2)
    sheet = np.asarray(image.open(tmp_path / "new" / "sheet.png"))
    side = 4 * 28
    assert sheet.shape == (2 * (side + GAP + LINE) + GAP, 2 * (side + GAP) + GAP, 3)
    middle = GAP + side // 2
    across, down = side + GAP, side + GAP + LINE
    found = [sheet[middle, middle], sheet[middle, middle + across], sheet[middle + down, middle]]
    assert [tuple(pixel) for pixel in found] == [(0,) * 3, (100,) * 3, (200,) * 3]
    assert tuple(sheet[middle + down, middle + across]) == (255,) * 3, "nothing in the fourth place"
    caption = sheet[GAP + side + 2 : GAP + side + LINE, GAP : GAP + side]
    assert caption.min() < 100, "there is a caption"


def test_colours_stay_and_a_bad_path_is_told(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    red = np.zeros((1, 3, 8, 8), dtype=np.uint8)
    red[:, 0] = 255
    draw_sheet(red, tmp_path / "red.png")
    assert tuple(np.asarray(image.open(tmp_path / "red.png"))[50, 50]) == (255, 0, 0)
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(UserError, match=r"cannot write the picture .*file is a file"):
        draw_sheet(red, tmp_path / "file" / "red.png")
