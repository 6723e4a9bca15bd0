"""The picture of models side by side: every model stands where its figures say, with its name beside it."""

from pathlib import Path

import numpy as np
import pytest

from tokenloom.plotting.model_comparison import draw_ladder
from tokenloom.plotting.style import palette

MODELS = [
    {"model": "bigram", "running": 3.6, "windows": 3.7, "window": 64, "seconds": 0.0, "numbers": 3000},
    {"model": "lstm", "running": 2.3, "windows": 2.5, "window": 64, "seconds": 300.0, "numbers": 350_000},
    {"model": "gpt", "running": 2.31, "windows": 2.4, "window": 64, "seconds": 310.0, "numbers": 800_000},
]


@pytest.mark.parametrize("dark", [False, True])
def test_every_model_stands_where_its_figures_say(tmp_path: Path, dark: bool) -> None:
    figure = draw_ladder(MODELS, tmp_path / "ladder.png", title="a $text", dark=dark)
    assert (tmp_path / "ladder.png").stat().st_size > 10_000
    for axes, key in zip(figure.axes, ("seconds", "numbers"), strict=True):
        _, running, windows = axes.collections
        places = [max(float(model[key]), 1e-3) for model in MODELS]
        for drawn, name in ((running, "running"), (windows, "windows")):
            np.testing.assert_allclose(drawn.get_offsets(), [(x, m[name]) for x, m in zip(places, MODELS, strict=True)])
        names = {text.get_text(): text for text in axes.texts}
        assert set(names) == {"bigram", "lstm", "gpt"}
        assert all(text.get_color() == palette(dark).ink for text in names.values())
        # No name covers another, or a dot.
        boxes = [text.get_window_extent() for text in names.values()]
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
        dots = [axes.transData.transform(drawn.get_offsets()) for drawn in (running, windows)]
        assert not any(box.contains(*dot) for box in boxes for dot in np.concatenate(dots))
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == [
        "with running context",
        "in separate windows of 64 tokens",
    ]
