"""What newcomers to the language tasks run into: each a line that says the truth, and exit code 2."""

from pathlib import Path

import pytest
from tiny_cli import Call, Refused

SAMPLES = [("a river runs far", "nature"), ("the cow eats grass", "animal")]
ROWS = [f"{SAMPLES[n % 2][0]} {n},{SAMPLES[n % 2][1]}" for n in range(40)]
TINY = ("--size", "nano", "--steps", "2", "--threads", "1", "--width", "16", "--depth", "1", "--heads", "2")


def table(folder: Path, rows: list[str], header: str = "text,label") -> Path:
    path = folder / "own.csv"
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenloom import train

    folder: Path = tmp_path_factory.mktemp("labels")
    sizes = {"size": "nano", "steps": 2, "threads": 1, "width": 16, "depth": 1, "heads": 2, "context": 16}
    train(table(folder, ROWS), out=folder / "run", **sizes)
    return folder / "run"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["some text,"] * 30, "none of its rows can be used: 30 rows with an empty label in 'label'"),
        ([",x"] * 30, "no text in 'text' in any of its 30 rows"),
    ],
)
def test_rows_without_a_label_are_not_said_to_lack_a_text(
    refused: Refused, tmp_path: Path, rows: list[str], said: str
) -> None:
    assert said in refused("train", table(tmp_path, rows), "--task", "text-classification", "--out", tmp_path / "r")


def test_validation_that_holds_every_text(refused: Refused, tmp_path: Path) -> None:
    path = table(tmp_path, ROWS)
    said = refused("train", path, "--val-data", path, "--out", tmp_path / "r", *TINY)
    assert "every text is in the validation data too" in said


def test_an_option_of_another_task_says_whose_it_is(refused: Refused, tmp_path: Path) -> None:
    text = tmp_path / "s.txt"
    text.write_text("one line\n" * 50, "utf-8")
    assert "--target-file is an option of other tasks: translation" in refused("train", text, "--target-file", text)
    said = refused("train", text, "--no-header")
    assert "--no-header is an option of" in said
    assert "text-classification" in said
    assert "Unknown option" in refused("train", text, "--taste", "sweet")


def test_a_use_that_a_run_has_not_or_a_run_that_is_not_there(refused: Refused, run: Path, tmp_path: Path) -> None:
    assert "a text-classification run cannot inspect neighbors" in refused("inspect", run, "neighbors", "cow")
    assert "there is no such run" in refused("inspect", tmp_path / "nosuch", "neighbors", "cow")
    assert "Unknown command" in refused("neighbor", run, "cow")


def test_an_empty_text_has_no_label(refused: Refused, run: Path) -> None:
    assert "text 2: is empty" in refused("predict", run, "the cow", " ")


def test_texts_that_were_cut_are_said_to_be(call: Call, run: Path) -> None:
    answer = call("predict", run, "the cow eats " * 40, "a river")
    assert answer.code == 0
    assert "reads the first 15 tokens; 1 text truncated: 1" in answer.err
    assert "note" not in call("predict", run, "a river").err


def test_sizes_that_differ_from_those_of_the_run_to_start_from(refused: Refused, run: Path, tmp_path: Path) -> None:
    said = refused("train", table(tmp_path, ROWS), "--init-from", run, "--width", "32", "--out", tmp_path / "r")
    assert "--width 32: the run of --init-from has 16" in said
    said = refused("train", table(tmp_path, ROWS), "--init-from", run, "--size", "small", "--out", tmp_path / "r")
    assert "--size small: the run of --init-from has nano" in said
