"""`tokenloom compare`, `tokenloom sweep` and `evaluate --context`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tiny_cli import RHYME, Call

from tokenloom.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bigram and a unigram of a text that fills several blocks."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("".join(f"{n * 7 % 101} {RHYME}" for n in range(200)), "utf-8")
    for model in ("bigram", "unigram"):
        words = ["train", str(folder / "text.txt"), "--model", model, "--quiet", "--out", str(folder / model)]
        assert main(words) == 0
    return folder / "bigram", folder / "unigram"


def test_two_runs_are_compared(call: Call, runs: tuple[Path, Path]) -> None:
    bigram, unigram = runs
    answer = call("compare", bigram, unigram)
    assert answer.code == 0, answer.err
    header, _, row, note = answer.out.splitlines()
    assert header.split()[:2] == ["A", "B"]
    assert row.split()[:2] == [str(bigram), str(unigram)]
    assert row.endswith("100.0%")
    assert "paired bootstrap" in note
    answer = call("compare", bigram, unigram, "--context", "8", "--json")
    (pair,) = json.loads(answer.out)["pairs"]
    assert pair["difference"] == pytest.approx(pair["value_a"] - pair["value_b"])
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert pair["wins"] == 1
    evaluated = json.loads(call("evaluate", unigram, "--context", "8", "--json").out)
    assert pair["value_b"] == pytest.approx(evaluated["bits_per_byte"], rel=1e-6)


def test_kinds_of_models_are_trained_and_drawn(call: Call, rhyme: Path, tmp_path: Path) -> None:
    out = tmp_path / "models"
    words = ("sweep", rhyme, "--models", "unigram,rnn", "--size", "nano", "--steps", "3", "--threads", "1")
    answer = call(*words, "--eval-context", "16", "--out", out)
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()[2:4]] == ["unigram", "rnn"]
    result = json.loads((out / "sweep.json").read_text("utf-8"))
    assert [one["model"] for one in result["models"]] == ["unigram", "rnn"]
    for one in result["models"]:
        for context, key in (("sliding", "bits_per_byte_sliding"), ("16", "bits_per_byte_windows")):
            found = json.loads(call("evaluate", one["run"], "--context", context, "--json").out)
            assert found["bits_per_byte"] == pytest.approx(one[key], rel=1e-6)
    for name in ("sweep.png", "sweep-dark.png"):
        with Image.open(out / name) as picture:
            assert picture.width > picture.height > 400
    assert "is there already" in call(*words, "--out", out).err
    assert call(*words, "--eval-context", "16", "--out", out, "--overwrite", "--quiet", "--json").code == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("compare",), "compare needs two runs"),
        (("compare", "x"), "compare needs two runs"),
        (("compare", "x", "x"), "x: given twice"),
        (("compare", "x", "y"), "x: there is no such run"),
        (("compare", "x", "y", "--steps", "3"), "--steps"),
        (("sweep", "x", "y", "--models", "gpt"), "unexpected argument: 'y'"),
        (("sweep", "python-docs"), "name at least one model"),
        (("sweep", "python-docs", "--models", ","), "name at least one model"),
        (("sweep", "python-docs", "--models", "gtp"), "gtp: no such model; did you mean 'gpt'?"),
        (("sweep", "python-docs", "--models", "rnn,rnn"), "rnn is given twice"),
        (("sweep", "python-docs", "--models", "rnn", "--model", "rnn"), "--model: a sweep trains those of --models"),
        (("sweep", "python-docs", "--models", "bigram", "--size", "tiny"), "--size has no effect on any of bigram"),
        (("sweep", "python-docs", "--models", "bigram", "--steps", "3", "-q"), "--steps has no effect on a model"),
        (("sweep", "python-docs", "--models", "bigram", "--eval-context", "0"), "--eval-context 0: must be at least 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    refused: Callable[..., str], elsewhere: Path, words: tuple[str, ...], why: str
) -> None:
    assert why in refused(*words)
    assert not list(elsewhere.iterdir())


def test_a_context_that_cannot_be_is_refused(refused: Callable[..., str], run: Path) -> None:
    assert "must be sliding, or a number of tokens" in refused("evaluate", run, "--context", "half")
    assert "reads at most" in refused("evaluate", run, "--context", "100000")
