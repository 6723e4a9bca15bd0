"""The picture of a run's losses: what is drawn, not only that a file appears."""

import math
import sys

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tokenloom.errors import UserError
from tokenloom.plotting import style
from tokenloom.plotting.loss_curve import draw_loss_curve, smoothed


def run(n, step=10):
    """A run of n points whose every tenth also has a validation loss."""
    points = []
    for i in range(n):
        point = {"step": i * step, "loss": 1.5 + 2.5 * math.exp(-i / 15) + 0.05 * (-1) ** i, "lr": 0.1}
        if i % 10 == 0:
            point["validation"] = 1.6 + 2.5 * math.exp(-i / 15)
        points.append(point)
    return points


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_draws_every_point_the_smoothed_course_validation_and_baseline(tmp_path):
    points = run(60)
    figure = draw_loss_curve(points, tmp_path / "loss.png", title="A run", baseline=("n-gram", 1.555))
    drawn = lines(figure)
    assert list(drawn) == [
        "n-gram: 1.555",
        "training, each point",
        "training, smoothed",
        f"validation, lowest {points[50]['validation']:.3f} at step 500",
    ]
    baseline, each, smooth, validation = drawn.values()
    losses = [point["loss"] for point in points]
    assert each.get_xdata().tolist() == smooth.get_xdata().tolist() == list(range(0, 600, 10))
    assert each.get_ydata().tolist() == losses
    np.testing.assert_array_equal(smooth.get_ydata(), smoothed(np.array(losses)))
    assert validation.get_xdata().tolist() == [0, 100, 200, 300, 400, 500]
    assert validation.get_ydata().tolist() == [point["validation"] for point in points[::10]]
    assert list(baseline.get_ydata()) == [1.555, 1.555]
    assert baseline.is_dashed()
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "loss, nats/token")
    assert axes.get_title(loc="left") == "A run"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(drawn)
    picture = matplotlib.image.imread(tmp_path / "loss.png")
    assert picture.shape[:2] == (720, 1200)
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]


def test_nothing_of_the_picture_overlaps(tmp_path):
    title = "a long title that takes more than one line " * 4
    baseline = ("order-6 Kneser–Ney n-gram with sliding context", 1.6)
    figure = draw_loss_curve(run(60), tmp_path / "loss.png", title=title, baseline=baseline)
    axes = figure.axes[0]
    title_box = axes._left_title.get_window_extent()
    assert title_box.y0 >= axes.get_window_extent().y1
    assert 0 <= title_box.x0 < title_box.x1 <= 1200
    assert title_box.y1 <= 720
    for label in (axes.xaxis.label, axes.yaxis.label):
        box = label.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert not box.overlaps(axes.get_window_extent())
    legend = axes.get_legend().get_window_extent()
    training = axes.transData.transform(np.column_stack(lines(figure)["training, smoothed"].get_data()))
    assert not any(legend.contains(x, y) for x, y in training)


@pytest.mark.parametrize("dark", [False, True])
def test_each_look_has_its_own_legible_colors(tmp_path, dark):
    figure = draw_loss_curve(run(60), tmp_path / "loss.png", title="t", baseline=("b", 1.5), dark=dark)
    look = style.palette(dark)
    corner = matplotlib.image.imread(tmp_path / "loss.png")[0, 0, :3]
    np.testing.assert_allclose(corner, to_rgb(look.background), atol=1 / 255)
    axes = figure.axes[0]
    texts = [axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.get_legend().get_texts()]
    texts += axes.get_xticklabels() + axes.get_yticklabels()
    for text in texts:
        assert contrast(text.get_color(), look.background) >= 7
        assert text.get_fontsize() >= 10
    for line in axes.get_lines():
        assert contrast(line.get_color(), look.background) >= 3
    for color in look.series:
        assert contrast(color, look.background) >= 3


def contrast(one, other):
    """The contrast ratio of two colors as the web's accessibility guidelines define it."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_losses_that_are_absent_or_not_finite_are_left_out(tmp_path):
    points = [
        {"step": 20, "loss": 2.0},
        {"step": 0, "loss": 4.0, "validation": None},
        {"step": 10, "loss": math.nan, "validation": 3.0},
        {"step": 30, "loss": math.inf},
    ]
    figure = draw_loss_curve(points, tmp_path / "a.png", title="", baseline=("b", math.nan))
    drawn = lines(figure)
    assert list(drawn) == ["training", "validation, lowest 3.000 at step 10"]
    assert drawn["training"].get_xdata().tolist() == [0, 20]
    assert drawn["training"].get_ydata().tolist() == [4.0, 2.0]


@pytest.mark.parametrize("points", [[], [{"step": 1, "loss": math.nan}]])
def test_without_any_loss_the_picture_says_so(tmp_path, points):
    figure = draw_loss_curve(points, tmp_path / "a.png", title="")
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finite loss to draw"]
    assert figure.axes[0].get_legend() is None


def test_a_single_point_is_seen_and_has_whole_steps_beside_it(tmp_path):
    figure = draw_loss_curve([{"step": 7, "loss": 4.2}], tmp_path / "a.png", title="", unit="nats a picture")
    assert figure.axes[0].get_ylabel() == "loss, nats a picture"
    (line,) = figure.axes[0].get_lines()
    assert line.get_marker() == "o"
    ticks = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert "7" in ticks
    assert len(set(ticks)) == len(ticks)


def test_the_scale_is_linear_unless_asked(tmp_path):
    plain = draw_loss_curve(run(60), tmp_path / "a.png", title="")
    assert plain.axes[0].get_yscale() == "linear"
    log = draw_loss_curve(run(60), tmp_path / "a.png", title="", log_y=True)
    assert log.axes[0].get_yscale() == "log"
    low, high = log.axes[0].get_ylim()
    shown = [tick for tick in log.axes[0].get_yticks() if low <= tick <= high]
    assert len(shown) >= 4


def test_a_long_run_shows_its_course_rather_than_its_first_steps(tmp_path):
    points = run(2000)
    figure = draw_loss_curve(points, tmp_path / "a.png", title="")
    low, high = figure.axes[0].get_ylim()
    assert high < 4.0
    late = [point["loss"] for point in points if point["step"] >= 400]
    assert low < min(late) < max(late) < high
    short = draw_loss_curve(points[:60], tmp_path / "a.png", title="")
    assert short.axes[0].get_ylim()[1] > max(point["loss"] for point in points[:60])


def test_smoothing_is_a_centerd_mean_that_keeps_constants_and_the_start():
    values = np.random.default_rng(0).normal(size=300)
    smooth = smoothed(values)
    assert smooth[0] == values[0]
    assert smooth[150] == pytest.approx(values[145:156].mean())
    assert smooth[10] == pytest.approx(values[8:13].mean())
    assert smooth[299] == pytest.approx(values[294:].mean())
    np.testing.assert_allclose(smoothed(np.full(50, 2.5)), 2.5)
    slope = np.arange(40.0)
    np.testing.assert_allclose(smoothed(slope)[:-2], slope[:-2], atol=1e-12)


def test_names_are_shown_as_they_are(tmp_path):
    name = "costs $5 and $6, 坊っちゃん"
    figure = draw_loss_curve(run(30), tmp_path / "a.png", title=name, baseline=(name, 2.0))
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == name
    assert not axes._left_title.get_parse_math()
    assert not axes.get_legend().get_texts()[0].get_parse_math()


def test_a_picture_has_no_global_state_and_is_the_same_twice(tmp_path):
    for name in ("a.png", "b.png"):
        draw_loss_curve(run(30), tmp_path / name, title="t", dark=True)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert "matplotlib.pyplot" not in sys.modules


def test_a_path_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"absent/loss\.png: cannot be written"):
        draw_loss_curve(run(3), tmp_path / "absent" / "loss.png", title="")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "kept").write_text("x")
    with pytest.raises(UserError, match=r"folder\.png"):
        draw_loss_curve(run(3), tmp_path / "folder.png", title="")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"pip install 'tokenloom\[plots\]'"):
        draw_loss_curve(run(3), tmp_path / "a.png", title="")
