"""The row on pre-training: definitions and labels, batches, and the quick form."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from needs import lacking

from tokenloom.data import registry
from tokenloom.data.conll import read_tagged
from tokenloom.data.labeled import Labeled, read_labeled
from tokenloom.data.samples import ListSamples
from tokenloom.errors import UserError
from tokenloom.lab import pretraining
from tokenloom.lab.pretraining import balanced, columns, glosses, joined, masked, table
from tokenloom.lab.registry import experiments
from tokenloom.lab.runner import RunOptions, measure
from tokenloom.models.batch import IGNORE
from tokenloom.tasks.fill_mask import FillMask, FillMaskSettings

ITEMS = [
    Labeled("1", "a river of western Africa", "noun.object"),
    Labeled("2", 'flow in a circle; "the Water circles"', "verb.motion"),
    Labeled("3", "too short", "adj.all"),
    Labeled("4", "of or relating to Paris (France)", "adj.pert"),
    Labeled("5", "in a quiet way", "adv.all"),
]


def test_definitions_are_without_examples_and_joined_two_by_two(tmp_path: Path) -> None:
    found = glosses(ITEMS)
    assert [(one.text, one.kind) for one in found] == [
        ("a river of western africa", "noun"),
        ("flow in a circle", "verb"),
        ("of or relating to paris france", "adj"),
        ("in a quiet way", "adv"),
    ]
    texts = read_labeled(str(table(tmp_path / "few.csv", balanced(found * 2, 4))))
    assert [one.label for one in texts.items] == ["noun", "verb", "adj", "adv"], "as many of each"
    words = read_tagged(str(columns(tmp_path / "few.conll", joined(found))))
    assert [" ".join(one.words) for one in words.sentences] == [
        "a river of western africa flow in a circle",
        "of or relating to paris france in a quiet way",
    ]
    assert [one.labels for one in words.sentences] == [("noun",) * 5 + ("verb",) * 4, ("adj",) * 6 + ("adv",) * 4]


def test_the_parts_do_not_overlap() -> None:
    places = np.arange(40_000)
    parts = [set(places[part].tolist()) for part in (slice(20_000), pretraining.EVALUATION, pretraining.TRAINING)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40_000


def test_two_in_five_tokens_are_selected_but_never_the_class_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "read.txt"
    path.write_text("\n".join(f"a {word} is no {word} of mine" for word in ("red", "blue", "old", "new")), "utf-8")
    task = FillMask(FillMaskSettings(line_by_line=True, tokenizer="char", size="nano", context=32))
    prepared = task.load(str(path))
    samples = ListSamples([row[: 9 + n % 3] for n, row in enumerate(prepared.train.take(prepared.train.all()))])
    monkeypatch.setattr(pretraining, "similar_length", lambda samples, batch, random: samples.all().repeat(200))
    [batch] = masked(task, samples, 0)(1)
    again = masked(task, samples, 0)(1)[0]
    assert torch.equal(batch["text"].tokens, again["text"].tokens)
    targets, stream = batch.targets["loss"], batch["text"]
    assert stream.real is not None
    selected = targets != IGNORE
    assert not selected[:, 0].any()
    assert not (selected & ~stream.real).any(), "padding is not selected"
    assert selected.sum() / stream.real[:, 1:].sum() == pytest.approx(0.4, abs=0.03)
    hidden = stream.tokens == task.mask_id
    assert (hidden & ~selected).sum() == 0
    assert hidden.sum() / selected.sum() == pytest.approx(0.8, abs=0.04)
    whole = torch.where(selected, targets, stream.tokens)
    texts = [task.tokenizer.decode(row[1:][real[1:]].tolist()) for row, real in zip(whole, stream.real, strict=True)]
    assert {text[:2] for text in texts} == {"a "}, "targets are the original tokens"


def test_the_gain_is_that_of_the_fewest_labels_and_drawn_as_measured() -> None:
    means = {
        ("class", "pre-trained"): [0.5, 0.7],
        ("class", "from scratch"): [0.4, 0.7],
        ("word", "pre-trained"): [0.3, 0.6],
        ("word", "from scratch"): [0.35, 0.6],
    }
    budget = replace(pretraining.FULL, labels={40: 2, 160: 1})
    gains = [m for m in pretraining.measurements_of(means, budget, 0.02) if m.passed is not None]
    assert [(m.measured, m.passed) for m in gains] == [("0.1", True), ("-0.05", False)]
    plots = pretraining.plots_of(means, budget)
    assert [[list(line.y) for line in plot.lines] for plot in plots] == [
        [[0.5, 0.7], [0.4, 0.7]],
        [[0.3, 0.6], [0.35, 0.6]],
    ]
    assert list(plots[0].lines[0].x) == [40, 160]


def test_pre_training_in_quick_form() -> None:
    try:
        registry.download(pretraining.DATA, progress=False)
    except UserError as error:
        lacking(str(error))
    row = measure(experiments()["3.13"], RunOptions(quick=True))
    assert row["quick"]
    assert row["passed"], row["measurements"]
