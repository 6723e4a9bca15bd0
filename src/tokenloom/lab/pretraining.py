"""Section 3: an encoder that is pre-trained without labels and fine-tuned on few labels."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenloom.config import fill
from tokenloom.data.conll import Sentence, bare_words
from tokenloom.data.labeled import Labeled, LabeledData
from tokenloom.data.registry import load_as
from tokenloom.data.samples import ListSamples, Samples
from tokenloom.lab.experiment import ExperimentContext, Measurement, Outcome, at_least, experiment, shown
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.plotting.svg import Line, Plot
from tokenloom.runs.initialization import Origin
from tokenloom.tasks._masking import SELECTED, MaskingDraws, corrupt
from tokenloom.tasks._text_encoder import TextEncoderTask
from tokenloom.tasks.fill_mask import FillMask, FillMaskSettings
from tokenloom.tasks.text_classification import TextClassification, TextClassificationSettings
from tokenloom.tasks.token_classification import TokenClassification, TokenClassificationSettings
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import StepFinished
from tokenloom.training.loop import fit
from tokenloom.training.settings import TrainingSettings

DATA = "glosses-all"
PARTS_OF_SPEECH = ("adj", "adv", "noun", "verb")
SHORTEST, LONGEST = 3, 14
# Slices of the definitions, in one order for all seeds. The first 20,000 were used to choose rates, steps and draws;
# then come the definitions for evaluation, and those for training.
EVALUATION, TRAINING = slice(20_000, 30_000), slice(30_000, None)


@dataclass(frozen=True)
class Budget:
    """Sizes of the experiment.

    pretraining, fine_tuning: steps. labels: number of labeled texts → number of draws of them. num_evaluated:
    definitions on which accuracy is measured.
    """

    pretraining: int
    labels: Mapping[int, int]
    fine_tuning: int
    num_evaluated: int


# The fewer labels there are, the more the accuracy depends on which.
FULL = Budget(600, {40: 5, 160: 3, 640: 2}, 100, 2000)
QUICK = Budget(60, {40: 1}, 60, 400)
PRETRAINING_BATCH, FINE_TUNING_BATCH = 128, 16
# Initialization of the backbone: whether it is pre-trained.
VARIANTS = {"pre-trained": True, "from scratch": False}
# The best of 3e-4, 1e-3 and 3e-3 for each, with 40 labels, on the first 20,000 definitions.
LEARNING_RATES = {("class", True): 1e-3, ("class", False): 3e-3, ("word", True): 3e-3, ("word", False): 3e-3}
# The least gain of pre-training with the fewest labels; on the first 20,000 definitions the gains were 0.13 and 0.05.
# The quick form pre-trains too little for a gain: it must only do little harm.
BOUND, QUICK_BOUND = 0.02, -0.1
TASKS = {"class": "a label per definition, accuracy", "word": "a label per word, accuracy"}
# A batch is chosen from so many times as many samples, sorted by length.
POOL = 8
# Fraction of the tokens that are predicted, in place of the usual 15 %: Wettig et al. 2023, "Should you mask 15 % in
# masked language modeling?"
SELECTED_FRACTION = 0.4
SIZES: dict[str, Any] = {"size": "nano", "context": 64}
ADAM: dict[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.01,
    "weight_decay_on": "matrices",
    "beta2": 0.999,
    "grad_clip": 1.0,
    "lr_schedule": "wsd",
    "warmup_steps": 10,
    "decay_fraction": 1.0,
}


@dataclass(frozen=True)
class Gloss:
    """A definition in lower case without punctuation, and the part of speech that it defines."""

    words: tuple[str, ...]
    kind: str

    @property
    def text(self) -> str:
        """Return the words with spaces between them."""
        return " ".join(self.words)


def glosses(items: Sequence[Labeled]) -> list[Gloss]:
    """Return the definitions of 3 to 14 words, without the quoted examples after them."""
    selected = []
    for item in items:
        words = tuple(word for word, _ in bare_words(item.text.split('; "')[0]))
        if SHORTEST <= len(words) <= LONGEST:
            selected.append(Gloss(words, item.label.split(".")[0]))
    return selected


def shuffled() -> list[Gloss]:
    """Return all definitions, in an order that is the same for every seed.

    The slices `EVALUATION` and `TRAINING` therefore never overlap with the definitions on which settings were chosen.
    """
    definitions = glosses(load_as(DATA, LabeledData, "labeled texts").items)
    return [definitions[place] for place in np.random.default_rng(0).permutation(len(definitions)).tolist()]


def balanced(part: Sequence[Gloss], count: int) -> list[Gloss]:
    """Return the first definitions of a part, as many of each part of speech, in the order of the part."""
    left = dict.fromkeys(PARTS_OF_SPEECH, count // len(PARTS_OF_SPEECH))
    chosen = []
    for one in part:
        if left[one.kind]:
            chosen.append(one)
            left[one.kind] -= 1
    return chosen


def joined(part: Sequence[Gloss]) -> list[Sentence]:
    """Return pairs of definitions as sentences; each word has the part of speech of its definition as its label."""
    pairs = zip(part[0::2], part[1::2], strict=False)
    return [
        Sentence(str(number), a.words + b.words, (a.kind,) * len(a.words) + (b.kind,) * len(b.words))
        for number, (a, b) in enumerate(pairs)
    ]


def table(path: Path, part: Sequence[Gloss]) -> Path:
    """Write a table of definitions and their parts of speech; return the path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([one.text, one.kind] for one in part)
    return path


def columns(path: Path, sentences: Sequence[Sentence]) -> Path:
    """Write words and labels in columns; return the path."""
    blocks = ["\n".join(f"{w}\t{label}" for w, label in zip(s.words, s.labels, strict=True)) for s in sentences]
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")
    return path


def similar_length(samples: Any, batch_size: int, random: np.random.Generator) -> Any:
    """Return the keys of a batch of samples of similar length, to save padding."""
    keys = random.choice(samples.all(), POOL * batch_size)
    keys = keys[np.argsort(samples.lengths(keys), kind="stable")]
    begin = batch_size * int(random.integers(POOL))
    return keys[begin : begin + batch_size]


def masked(task: FillMask, samples: Samples, seed: int) -> Callable[[int], list[Batch]]:
    """Return a function that draws a batch of masked definitions for each step; `SELECTED_FRACTION` are predicted."""

    def batches(step: int) -> list[Batch]:
        keys = similar_length(samples, PRETRAINING_BATCH, np.random.default_rng((seed, step)))
        stream = task.stream(samples.take(keys))
        ids = stream.tokens
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        draws = MaskingDraws.of(tuple(ids.shape), task.tokenizer.vocab_size - len(task.tokenizer.specials), generator)
        # `corrupt` selects the draws below its own fraction.
        draws = replace(draws, select=draws.select * (SELECTED / SELECTED_FRACTION))
        corrupted, selected = corrupt(ids, draws, task.mask_id)
        if stream.real is not None:
            selected = selected & stream.real
        selected[:, 0] = False  # the class token
        corrupted = torch.where(selected, corrupted, ids)
        return [Batch({"text": replace(stream, ids=corrupted)}, {"loss": ids.masked_fill(~selected, IGNORE)})]

    return batches


def labeled(task: TextEncoderTask, samples: Samples, seed: int) -> Callable[[int], list[Batch]]:
    """Return a function that draws a batch of labeled definitions for each step."""

    def batches(step: int) -> list[Batch]:
        keys = similar_length(samples, FINE_TUNING_BATCH, np.random.default_rng((seed, step)))
        return [task.collate(samples.take(keys), BatchContext(seed, step, keys))]

    return batches


def train(
    task: TextEncoderTask,
    batches: Callable[[int], list[Batch]],
    val: Samples,
    recipe: dict[str, Any],
    steps: int,
    report_progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Train the model of a task; it ends with the weights of the last step."""
    settings, _ = fill(TrainingSettings(steps=steps, eval_every=steps), recipe)
    for event in fit(task, task.model, settings, batches, val):
        if isinstance(event, StepFinished):
            report_progress(event.step / steps)


def first(samples: Samples, count: int) -> ListSamples:
    """Return the first samples."""
    return ListSamples(list(samples.take(samples.all()[:count])))


def pretrain(ctx: ExperimentContext, folder: Path, part: Sequence[Gloss], budget: Budget) -> FillMask:
    """Return a fill-mask task whose encoder is pre-trained on definitions, without labels."""
    task = FillMask(FillMaskSettings(line_by_line=True, vocab_size=1_000, **SIZES))
    path = folder / "train.txt"
    path.write_text("\n".join(one.text for one in part), "utf-8")
    prepared = task.load(str(path))
    task.model = task.build_model(seed=ctx.seed)
    recipe = {**prepared.recipe, "minutes": None}
    val = first(prepared.validation, 200)
    batches = masked(task, prepared.train, ctx.seed)
    train(task, batches, val, recipe, budget.pretraining, lambda fraction: ctx.report_progress(0.5 * fraction))
    return task


def fine_tune(
    pretrained: FillMask, use: str, few: Path, val_data: Path, budget: Budget, seed: int, *, init: bool
) -> dict[str, float]:
    """Return the metrics after fine-tuning on few labels, from the pre-trained backbone or from scratch."""
    # Without the bag of n-grams.
    task: TextEncoderTask = (
        TextClassification(TextClassificationSettings(ngram_features=0))
        if use == "class"
        else TokenClassification(TokenClassificationSettings())
    )
    initialization = task.init_from(pretrained)
    task.settings = replace(task.settings, val_data=str(val_data))
    prepared = task.load(str(few))
    task.model = task.build_model(seed=seed)
    if init:
        Origin("the pre-trained run", pretrained, initialization).copy_into(task.model)
    recipe = {**ADAM, "lr": LEARNING_RATES[use, init]}
    train(task, labeled(task, prepared.train, seed), first(prepared.validation, 16), recipe, budget.fine_tuning)
    return task.evaluate(samples=prepared.validation)


@experiment(
    "3.13",
    "An encoder fine-tuned",
    question="What is pre-training without labels worth when labels are few?",
    protocol="Definitions of a dictionary, 3 to 14 words in lower case without punctuation. An encoder, D = 64 and L "
    "= 2, predicts 40 % of the tokens (masked language modeling), 600 steps of 128; then it is fine-tuned, 100 steps "
    "of 16, on 40, 160 or 640 labeled texts: whether a definition defines a noun, verb, adjective or adverb (class "
    "token; as many of each); and for two definitions joined, which part of speech each word helps to define (a label "
    "per word). From scratch: the same with random weights. Means over 5, 3 and 2 draws of labels; accuracy on 2,000 "
    "definitions that neither has seen. Learning rates are the best of three for each, on other definitions.",
    explanation="Masked language modeling needs no labels and teaches which words are used alike. A pre-trained model "
    "only has to learn the labels, which takes few examples; a model from scratch has to learn the language from them "
    "as well, and 640 are still too few for that.",
    dataset=DATA,
    quick=True,
    seconds=210.0,
)
def tuned(ctx: ExperimentContext) -> Outcome:
    """3.13."""
    budget = QUICK if ctx.quick else FULL
    parts = shuffled()
    evaluation, training = parts[EVALUATION], parts[TRAINING]
    accuracies: dict[tuple[str, str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pretrained = pretrain(ctx, folder, training, budget)
        val_data = {
            "class": table(folder / "val.csv", balanced(evaluation, budget.num_evaluated)),
            "word": columns(folder / "val.conll", joined(balanced(evaluation, budget.num_evaluated))),
        }
        rounds = [(count, draw) for count, draws in budget.labels.items() for draw in range(draws)]
        for done, (count, draw) in enumerate(rounds, start=1):
            random = np.random.default_rng((ctx.seed, count, draw))
            some = [training[place] for place in random.permutation(len(training))[:20_000].tolist()]
            few = {
                "class": table(folder / "few.csv", balanced(some, count)),
                "word": columns(folder / "few.conll", joined(balanced(some, 2 * count))),
            }
            for use in TASKS:
                for variant, init in VARIANTS.items():
                    metrics = fine_tune(
                        pretrained, use, few[use], val_data[use], budget, ctx.seed + 1 + draw, init=init
                    )
                    accuracies.setdefault((use, variant, count), []).append(metrics["accuracy"])
            ctx.report_progress(0.5 + 0.5 * done / len(rounds))
    means = {
        (use, variant): [float(np.mean(accuracies[use, variant, count])) for count in budget.labels]
        for use in TASKS
        for variant in VARIANTS
    }
    bound = QUICK_BOUND if ctx.quick else BOUND
    return Outcome(measurements_of(means, budget, bound), plots_of(means, budget))


def measurements_of(means: dict[tuple[str, str], list[float]], budget: Budget, bound: float) -> list[Measurement]:
    """Return the gain at the fewest labels, which has a bound, and the accuracy at each number of labels."""
    fewest = min(budget.labels)
    measurements = []
    for use, what in TASKS.items():
        before, scratch = (means[use, variant] for variant in VARIANTS)
        gain = before[0] - scratch[0]
        measurements.append(
            at_least(f"{fewest} labeled: {what}, gain", bound, gain, "pre-training wins with few labels")
        )
        measurements += [
            shown(f"{count} labeled: {what}", f"{a:.3f} pre-trained, {b:.3f} from scratch")
            for count, a, b in zip(budget.labels, before, scratch, strict=True)
        ]
    return measurements


def plots_of(means: dict[tuple[str, str], list[float]], budget: Budget) -> list[Plot]:
    """Return a plot per task."""
    return [
        Plot(
            title,
            caption,
            "labeled texts",
            "accuracy",
            [Line(variant, list(budget.labels), means[use, variant]) for variant in VARIANTS],
            log_x=True,
        )
        for use, title, caption in (
            ("class", "A label per definition", "The pre-trained model is ahead."),
            ("word", "A label per word", "The same for words, each of one definition or of the other."),
        )
    ]
