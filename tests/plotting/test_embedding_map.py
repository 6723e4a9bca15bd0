"""A map of words: every point is there, and no label covers one that matters more."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tokenloom.errors import UserError
from tokenloom.plotting.embedding_map import draw_embeddings
from tokenloom.plotting.style import DARK, LIGHT


@pytest.mark.parametrize("dark", [False, True])
def test_labels_do_not_cover_each_other(tmp_path: Path, dark: bool) -> None:
    points = np.array([[0.0, 0.0], [0.001, 0.0], [1.0, 0.5], [0.2, 1.0]])
    labels = ["first", "hidden", "$x_1$", "東京"]
    figure = draw_embeddings(points, labels, tmp_path / "map.png", title="Four words", dark=dark)
    axes = figure.axes[0]
    shown = [text.get_text() for text in axes.texts if text.get_visible()]
    assert shown == ["first", "$x_1$", "東京"]
    assert len(axes.collections[0].get_offsets()) == 4
    from matplotlib.colors import to_hex

    assert to_hex(figure.get_facecolor()) == (DARK if dark else LIGHT).background
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_of_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.png"):
        draw_embeddings(np.zeros((1, 2)), ["word"], tmp_path / "map.svg", title="One word")
    assert not list(tmp_path.iterdir())
