"""What an encoder reaches, beside what counting reaches on the same split: run with pytest -m slow."""

from pathlib import Path
from statistics import mean

import pytest

import tokenloom
from tokenloom.data.documents import TextData
from tokenloom.data.punctuation import MARKS, punctuated
from tokenloom.data.tagged import split_tagged
from tokenloom.tasks.token_classification import TokenClassification

pytestmark = pytest.mark.slow
ONE = {"threads": 1, "device": "cpu"}


def marks(metrics: dict[str, float]) -> float:
    """The mean F1 of the six marks."""
    return mean(metrics[f"f1/{mark}"] for mark in MARKS)


def test_punctuation_is_better_found_than_by_counting(shakespeare: TextData) -> None:
    """Within 300 CPU-seconds: F1 of every mark above that of the most frequent label a word and of an n-gram tagger."""
    run = tokenloom.train("punctuation", size="tiny", batch=32, steps=1500, evaluate_every=500, seed=1, **ONE)
    assert isinstance(run, TokenClassification)
    reached, n_gram, word = run.evaluate(), run.counting(3), run.counting(1)
    assert reached["words"] == n_gram["words"] == word["words"] > 80_000
    for mark in MARKS:
        assert reached[f"f1/{mark}"] > max(n_gram[f"f1/{mark}"], word[f"f1/{mark}"]), mark
    assert reached["loss"] < n_gram["loss"] < word["loss"]


def test_pre_training_wins_where_labels_are_few(shakespeare: TextData, tmp_path: Path) -> None:
    """Reference 3.13, an own figure: 200 labelled speeches, with a body that has read the plays and without one; also
    with that body left as it is. The same words are asked for, which neither has seen."""
    parts = split_tagged(punctuated(shakespeare), 0.1)
    labelled, asked = parts.training.sentences[::100][:200], parts.validation.sentences[::4]
    for name, sentences in (("few", labelled), ("asked", asked)):
        rows = ("\n".join(f"{w}\t{label}" for w, label in zip(s.words, s.labels, strict=True)) for s in sentences)
        (tmp_path / f"{name}.conll").write_text("\n\n".join(rows), "utf-8")
    lines = (" ".join(s.words) for s in parts.training.sentences)
    (tmp_path / "read.txt").write_text("\n".join(lines), "utf-8")
    body = tmp_path / "body"
    tokenloom.train(
        tmp_path / "read.txt", task="fill-mask", lines=True, size="tiny", batch=32, steps=1500, out=body, **ONE
    )
    tokenizer = {"size": "tiny", "vocab": 2000}
    reached: dict[str, list[float]] = {}
    for seed in (1, 2, 3):
        for name, how in (
            ("scratch", tokenizer),
            ("tuned", {"init": str(body)}),
            ("head", {"init": str(body), "train": "head"}),
        ):
            run = tokenloom.train(
                tmp_path / "few.conll",
                task="token-classification",
                validation=str(tmp_path / "asked.conll"),
                batch=16,
                steps=200,
                evaluate_every=50,
                seed=seed,
                **how,
                **ONE,
            )
            reached.setdefault(name, []).append(marks(run.evaluate()))
    assert min(reached["tuned"]) > max(reached["scratch"]), reached
