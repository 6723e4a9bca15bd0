import numpy as np
import pytest

from tokenloom.data.pairs import Pair
from tokenloom.evaluation.baselines.pairs import edit_distances, nearest_targets, pair_baseline


def plain_distance(a: str, b: str) -> int:
    """The recursion as it is written in textbooks."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        rows.append([i])
        for j, y in enumerate(b, 1):
            rows[i].append(min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (x != y)))
    return rows[-1][-1]


def test_edit_distances_are_those_of_the_plain_recursion() -> None:
    others = ["kitten", "sitting", "", "sittin", "Saturday", "ßµ", "kitten kitten"]
    codes = np.zeros((len(others), 13), dtype=np.uint32)
    for row, text in enumerate(others):
        codes[row, : len(text)] = [ord(c) for c in text]
    lengths = np.array([len(text) for text in others])
    for text in ("kitten", "sunday", "x", "", "sitßing"):
        assert edit_distances(text, codes, lengths).tolist() == [plain_distance(text, other) for other in others]
    assert plain_distance("kitten", "sitting") == 3


def test_the_nearest_source_answers() -> None:
    training = [Pair("a", "one cat", "eine Katze"), Pair("b", "two dogs", "zwei Hunde")]
    assert nearest_targets([Pair("c", "two dog", "?"), Pair("d", "one rat", "?")], training) == [
        "zwei Hunde",
        "eine Katze",
    ]


def test_the_best_of_three_simple_methods_is_the_line_to_beat() -> None:
    training = [Pair("a", "x1", "yes"), Pair("b", "x2", "yes"), Pair("c", "q", "no")]
    validation = [Pair("d", "x3", "yes"), Pair("e", "no", "no"), Pair("f", "zz", "?")]
    found = pair_baseline(training, validation)
    # Copying gets `no` alone, always `yes` gets the first; the nearest source gets the first, and not the others.
    assert found.value == pytest.approx(1 / 3)
    assert found.metric == "exact_match"
    assert "on 3 pairs" in found.note
    assert found.beaten({"exact_match": 0.5, "loss": 9.0})
    assert not found.beaten({"exact_match": 0.2, "loss": 0.1})
    assert found.beaten({"loss": 0.1}) is None
