"""Section 3: an encoder that has read much without labels, and then learns from few labels."""

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
from tokenloom.lab.experiment import Bench, Measure, Outcome, at_least, experiment, shown
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
MODEL_FAMILIES = ("adj", "adv", "noun", "verb")
SHORTEST, LONGEST = 3, 14
# Of the definitions, in one order for all seeds: the first were looked at while this row was made (rates, steps and
# draws), then come those that are asked about, and those that are learned from.
ASKED, LEARNT_FROM = slice(20_000, 30_000), slice(30_000, None)


@dataclass(frozen=True)
class Budget:
    """Steps of filling in; numbers of labeled texts, each with draws of them; steps on those; definitions asked."""

    reading: int
    labels: Mapping[int, int]
    tuning: int
    asked: int


# The fewer labels, the more it matters which.
FULL = Budget(600, {40: 5, 160: 3, 640: 2}, 100, 2000)
QUICK = Budget(60, {40: 1}, 60, 400)
READING_BATCH, TUNING_BATCH = 128, 16
# Where the weights come from: whether from the body that has read.
WAYS = {"read before": True, "from scratch": False}
# The best of 3e-4, 1e-3 and 3e-3 for each, with 40 labels, on the first definitions.
LEARNING_RATES = {("class", True): 1e-3, ("class", False): 3e-3, ("word", True): 3e-3, ("word", False): 3e-3}
# What pre-training has to win at least with the fewest labels; on the first definitions it won 0.13 and 0.05. In quick
# form it has read too little for more than not to harm much.
BOUND, QUICK_BOUND = 0.02, -0.1
USES = {"class": "a label a definition, accuracy", "word": "a label a word, accuracy"}
# A batch is cut out of so many times as many samples, sorted by length.
SPREAD = 8
# Of the tokens, in place of the usual 15 %: the readout is computed for all of them, and each that is asked teaches.
# Wettig et al. 2023, "Should you mask 15 % in masked language modeling?"
SHARE = 0.4
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
    """A definition in small letters without marks, and the kind of word that it defines."""

    words: tuple[str, ...]
    kind: str

    @property
    def text(self) -> str:
        """The words with spaces between them."""
        return " ".join(self.words)


def glosses(items: Sequence[Labeled]) -> list[Gloss]:
    """The definitions, without the examples in quotes after them, that are neither very short nor long."""
    found = []
    for item in items:
        words = tuple(word for word, _ in bare_words(item.text.split('; "')[0]))
        if SHORTEST <= len(words) <= LONGEST:
            found.append(Gloss(words, item.label.split(".")[0]))
    return found


def shuffled() -> list[Gloss]:
    """All definitions in an order that is the same for every seed, so that those that settings were chosen on are
    never asked about: `ASKED` and `LEARNT_FROM` cut parts out of them."""
    found = glosses(load_as(DATA, LabeledData, "labeled texts").items)
    return [found[place] for place in np.random.default_rng(0).permutation(len(found)).tolist()]


def balanced(part: Sequence[Gloss], count: int) -> list[Gloss]:
    """The first of a part, as many of each of the four kinds, in the order of the part."""
    left = dict.fromkeys(MODEL_FAMILIES, count // len(MODEL_FAMILIES))
    found = []
    for one in part:
        if left[one.kind]:
            found.append(one)
            left[one.kind] -= 1
    return found


def joined(part: Sequence[Gloss]) -> list[Sentence]:
    """Definitions two by two, as one run of words; each word with the kind of the definition that it stands in."""
    pairs = zip(part[0::2], part[1::2], strict=False)
    return [
        Sentence(str(number), a.words + b.words, (a.kind,) * len(a.words) + (b.kind,) * len(b.words))
        for number, (a, b) in enumerate(pairs)
    ]


def table(path: Path, part: Sequence[Gloss]) -> Path:
    """A table of definitions, each with the kind of word that it defines."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([one.text, one.kind] for one in part)
    return path


def columns(path: Path, sentences: Sequence[Sentence]) -> Path:
    """Words and labels in columns."""
    blocks = ["\n".join(f"{w}\t{label}" for w, label in zip(s.words, s.labels, strict=True)) for s in sentences]
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")
    return path


def alike_long(samples: Any, batch_size: int, random: np.random.Generator) -> Any:
    """Keys of a batch of samples of about one length, to save padding."""
    keys = random.choice(samples.all(), SPREAD * batch_size)
    keys = keys[np.argsort(samples.lengths(keys), kind="stable")]
    begin = batch_size * int(random.integers(SPREAD))
    return keys[begin : begin + batch_size]


def masked(task: FillMask, samples: Samples, seed: int) -> Callable[[int], list[Batch]]:
    """Batches of definitions of which `SHARE` of the tokens are asked for, drawn anew for each step."""

    def batches(step: int) -> list[Batch]:
        keys = alike_long(samples, READING_BATCH, np.random.default_rng((seed, step)))
        stream = task.stream(samples.take(keys))
        ids = stream.tokens
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        draws = MaskingDraws.of(tuple(ids.shape), task.tokenizer.vocab_size - len(task.tokenizer.specials), generator)
        # `corrupt` selects below its own share.
        seen, selected = corrupt(ids, replace(draws, select=draws.select * (SELECTED / SHARE)), task.mask_id)
        if stream.real is not None:
            selected = selected & stream.real
        selected[:, 0] = False  # the class token
        seen = torch.where(selected, seen, ids)
        return [Batch({"text": replace(stream, ids=seen)}, {"loss": ids.masked_fill(~selected, IGNORE)})]

    return batches


def labeled(task: TextEncoderTask, samples: Samples, seed: int) -> Callable[[int], list[Batch]]:
    """Batches of labeled definitions, drawn anew for each step."""

    def batches(step: int) -> list[Batch]:
        keys = alike_long(samples, TUNING_BATCH, np.random.default_rng((seed, step)))
        return [task.collate(samples.take(keys), BatchContext(seed, step, keys))]

    return batches


def train(
    task: TextEncoderTask,
    batches: Callable[[int], list[Batch]],
    held: Samples,
    recipe: dict[str, Any],
    steps: int,
    tell: Callable[[float], None] = lambda share: None,
) -> None:
    """Train the model that a task holds; only the last weights count."""
    settings, _ = fill(TrainingSettings(steps=steps, eval_every=steps), recipe)
    for event in fit(task, task.model, settings, batches, held):
        if isinstance(event, StepFinished):
            tell(event.step / steps)


def first(samples: Samples, count: int) -> ListSamples:
    """The first samples of some."""
    return ListSamples(list(samples.take(samples.all()[:count])))


def read(bench: Bench, folder: Path, part: Sequence[Gloss], budget: Budget) -> FillMask:
    """An encoder that has filled in words of definitions, without a label."""
    task = FillMask(FillMaskSettings(line_by_line=True, vocab_size=1_000, **SIZES))
    path = folder / "read.txt"
    path.write_text("\n".join(one.text for one in part), "utf-8")
    prepared = task.load(str(path))
    task.model = task.build_model(seed=bench.seed)
    recipe = {**prepared.recipe, "minutes": None}
    held = first(prepared.validation, 200)
    batches = masked(task, prepared.train, bench.seed)
    train(task, batches, held, recipe, budget.reading, lambda share: bench.tell(0.5 * share))
    return task


def learned(
    body: FillMask, use: str, few: Path, held: Path, budget: Budget, seed: int, *, init: bool
) -> dict[str, float]:
    """What is reached from few labels, on that body, or on a fresh one of its sizes and tokenizer."""
    # No bag of n-grams stands beside the encoder.
    task: TextEncoderTask = (
        TextClassification(TextClassificationSettings(ngram_features=0))
        if use == "class"
        else TokenClassification(TokenClassificationSettings())
    )
    initialization = task.init_from(body)
    task.settings = replace(task.settings, val_data=str(held))
    prepared = task.load(str(few))
    task.model = task.build_model(seed=seed)
    if init:
        Origin("the pre-trained run", body, initialization).copy_into(task.model)
    recipe = {**ADAM, "lr": LEARNING_RATES[use, init]}
    train(task, labeled(task, prepared.train, seed), first(prepared.validation, 16), recipe, budget.tuning)
    return task.evaluate(samples=prepared.validation)


@experiment(
    "3.13",
    "An encoder fine-tuned",
    asked="What is reading without labels worth when labels are few?",
    protocol="Definitions of a dictionary, 3 to 14 words in small letters without marks. An encoder, D = 64 and L = 2, "
    "fills in 40 % of the pieces of words, 600 steps of 128; then it learns, 100 steps of 16, from 40, 160 or 640 "
    "labeled texts: what a definition defines, a noun, verb, adjective or adverb (class token; as many of each); and "
    "of two definitions run together, what each word helps to define (a label a word). From scratch: the same with "
    "fresh weights. Means of 5, 3 and 2 draws of labels; asked of 2,000 definitions that neither has read. The rates "
    "are the best of three for each, on other definitions.",
    explanation="Filling in words needs no labels and teaches which words do the same work. What has learned that has "
    "only to find what is asked of it, which takes few examples; what starts fresh has to learn the language from them "
    "as well, and 640 are still too few for that.",
    needs=DATA,
    quick=True,
    seconds=210.0,
)
def tuned(bench: Bench) -> Outcome:
    """3.13."""
    budget = QUICK if bench.quick else FULL
    parts = shuffled()
    asked, training = parts[ASKED], parts[LEARNT_FROM]
    found: dict[tuple[str, str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = read(bench, folder, training, budget)
        held = {
            "class": table(folder / "held.csv", balanced(asked, budget.asked)),
            "word": columns(folder / "held.conll", joined(balanced(asked, budget.asked))),
        }
        rounds = [(count, draw) for count, draws in budget.labels.items() for draw in range(draws)]
        for done, (count, draw) in enumerate(rounds, start=1):
            random = np.random.default_rng((bench.seed, count, draw))
            some = [training[place] for place in random.permutation(len(training))[:20_000].tolist()]
            few = {
                "class": table(folder / "few.csv", balanced(some, count)),
                "word": columns(folder / "few.conll", joined(balanced(some, 2 * count))),
            }
            for use in USES:
                for way, init in WAYS.items():
                    reached = learned(body, use, few[use], held[use], budget, bench.seed + 1 + draw, init=init)
                    found.setdefault((use, way, count), []).append(reached["accuracy"])
            bench.tell(0.5 + 0.5 * done / len(rounds))
    means = {
        (use, way): [float(np.mean(found[use, way, count])) for count in budget.labels] for use in USES for way in WAYS
    }
    bound = QUICK_BOUND if bench.quick else BOUND
    return Outcome(measures_of(means, budget, bound), plots_of(means, budget))


def measures_of(means: dict[tuple[str, str], list[float]], budget: Budget, bound: float) -> list[Measure]:
    """The gain at the fewest labels is held to a bound; what is reached with each number of labels is shown."""
    fewest = min(budget.labels)
    measures = []
    for use, what in USES.items():
        before, scratch = (means[use, way] for way in WAYS)
        gain = before[0] - scratch[0]
        measures.append(at_least(f"{fewest} labeled: {what}, gain", bound, gain, "pre-training wins with few labels"))
        measures += [
            shown(f"{count} labeled: {what}", f"{a:.3f} read before, {b:.3f} from scratch")
            for count, a, b in zip(budget.labels, before, scratch, strict=True)
        ]
    return measures


def plots_of(means: dict[tuple[str, str], list[float]], budget: Budget) -> list[Plot]:
    """One of each use."""
    return [
        Plot(
            title,
            caption,
            "labeled texts",
            "accuracy",
            [Line(way, list(budget.labels), means[use, way]) for way in WAYS],
            log_x=True,
        )
        for use, title, caption in (
            ("class", "A label a definition", "What has read before is ahead."),
            ("word", "A label a word", "The same of words, each of one definition or of the other."),
        )
    ]
