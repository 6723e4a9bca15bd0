"""The logic of the benchmarks: alternation, medians, tables; independent of time."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.harness import (
    RELATIVE_TIME,
    SPEEDUP,
    Goal,
    Row,
    Setting,
    Spread,
    alternate,
    at_least,
    at_most,
    compare,
    crossing,
    slope,
    timed,
)
from benchmarks.report import (
    BEGIN,
    END,
    format_number,
    processor,
    row_as_dict,
    row_from_dict,
    save_results,
    table,
    with_results,
)

MACHINE = {"processor": "P", "cores": "2", "torch": "2", "python": "3", "date": "2030-01-02"}


def test_measurements_alternate_after_a_warm_up() -> None:
    order = ""

    def turn(name: str) -> float:
        nonlocal order
        order += name
        return float(len(order))

    ours, theirs = alternate(lambda: turn("a"), lambda: turn("b"), 3)
    assert order == "ab" + "ab" + "ba" + "ab"
    assert ours == [3.0, 6.0, 7.0]
    assert theirs == [4.0, 5.0, 8.0]


def test_the_result_is_the_median_of_the_ratios() -> None:
    ours = iter([9.0, 1.0, 2.0, 4.0])
    theirs = iter([9.0, 2.0, 8.0, 4.0])
    row = compare("step", lambda: next(ours), "peer", lambda: next(theirs), Setting(quick=True), goal=at_least(2))
    assert row.result == Spread(2.0, 1.0, 4.0, 3)
    assert (row.ours, row.theirs, row.unit) == (2000.0, 4000.0, "ms")
    assert row.met is True


def test_relative_time_is_the_inverse_ratio() -> None:
    row = compare(
        "step", lambda: 3.0, "products", lambda: 2.0, Setting(quick=True), goal=at_most(1.4), result_unit=RELATIVE_TIME
    )
    assert row.result.median == 1.5
    assert row.met is False


def test_work_is_timed_by_the_clock_and_divided_by_its_times() -> None:
    now = 0.0
    done: list[int] = []

    def work() -> None:
        nonlocal now
        now += 2.5
        done.append(1)

    assert timed(work, 4, clock=lambda: now)() == 2.5
    assert len(done) == 4


def test_a_spread_of_nothing_is_refused() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 9.0]) == Spread(2.5, 1.0, 9.0, 4)
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_a_full_run_measures_at_least_five_times_and_a_quick_one_fewer() -> None:
    assert Setting().repeats >= 5 > Setting(quick=True).repeats


@pytest.mark.parametrize(
    ("goal", "result", "met"),
    [
        (at_least(2), 2.0, True),
        (at_least(2), 1.99, False),
        (at_most(2), 2.0, True),
        (at_most(2), 2.01, False),
        (at_least(2), math.nan, False),
        (at_most(2), math.nan, False),
    ],
)
def test_when_a_goal_is_met(goal: Goal, result: float, met: bool) -> None:
    assert goal.met(result) is met


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    assert slope([(n, 5 * n**1.7) for n in (2, 8, 64, 1000)]) == pytest.approx(1.7)


def test_where_curves_cross() -> None:
    # 3 x² and 48 x meet at 16.
    places = (1, 4, 8, 32, 64)
    steep, flat = [(x, 3.0 * x**2) for x in places], [(x, 48.0 * x) for x in places]
    assert crossing(steep, flat) == pytest.approx(16)
    assert crossing(flat, steep) is None
    assert crossing(steep[:2], flat[:2]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.0123"), (1.5, "1.50"), (21.26, "21.3"), (123.7, "124"), (38836.0, "38,836"), (0.0, "0")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


ROWS = [
    Row("step", 1, Spread(1.5, 1.25, 2.0, 7), SPEEDUP, at_least(1.45), "plain", 20.0, 30.0, "ms"),
    Row("loss", 2, Spread(1.72345, 1.7, 1.8, 3), "nats", at_most(1.72)),
    Row("encoding", 1, Spread(5.0, 5.0, 5.0, 1), "MB/s"),
]


def test_the_table() -> None:
    assert table(ROWS).splitlines()[2:] == [
        "| step | 1 | 20.0 ms | plain: 30.0 ms | **1.50× as fast** (1.25 … 2.00) | ≥ 1.45: met |",
        "| loss | 2 |  |  | **1.7234 nats** (1.7000 … 1.8000) | ≤ 1.72: not met |",
        "| encoding | 1 |  |  | **5.00 MB/s** |  |",
    ]


def test_a_row_survives_json() -> None:
    assert [row_from_dict(json.loads(json.dumps(row_as_dict(row)))) for row in ROWS] == ROWS


def result(*rows: Row) -> dict[str, object]:
    return {"machine": MACHINE, "command": "python -m benchmarks x", "rows": [row_as_dict(row) for row in rows]}


def test_results_are_written_between_the_markers_in_order() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    text = with_results(page, {"b": result(ROWS[0]), "a": result(ROWS[1])}, ["a", "b"])
    assert text.startswith(f"before\n{BEGIN}\n\n### a\n\n`python -m benchmarks x`: P, 2 cores, torch 2,")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert text.index("### a") < text.index("### b")
    assert with_results(text, {"b": result(ROWS[0]), "a": result(ROWS[1])}, ["a", "b"]) == text


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the markers"):
        with_results(f"{BEGIN} only", {}, [])


def test_a_new_result_replaces_the_old_one_and_keeps_the_others(tmp_path: Path) -> None:
    page, results = tmp_path / "README.md", tmp_path / "results.json"
    page.write_text(f"{BEGIN}{END}", "utf-8")
    for new in ({"a": result(ROWS[0])}, {"b": result(ROWS[1])}, {"a": result(ROWS[2])}):
        save_results(results, page, new, ["a", "b"])
    assert list(json.loads(results.read_text("utf-8"))) == ["a", "b"]
    text = page.read_text("utf-8")
    assert "| encoding |" in text
    assert "| loss |" in text
    assert "| step |" not in text


def test_the_processor_is_named_with_family_and_model(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", "utf-8")
    assert processor(path) == "AMD EPYC, family 25 model 1"
