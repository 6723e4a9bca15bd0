"""A whole training step of the chapter's model: windows, forward, backward, clipping where the peer has it, optimiser.

Two layers, width 64, four heads, 32 windows of 64; float32, no dropout, no evaluation inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import texts
from benchmarks.harness import TIMES, Row, Setting, at_least, at_most, compare, timed
from benchmarks.peers import products
from benchmarks.peers.chapter_gpt import ChapterTraining
from benchmarks.peers.framework import EncoderGPT, GPT2Logits, LogitsTraining
from benchmarks.peers.nano_gpt import NanoTraining
from tokenloom.training.batches import Batches
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import GENERAL_RECIPE, TrainingSettings

N, D, H, L, BATCH = 64, 64, 4, 2, 32


def our_step(steps: int = 900, **more: Any) -> tuple[Callable[[], Any], Any, int]:
    """A step as `tokenloom train --style chapter` takes it; with the ids of the text and their vocabulary.

    more: other settings of training.
    """
    task, material = texts.prepared(style="chapter", context=N, width=D, depth=L, heads=H)
    settings, _ = TrainingSettings(**more).filled({**GENERAL_RECIPE, **task.recipe(material)})
    model = task.build(12).train()
    batches = Batches(material.training, task.collate, batch=BATCH, seed=0)
    trainer = Trainer(task, model, settings, batches)
    done = iter(range(1 << 40))
    return lambda: trainer.step(next(done) % steps, steps), material.training.ids, task.tokenizer.vocab  # type: ignore[attr-defined]


def measure(setting: Setting) -> list[Row]:
    times = 10 if setting.quick else 40
    step, ids, vocab = our_step()
    ours = timed(step, times)
    as_tensor = torch.from_numpy(ids.astype("int64"))
    sizes = (vocab, N, D, H, L)
    one = setting.threads == 1
    peers: list[tuple[str, Callable[[], Any], float | None]] = [
        ("plain implementation of the chapter", ChapterTraining(as_tensor, vocab).step, 1.45 if one else None),
        ("nanoGPT's model and loop", NanoTraining(ids, vocab).step, None),
        ("transformers' GPT-2", LogitsTraining(GPT2Logits(*sizes), as_tensor).step, 1.7 if one else None),
        ("torch.nn.TransformerEncoder", LogitsTraining(EncoderGPT(*sizes), as_tensor).step, None),
    ]
    rows = [
        compare("training step", ours, name, timed(work, times), setting, goal=None if goal is None else at_least(goal))
        for name, work, goal in peers
    ]
    linear = products.linear_products(BATCH * N, vocab, D, L)
    everything = linear + products.attention_products(BATCH, N, D, H, L)
    for name, group in (("matrix products of its linear maps", linear), ("all its matrix products", everything)):
        limit = timed(lambda group=group: products.run(group), times)  # type: ignore[misc]
        rows.append(compare("training step", ours, name, limit, setting, measure=TIMES, goal=at_most(2)))
    return rows
