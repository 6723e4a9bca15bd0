"""Pixels as ids of a palette, and back."""

from pathlib import Path

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.tokenizers.palette import Palette


def test_few_gray_levels_are_kept_as_they_are() -> None:
    pixels = np.array([[[[0, 10], [250, 10]]]], dtype=np.uint8)
    palette = Palette.train(pixels, 16)
    assert palette.vocab_size == 3
    assert palette.grid == (2, 2)
    ids = palette.encode(pixels)
    assert ids.tolist() == [[0, 1, 2, 1]], "dark to light, in raster order"
    assert np.array_equal(palette.decode(ids), pixels)


def test_levels_are_the_means_of_their_heaps() -> None:
    pixels = np.array([0, 2, 4, 200, 202, 204], dtype=np.uint8).reshape(1, 1, 2, 3)
    palette = Palette.train(pixels, 2)
    assert (palette.colors * 255).flatten().tolist() == pytest.approx([2, 202])
    assert palette.decode(palette.encode(pixels)).flatten().tolist() == [2, 2, 2, 202, 202, 202]


def test_colors_and_the_way_back_from_a_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6)).astype(np.uint8)
    palette = Palette.train(pixels, 8, seed=3)
    same = Palette.train(pixels, 8, seed=3)
    assert palette.fingerprint() == same.fingerprint() != Palette.train(pixels, 8, seed=4).fingerprint()
    palette.save(tmp_path / "tokenizer.json")
    loaded = Palette.load(tmp_path / "tokenizer.json")
    assert loaded.fingerprint() == palette.fingerprint()
    ids = loaded.encode(pixels)
    assert ids.shape == (4, 30)
    # Each pixel has the color that is nearest to it.
    points = pixels.transpose(0, 2, 3, 1).reshape(-1, 1, 3) / 255
    expected = np.square(points - palette.colors[None]).sum(-1).argmin(1)
    assert np.array_equal(ids.flatten(), expected)
    assert np.array_equal(loaded.encode(loaded.decode(ids)), ids)


def test_what_is_no_palette_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one color"):
        Palette.train(np.zeros((2, 1, 4, 4), dtype=np.uint8), 4)
    (tmp_path / "tokenizer.json").write_text('{"format": 1, "kind": "bpe"}', "utf-8")
    with pytest.raises(UserError, match="not a palette"):
        Palette.load(tmp_path / "tokenizer.json")
    palette = Palette.train(np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4), 4)
    with pytest.raises(ValueError, match="do not fit this palette"):
        palette.encode(np.zeros((1, 1, 5, 4), dtype=np.uint8))
