"""Kinds of language models behind one task: which settings they take, and sliding context for each."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.session_helpers import VERSE
from tasks.untrained import all_ids

import tokenloom
from tokenloom.cli.metrics import metric_lines
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.recurrent import RecurrentLM
from tokenloom.tasks._lm_families import FAMILIES, overlapping_nats
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.training.batches import BatchContext

SMALL = {"context": 12, "width": 16, "threads": 1, "batch_size": 8, "steps": 6}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "verse.txt"
    path.write_text("".join(f"{n * 7 % 101} {VERSE}" for n in range(40)), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"model": "rnn", "heads": 4}, "--heads has no effect with --model rnn"),
        ({"model": "lstm", "preset": "classic"}, "--preset has no effect with --model lstm"),
        ({"model": "gru", "ngram_order": 3}, "--ngram-order has no effect with --model gru"),
        ({"model": "gpt", "burn_in": 10}, "--burn-in has no effect with --model gpt"),
        ({"model": "gpt", "ngram_smoothing": "add-k"}, "--ngram-smoothing has no effect with --model gpt"),
        ({"preset": "classic", "sliding_window": 8}, "--sliding-window has no effect with --preset classic"),
        ({"model": "ngram", "width": 32}, "--width has no effect with --model ngram"),
        ({"model": "ngram", "size": "tiny"}, "--size has no effect with --model ngram"),
        ({"model": "bigram", "ngram_order": 3}, "--ngram-order has no effect with --model bigram"),
        ({"model": "ngram", "add_k": 0.5}, "--add-k has no effect with --ngram-smoothing kneser-ney"),
        ({"model": "ngram", "ngram_smoothing": "add-k", "add_k": 0.0}, "--add-k 0.0: must be above 0"),
        ({"model": "ngram", "ngram_order": 0}, "--ngram-order 0: must be from 1 to 64"),
        ({"model": "rnn", "burn_in": -1}, "--burn-in -1: must be at least 0"),
        ({"model": "lstm", "size": "huge"}, "--size huge: must be nano, tiny, small, medium or large"),
    ],
)
def test_settings_without_effect_are_refused_by_name(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        TextGeneration(TextGenerationSettings(**settings))


@pytest.mark.parametrize("model", FAMILIES)
def test_each_is_trained_saved_loaded_continued_and_scored(model: str, data: str, tmp_path: Path) -> None:
    settings = {"gpt": {**SMALL, "heads": 2, "depth": 1}, "rnn": SMALL, "lstm": SMALL, "gru": SMALL}
    task = tokenloom.train(data, model=model, out=tmp_path / "run", **settings.get(model, {"context": 12}))
    loaded: Any = tokenloom.load(tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text("utf-8"))
    assert (config["model"]["kind"], config["settings"]["model"]) == (model, model)
    assert loaded.evaluate() == task.evaluate()
    options = {"max_new_tokens": 20, "seed": 3, "temperature": 1.0}
    assert loaded.generate("the ", **options) == "".join(loaded.stream("the ", **options))
    scored = loaded.score("the ", "tide")
    ids = torch.from_numpy(np.array(loaded.tokenizer.encode("the tide")))[None]
    logs = loaded.model(Batch({"text": Stream(ids=ids[:, :-1])})).log_softmax(-1)
    expected = logs[0, 3:].gather(1, ids[0, 4:, None]).sum().detach()
    assert scored.total == pytest.approx(float(expected), rel=1e-5)


# Sliding context.


def test_a_recurrent_network_is_measured_with_its_state_carried_through_the_whole_text(data: str) -> None:
    task: Any = tokenloom.train(data, model="gru", **SMALL)
    ids = torch.from_numpy(task.load(data).validation.ids.astype(np.int64))
    logs = task.model(Batch({"text": Stream(ids=ids[None, :-1])})).log_softmax(-1)
    expected = float(-logs[0].gather(1, ids[1:, None]).detach().mean())
    found = task.evaluate(context="sliding")
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert math.isinf(found["context"])
    assert metric_lines(task.metrics, found)[-1] == "context:        inf tokens"
    assert found["num_targets"] == len(ids) - 1


def test_an_ngram_is_measured_on_the_whole_text_at_once(data: str) -> None:
    task: Any = tokenloom.train(data, model="ngram", ngram_order=4, threads=1)
    ids = task.load(data).validation.ids
    expected = -task.model.ngram.log_probs(ids)[1:].mean()
    assert task.evaluate(context="sliding")["loss"] == pytest.approx(expected, rel=1e-12)
    assert task.evaluate(context=1)["loss"] > task.evaluate(context=8)["loss"] > expected


def test_a_gpt_slides_over_the_text_by_half_of_its_context(data: str) -> None:
    task: Any = tokenloom.train(data, heads=2, depth=1, **SMALL)
    ids = task.load(data).validation.ids.astype(np.int64)[:40]
    C = 12
    with torch.no_grad():
        found = overlapping_nats(task.model, ids, C, batch_size=2)
        for place in range(1, len(ids)):
            # The window that ends at 12, 18, 24, … or at the end, the first that holds the target.
            end = C if place <= C else min(len(ids) - 1, C + -(-(place - C) // 6) * 6)
            before = torch.from_numpy(ids[end - C : place])[None]
            logs = task.model(Batch({"text": Stream(ids=before)})).log_softmax(-1)[0, -1]
            assert float(found[place - 1]) == pytest.approx(-float(logs[ids[place]]), rel=1e-4, abs=1e-6)
        short = overlapping_nats(task.model, ids[:5], C)
    assert len(short) == 4


def test_documents_are_measured_each_from_its_own_beginning(tmp_path: Path) -> None:
    folder = tmp_path / "poems"
    folder.mkdir()
    for n in range(12):
        (folder / f"{n}.txt").write_text(f"{n} {VERSE}", "utf-8")
    task: Any = tokenloom.train(str(folder), model="lstm", **SMALL)
    ids = all_ids(task, str(folder)).astype(np.int64)
    (end,) = task.tokenizer.specials.values()
    cuts = np.flatnonzero(ids == end)
    assert len(cuts) == 13
    total = 0.0
    for first, last in pairwise(cuts.tolist()):
        part = torch.from_numpy(ids[first : last + 1])
        logs = task.model(Batch({"text": Stream(ids=part[None, :-1])})).log_softmax(-1)
        total -= float(logs[0].gather(1, part[1:, None]).detach().sum())
    found = task.evaluate(str(folder), context="sliding")
    assert found["loss"] * found["num_targets"] == pytest.approx(total, rel=1e-5)


def test_contexts_that_cannot_be_are_refused(data: str) -> None:
    task: Any = tokenloom.train(data, heads=2, depth=1, **SMALL)
    for context, why in (
        ("13", "reads at most 12 tokens at once"),
        ("0", "at least 1"),
        ("all", "must be sliding, or"),
    ):
        with pytest.raises(UserError, match=why):
            task.evaluate(context=context)


# Training with what stands before a window.


def test_a_training_window_comes_with_the_tokens_before_it(data: str) -> None:
    task = TextGeneration(TextGenerationSettings(model="lstm", context=10, burn_in=7, width=16))
    training = task.load(data).train
    assert isinstance(training, TextWindows)
    keys = np.array([50, 3])
    batch = task.collate(training.take(keys), BatchContext(0, 0, keys))
    ids = training.ids.astype(np.int64)
    assert batch["before"].tokens.tolist() == [ids[43:50].tolist(), [*ids[-4:], *ids[:3]]]
    assert batch["text"].tokens.tolist() == [ids[50:60].tolist(), ids[3:13].tolist()]
    assert batch.targets["loss"].tolist() == [ids[51:61].tolist(), ids[4:14].tolist()]
    held = task.load(data).validation
    batch = task.collate(held.take(np.array([0])), BatchContext(0, -1, np.array([0])))
    assert set(batch.streams) == {"text"}, "separate windows stand alone"


def test_the_state_that_is_carried_helps_to_learn_what_lies_further_back(tmp_path: Path) -> None:
    """A window of three tokens cannot hold a rhythm of four; what is carried into it can."""
    path = tmp_path / "rhythm.txt"
    path.write_text("aaab" * 400, "utf-8")
    arguments = {"model": "rnn", "context": 3, "width": 16, "steps": 250, "batch_size": 16, "lr": 0.01, "threads": 1}
    losses = {}
    for burn_in in (0, 8):
        task = tokenloom.train(str(path), burn_in=burn_in, **arguments)
        assert isinstance(task.model, RecurrentLM)
        losses[burn_in] = task.evaluate(context="sliding")["loss"]  # type: ignore[call-arg]
    assert losses[8] < 0.1 < 0.2 < losses[0]
