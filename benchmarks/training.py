"""A whole training step of the chapter's model: windows, forward, backward, clipping where the peer has it, optimizer.

Two layers, width 64, four heads, 32 windows of 64; float32, no dropout, no evaluation inside. Each side is a process of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import texts
from benchmarks.harness import TIMES, Row, Setting, at_least, at_most, compare
from benchmarks.peers import products
from benchmarks.peers.chapter_gpt import ChapterTraining
from benchmarks.peers.framework import EncoderGPT, GPT2Logits, LogitsTraining
from benchmarks.peers.nano_gpt import NanoTraining
from benchmarks.side import apart
from tokenloom.config import fill
from tokenloom.training.batches import Batches
from tokenloom.training.device import keep_freed_memory
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

N, D, H, L, BATCH = 64, 64, 4, 2, 32


def our_step(steps: int = 900, **more: Any) -> tuple[Callable[[], Any], Any, int]:
    """A step as `tokenloom train --preset classic` takes it; with the ids of the text and their vocabulary.

    more: other settings of training.
    """
    task, material = texts.prepared(preset="classic", context=N, width=D, depth=L, heads=H)
    settings, _ = fill(TrainingSettings(**more), {**DEFAULT_RECIPE, **material.recipe})
    model = task.build_model(12).train()
    batches = Batches(material.train, task.collate, batch_size=BATCH, seed=0)
    trainer = Trainer(task, model, settings, batches)
    done = iter(range(1 << 40))
    return lambda: trainer.step(next(done) % steps, steps), material.train.ids, task.tokenizer.vocab_size  # type: ignore[attr-defined]


def _text() -> tuple[Any, int]:
    """The ids of the text, as a tensor, and how many different ones there are."""
    task, material = texts.prepared(context=N)
    ids = material.train.ids  # type: ignore[attr-defined]
    return torch.from_numpy(ids.astype("int64")), task.tokenizer.vocab_size


def _ours() -> Callable[[], Any]:
    keep_freed_memory()  # as every training on a CPU does
    return our_step()[0]


def _logits(model: type[Any]) -> Callable[[], Any]:
    ids, vocab_size = _text()
    return LogitsTraining(model(vocab_size, N, D, H, L), ids).step


def _nano() -> Callable[[], Any]:
    ids, vocab_size = _text()
    return NanoTraining(ids.numpy(), vocab_size).step


def _products(attention: bool) -> Callable[[], Any]:
    group = products.linear_products(BATCH * N, _text()[1], D, L)
    if attention:
        group = group + products.attention_products(BATCH, N, D, H, L)
    keep_freed_memory()  # the machine's limit is to be the lowest
    return lambda: products.run(group)


OURS = "ours"
# What each process of its own works at.
SIDES: dict[str, Callable[[], Callable[[], Any]]] = {
    OURS: _ours,
    "plain implementation of the chapter": lambda: ChapterTraining(*_text()).step,
    "nanoGPT's model and loop": _nano,
    "transformers' GPT-2": lambda: _logits(GPT2Logits),
    "torch.nn.TransformerEncoder": lambda: _logits(EncoderGPT),
    "matrix products of its linear maps": lambda: _products(False),
    "all its matrix products": lambda: _products(True),
}
GOALS = {"plain implementation of the chapter": 1.45, "transformers' GPT-2": 1.7}


def measure(setting: Setting) -> list[Row]:
    times = 10 if setting.quick else 40
    ours = apart("training", OURS, setting, times)
    rows = []
    for name in list(SIDES)[1:]:
        theirs = apart("training", name, setting, times)
        if "products" in name:
            rows.append(compare("training step", ours, name, theirs, setting, measure=TIMES, goal=at_most(2)))
        else:
            goal = GOALS.get(name) if setting.threads == 1 else None
            found = compare("training step", ours, name, theirs, setting, goal=None if goal is None else at_least(goal))
            rows.append(found)
    return rows
