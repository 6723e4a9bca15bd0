"""Image experiments of the lab (4.1 to 4.4) in quick form: the bounds of their rows, and their plots."""

import math
from typing import Any

import numpy as np
import pytest
from lab_page import check_page

from tokenloom.lab.experiment import ExperimentContext
from tokenloom.lab.image_classification import overlay
from tokenloom.lab.image_generation import sheet
from tokenloom.lab.registry import experiments
from tokenloom.lab.report import html
from tokenloom.lab.runner import RunOptions, measure


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """All four rows, with shared models trained once."""
    pytest.importorskip("sklearn")
    cache: dict[Any, Any] = {}
    return {id: measure(experiments()[id], RunOptions(quick=True), cache) for id in ("4.1", "4.2", "4.3", "4.4")}


def test_rows_are_within_their_coarse_bounds(rows: dict[str, dict[str, Any]]) -> None:
    for row in rows.values():
        assert row["quick"]
        assert row["passed"], [m for m in row["measurements"] if m["passed"] is False]


def test_accuracy_against_images_and_attention_over_them(rows: dict[str, dict[str, Any]]) -> None:
    curve, attention = rows["4.1"]["plots"]
    assert [line["name"] for line in curve["lines"]][-1] == "vision transformer"
    assert all(line["x"] == [360, 1440] and all(0 <= y <= 1 for y in line["y"]) for line in curve["lines"])
    svm = curve["lines"][0]["y"]
    assert svm[1] > 0.9
    plain, over = attention["panels"][:4], attention["panels"][4:]
    assert [np.shape(panel["values"]) for panel in plain] == [(8, 8)] * 4
    assert [np.shape(panel["values"]) for panel in over] == [(8, 8, 3)] * 4


def test_tokens_and_cost_by_patch(rows: dict[str, dict[str, Any]]) -> None:
    (epochs, timed), (cost,) = (plot["lines"] for plot in rows["4.2"]["plots"])
    assert (epochs["name"], timed["name"]) == ("equal epochs", "equal time")
    assert epochs["x"] == timed["x"] == cost["x"] == [1, 4, 16, 64]
    assert all(y > 0 for y in cost["y"])
    assert all(0 <= y <= 1 for y in (*epochs["y"], *timed["y"]))
    # The patch size that sets the time budget is trained once.
    assert epochs["y"][2] == timed["y"][2]
    steps = {}
    for one in rows["4.2"]["measurements"]:
        name, _, what = one["name"].partition(", ")
        if what.endswith("tokens, steps, seconds, accuracy"):
            steps.setdefault(name, []).append(int(one["measured"].split(", ")[1].replace(",", "")))
    assert steps["equal epochs"] == [30] * 4
    assert steps["equal time"][0] > 30 > steps["equal time"][3] > 0, "cheaper patches get more steps"


def test_samples_and_completions_keep_what_is_given(rows: dict[str, dict[str, Any]]) -> None:
    samples, completed = rows["4.3"]["plots"]
    assert np.shape(samples["panels"][0]["values"]) == (91, 91), "ten rows of ten images of 8 × 8"
    whole = np.array(completed["panels"][0]["values"])
    assert whole.shape == (5 * 9 + 1, 4 * 9 + 1)
    truth, completed_image = whole[1:9], whole[19:27]
    assert np.array_equal(truth[:4], completed_image[:4]), "the upper halves are those that were given"
    assert not np.array_equal(truth[4:], completed_image[4:])


def test_bits_and_error_belong_together(rows: dict[str, dict[str, Any]]) -> None:
    lines = {line["name"]: line for line in rows["4.4"]["plots"][0]["lines"]}
    counts = lines["counts, palettes of 2 … 16 colors"]
    assert counts["y"] == sorted(counts["y"]), "more colors need more bits"
    assert counts["x"] == sorted(counts["x"], reverse=True), "and lose less"
    codes, pixels = lines["transformer, codes"], lines["transformer, palette"]
    assert codes["x"][0] > pixels["x"][0]
    assert codes["y"][0] < pixels["y"][0]
    assert all(math.isfinite(value) for line in lines.values() for value in line["y"])
    shown = [np.array(plot["panels"][0]["values"]) for plot in rows["4.4"]["plots"][1:]]
    assert shown[0].shape[0] == shown[0].shape[1], "ten samples of each of ten classes"
    size = shown[1].shape[0] // 2
    above, below = shown[1][1:size], shown[1][size + 1 :][: size - 1]
    assert 0 < np.mean((above - below) ** 2) < 0.1, "the reconstruction is near the image"


def test_the_page_is_small_and_self_contained(rows: dict[str, dict[str, Any]]) -> None:
    page = check_page(html(list(rows.values())), 4)
    assert page.tags.count("svg") == 2 * sum(len(row["plots"]) for row in rows.values()), "light and dark"


def test_a_sheet_has_every_image_in_its_place() -> None:
    images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1) * np.full((3, 1, 2, 2), 51, np.uint8)
    assert sheet(images, 2)[1][1:] == [0.0, 0.0, 0.45, 0.2, 0.2, 0.45]
    assert sheet(images, 2)[4][1:3] == [0.4, 0.4]


def test_an_overlay_is_brightest_where_weights_are_largest() -> None:
    found = np.array(overlay(np.zeros((4, 4)), np.array([[0.1, 0.2], [0.3, 0.9]])))
    assert found[0, 0].tolist() == [0, 0, 0]
    assert (found[2:, 2:, 0] == found[..., 0].max()).all()


def test_quick_form_needs_no_download() -> None:
    row = experiments()["4.1"]
    assert (row.dataset_for(quick=False), row.dataset_for(quick=True)) == ("mnist-5k", "digits")
    assert experiments()["2.9"].dataset_for(quick=True) == "tinyshakespeare"
    assert ExperimentContext(0).quick is False
