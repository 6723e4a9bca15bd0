"""The data, the loss and the metrics of text generation; `test_text_decoder.py` has its use."""

import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tasks.untrained import RHYME, SIZES, all_ids, task_on, with_model, written
from traps import MARKERS, TEXTS, TextTrap

import tokenloom
from tokenloom.cli.metrics import metric_lines
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.ngram import Ngram
from tokenloom.runs.events import Planned
from tokenloom.runs.folder import load
from tokenloom.tasks._sizes import SIZE_PRESETS
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings
from tokenloom.training.batches import BatchContext

SCRIPTS = {
    "greek": "Μῆνιν ἄειδε, θεά, Πηληϊάδεω Ἀχιλῆος\nοὐλομένην, ἣ μυρί' Ἀχαιοῖς ἄλγε' ἔθηκε,\n",
    "japanese": "古池や\n蛙飛び込む\n水の音。\n夏草や\n兵どもが\n夢の跡。\n",
    "arabic": "قِفَا نَبْكِ مِنْ ذِكْرَى حَبِيبٍ وَمَنْزِلِ\nبِسِقْطِ اللِّوَى بَيْنَ الدَّخُولِ فَحَوْمَلِ\n",
    "emoji": "🌊🌊 👩‍👩‍👧‍👦 🏳️‍🌈! 🇬🇷🇯🇵 then 🐸 in the 🌊\n",
}


def context() -> BatchContext:
    return BatchContext(0, -1, np.zeros(0, np.int64))


def collated(task: TextGeneration, samples: TextWindows) -> Batch:
    return task.collate(samples.take(samples.all()), context())


# Any script.


@pytest.mark.parametrize("tokenizer", ["auto", "byte-bpe"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_any_script_trains_round_trips_and_goes_on(script: str, tokenizer: str, tmp_path: Path) -> None:
    text = SCRIPTS[script]
    data = written(tmp_path, text * 20)
    given = {"tokenizer": tokenizer, **({"vocab_size": 280} if tokenizer == "byte-bpe" else {})}
    tokenloom.train(data, **SIZES, **given, steps=3, threads=1, out=tmp_path / "run")
    run = load(tmp_path / "run")
    assert isinstance(run, TextGeneration)
    assert run.tokenizer.decode(run.tokenizer.encode(text)) == text
    prompt = text[:7]
    went_on = run.generate(prompt, max_new_tokens=40, seed=1)
    went_on.encode()
    if tokenizer == "auto":
        assert set(went_on) <= set(text)
        assert len(went_on) == 40
    assert "".join(run.stream(prompt, max_new_tokens=40, seed=1)) == went_on
    assert math.isfinite(run.score(prompt, text[7:12]).total)
    assert run.evaluate()["loss"] > 0


# What is read.


@pytest.mark.parametrize("trap", [t for t in TEXTS if t.expect == "refused"], ids=str)
def test_traps_are_refused_and_nothing_is_written(trap: TextTrap, tmp_path: Path) -> None:
    path = trap.write(tmp_path)
    with pytest.raises(UserError) as refused:
        tokenloom.train(path, encoding=trap.encoding, steps=2, threads=1, out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    for word in trap.words:
        assert word in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_every_way_to_end_a_line_gives_the_same_ids(tmp_path: Path) -> None:
    lines = ["One, two,", "buckle my shoe.", ""] * 20
    encoded = []
    for mark, end in (("", "\n"), ("", "\r\n"), ("", "\r"), ("\ufeff", "\r\n")):
        task = task_on(written(tmp_path, mark + end.join(lines)))
        encoded.append((task.tokenizer.to_json(), all_ids(task, str(task._source)).tolist()))
    assert all(one == encoded[0] for one in encoded)
    kept = task_on(written(tmp_path, "\r\n".join(lines)), normalize_newlines=False)
    ids_kept = all_ids(kept, str(kept._source))
    assert kept.tokenizer.decode(ids_kept).encode() == "\r\n".join(lines).encode()


def test_an_encoding_is_kept_with_the_run(tmp_path: Path) -> None:
    text = "Un café, s'il vous plaît.\n" * 20
    (tmp_path / "cafe.txt").write_bytes(text.encode("latin-1"))
    tokenloom.train(tmp_path / "cafe.txt", **SIZES, encoding="latin-1", steps=2, threads=1, out=tmp_path / "run")
    run = load(tmp_path / "run")
    assert isinstance(run, TextGeneration)
    assert "é" in run.tokenizer.to_json()["characters"]
    assert run.evaluate()["num_targets"] == len(text) - int(0.9 * len(text)) - 1


def test_a_validation_text_of_its_own(tmp_path: Path) -> None:
    data, held = written(tmp_path), written(tmp_path, "Six, five, ☃ shut my door.\n", "held.txt")
    task = TextGeneration(TextGenerationSettings(**SIZES, val_data=str(held)))
    material = task.load(str(data))
    assert isinstance(material.train, TextWindows)
    assert isinstance(material.validation, TextWindows)
    assert task.tokenizer.decode(material.train.ids) == data.read_text("utf-8")
    assert task.tokenizer.decode(material.validation.ids) == held.read_text("utf-8")
    assert any("☃" in line for line in material.report.lines()), "a character that training never shows is announced"


def test_merges_are_learnt_from_the_training_part_alone(tmp_path: Path) -> None:
    data = written(tmp_path, "ab " * 300)
    held = written(tmp_path, "xyz " * 300, "held.txt")
    task = task_on(data, val_data=str(held), tokenizer="bpe", vocab_size=20)
    tokens = {task.tokenizer.token_text(i) for i in range(task.tokenizer.vocab_size)}
    assert {"x", "y", "z"} <= tokens
    assert not any("xy" in token or "yz" in token for token in tokens)
    assert any("ab" in token for token in tokens)


def test_the_report_names_tokens_tokenizer_and_what_was_derived(tmp_path: Path) -> None:
    task = TextGeneration(TextGenerationSettings(size="large", tokenizer="byte-bpe", vocab_size=5000))
    material = task.load(str(written(tmp_path)))
    fields = dict(line.split(":", 1) for line in material.report.lines())
    assert "5,000" not in fields["tokens"], "there are no more ids than the text has pairs for"
    assert "byte-bpe" in fields["tokenizer"]
    assert "merges" in fields["note"]
    context = task.model_config["context"]
    assert fields["context"].split() == f"{context} tokens instead of 512, since the text is short".split()
    assert {line.index(line.split(":", 1)[1].lstrip()) for line in material.report.lines()} == {12}, "all in one column"
    json.dumps(material.report.as_dict())


# Documents and their borders.


def table(folder: Path, kind: str) -> Path:
    texts = [f"Row {n}: {RHYME}<|end|> is only text" for n in range(8)]
    if kind == "csv":
        rows = ["id,words", *(f'{n},"{text}"' for n, text in enumerate(texts))]
        return written(folder, "\n".join(rows), "rows.csv")
    return written(folder, "".join(json.dumps({"words": text}) + "\n" for text in texts), "rows.jsonl")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_rows_are_documents_with_borders_between(kind: str, tmp_path: Path) -> None:
    task = TextGeneration(TextGenerationSettings(**SIZES, text_column="words"))
    material = task.load(str(table(tmp_path, kind)))
    assert isinstance(material.train, TextWindows)
    ids = material.train.ids
    end = task.tokenizer.specials["end"]
    rows = task.tokenizer.decode(ids).count("is only text")
    assert (ids == end).sum() == rows + 1
    assert ids[0] == ids[-1] == end
    assert "<|end|> is only text" in task.tokenizer.decode(ids), "a literal marker is text"
    assert end not in task.tokenizer.encode("<|end|>")


def test_borders_can_be_had_and_left_out(tmp_path: Path) -> None:
    rows = table(tmp_path, "jsonl")
    without = task_on(rows, text_column="words", separate_documents=False)
    assert without.tokenizer.specials == {}
    single = written(tmp_path)
    assert task_on(single).tokenizer.specials == {}
    assert task_on(single, separate_documents=True).tokenizer.specials != {}


def test_windows_with_borders_are_packed_documents(tmp_path: Path) -> None:
    """Within a window no token sees another document, and positions count from each border."""
    task = with_model(task_on(table(tmp_path, "jsonl"), text_column="words", context=150))
    samples = task.load(str(task._source), for_evaluation=True).validation
    end = task.tokenizer.specials["end"]
    batch = collated(task, samples)
    text = batch["text"]
    assert text.segments is not None
    assert text.positions is not None
    assert text.ids is not None
    with torch.no_grad():
        logits = task.model(batch)
    assert len(batch) > 2
    for b in range(len(batch)):
        cuts = [0, *(n for n in range(1, text.shape[1]) if text.ids[b, n] == end), text.shape[1]]
        for first, last in pairwise(cuts):
            assert text.positions[b, first:last].tolist() == list(range(last - first))
            with torch.no_grad():
                alone = task.model(Batch({"text": Stream(ids=text.ids[b : b + 1, first:last])}))
            torch.testing.assert_close(logits[b, first:last], alone[0], atol=1e-9, rtol=0)


def test_markers_in_a_text_without_borders_are_learnt_as_text(tmp_path: Path) -> None:
    task = task_on(written(tmp_path, MARKERS * 20))
    assert task.tokenizer.decode(all_ids(task, str(task._source))) == MARKERS * 20


def test_a_vocabulary_above_two_bytes_keeps_its_ids(tmp_path: Path) -> None:
    characters = "".join(chr(c) for c in range(0x4E00, 0x4E00 + 20000)) + "".join(
        chr(0x20000 + c) for c in range(50000)
    )
    task = task_on(written(tmp_path, characters), tokenizer="char")
    assert task.tokenizer.vocab_size == 70000
    ids = all_ids(task, str(task._source))
    assert int(ids.max()) == 69999
    assert task.tokenizer.decode(ids) == characters


# Batches.


@pytest.mark.parametrize("length", [2, 15, 16, 17, 18, 32, 33, 34])
def test_every_token_but_the_first_is_a_target_once(length: int, tmp_path: Path) -> None:
    task = task_on(written(tmp_path))
    ids = task.tokenizer.encode((RHYME * 2)[:length])
    batch = collated(task, TextWindows(ids, 16))
    targets = batch.targets["loss"]
    assert targets[targets != IGNORE].tolist() == ids[1:].tolist()
    tokens = batch["text"].ids
    assert tokens is not None
    assert int(tokens.min()) >= 0
    assert tokens[targets != IGNORE].tolist() == ids[:-1].tolist()


# Loss and metrics.


def plain_losses(task: TextGeneration, ids: Any) -> list[float]:
    """−ln p of every token but the first in separate windows of the context, token by token."""
    context = task.model_config["context"]
    losses = []
    for first in range(0, len(ids) - 1, context):
        window = torch.tensor([int(i) for i in ids[first : first + context]])
        with torch.no_grad():
            logits = task.model(Batch({"text": Stream(ids=window[None])}))[0]
        log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
        losses += [-float(log_probs[n, ids[first + n + 1]]) for n in range(min(context, len(ids) - 1 - first))]
    return losses


@pytest.mark.parametrize("preset", ["modern", "classic"])
def test_metrics_by_hand(preset: str, tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path), preset=preset))
    other = written(tmp_path, "ive, six, pick up shoe. " * 4 + "One", "other.txt")
    ids = all_ids(task, str(other))
    losses = plain_losses(task, ids)
    measured = task.evaluate(str(other))
    n = len(losses)
    nats = sum(losses) / n
    assert measured["loss"] == pytest.approx(nats, rel=1e-9)
    assert measured["num_targets"] == n == len(ids) - 1
    assert measured["bits_per_token"] == pytest.approx(nats / math.log(2), rel=1e-9)
    assert measured["perplexity"] == pytest.approx(math.exp(nats), rel=1e-9)
    assert measured["bits_per_byte"] == pytest.approx(measured["bits_per_token"], rel=1e-9), "characters of one byte"
    assert measured["context"] == 16
    # 1.96 standard errors of a ratio, with the windows as the independent units.
    windows = [losses[k : k + 16] for k in range(0, n, 16)]
    off = sum((sum(w) - nats * len(w)) ** 2 for w in windows) * len(windows) / (len(windows) - 1)
    assert measured["loss_ci95"] == pytest.approx(1.96 * math.sqrt(off) / n, rel=1e-9)
    for batch in (1, 3, 1000):
        assert task.evaluate(str(other), batch_size=batch) == pytest.approx(measured, rel=1e-9)


def test_explicit_windows_can_be_measured(tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path)))
    ids = task.tokenizer.encode(RHYME)

    class Chosen(TextWindows):
        def all(self) -> Any:
            return np.array([3, 40, 11])

    expected = [loss for start in (3, 40, 11) for loss in plain_losses(task, ids[start : start + 17])]
    measured = task.evaluate(samples=Chosen(ids, 16))
    assert measured["num_targets"] == 48
    assert measured["loss"] == pytest.approx(sum(expected) / 48, rel=1e-9)


def test_one_window_has_no_interval_and_says_none(tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path)))
    other = written(tmp_path, "One, two", "other.txt")
    measured = task.evaluate(str(other))
    assert math.isnan(measured["loss_ci95"])
    assert "±" not in metric_lines(task.metrics, measured)[0]


def test_bits_per_byte_are_bits_of_the_text_over_its_bytes(tmp_path: Path) -> None:
    """For tokenizers that cut the same text differently: (nats of all targets) / ln 2 / (bytes of all targets)."""
    # The digit is a token of its own for all of them; it is given, and not asked for.
    text = "0 " + SCRIPTS["greek"] + "🌊 " + RHYME
    data = written(tmp_path, text * 12)
    counts = set()
    for settings in ({}, {"tokenizer": "byte-bpe", "vocab_size": 300}, {"tokenizer": "bpe"}):
        task = with_model(task_on(data, **settings))
        other = written(tmp_path, text, "other.txt")
        ids = all_ids(task, str(other))
        measured = task.evaluate(str(other))
        bits = measured["loss"] * measured["num_targets"] / math.log(2)
        assert measured["bits_per_byte"] == pytest.approx(bits / (len(text.encode()) - 1), rel=1e-9)
        assert measured["num_targets"] == len(ids) - 1
        counts.add(len(ids))
    assert len(counts) == 3


def test_unknown_words_leave_no_bits_per_byte(tmp_path: Path) -> None:
    data = written(tmp_path, RHYME * 8)
    task = with_model(task_on(data, tokenizer="word", vocab_size=200))
    known, unknown = written(tmp_path, "One, two", "known.txt"), written(tmp_path, "One, zebra, zebra", "unknown.txt")
    measured = task.evaluate(str(known))
    assert measured["bits_per_byte"] > 0
    assert "unk_rate" not in measured
    measured = task.evaluate(str(unknown))
    assert math.isnan(measured["bits_per_byte"])
    # "One" is given; ", ", "zebra", ", ", "zebra" are asked for.
    assert measured["unk_rate"] == pytest.approx(2 / measured["num_targets"])
    lines = metric_lines(task.metrics, measured)
    assert "bits per byte:  undefined" in lines
    assert "unknown words:  33.33%" in lines
    material = task.load(str(data))
    assert material.baseline is not None
    assert material.baseline() is not None
    held = TextGeneration(TextGenerationSettings(**SIZES, tokenizer="word", val_data=str(unknown)))
    evaluate_baseline = held.load(str(data)).baseline
    assert evaluate_baseline is not None
    assert evaluate_baseline() is None, "an n-gram that spells them cannot be compared"


# The line to beat.


def ids_of(text: str, characters: str) -> Any:
    return np.array([characters.index(c) for c in text])


def test_the_baseline_is_the_ngram_on_the_same_targets(tmp_path: Path) -> None:
    data = written(tmp_path, RHYME * 20)
    text = RHYME * 20
    cut = int(0.9 * len(text))
    characters = "".join(sorted(set(text)))
    model = Ngram.fit([ids_of(text[:cut], characters)], len(characters), 6)
    log_probs = model.log_probs(ids_of(text[cut:], characters))
    task = TextGeneration(TextGenerationSettings(**SIZES))
    evaluate_baseline = task.load(str(data)).baseline
    assert evaluate_baseline is not None
    baseline = evaluate_baseline()
    assert baseline is not None
    assert baseline.value == pytest.approx(-log_probs[1:].mean(), rel=1e-12)
    assert baseline.unit == "nats/token"
    assert "order-6" in baseline.name
    # For other tokens it is the same nats, shared out among fewer.
    task = TextGeneration(TextGenerationSettings(**SIZES, tokenizer="byte-bpe", vocab_size=290))
    material = task.load(str(data))
    assert isinstance(material.validation, TextWindows)
    assert material.baseline is not None
    baseline = material.baseline()
    assert baseline is not None
    held = material.validation.ids
    skip = len(task.tokenizer.decode(held[:1]))
    assert baseline.value == pytest.approx(-log_probs[skip:].sum() / (len(held) - 1), rel=1e-12)


def test_the_baseline_with_borders_is_asked_for_every_character(tmp_path: Path) -> None:
    task = TextGeneration(TextGenerationSettings(**SIZES, text_column="words"))
    material = task.load(str(table(tmp_path, "jsonl")))
    assert isinstance(material.train, TextWindows)
    assert isinstance(material.validation, TextWindows)
    end = task.tokenizer.specials["end"]
    parts = [
        [document for document in np.split(ids, np.flatnonzero(ids == end)) if len(document) > 1]
        for ids in (material.train.ids.astype(np.int64), material.validation.ids.astype(np.int64))
    ]
    training, validation = ([document[1:] for document in part] for part in parts)
    # Characters that occur nowhere would only widen the n-gram's vocabulary.
    model = Ngram.fit(training, task.tokenizer.vocab_size - 1, 6)
    nats = -sum(model.log_probs(document).sum() for document in validation)
    assert material.baseline is not None
    baseline = material.baseline()
    assert baseline is not None
    assert baseline.value == pytest.approx(nats / (len(material.validation.ids) - 1), rel=1e-12)


# Sizes.


def test_the_dial_gives_every_size_and_each_can_be_overridden(tmp_path: Path) -> None:
    data = written(tmp_path, RHYME * 100)
    for name, position in SIZE_PRESETS.items():
        task = TextGeneration(TextGenerationSettings(size=name))
        task.load(None)
        assert {key: task.model_config[key] for key in position.sizes} == position.sizes
        assert task.model_config["dropout"] == position.dropout
        recipe = task.load(str(data)).recipe
        assert {key: recipe[key] for key in position.recipe} == position.recipe
    task = task_on(data, context=24, width=20, depth=3, heads=5, dropout=0.25, kv_heads=1, sliding_window=9)
    chosen = {"context": 24, "width": 20, "depth": 3, "heads": 5, "dropout": 0.25, "kv_heads": 1, "sliding_window": 9}
    assert {key: task.model_config[key] for key in chosen} == chosen
    assert asdict(task.settings)["width"] == 20
    built = task.build_model(0)
    assert built.tokens.weight.shape == (task.tokenizer.vocab_size, 20)
    assert len(built.transformer.layers) == 3


def test_settled_sizes_are_kept_with_the_run(tmp_path: Path) -> None:
    task = tokenloom.train(written(tmp_path, RHYME), size="nano", steps=2, threads=1, out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.model_config == task.model_config
    assert again.settings == task.settings
    assert again.settings.context == again.model_config["context"] < SIZE_PRESETS["nano"].sizes["context"]


def test_the_chapter_trains_in_its_own_way(tmp_path: Path) -> None:
    data = written(tmp_path)
    fitting = tokenloom.start_session(data, **SIZES, preset="classic", steps=3, threads=1)
    for _ in fitting:
        pass
    training = fitting.training
    assert (training.optimizer, training.lr, training.weight_decay) == ("adamw", 6e-3, 0.01)
    assert (training.weight_decay_on, training.beta2, training.grad_clip) == ("all", 0.999, 0.0)
    assert (training.lr_schedule, training.batch_size) == ("cosine", 32)
    modern = tokenloom.start_session(data, **SIZES, steps=3, threads=1)
    for _ in modern:
        pass
    assert modern.training.weight_decay_on == "matrices"
    both = {"preset": "classic", "weight_decay_on": "matrices", "steps": 3, "threads": 1}
    assert tokenloom.start_session(data, **SIZES, **both) is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 0}, ["--width 0"]),
        ({"sliding_window": 0}, ["--sliding-window 0"]),
        ({"dropout": math.nan}, ["--dropout nan"]),
        ({"val_fraction": 0.0}, ["--val-fraction 0"]),
        ({"preset": "modrn"}, ["--preset modrn", "modern"]),
        ({"size": "smal"}, ["--size smal", "small"]),
        ({"preset": "classic", "sliding_window": 4}, ["--sliding-window", "classic"]),
    ],
)
def test_settings_that_cannot_be_are_refused_without_data(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        TextGeneration(TextGenerationSettings(**settings))
    for word in words:
        assert word in str(refused.value)


def test_there_is_nothing_to_use_before_training(tmp_path: Path) -> None:
    task = TextGeneration()
    with pytest.raises(UserError, match="no tokenizer yet"):
        _ = task.tokenizer
    prepared = task_on(written(tmp_path))
    with pytest.raises(UserError, match="no model yet"):
        prepared.generate("One")


def test_a_short_text_is_passed_over_fifteen_times_and_a_long_one_has_its_minutes(tmp_path: Path) -> None:
    sizes = {"context": 8, "width": 8, "depth": 1, "heads": 1, "threads": 1}
    short = tokenloom.start_session(written(tmp_path, RHYME), dry_run=True, **sizes)
    plan = next(event.plan for event in short if isinstance(event, Planned))
    assert plan.steps == 15 * plan.steps_per_epoch < 500
    long = tokenloom.start_session(written(tmp_path, RHYME * 400), dry_run=True, **sizes)
    plan = next(event.plan for event in long if isinstance(event, Planned))
    assert plan.steps * plan.seconds_per_step == pytest.approx(300, rel=0.5), "five minutes, evaluations included"
