"""Section 2: texts as bags of words, compared with scikit-learn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.lab.corpus import CORPUS, corpus_text
from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, exact, experiment, shown
from tokenloom.models.naive_bayes import NaiveBayes
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tasks.text_classification import LabeledSamples, TextClassification, TextClassificationSettings
from tokenloom.training.batches import BatchContext

SPEAKERS = 5
ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MIN_COUNT = 8


def speeches(text: str, speakers: int) -> list[tuple[str, str]]:
    """Return (speech, speaker) of the speakers with the most text, in the order of a text of “NAME:⏎speech” blocks."""
    blocks = [block.split(":\n", 1) for block in text.split("\n\n") if ":\n" in block]
    lengths = Counter[str]()
    for name, speech in blocks:
        lengths[name] += len(speech)
    selected = {name for name, _ in lengths.most_common(speakers)}
    return [(speech, name) for name, speech in blocks if name in selected]


def counts_of(samples: LabeledSamples, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the counts (texts, vocab) of each id in each text, and the classes (texts,)."""
    counts = np.stack([np.bincount(ids, minlength=vocab_size) for ids, _ in samples.items])
    return counts, np.array([label for _, label in samples.items])


@experiment(
    "2.8",
    "Naive Bayes",
    question="Can the speaker be predicted from the words alone?",
    protocol="The speeches of the five speakers with the most text in Tiny Shakespeare, 30 % of each for validation; "
    "word counts with add-α smoothing, in log space; scikit-learn's MultinomialNB on the same counts.",
    explanation="A speech is modeled as a bag of words drawn from the distribution of its speaker. That is naive, yet "
    "twice as accurate as the most frequent class. Products of many small probabilities are computed as sums of "
    "logarithms, since they would underflow; α is the count given to words that a speaker has never used.",
    dataset=CORPUS,
    seconds=1.0,
)
def naive_bayes(ctx: ExperimentContext) -> Outcome:
    """2.8."""
    from sklearn.naive_bayes import MultinomialNB

    items = speeches(corpus_text(), SPEAKERS)
    task = TextClassification(TextClassificationSettings(model="naive-bayes", val_fraction=0.3, split_seed=ctx.seed))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "speeches.jsonl"
        path.write_text("\n".join(json.dumps({"text": text, "label": name}) for text, name in items), "utf-8")
        prepared = task.load(str(path))
    train, val = prepared.train, prepared.validation
    assert isinstance(train, LabeledSamples)
    assert isinstance(val, LabeledSamples)
    assert prepared.fit is not None
    model = prepared.fit()
    assert isinstance(model, NaiveBayes)
    # Words in no training text, and white space, are ignored: scikit-learn does not get these columns.
    known = model.counts.sum(0).numpy() > 0
    (counts, labels), (val_counts, truth) = (counts_of(part, len(known)) for part in (train, val))
    batch = task.collate(list(val.items), BatchContext(0, -1, val.all()))
    own: list[float] = []
    theirs: list[float] = []
    differences: list[float] = []
    measurements = []
    for alpha in ALPHAS:
        model.alpha.fill_(alpha)
        task.model = model
        peer = MultinomialNB(alpha=alpha).fit(counts[:, known], labels)
        own.append(task.evaluate(samples=val)["accuracy"])
        theirs.append(float(peer.score(val_counts[:, known], truth)))
        with torch.no_grad():
            scores = model(batch).numpy()
        differences.append(float(np.abs(scores - peer.predict_joint_log_proba(val_counts[:, known])).max()))
        measurements.append(exact(f"accuracy, α = {alpha:g}", f"{theirs[-1]:.4f}", f"{own[-1]:.4f}"))
    majority = float((truth == np.bincount(labels).argmax()).mean())
    measurements += [
        at_most("log p(class, text) − scikit-learn's", 1e-9, max(differences), "equal"),
        at_least(
            "accuracy at α = 1 − that of the most frequent class", 0.1, own[ALPHAS.index(1.0)] - majority, "own figure"
        ),
        shown("training texts, validation texts", f"{len(labels)}, {len(truth)}"),
    ]
    lines = [
        Line("tokenloom", ALPHAS, own),
        Line("scikit-learn", ALPHAS, theirs),
        Line("most frequent speaker", ALPHAS, [majority] * len(ALPHAS)),
    ]
    caption = "Both predict the same labels at every α; a large α outweighs the counts."
    plots = [
        Plot("Accuracy against α", caption, "α", "accuracy", lines, log_x=True),
        distinctive_words(task, model),
    ]
    return Outcome(measurements, plots)


def distinctive_words(task: TextClassification, model: NaiveBayes) -> Plot:
    """Return the most distinctive words of each class: log p(w | c) − log of the mean of p(w | c) over classes."""
    model.alpha.fill_(1.0)
    p = model.log_likelihood()
    weight = (p - p.logsumexp(0)).masked_fill(model.counts.sum(0) < MIN_COUNT, -float("inf"))
    rows = []
    for name, best in zip(task.classes, weight.topk(6).indices.tolist(), strict=True):
        rows.append(f"{name}: {', '.join(task.tokenizer.decode([id]).strip() for id in best)}")
    return Plot("Distinctive words", f"Of the words that occur at least {MIN_COUNT} times.", text="\n".join(rows))
