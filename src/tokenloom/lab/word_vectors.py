"""Section 2: word2vec on real text, and gensim on the same words with the same budget."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.config import fill
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.evaluation.word_similarity import spearman_pmi
from tokenloom.inspection.embeddings import EmbeddingSpace
from tokenloom.lab.corpus import CORPUS
from tokenloom.lab.experiment import ExperimentContext, Measurement, Outcome, at_least, experiment, shown
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tasks.word_vectors import WordVectorSettings, WordVectorTask
from tokenloom.training.batches import Batches
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

# The maximum length of a text in gensim.
MAX_WORDS = 10_000
# A small text needs many small steps and a larger sum of learning rates than the default recipe.
BATCH, LR_SUM = 2, 12.0
WORDS = ("king", "love", "night", "sword", "thee")
ANALOGIES = (
    ("king", "man", "woman", "queen"),
    ("his", "he", "she", "her"),
    ("father", "son", "daughter", "mother"),
    ("brother", "he", "she", "sister"),
    ("thy", "thou", "i", "my"),
    ("thee", "thou", "i", "me"),
    ("him", "he", "she", "her"),
    ("hath", "have", "do", "doth"),
    ("art", "thou", "he", "is"),
    ("lord", "man", "woman", "lady"),
)


def texts_of(task: WordVectorTask, train: TextWindows) -> list[list[str]]:
    """Return the training words of a task as gensim reads them: a list per document, split where gensim would stop."""
    ids, names = np.asarray(train.ids), np.array(task.vocabulary.words)
    documents = [names[part[part >= 0]] for part in np.split(ids, np.flatnonzero(ids < 0))]
    return [part[i : i + MAX_WORDS].tolist() for part in documents for i in range(0, len(part), MAX_WORDS)]


def gensim_model(task: WordVectorTask, texts: list[list[str]], seed: int) -> Any:
    """Return gensim's untrained Word2Vec with the settings of a task and the vocabulary of the texts; one thread.

    Raise ImportError without gensim.
    """
    from gensim.models import Word2Vec

    s = task.settings
    model = Word2Vec(
        vector_size=s.dim,
        window=s.window,
        negative=s.negatives,
        sample=s.subsample,
        min_count=1,
        sg=int(s.model == "skip-gram"),
        workers=1,
        seed=seed + 1,
    )
    model.build_vocab(texts)
    return model


def gensim_vectors(task: WordVectorTask, train: TextWindows, epochs: int, seed: int) -> NDArray[np.float64]:
    """Return vectors (vocab, D) that gensim learns from the same words, in the order of the task's vocabulary."""
    texts = texts_of(task, train)
    model = gensim_model(task, texts, seed)
    model.train(texts, total_examples=len(texts), epochs=epochs)
    return np.stack([model.wv[name] for name in task.vocabulary.words]).astype(np.float64)


def own_vectors(task: WordVectorTask, train: TextWindows, epochs: int, seed: int) -> NDArray[np.float64]:
    """Return vectors (vocab, D) of tokenloom; the task has the trained model afterwards."""
    batches = Batches(train, task.collate, batch_size=BATCH, seed=seed)
    steps = epochs * batches.steps_per_epoch
    recipe = {
        **DEFAULT_RECIPE,
        "optimizer": "adamw",
        "beta2": 0.999,
        "weight_decay": 0.0,
        "grad_clip": 0.0,
        "warmup_steps": 0,
    }
    recipe |= {"lr_schedule": "wsd", "decay_fraction": 1.0, "batch_size": BATCH, "lr": LR_SUM / steps}
    settings, _ = fill(TrainingSettings(steps=steps, seed=seed), recipe)
    task.model = task.build_model(seed)
    trainer = Trainer(task, task.model, settings, batches)
    for step in range(steps):
        trainer.step(step, steps)
    return task.vectors.astype(np.float64)


def analogies_correct(space: EmbeddingSpace, top: int = 5) -> tuple[int, int]:
    """Return how many of `ANALOGIES` have the expected word among the nearest, and how many have known words."""
    correct = total = 0
    for a, b, c, expected in ANALOGIES:
        try:
            found = [word for word, _ in space.analogy(a, b, c, top)]
        except UserError:
            continue
        total += 1
        correct += expected in found
    return correct, total


@experiment(
    "2.11",
    "Word vectors",
    question="What do vectors learn about words from their neighbors alone?",
    protocol="Tiny Shakespeare; CBOW and skip-gram with negative sampling, 100 features, window 5, 5 negatives, 5 "
    "epochs; gensim on the same words, settings and epochs. Score: the Spearman correlation between cosine similarity "
    "and PMI on the validation part.",
    explanation="Words in similar contexts get similar vectors, so pronouns find pronouns and kings find kings. "
    "Offsets such as king − man + woman need far more text than one million characters: here most are wrong, with "
    "tokenloom as with gensim. The score compares both on validation text.",
    dataset=CORPUS,
    seconds=20.0,
    quick=True,
)
def word_vectors(ctx: ExperimentContext) -> Outcome:
    """2.11."""
    kinds: tuple[Literal["skip-gram", "cbow"], ...] = ("cbow",) if ctx.quick else ("cbow", "skip-gram")
    epochs = 3 if ctx.quick else 5
    peer = find_spec("gensim") is not None
    measurements: list[Measurement] = []
    plots: list[Plot] = []
    scores: dict[str, list[float]] = {}
    for kind in kinds:
        task = WordVectorTask(WordVectorSettings(model=kind))
        prepared: Any = task.load(CORPUS)
        val_ids = np.asarray(prepared.validation.ids, np.int64)
        vectors = {"tokenloom": own_vectors(task, prepared.train, epochs, ctx.seed)}
        if peer:
            vectors["gensim"] = gensim_vectors(task, prepared.train, epochs, ctx.seed)
        found = {name: spearman_pmi(one, val_ids, task.settings.window) for name, one in vectors.items()}
        spaces = {name: EmbeddingSpace(task.vocabulary.words, one.astype(np.float32)) for name, one in vectors.items()}
        own = found["tokenloom"][0]
        measurements.append(at_least(f"{kind}: Spearman PMI", 0.03 if ctx.quick else 0.08, own, "own figure"))
        if peer:
            # Scores vary by about 0.02 between seeds.
            gap = own - found["gensim"][0]
            published = f"gensim {found['gensim'][0]:.3f}, no worse"
            measurements.append(at_least(f"{kind}: Spearman PMI − gensim's", -0.04, gap, published))
        for name, space in spaces.items():
            scores.setdefault(name, []).append(found[name][0])
            correct, total = analogies_correct(space)
            measurements.append(
                shown(f"{kind}, {name}: analogies correct among the nearest 5", f"{correct} of {total}")
            )
            plots.append(_nearest(f"{kind}, {name}", space))
        measurements.append(shown(f"{kind}: pairs of words in the score", f"{found['tokenloom'][1]:,}"))
    caption = "; ".join(f"{n} {', '.join(f'{v:.3f}' for v in s)}" for n, s in scores.items()) + "."
    lines = [Line(name, list(range(1, len(values) + 1)), values) for name, values in scores.items()]
    notes = [] if peer else ["gensim is not installed, and the comparison was left out: pip install gensim"]
    plot = Plot("Spearman PMI", caption, "method", "correlation", lines, x_labels=kinds)
    return Outcome(measurements, [plot, *plots], notes)


def _nearest(name: str, space: EmbeddingSpace) -> Plot:
    """Return the nearest words of some words, and the answers of analogies."""
    rows = [f"{word}: {', '.join(near for near, _ in space.neighbors(word, 6))}" for word in WORDS]
    for a, b, c, expected in ANALOGIES[:4]:
        rows.append(f"{a} − {b} + {c}: {', '.join(w for w, _ in space.analogy(a, b, c, 4))} (expected: {expected})")
    return Plot(f"Nearest words: {name}", "Nearest by the cosine; then four offsets.", text="\n".join(rows))
