import json

import pytest

from tokenloom.cli.output import plain, print_json, quantity
from tokenloom.utils.progress import duration


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "", "0"),
        (7, "", "7"),
        (7.25, "", "7.25"),
        (512, "B", "512 B"),
        (999, "", "999"),
        (999.6, "", "1.00k"),
        (1000, "", "1.00k"),
        (63_999, "", "64.0k"),
        (120_400, "", "120k"),
        (999_600, "", "1.00M"),
        (1_070_000, "B", "1.07 MB"),
        (5.9e10, "", "59.0G"),
        (3e15, "B", "3.00e+03 TB"),
    ],
)
def test_quantities_have_three_digits(value: float, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (7.6, "0:08"), (59.6, "1:00"), (200, "3:20"), (3909, "1:05:09")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "yes"),
        (False, "no"),
        (1024, "1,024"),
        (0.003, "0.003"),
        (1.0, "1"),
        (5999.0, "5,999"),
        (3.2740245, "3.274"),
        ({"kind": "rotary"}, "rotary"),
        ({"kind": "plain", "activation": "relu2", "bias": False}, "plain (activation relu2, bias no)"),
        (["a", 2], "a, 2"),
        ("text", "text"),
    ],
)
def test_settings_as_people_read_them(value: object, shown: str) -> None:
    assert plain(value) == shown


def test_json_is_one_line_and_holds_no_number_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}, "text": "line\nγ🌊"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "γ🌊" in out
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "text": "line\nγ🌊"}
