"""Labeling words from end to end: learns, measures, predicts, says what is odd and refuses what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

import tokenloom
from tokenloom.cli.main import main
from tokenloom.cli.metrics import metric_lines
from tokenloom.errors import UserError
from tokenloom.tasks.base import PreparedData, actions_of
from tokenloom.tasks.token_classification import TagOptions, TokenClassification, TokenClassificationSettings

TINY = {"context": 24, "width": 32, "depth": 1, "heads": 2, "threads": 1, "device": "cpu", "tokenizer": "char"}
SIZES = {name: TINY[name] for name in ("context", "width", "depth", "heads", "tokenizer")}
ROWS = ["Anna B-PER", "Maria I-PER", "met O", "Bob B-PER", "in O", "Rome B-LOC", "again O"]
NAMES = "\n\n".join("\n".join(ROWS[n % 6 : 4 + n % 4] + ROWS[: 1 + n % 5]) for n in range(60))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenClassification, Path]:
    folder = tmp_path_factory.mktemp("tagging")
    (folder / "names.conll").write_text(NAMES, "utf-8")
    task = tokenloom.train(folder / "names.conll", out=folder / "run", steps=120, lr=0.01, batch_size=8, **TINY)
    assert isinstance(task, TokenClassification)
    return task, folder


def prepared(data: Path, **settings: Any) -> tuple[TokenClassification, PreparedData]:
    task = TokenClassification(TokenClassificationSettings(**{**SIZES, **settings}))
    return task, task.load(str(data))


def test_it_learns_names_and_measures_them(run: tuple[TokenClassification, Path]) -> None:
    task, _ = run
    metrics = task.evaluate()
    assert metrics["span_f1"] > 0.9
    assert metrics["macro_f1"] > 0.9
    assert metrics["accuracy"] > 0.9
    support = {row["label"]: row["support"] for row in metrics["labels"]}
    assert sum(support.values()) == metrics["num_words"]
    lines = "\n".join(metric_lines(task.metrics, metrics))
    assert "span F1" in lines
    assert "B-PER" in lines


def test_tags_of_a_loaded_run_and_of_a_sentence_longer_than_the_model(run: tuple[TokenClassification, Path]) -> None:
    task, folder = run
    again = tokenloom.load(folder / "run")
    assert isinstance(again, TokenClassification)
    words = ["Anna", "Maria", "met", "Bob", "in", "Rome", "again"]
    assert again.tag(words) == task.tag(words)
    assert [label for label, _ in task.tag(words)] == ["B-PER", "I-PER", "O", "B-PER", "O", "B-LOC", "O"]
    long = task.tag(words * 5)
    assert len(long) == len(words) * 5
    assert all(0 < p <= 1 for _, p in long)
    assert sum(label == "B-LOC" for label, _ in long) >= 3


def test_predict_on_the_command_line(
    run: tuple[TokenClassification, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = str(run[1] / "run")
    (tmp_path / "lines.txt").write_text("Bob met Anna\n\nin Rome\n", "utf-8")
    assert main(["predict", out, "Bob met Anna", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sentences"][0]["labels"] == ["B-PER", "O", "B-PER"]
    assert main(["predict", out, "--file", str(tmp_path / "lines.txt")]) == 0
    assert capsys.readouterr().out.count("probability") == 2
    for words, message in (([out], "nothing to label"), ([out, " "], "no word"), ([out, "Zoë"], "no token for")):
        assert main(["predict", *words]) == 2
        assert message in capsys.readouterr().err


def test_counting_taggers_are_measured_on_the_same_words(run: tuple[TokenClassification, Path]) -> None:
    task, folder = run
    fresh = tokenloom.load(folder / "run")
    assert isinstance(fresh, TokenClassification)
    counted, metrics = fresh.count_baseline(3), task.evaluate()
    assert counted["num_words"] == metrics["num_words"]
    assert [row["support"] for row in counted["labels"]] == [row["support"] for row in metrics["labels"]]
    assert counted["accuracy"] > 0.9
    prepared = fresh.load(str(folder / "names.conll"))
    assert prepared.baseline is not None
    baseline = prepared.baseline()
    assert baseline is not None
    assert baseline.value == pytest.approx(counted["loss"])


def test_other_data_are_measured_and_other_labels_refused(
    run: tuple[TokenClassification, Path], tmp_path: Path
) -> None:
    task, _ = run
    (tmp_path / "more.conll").write_text("Bob B-PER\nmet O\n", "utf-8")
    assert task.evaluate(str(tmp_path / "more.conll"))["num_words"] == 2
    (tmp_path / "odd.conll").write_text("Bob B-PER\nmet VERB\n", "utf-8")
    with pytest.raises(UserError, match=r"odd.conll:1: the label 'VERB' is none of"):
        task.evaluate(str(tmp_path / "odd.conll"))


def test_long_sentences_and_long_words_are_named(tmp_path: Path) -> None:
    text = NAMES + "\n\n" + "\n".join(ROWS * 3) + f"\n\n{'ab' * 30} O\n"
    (tmp_path / "long.conll").write_text(text, "utf-8")
    task, material = prepared(tmp_path / "long.conll")
    notes = "\n".join(line for line in material.report.lines() if line.startswith("note"))
    assert "split into windows that overlap" in notes
    assert "1 word longer than the context" in notes
    words = task._parts
    assert words is not None
    counted = sum(
        int((targets >= 0).sum())
        for _, targets in (
            *material.train.take(material.train.all()),
            *material.validation.take(material.validation.all()),
        )
    )
    assert counted == words.train.words + words.validation.words


def test_any_text_gives_labels_of_punctuation(tmp_path: Path) -> None:
    text = "\n\n".join(f"The cat, no. {n}, sat. Did it? It did!" for n in range(12))
    (tmp_path / "cats.txt").write_text(text, "utf-8")
    arguments = {**TINY, "tokenizer": "auto", "vocab_size": 300, "labels": "punctuation"}
    task = tokenloom.train(
        tmp_path / "cats.txt", task="token-classification", steps=60, lr=0.01, batch_size=8, **arguments
    )
    assert isinstance(task, TokenClassification)
    metrics = task.evaluate()
    parts = {row["label"]: row["f1"] for row in metrics["label_parts"]}
    assert parts["?"] > 0.9
    assert parts["capital"] > 0.9
    predict = actions_of(TokenClassification)["predict"]
    answer = predict.run(task, TagOptions(["the cat no 3 sat did it it did"]))
    assert answer["sentences"][0]["text"] == "The cat, no. 3, sat. Did it? It did!"
    table = "\n".join(metric_lines(task.metrics, metrics))
    assert "capital" in table, "the parts of labels"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_fraction": 0.0}, "--val-fraction"),
        ({"val_data": "x", "val_fraction": 0.2}, "--val-fraction has no effect"),
        ({"labels": "punctuation", "token_column": 1}, "--token-column has no effect"),
        ({"width": 30, "heads": 4}, None),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], message: str | None) -> None:
    (tmp_path / "names.conll").write_text(NAMES, "utf-8")
    with pytest.raises(UserError, match=message or "--width 30: must be divisible"):
        prepared(tmp_path / "names.conll", **settings)
