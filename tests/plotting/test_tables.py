"""Aligned tables of plain text."""

import numpy as np
import pytest

from tokenloom.plotting.tables import plain_table


def test_columns_line_up_and_numbers_stand_right():
    table = plain_table(
        [["unigram", 3.358, 65, "0.1 MB"], ["order-6 Kneser–Ney", 1.5, 264623, "12.5 MB"], ["gpt", None, None, None]],
        ["model", "nats", "n-grams", "size"],
    )
    assert table == (
        "model                nats  n-grams     size\n"
        "-------------------------------------------\n"
        "unigram             3.358       65   0.1 MB\n"
        "order-6 Kneser–Ney  1.500   264623  12.5 MB\n"
        "gpt"
    )


def test_wide_characters_take_two_columns():
    assert plain_table([["日本語", 1], ["é🙂", 22], ["abc", 333]], ["名", "n"]) == (
        "名        n\n-----------\n日本語    1\né🙂      22\nabc     333"
    )


def test_text_columns_stand_left_even_with_a_number_in_them():
    assert plain_table([["a", "best"], ["b", "12"]], ["x", "what"]) == "x  what\n-------\na  best\nb  12"


@pytest.mark.parametrize("text", ["1,024", "12.5 %", "12%", "-3", "−0.5", "1e-07", "3.1 MB", "120 MB/s", "nan", "~5"])
def test_text_that_reads_as_a_number_stands_right(text):
    assert plain_table([[text]], ["a much wider header"]).split("\n")[2] == text.rjust(19)


@pytest.mark.parametrize("text", ["gpt-2", "1.2 (best)", "2024-01-02", "v1", "1 of 3 runs"])
def test_other_text_stands_left(text):
    assert plain_table([[text]], ["a much wider header"]).split("\n")[2] == text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, 2.25, 3.0], ["1.50", "2.25", "3.00"]),
        ([1.0], ["1.0"]),
        ([1 / 3, 100.0], ["0.3333", "100.0000"]),
        ([1e-7, 3.0], ["1e-07", "3"]),
        ([np.float64(0.5), float("nan"), float("-inf")], ["0.5", "nan", "-inf"]),
        ([0.0, 1.25], ["0.00", "1.25"]),
    ],
)
def test_floats_of_a_column_get_equal_decimals(values, expected):
    lines = plain_table([[value] for value in values], ["v"]).split("\n")[2:]
    assert [line.strip() for line in lines] == expected
    assert len({len(line) for line in lines}) == 1


def test_a_cell_never_leaves_its_line():
    table = plain_table([["a\nb\r\tc\x1b[31m\u2028d\ud800", "x"]], ["text", "y"])
    assert table.split("\n")[2] == "a\\nb\\r\\tc\\x1b[31m\\u2028d\\ud800  x"


def test_no_rows_leave_the_header_and_ragged_rows_are_refused():
    assert plain_table([], ["a", "long"]) == "a  long\n-------"
    with pytest.raises(ValueError, match="row 2 has 1 cells, the header 2"):
        plain_table([["a", 1], ["b"]], ["x", "y"])


def test_long_cells_are_wrapped_to_the_width_of_a_terminal():
    lines = plain_table([["set", "what it is, at some length " * 3]], ["name", "about"], width=40).split("\n")
    assert max(map(len, lines)) <= 40
    assert len(lines) > 3
