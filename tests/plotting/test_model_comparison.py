"""The plot of models: every model is at its values, with its name beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom.plotting.model_comparison import draw_models
from tokenloom.plotting.style import palette

KEYS = ("model", "bits_per_byte_sliding", "bits_per_byte_windows", "context", "seconds", "saved_numbers")
ROWS = [
    ("bigram", 3.6, 3.7, 64, 0.0, 3000),
    ("lstm", 2.3, 2.5, 64, 300.0, 350_000),
    ("gpt", 2.31, 2.4, 64, 310.0, 800_000),
]
MODELS: list[dict[str, Any]] = [dict(zip(KEYS, row, strict=True)) for row in ROWS]


@pytest.mark.parametrize("dark", [False, True])
def test_every_model_stands_where_its_figures_say(tmp_path: Path, dark: bool) -> None:
    figure = draw_models(MODELS, tmp_path / "models.png", title="a $text", dark=dark)
    assert (tmp_path / "models.png").stat().st_size > 10_000
    for axes, key in zip(figure.axes, ("seconds", "saved_numbers"), strict=True):
        _, sliding, windows = axes.collections
        places = [max(float(model[key]), 1e-3) for model in MODELS]
        for drawn, name in ((sliding, "bits_per_byte_sliding"), (windows, "bits_per_byte_windows")):
            np.testing.assert_allclose(drawn.get_offsets(), [(x, m[name]) for x, m in zip(places, MODELS, strict=True)])
        names = {text.get_text(): text for text in axes.texts}
        assert set(names) == {"bigram", "lstm", "gpt"}
        assert all(text.get_color() == palette(dark).ink for text in names.values())
        # No name covers another, or a dot.
        boxes = [text.get_window_extent() for text in names.values()]
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
        dots = [axes.transData.transform(drawn.get_offsets()) for drawn in (sliding, windows)]
        assert not any(box.contains(*dot) for box in boxes for dot in np.concatenate(dots))
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == [
        "with sliding context",
        "in separate windows of 64 tokens",
    ]
