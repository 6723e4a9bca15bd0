"""Metrics as text: numbers with units and intervals, and tables."""

import math

import pytest

from tokenloom.cli.metrics import MAX_CLASSES, metric_lines
from tokenloom.training.metrics import Kind, Metric

LOSS = [Metric("loss", "nats/token"), Metric("loss_ci95", kind="ci95", of="loss")]
ACCURACY = [
    Metric("accuracy", kind="percent"),
    Metric("accuracy_low", kind="low", of="accuracy"),
    Metric("accuracy_high", kind="high", of="accuracy"),
]


def test_numbers_have_units_and_intervals_in_one_column() -> None:
    declared = [
        *LOSS,
        *ACCURACY,
        Metric("perplexity"),
        Metric("num_targets", "tokens", kind="count", label="evaluated on"),
    ]
    values = {"loss": 1.25, "loss_ci95": 0.03125, "accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6}
    assert metric_lines(declared, {**values, "perplexity": 1234.5, "num_targets": 4096}) == [
        "loss:         1.2500 ± 0.0312 nats/token (95 % interval)",
        "accuracy:     50.00% (95 % interval 40.00% to 60.00%)",
        "perplexity:   1,234.5000",
        "evaluated on: 4,096 tokens",
    ]


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0.0, "number", "0.0000"),
        (0.00012345, "number", "0.0001234"),
        (math.nan, "number", "undefined"),
        (math.inf, "count", "inf"),
        (0.1234, "percent", "12.34%"),
        ("sliding", "text", "sliding"),
    ],
)
def test_a_value_is_shown_by_its_kind(value: object, kind: Kind, shown: str) -> None:
    assert metric_lines([Metric("mse", kind=kind)], {"mse": value}) == [f"mse: {shown}"]


def test_what_has_no_value_or_no_interval_is_left_out() -> None:
    assert metric_lines([*LOSS, Metric("bleu")], {"loss": 1.0, "loss_ci95": math.nan, "bleu": None}) == [
        "loss: 1.0000 nats/token"
    ]
    assert metric_lines(LOSS, {}) == []


def test_tables_come_last() -> None:
    classes = [{"class": "a", "f1": 0.5, "support": 10}, {"class": "b c", "f1": 1.0, "support": 5}]
    bins = [{"from": 0.9, "to": 1.0, "probability": 0.95, "accuracy": 0.5, "n": 4}]
    declared = [
        Metric("classes", kind="table"),
        Metric("confusion", kind="confusion"),
        Metric("calibration", kind="calibration"),
        *LOSS,
    ]
    confusion = {"classes": ["a", "b c"], "counts": [[8, 2], [0, 5]]}
    values = {"classes": classes, "confusion": confusion, "calibration": bins, "loss": 1.0}
    assert "\n".join(metric_lines(declared, values)) == (
        "loss: 1.0000 nats/token\n\n"
        "class     f1  support\n---------------------\na      0.500       10\nb c    1.000        5\n\n"
        "true \\ predicted  a  b c\n------------------------\na                 8    2\nb c               0    5\n\n"
        "probability  mean probability  accuracy  examples\n"
        "-------------------------------------------------\n"
        "0.9 – 1.0                0.95       0.5         4"
    )


def test_of_many_classes_the_most_frequent_confusions_are_listed() -> None:
    n = MAX_CLASSES + 1
    counts = [[9 if i == j else int((i, j) == (3, 1)) * 2 for j in range(n)] for i in range(n)]
    found = {"confusion": {"classes": list("abcdefghijklm"), "counts": counts}}
    _, text = metric_lines([Metric("confusion", kind="confusion")], found)
    title, *table = text.splitlines()
    assert title == "most frequent confusions"
    assert table == ["true  predicted  examples", "-------------------------", "d     b                 2"]
