import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokenloom
from tokenloom.cli.main import main
from tokenloom.data.samples import generator_for
from tokenloom.errors import UserError
from tokenloom.tasks.text_classification import TextClassification
from tokenloom.training.batches import BatchContext
from tokenloom.training.loop import evaluate
from tokenloom.training.metrics import compute_metrics

TINY = {"width": 16, "depth": 1, "heads": 2, "context": 24, "batch_size": 8, "threads": 1}
NAMES = {"fruit": "apple pear plum fig", "very fast beast": "cow goat hen mule", "7": "saw axe nail file"}


def table(folder: Path, n: int = 16) -> str:
    rows = ["text,label"]
    for label, words in NAMES.items():
        one = words.split()
        rows += [f"the {one[i % 4]} and {one[i * 3 % 4]} {i},{label}" for i in range(n)]
    path = folder / "things.csv"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("labels")
    data = table(folder)
    tokenloom.train(data, out=folder / "run", steps=30, val_fraction=0.25, **TINY)
    return folder / "run", data


def test_a_newcomers_table_is_learnt_and_used(run: tuple[Path, str]) -> None:
    task: Any = tokenloom.load(run[0])
    assert isinstance(task, TextClassification), "guessed from its columns"
    assert task.classes == ["7", "fruit", "very fast beast"]
    found = task.predict(["the goat and hen 3", "the plum and pear 5", "the nail and saw 1"])
    assert [one["label"] for one in found] == ["very fast beast", "fruit", "7"]
    for one in found:
        assert sum(one["probabilities"].values()) == pytest.approx(1)
        assert next(iter(one["probabilities"])) == one["label"]
    (alone,) = task.predict("the goat and hen 3")
    assert alone["probabilities"] == pytest.approx(found[0]["probabilities"])
    assert {"confusion.png", "confusion-dark.png"} <= {path.name for path in run[0].iterdir()}


def test_evaluate_has_the_tables(run: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    counts = np.array(found["confusion"]["counts"])
    assert counts.sum() == found["num_texts"] == 12
    assert found["accuracy"] == counts.trace() / 12
    assert found["majority_accuracy"] == pytest.approx(1 / 3)
    assert [row["support"] for row in found["classes"]] == [4, 4, 4]
    assert main(["evaluate", str(run[0])]) == 0
    printed = capsys.readouterr().out
    assert "true \\ predicted" in printed
    assert "95 % interval" in printed
    logged = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert all(not isinstance(value, list | dict) for row in logged for value in row.values()), "single numbers alone"


def test_predict_takes_texts_lines_and_tables(
    run: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert main(["predict", str(run[0]), *words]) == 0
        return capsys.readouterr().out

    assert said("the goat and hen 3").splitlines()[2].startswith("very fast beast")
    lines = tmp_path / "lines.txt"
    lines.write_text("the goat and cow 2\n\nthe saw and axe 1\n", "utf-8")
    got = json.loads(said("--file", str(lines), "--json"))["predictions"]
    assert [(one["text"], one["label"]) for one in got] == [
        ("the goat and cow 2", "very fast beast"),
        ("the saw and axe 1", "7"),
    ]
    assert len(said("--file", run[1], "--text-column", "text").splitlines()) == 2 + 48
    assert main(["predict", str(run[0])]) == 2
    assert "nothing to label" in capsys.readouterr().err


def test_labels_never_learnt_count_as_wrong(run: tuple[Path, str], tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("text,label\nthe goat and hen 3,very fast beast\nthe goat and hen 4,new\n", "utf-8")
    found = tokenloom.load(run[0]).evaluate(str(other))
    assert found["accuracy"] == 0.5
    assert found["confusion"]["classes"] == ["7", "fruit", "very fast beast", "(not a class)"]
    assert np.array(found["confusion"]["counts"])[3].sum() == 1


def test_metrics_of_parts_make_those_of_the_whole(run: tuple[Path, str]) -> None:
    """As processes do it: each sees some of the samples, and the sums of all give accuracy, F1 and calibration."""
    task: Any = tokenloom.load(run[0])
    samples = task.load(run[1]).train
    whole = evaluate(task, task.model, samples, batch_size=7)
    parts = [evaluate(task, task.model, type(samples)(samples.items[at::2]), batch_size=5) for at in (0, 1)]
    for name, total in parts[0].items():
        other = parts[1][name].samples
        mine = total.samples

        def joined(tensor: torch.Tensor, mine: Any = mine, other: Any = other) -> torch.Tensor:
            return torch.cat([tensor, other[0] if tensor is mine[0] else other[1]])

        total.sums, total.counts = [joined(mine[0])], [joined(mine[1])]
    assert compute_metrics(task, parts[0]) == pytest.approx(compute_metrics(task, whole))


def test_balanced_classes_weigh_the_same(tmp_path: Path) -> None:
    rows = ["text,label", *(f"a {i},common" for i in range(30)), *(f"b {i},rare" for i in range(10))]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(rows), "utf-8")
    task: Any = tokenloom.train(
        str(path),
        steps=1,
        class_weights="balanced",
        label_smoothing=0.0,
        token_dropout=0.0,
        dropout=0.0,
        val_fraction=0.2,
        **TINY,
    )
    samples = task.load(str(path)).train
    keys = samples.all()
    batch = task.collate(samples.take(keys), BatchContext(0, 0, keys))
    sums = task.compute_loss(task.model, batch)["loss"].sums
    with torch.no_grad():
        plain = task.compute_loss(task.model, batch)["loss"].sums
    labels = batch.targets["loss"]
    assert torch.allclose(sums[labels == 0], plain[labels == 0] * 32 / (2 * 24))
    assert torch.allclose(sums[labels == 1], plain[labels == 1] * 32 / (2 * 8))


def test_hidden_tokens_are_a_function_of_the_moment(run: tuple[Path, str]) -> None:
    task: Any = tokenloom.load(run[0])
    samples = task.load(run[1]).train
    keys = samples.all()[:5]
    context = BatchContext(3, 7, keys)
    batch = task.collate(samples.take(keys), context)
    plain = task.collate(samples.take(keys), BatchContext(3, -1, keys))
    row, length = 2, len(samples.items[int(keys[2])][0])
    hidden = generator_for(3, 8, int(keys[row])).random(length) < 0.1
    expected = np.where(hidden, task.mask_id, samples.items[int(keys[row])][0])
    assert batch["text"].ids is not None
    assert batch["text"].ids[row, 1 : 1 + length].tolist() == expected.tolist()
    assert not bool((plain["text"].ids == task.mask_id).any())


def test_naive_bayes_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = table(tmp_path), str(tmp_path / "nb")
    assert main(["train", data, "--model", "naive-bayes", "--add-k", "0.5", "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["accuracy"] == 1.0
    assert found["baseline"]["unit"] == "accuracy"
    assert main(["predict", out, "a goat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["label"] == "very fast beast"
    task: Any = tokenloom.load(out)
    spaces = task._ignored_ids()
    assert {task.tokenizer.decode([id]) for id in spaces} == {" ", ""}, "white space and unknown words say nothing"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "naive-bayes", "width": 16}, "--width has no effect with --model naive-bayes"),
        ({"model": "naive-bayes", "token_dropout": 0.1}, "--token-dropout has no effect with --model naive-bayes"),
        ({"add_k": 1.0}, "--add-k has no effect with --model encoder"),
        ({"model": "naive-bayes", "add_k": 0.0}, "--add-k 0.0: must be above 0"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0: must be from 0 up to"),
        ({"val_fraction": 0.0}, "--val-fraction 0.0: must be above 0"),
        ({"val_data": "x.csv", "split_seed": 2}, "--split-seed has no effect with --val-data x.csv"),
        ({"ngram_features": 9}, "--ngram-features 9: must be from 0 to 8"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        tokenloom.train(table(tmp_path), task="text-classification", **settings)
    assert message in str(refused.value)


def test_a_long_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"text {i},{'ab'[i % 2]}" for i in range(20)] + ["word " * 200 + ",a"]
    path.write_text("\n".join(["text,label", *rows]), "utf-8")
    task: Any = TextClassification()
    report = "\n".join(task.load(str(path)).report.lines())
    assert "1 text longer than --context 128 tokens, truncated: a.csv:22" in report
