"""What an encoder reaches, beside what counting reaches on the same split: run with pytest -m slow."""

from pathlib import Path

import pytest

import tokenloom
from tokenloom.data.conll import MARKS, TaggedData
from tokenloom.data.documents import TextData
from tokenloom.data.registry import load_data
from tokenloom.data.split import split
from tokenloom.tasks.token_classification import TokenClassification

pytestmark = pytest.mark.slow
ONE = {"threads": 1, "device": "cpu"}


def test_punctuation_is_better_found_than_by_counting(shakespeare: TextData) -> None:
    """In about ten minutes of one core: fewer nats a word than an n-gram tagger, and a higher F1 of each mark than it
    and than the most frequent label of a word."""
    sizes = {"size": "tiny", "context": 96}
    run = tokenloom.train("punctuation", batch_size=32, steps=3000, eval_every=1000, seed=1, **sizes, **ONE)
    assert isinstance(run, TokenClassification)
    reached, n_gram, word = run.evaluate(), run.count_baseline(3), run.count_baseline(1)
    assert reached["num_words"] == n_gram["num_words"] == word["num_words"] > 80_000
    assert reached["loss"] < n_gram["loss"] < word["loss"]
    for mark in MARKS:
        rows = [row for one in (reached, n_gram, word) for row in one["label_parts"] if row["label"] == mark]
        f1 = [row["f1"] for row in rows]
        print(mark, *f1)
        assert f1[0] > max(f1[1:])


def test_pre_training_wins_where_labels_are_few(shakespeare: TextData, tmp_path: Path) -> None:
    """Reference 3.13, an own figure: 200 labeled speeches, with a body that has read the plays without labels, and
    without one. The same words are asked for, which neither has seen."""
    data = load_data("punctuation")
    assert isinstance(data, TaggedData)
    parts = split(data, 0.1)
    for name, sentences in (("few", parts.train.sentences[::100][:200]), ("asked", parts.validation.sentences[::8])):
        rows = ("\n".join(f"{w}\t{label}" for w, label in zip(s.words, s.labels, strict=True)) for s in sentences)
        (tmp_path / f"{name}.conll").write_text("\n\n".join(rows), "utf-8")
    (tmp_path / "read.txt").write_text("\n".join(" ".join(s.words) for s in parts.train.sentences), "utf-8")
    sizes = {"size": "nano", "vocab_size": 2000}
    body = str(tmp_path / "body")
    reading = {"line_by_line": True, "batch_size": 32, "steps": 1200, "eval_every": 400, "out": body, **sizes, **ONE}
    tokenloom.train(tmp_path / "read.txt", task="fill-mask", **reading)
    losses: dict[str, list[float]] = {"scratch": [], "tuned": []}
    tagging = {
        "task": "token-classification",
        "val_data": str(tmp_path / "asked.conll"),
        "batch_size": 16,
        "steps": 150,
    }
    for seed in (1, 2):
        for name, start in (("scratch", sizes), ("tuned", {"init_from": body})):
            run = tokenloom.train(tmp_path / "few.conll", eval_every=50, seed=seed, **tagging, **start, **ONE)
            losses[name].append(run.evaluate()["loss"])
    assert max(losses["tuned"]) < min(losses["scratch"]), losses
