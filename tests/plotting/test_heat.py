from pathlib import Path

import pytest

from tokenloom.errors import UserError

pytest.importorskip("matplotlib")

from tokenloom.plotting.heatmap import draw_alignment
from tokenloom.plotting.style import DARK, LIGHT


@pytest.mark.parametrize("dark", [False, True])
def test_an_alignment_shows_its_weights_and_its_tokens(tmp_path: Path, dark: bool) -> None:
    weights = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]
    figure = draw_alignment(["a", "$b$", "⟨end⟩"], ["x", "⟨end⟩"], weights, tmp_path / "a.png", dark=dark)
    axes = figure.axes[0]
    assert axes.get_images()[0].get_array().tolist() == weights
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "$b$", "⟨end⟩"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "⟨end⟩"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "translation")
    look = DARK if dark else LIGHT
    assert axes.xaxis.label.get_color() == look.ink
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw_alignment(["a"], ["b"], [[1.0]], tmp_path / "none" / "a.png")
