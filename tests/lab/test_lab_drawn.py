"""The contents of the plots of fast rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure

Plots = Sequence[dict[str, Any]]


def panels(plots: Plots) -> list[NDArray[Any]]:
    """Return the matrices of the first plot."""
    return [np.array(panel["values"]) for panel in plots[0]["panels"]]


def curves(plots: Plots) -> dict[str, NDArray[Any]]:
    """Return the y values of the lines of the first plot, by name."""
    return {line["name"]: np.array(line["y"]) for line in plots[0]["lines"]}


def weights(plots: Plots) -> None:
    [A] = panels(plots)
    assert A.shape == (5, 5)
    assert (A > 0).all()
    assert np.allclose(A.sum(1), 1, atol=1e-6)


def scores(plots: Plots) -> None:
    shared, separate = panels(plots)
    assert np.allclose(shared, shared.T, atol=1e-4)
    assert np.abs(separate - separate.T).max() > 0.1


def variance(plots: Plots) -> None:
    widths = np.array(plots[0]["lines"][0]["x"])
    plain, scaled = curves(plots).values()
    assert np.allclose(plain / widths, 1, atol=0.15)
    assert np.allclose(scaled, plain / widths)


def saturation(plots: Plots) -> None:
    unscaled, scaled = curves(plots).values()
    assert (np.diff(unscaled) < 0).all()
    assert scaled.min() > 10 * unscaled[-1]


def norms(plots: Plots) -> None:
    found = curves(plots)
    assert np.allclose(found["post-norm"], 32**0.5, atol=0.01)
    assert (np.diff(found["pre-norm"]) > 0).all()


def waves(plots: Plots) -> None:
    [r] = panels(plots)
    assert np.allclose(r[0], np.sin(np.arange(96)))
    assert np.allclose(r[1], np.cos(np.arange(96)))
    assert np.allclose(r[0::2] ** 2 + r[1::2] ** 2, 1), "sin² + cos²"


def rotation(plots: Plots) -> None:
    [M] = panels(plots)
    assert np.allclose(M @ M.T, np.eye(32))
    blocks = np.kron(np.eye(16), np.ones((2, 2)))
    assert not M[blocks == 0].any()


def cosines(plots: Plots) -> None:
    measured, expected = curves(plots).values()
    assert np.allclose(measured / expected, 1, atol=0.05)


def ranks(plots: Plots) -> None:
    [values] = curves(plots).values()
    assert (values > 1e-5 * values[0]).sum() == 4


def dense(plots: Plots) -> None:
    [M] = panels(plots)
    blocks = np.abs(M).reshape(6, 8, 6, 8).max((1, 3)) > 0
    assert np.array_equal(blocks, np.tril(np.ones((6, 6), bool)))


def change(plots: Plots) -> None:
    [y] = curves(plots).values()
    assert y[:6].max() < 1e-6 < 1e-3 < y[6:].min()


CHECKS: dict[str, Callable[[Plots], None]] = {
    "1.1": weights,
    "1.2": scores,
    "1.3": variance,
    "1.4": saturation,
    "1.7": norms,
    "1.10": waves,
    "1.11": rotation,
    "1.12": cosines,
    "1.12b": ranks,
    "1.13": dense,
    "3.1": change,
}
# Rows without plots.
WITHOUT_PLOTS = {"1.5", "1.6", "1.9", "1.12c", "2.1", "3.2", "3.8", "3.15"}


@pytest.mark.parametrize("id", CHECKS)
def test_plots_show_the_expected_values(id: str) -> None:
    CHECKS[id](measure(experiments()[id], RunOptions())["plots"])


@pytest.mark.parametrize("id", sorted(WITHOUT_PLOTS))
def test_rows_without_plots(id: str) -> None:
    assert not measure(experiments()[id], RunOptions())["plots"]


def test_every_fast_row_of_the_first_section_is_checked() -> None:
    fast = {one.id for one in experiments().values() if one.section == "1" and not one.quick}
    assert fast <= CHECKS.keys() | WITHOUT_PLOTS


def test_every_merge_adds_less(tinyshakespeare: str) -> None:
    row = measure(experiments()["2.3"], RunOptions())
    line = row["plots"][0]["lines"][0]
    gains = np.diff(line["y"]) / np.diff(line["x"])
    assert (gains > 0).all()
    assert (np.diff(gains) < 0).all()
