"""Figures of translation that take minutes: pytest -m slow. Budgets are in processor seconds of one thread."""

import time
from pathlib import Path
from typing import Any

import pytest

import tokenloom
from tokenloom.lab.bottleneck import reversed_by_length
from tokenloom.lab.reversal import DIGITS
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.models.recurrent_translation import RecurrentTranslator, RecurrentTranslatorConfig
from tokenloom.nn.modules import count_parameters
from tokenloom.runs.session import TrainingSession
from tokenloom.tasks.translation import Translation
from tokenloom.training.events import StepFinished

pytestmark = pytest.mark.slow


def trained_for(seconds: float, data: str, out: Path, **settings: Any) -> Translation:
    """A training whose steps take so many processor seconds in all, with a schedule that fits."""
    fitting: TrainingSession = tokenloom.start_session(
        data, task="translation", threads=1, steps=12, eval_every=12, **settings
    )
    stamps = [time.process_time() for event in fitting if isinstance(event, StepFinished)]
    each = (stamps[-1] - stamps[2]) / (len(stamps) - 3)
    steps = int(0.9 * seconds / each)  # A tenth is for evaluations.
    settings = {"eval_every": max(1, steps // 5), **settings}
    task = tokenloom.train(data, task="translation", out=out, threads=1, steps=steps, **settings)
    assert isinstance(task, Translation)
    return task


@pytest.mark.parametrize("name", ["dates-de", "dates-fr", "dates-iso"])
def test_unseen_dates_are_translated_exactly(name: str, tmp_path: Path) -> None:
    """≥ 99 % within five minutes of two cores: 600 processor seconds, everything included."""
    begin = time.process_time()
    task = trained_for(420, name, tmp_path / "run")
    metrics = task.evaluate()
    print(f"{name}: {metrics}, {time.process_time() - begin:.0f} s")
    assert metrics["num_pairs"] == 600
    assert metrics["exact_match"] >= 0.99
    assert time.process_time() - begin <= 600


def test_verses_against_a_recurrent_network(tmp_path: Path) -> None:
    """At the same number of parameters (within a tenth), the same tokens and the same time, BLEU is higher."""
    pytest.importorskip("sacrebleu")
    common: dict[str, Any] = {"tokenizer": "byte-bpe", "vocab_size": 2000, "dropout": 0.2, "label_smoothing": 0.1}
    kinds = {
        "transformer": {"width": 128, "depth": 2},
        "rnn-attention": {"width": 160, "depth": 2},
    }
    found, sizes = {}, {}
    for model, size in kinds.items():
        task = trained_for(600, "verses-en-es", tmp_path / model, model=model, **common, **size)
        found[model], sizes[model] = task.evaluate(), count_parameters(task.model)
    print(found, sizes)
    assert 0.9 < sizes["rnn-attention"] / sizes["transformer"] < 1.1
    assert found["transformer"]["bleu"] > found["rnn-attention"]["bleu"]


def test_the_bottleneck() -> None:
    """Reference 2.10b: one vector holds short strings and loses long ones; with attention all lengths hold."""
    found = {
        attention: reversed_by_length(
            RecurrentTranslator(
                RecurrentTranslatorConfig(DIGITS, DIGITS, 64, 1, attention=attention, shared_vocab=True)
            ),
            steps=1500,
            lr=4e-3,
        )
        for attention in (False, True)
    }
    print(found)
    without, beside = found[False].strings, found[True].strings
    assert without[5] > 0.5
    assert without[30] < 0.05
    assert without[5] > without[15] >= without[30]
    assert min(beside.values()) > 0.9


def test_the_transformer_reverses_all_lengths_too() -> None:
    config = EncoderDecoderConfig(DIGITS, DIGITS, 30, 30, width=64, depth=2, heads=4, shared_vocab=True)
    assert min(reversed_by_length(EncoderDecoder(config), steps=1500, lr=3e-3).strings.values()) > 0.9
