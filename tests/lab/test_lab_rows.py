"""Fast rows must be within their tolerance; slow rows, in quick form, within coarse bounds."""

from typing import Any

import numpy as np
import pytest

from tokenloom.lab.experiment import Experiment
from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure

FAST = [one for one in experiments().values() if one.section == "1" and not one.quick]


@pytest.mark.parametrize("one", FAST, ids=lambda one: one.id)
def test_a_fast_row_is_within_its_tolerance_and_has_plots_that_can_be_drawn(one: Experiment) -> None:
    from tokenloom.plotting.svg import plot_from, svg

    row = measure(one, RunOptions())
    assert row["passed"], [m for m in row["measurements"] if not m["passed"]]
    for plot in row["plots"]:
        assert svg(plot_from(plot)).startswith("<svg")
        assert plot["caption"]


@pytest.mark.parametrize("one", FAST, ids=lambda one: one.id)
def test_another_seed_keeps_the_second_tolerance(one: Experiment) -> None:
    row = measure(one, RunOptions(seed=77))
    assert row["passed"], [m for m in row["measurements"] if not m["passed"]]
    assert not row["default_seed"]


def test_cost_against_length_in_quick_form() -> None:
    row = measure(experiments()["1.8"], RunOptions(quick=True))
    assert row["passed"], row["measurements"]
    memory = {line["name"]: line["y"] for line in row["plots"][1]["lines"]}
    MiB = 2**20
    assert memory["fused attention"][-1] == pytest.approx(4 * 2048 * 64 * 4 / MiB, rel=0.02), "Q, K, V and Y"
    assert 1 < memory["explicit attention"][-1] * MiB / (2048**2 * 4) < 3, "the weights and the scores"


def test_peak_bytes_are_those_of_tensors_alive_at_the_same_time() -> None:
    import torch

    from tokenloom.lab.attention_cost import peak_bytes

    X = torch.ones(1000)
    assert peak_bytes(lambda: X.view(10, 100).T) == 0, "views are not new"
    assert peak_bytes(lambda: ((X + 1) + 1) + 1) == 8000, "two at a time"
    assert peak_bytes(lambda: [X + 1, X + 1, X + 1]) == 12000


def test_speeches_of_the_speakers_with_the_most_text() -> None:
    from tokenloom.lab.bag_of_words import speeches

    text = "A:\nlong enough\n\nB:\nno\n\nC:\nlonger than that\n\nA:\nagain\n\na line of nobody"
    assert speeches(text, 2) == [("long enough", "A"), ("longer than that", "C"), ("again", "A")]


@pytest.mark.parametrize("seed", [None, 1])
def test_naive_bayes_equals_scikit_learn(seed: int | None, tinyshakespeare: str) -> None:
    pytest.importorskip("sklearn")
    row = measure(experiments()["2.8"], RunOptions(seed=seed))
    assert row["passed"], row["measurements"]
    own, theirs, majority = (line["y"] for line in row["plots"][0]["lines"])
    assert own == pytest.approx(theirs, abs=1e-9)
    assert max(own) > 2 * majority[0]
    assert min(own) < 0.75 * max(own), "a large α outweighs the counts"
    assert "LEONTES: Camillo" in row["plots"][1]["text"] or seed


def test_positions_beyond_those_of_the_training_in_quick_form(tinyshakespeare: str) -> None:
    row = measure(experiments()["1.12d"], RunOptions(quick=True))
    assert row["passed"], row["measurements"]
    assert "learned positions for 0 … 63 only" in row["measurements"][0]["measured"]
    lines = {line["name"]: line["x"] for line in row["plots"][0]["lines"]}
    assert list(lines["learned"]) == [64]
    assert all(list(lines[name]) == [64, 96, 128, 192] for name in ("sinusoidal", "rotary", "relative-bias"))


def test_losses_of_a_shorter_window_are_the_first_of_a_longer_one() -> None:
    import torch

    from tokenloom.lab.length_extrapolation import loss_by_position
    from tokenloom.models.gpt import GPT, GPTConfig

    model = GPT(GPTConfig(11, 64, width=16, depth=1, heads=2))
    ids = torch.randint(0, 11, (500,), generator=torch.Generator().manual_seed(0))
    whole, part = loss_by_position(model, ids, 192, windows=8), loss_by_position(model, ids, 96, windows=8)
    assert torch.allclose(whole[:96], part, atol=1e-5)


def test_the_bottleneck_in_quick_form() -> None:
    row = measure(experiments()["2.10b"], RunOptions(quick=True))
    assert row["passed"], row["measurements"]
    without, attending = (line["y"] for line in row["plots"][0]["lines"])
    assert without[0] > without[-1], "falls with length"
    assert attending[-1] > without[-1]


def test_word_vectors_in_quick_form(tinyshakespeare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.util import find_spec

    row = measure(experiments()["2.11"], RunOptions(quick=True))
    assert row["passed"], row["measurements"]
    assert any("gensim" in m["name"] for m in row["measurements"]) == (find_spec("gensim") is not None)
    assert "king − man + woman" in row["plots"][1]["text"]
    monkeypatch.setattr("tokenloom.lab.word_vectors.find_spec", lambda name: None)
    monkeypatch.setattr("tokenloom.lab.word_vectors.own_vectors", lambda task, *rest: np.eye(len(task.vocabulary), 9))
    row = measure(experiments()["2.11"], RunOptions(quick=True))
    assert row["notes"] == ["gensim is not installed, and the comparison was left out: pip install gensim"]


@pytest.mark.parametrize("id", ["2.1", "2.10"])
def test_rows_of_the_second_section_without_data(id: str) -> None:
    assert measure(experiments()[id], RunOptions())["passed"]


@pytest.mark.parametrize("id", ["2.4", "2.4b", "2.5", "2.6"])
def test_rows_of_the_second_section_on_the_corpus(id: str, tinyshakespeare: str) -> None:
    row = measure(experiments()[id], RunOptions())
    assert row["passed"], row["measurements"]


def test_the_elman_network_in_quick_form(tinyshakespeare: str) -> None:
    row = measure(experiments()["2.9"], RunOptions(quick=True))
    assert row["quick"]
    assert row["passed"], row["measurements"]
    losses = row["plots"][0]["lines"][0]["y"]
    assert losses[0] == pytest.approx(np.log(65), abs=0.3), "uniform at first"
    assert np.mean(losses[-10:]) < losses[0] - 0.5


@pytest.mark.parametrize("id", ["3.1", "3.2", "3.8", "3.15"])
def test_rows_of_the_third_section_without_data(id: str) -> None:
    assert measure(experiments()[id], RunOptions())["passed"]


@pytest.mark.parametrize("seed", [None, 5])
def test_the_masked_line(seed: int | None, tinyshakespeare: str) -> None:
    row = measure(experiments()["3.12"], RunOptions(seed=seed))
    assert row["passed"], row["measurements"]


def test_rows_that_use_the_trained_gpt_in_quick_form(tinyshakespeare: str) -> None:
    cache: dict[Any, Any] = {}
    rows = {id: measure(experiments()[id], RunOptions(quick=True), cache) for id in ("3.4", "3.6", "3.7", "3.10")}
    assert len(cache) == 1, "the model is trained once"
    assert all(row["passed"] for row in rows.values()), rows
    heads = rows["3.7"]["plots"][0]["panels"]
    assert len(heads) == 2
    for panel in heads:
        weights = np.array(panel["values"])
        assert weights.shape == (24, 24)
        assert np.allclose(weights.sum(1), 1, atol=1e-5)
        assert not np.triu(weights, 1).any(), "causal"
    validation, training = (line["y"] for line in rows["3.4"]["plots"][0]["lines"])
    assert len(validation) == len(training) == 1, "one stage in quick form"
    assert 2 < training[-1] < validation[-1] + 0.1 < np.log(65), "better than uniform"
    assert rows["3.6"]["plots"][0]["text"].count("ROMEO:") >= 2
    lines = rows["3.10"]["plots"][0]["lines"]
    assert all(line["y"] == sorted(line["y"], reverse=True) and sum(line["y"]) <= 1 + 1e-6 for line in lines)
    assert [line["y"][0] for line in lines] == sorted((line["y"][0] for line in lines), reverse=True)


@pytest.mark.parametrize("id", ["2.2", "2.3"])
def test_merges_of_pairs_are_exact(id: str, tinyshakespeare: str) -> None:
    row = measure(experiments()[id], RunOptions())
    assert row["passed"], row["measurements"]
    assert all(m["tolerance"] == "exact" for m in row["measurements"])


def test_orders_of_n_grams_in_quick_form(tinyshakespeare: str) -> None:
    row = measure(experiments()["2.7"], RunOptions(quick=True))
    assert row["passed"], row["measurements"]
    lines = {line["name"]: line["y"] for line in row["plots"][0]["lines"]}
    assert lines["add-k, training"][-1] < lines["add-k, validation"][-1], "lower on training text"
    assert lines["kneser-ney, validation"][-1] == min(lines["kneser-ney, validation"])
    assert lines["the GPT of 3.4, 1.9085"] == [1.9085] * 4


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_gradients_through_time_keep_their_bound(seed: int | None) -> None:
    row = measure(experiments()["2.10"], RunOptions(seed=seed))
    assert row["passed"], row["measurements"]
    assert sum("÷ its bound" in m["name"] for m in row["measurements"]) == 4
    lines = {line["name"]: line["y"] for line in row["plots"][0]["lines"]}
    assert lines["tanh, gain 0.5"][0] < 1e-15 < 1e-3 < lines["LSTM, gate near one"][0]
