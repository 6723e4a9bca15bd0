"""A training step of a small GPT: windows, forward, backward, clipping where the peer has it, optimizer.

Two layers, width 64, four heads, 32 windows of 64; float32, no dropout, no evaluation. Each implementation runs in its
own process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import data
from benchmarks.harness import RELATIVE_TIME, Row, Setting, at_least, at_most, compare
from benchmarks.isolated import in_subprocess
from benchmarks.peers import matrix_products
from benchmarks.peers.framework import EncoderGPT, GPT2Logits, LogitsTraining
from benchmarks.peers.nano_gpt import NanoTraining
from benchmarks.peers.plain_gpt import PlainTraining
from tokenloom.config import fill
from tokenloom.training.batches import Batches
from tokenloom.training.device import keep_freed_memory
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

N, D, H, L, BATCH = 64, 64, 4, 2, 32


def our_step(steps: int = 900, **more: Any) -> tuple[Callable[[], Any], Any, int]:
    """Return a training step of `tokenloom train --preset classic`, the ids of the text and the vocabulary size.

    more: other training settings.
    """
    task, prepared = data.prepared(preset="classic", context=N, width=D, depth=L, heads=H)
    settings, _ = fill(TrainingSettings(**more), {**DEFAULT_RECIPE, **prepared.recipe})
    model = task.build_model(12).train()
    batches = Batches(prepared.train, task.collate, batch_size=BATCH, seed=0)
    trainer = Trainer(task, model, settings, batches)
    done = iter(range(1 << 40))
    return lambda: trainer.step(next(done) % steps, steps), prepared.train.ids, task.tokenizer.vocab_size  # type: ignore[attr-defined]


def _text() -> tuple[Any, int]:
    """Return the ids of the text as a tensor, and the vocabulary size."""
    task, prepared = data.prepared(context=N)
    ids = prepared.train.ids  # type: ignore[attr-defined]
    return torch.from_numpy(ids.astype("int64")), task.tokenizer.vocab_size


def _ours() -> Callable[[], Any]:
    keep_freed_memory()  # as in every training on a CPU
    return our_step()[0]


def _logits(model: type[Any]) -> Callable[[], Any]:
    ids, vocab_size = _text()
    return LogitsTraining(model(vocab_size, N, D, H, L), ids).step


def _nano() -> Callable[[], Any]:
    ids, vocab_size = _text()
    return NanoTraining(ids.numpy(), vocab_size).step


def _products(attention: bool) -> Callable[[], Any]:
    group = matrix_products.linear_products(BATCH * N, _text()[1], D, L)
    if attention:
        group = group + matrix_products.attention_products(BATCH, N, D, H, L)
    keep_freed_memory()  # as for the implementations above
    return lambda: matrix_products.run(group)


OURS = "ours"
# Each implementation runs in its own process.
IMPLEMENTATIONS: dict[str, Callable[[], Callable[[], Any]]] = {
    OURS: _ours,
    "plain implementation": lambda: PlainTraining(*_text()).step,
    "nanoGPT's model and loop": _nano,
    "transformers' GPT-2": lambda: _logits(GPT2Logits),
    "torch.nn.TransformerEncoder": lambda: _logits(EncoderGPT),
    "matrix products of its linear maps": lambda: _products(False),
    "all its matrix products": lambda: _products(True),
}
GOALS = {"plain implementation": 1.45, "transformers' GPT-2": 1.7}


def measure(setting: Setting) -> list[Row]:
    times = 10 if setting.quick else 40
    ours = in_subprocess("training", OURS, setting, times)
    rows = []
    for name in list(IMPLEMENTATIONS)[1:]:
        theirs = in_subprocess("training", name, setting, times)
        if "products" in name:
            rows.append(
                compare("training step", ours, name, theirs, setting, result_unit=RELATIVE_TIME, goal=at_most(2))
            )
        else:
            goal = GOALS.get(name) if setting.threads == 1 else None
            row = compare("training step", ours, name, theirs, setting, goal=None if goal is None else at_least(goal))
            rows.append(row)
    return rows
