"""Word vectors against gensim: words/s, and Spearman PMI on validation text.

Same words, vocabulary, dimension, window, negatives, subsampling and epochs; one thread, one process, alternating
epoch by epoch. `python -m benchmarks.word_vectors [DATA] [skip-gram|cbow] [text|code]`; needs gensim.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tokenloom.config import fill
from tokenloom.evaluation.word_similarity import spearman_pmi
from tokenloom.lab.word_vectors import gensim_model, texts_of
from tokenloom.tasks.word_vectors import WordVectorSettings, WordVectorTask
from tokenloom.training.batches import Batches
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings


@dataclass
class Result:
    """The time of all epochs, and the Spearman correlation."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    spearman_pmi: float = 0.0

    def timed(self, work: Callable[[], Any]) -> None:
        """Run some work, and add its time."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu


@dataclass
class Comparison:
    """Both results, the number of words read by each, and of pairs compared."""

    tokenloom: Result
    gensim: Result
    words: int
    pairs: int

    @property
    def ratio(self) -> float:
        """tokenloom's words per CPU second ÷ gensim's."""
        return self.gensim.cpu_seconds / self.tokenloom.cpu_seconds


def compare(data: str, model: str = "skip-gram", words: str = "text", epochs: int = 5, seed: int = 0) -> Comparison:
    """Train both on the training part of some data, and evaluate both on its validation part."""
    torch.set_num_threads(1)
    task = WordVectorTask(WordVectorSettings(model=model, word_rule=words))  # type: ignore[arg-type]
    prepared: Any = task.load(data)
    names, texts = task.vocabulary.words, texts_of(task, prepared.train)
    count = sum(map(len, texts))
    theirs = gensim_model(task, texts, seed)
    recipe = {**DEFAULT_RECIPE, **prepared.recipe}
    batches = Batches(prepared.train, task.collate, batch_size=recipe["batch_size"], seed=seed)
    epoch_steps = batches.steps_per_epoch
    settings, _ = fill(TrainingSettings(steps=epochs * epoch_steps, seed=seed), recipe)
    trainer = Trainer(task, task.build_model(seed), settings, batches)

    comparison = Comparison(Result(), Result(), epochs * count, 0)
    rates = np.linspace(theirs.alpha, theirs.min_alpha, epochs + 1)
    for done in range(epochs):
        alphas = {"start_alpha": rates[done], "end_alpha": rates[done + 1]}
        options = {"total_examples": len(texts), "epochs": 1, **alphas}
        comparison.gensim.timed(lambda options=options: theirs.train(texts, **options))  # type: ignore[misc]
        steps = range(done * epoch_steps, (done + 1) * epoch_steps)
        comparison.tokenloom.timed(lambda steps=steps: [trainer.step(step, epochs * epoch_steps) for step in steps])  # type: ignore[misc]
    task.model = trainer.model
    val_ids = np.asarray(prepared.validation.ids, np.int64)
    vectors = {"gensim": np.stack([theirs.wv[name] for name in names]), "tokenloom": task.vectors}
    for name, found in vectors.items():
        getattr(comparison, name).spearman_pmi, comparison.pairs = spearman_pmi(
            found.astype(np.float64), val_ids, task.settings.window
        )
    return comparison


def main() -> None:
    """Compare and print."""
    data, model, words = [*sys.argv[1:], *["shakespeare", "skip-gram", "text"][len(sys.argv) - 1 :]]
    found = compare(data, model, words)
    print(f"{model} on {data} ({words}): {found.words:,} words in 5 epochs, one thread")
    for name in ("tokenloom", "gensim"):
        result: Result = getattr(found, name)
        print(
            f"{name:<10} {found.words / result.cpu_seconds:>9,.0f} words per CPU second,"
            f" {found.words / result.seconds:>9,.0f} per second; Spearman PMI {result.spearman_pmi:.4f}"
        )
    print(f"ratio {found.ratio:.2f}; {found.pairs:,} pairs of words")


if __name__ == "__main__":
    main()
