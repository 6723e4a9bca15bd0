"""Word vectors: skip-gram and CBOW with negative sampling, from any text or code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, option
from tokenloom.data.documents import TextData
from tokenloom.data.report import TextReport
from tokenloom.data.samples import Samples, TextWindows
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.evaluation.word_similarity import agreement
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.word_vectors import WordVectors
from tokenloom.tasks._paths import STEPWISE, every_path
from tokenloom.tasks._word_vector_actions import (
    MANY,
    AnalogyOptions,
    ExportOptions,
    MapOptions,
    Near,
    NeighborOptions,
    Space,
)
from tokenloom.tasks._word_vector_draws import Draws, keep_probability, negative_distribution
from tokenloom.tasks.base import Example, PreparedData, Show, Task
from tokenloom.tokenizers.vocabulary import Vocabulary, words_of
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, MetricSum, negative_sampling_term

# Words of a sample. A row's ends have no words beyond them, so that short rows would lose pairs.
LONGEST = 1024
# Passes over a long text, and steps over a short one.
PASSES, STEPS = 5, 200
# Adam moves a number by about the rate at each step, so that rate × steps is how far vectors can go. Too far, and they
# know the text by heart and agree less with another; too near, and they know little. Found on shakespeare and
# python-source; the rate stays within the range tried there.
TRAVEL = {"skip-gram": 6.0, "cbow": 4.0}
LEARNING_RATES = (0.005, 0.02)


@dataclass(frozen=True)
class WordVectorSettings(Options):
    """How words are found, and what is learned of them."""

    model: Literal["skip-gram", "cbow"] = option(
        "skip-gram", "skip-gram: a word predicts those around it; cbow: those around it predict a word (faster)"
    )
    words: Literal["text", "code"] = option(
        "text", "text: runs of letters and digits, with apostrophes; code: the words inside identifiers"
    )
    width: int = option(100, "numbers in a vector")
    window: int = option(5, "words to either side; how far is drawn anew for each word, from 1 to this")
    negatives: int = option(5, "negative words a pair")
    subsample: float = option(1e-3, "words more frequent than this share are seen less often; 0 sees all")
    min_count: int = option(5, "words that are rarer are left out")
    validation: str | None = option(None, "validate on this text instead of a part of the data")
    val_fraction: float = option(0.1, "share of the data kept for validation")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the text")
    encoding: str = option("utf-8", "encoding of the text")


class WordVectorTask(Task):
    """Learn a vector for each word, so that words used alike have vectors of like direction."""

    name = "word-vectors"
    summary = "learn vectors of the words in a text or in code; neighbors, analogies, export"
    Settings = WordVectorSettings
    models: ClassVar[Mapping[str, str]] = {
        "skip-gram": "a word predicts each word around it, against negative samples",
        "cbow": "the mean of the words around a place predicts the word in it, against negative samples",
    }
    uses: ClassVar[Mapping[str, type]] = {
        "inspect neighbors": NeighborOptions,
        "inspect analogy": AnalogyOptions,
        "inspect embeddings": MapOptions,
        "export": ExportOptions,
    }

    def __init__(self, settings: WordVectorSettings | None = None) -> None:
        super().__init__(settings)
        self._vocabulary: Vocabulary | None = None
        self._draws: Draws | None = None
        s: WordVectorSettings = self.settings
        self.unit = "nats a pair" if s.model == "skip-gram" else "nats a word"
        for name in ("width", "window", "negatives", "min_count"):
            if getattr(s, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(s, name)}: must be at least 1")
        if not 0 <= s.subsample <= 1:
            raise UserError(f"--subsample {s.subsample}: must be a share, from 0 to 1")
        if not 0 < s.val_fraction < 1:
            raise UserError(f"--val-fraction {s.val_fraction}: must be above 0 and below 1")
        if s.validation is not None and s.val_fraction != WordVectorSettings.val_fraction:
            raise UserError("--val-fraction has no effect with --validation: leave one of them out")

    # Data.

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that have vectors. Raises UserError before there are any."""
        if self._vocabulary is None:
            raise UserError("there are no words yet: train on a text, or load a run")
        return self._vocabulary

    def _read(self, source: str) -> TextData:
        return read_text(source, encoding=self.settings.encoding, column=self.settings.column)

    def _words(self, text: TextData) -> list[list[str]]:
        return [words_of(document.text, self.settings.words) for document in text.documents]

    def prepare(self, data: str | None) -> PreparedData:
        s: WordVectorSettings = self.settings
        assert data is not None
        parts = split(
            self._read(data), s.val_fraction, validation=None if s.validation is None else self._read(s.validation)
        )
        training, validation = self._words(parts.training), self._words(parts.validation)
        if self._vocabulary is None:
            self._vocabulary = Vocabulary.of(training, s.min_count, s.words)
        found = self.vocabulary
        if len(found) < 2:
            raise UserError(
                f"{data}: of {found.total:,} words, {len(found)} occur at least {s.min_count} times, and two are needed"
                " (--min-count)"
            )
        if not self.model_config:
            # Even a short text has some rows to choose from.
            span = min(LONGEST, max(4 * s.window, found.known // 32))
            self.model_config = {
                "kind": s.model,
                "vocab_size": len(found),
                "width": s.width,
                "window": s.window,
                "span": span,
            }
        ids, held = found.encode(training), found.encode(validation)
        if int((held >= 0).sum()) < 2:
            raise UserError(f"{data}: the validation part has fewer than two words that training knows")
        report = TextReport.of(parts, self._extra(int((ids >= 0).sum()), int((held >= 0).sum()), validation))
        return PreparedData(self._windows(ids), self._windows(held), report.lines(), report.as_dict())

    def _extra(self, training: int, held: int, validation: list[list[str]]) -> dict[str, str]:
        found, total = self.vocabulary, sum(map(len, validation))
        return {
            "vocabulary": f"{len(found):,} words that occur at least {self.settings.min_count} times in training",
            "words": f"{training:,} to train, {held:,} to validate",
            "left out": f"{1 - found.known / found.total:.1%} of the training words, which are rarer, and"
            f" {1 - held / total:.1%} of those to validate",
        }

    def _windows(self, ids: NDArray[np.int32]) -> TextWindows:
        return TextWindows(ids, self.model_config["span"])

    def load_samples(self, data: str) -> TextWindows:
        ids = self.vocabulary.encode(self._words(self._read(data)))
        if int((ids >= 0).sum()) < 2:
            raise UserError(f"{data}: fewer than two of its words are known to this run")
        return self._windows(ids)

    def derived(self) -> dict[str, Any]:
        return {"vocab_size": self.model_config["vocab_size"], "words a sample": self.model_config["span"]}

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        # Every step moves all vectors, whatever it has seen: rows enough make that cheap. CBOW's are the cheaper ones.
        batch = 8 if self.settings.model == "skip-gram" else 16
        steps = max(PASSES * -(-len(material.training) // batch), STEPS)
        lr = min(max(TRAVEL[self.settings.model] / steps, LEARNING_RATES[0]), LEARNING_RATES[1])
        return {
            "optimizer": "adamw",
            "lr": round(lr, 4),
            "beta2": 0.999,
            "weight_decay": 0.0,
            "clip": 0.0,
            "schedule": "linear",
            "warmup": 0,
            "decay_fraction": 1.0,
            "batch": batch,
            "steps": steps,
        }

    # Model, loss and metrics.

    def build(self, seed: int) -> WordVectors:
        return WordVectors(**{key: value for key, value in self.model_config.items() if key != "span"}, seed=seed)

    @property
    def draws(self) -> Draws:
        """What is drawn at each step."""
        if self._draws is None:
            counts, s = self.vocabulary.counts, self.settings
            keep = keep_probability(counts, s.subsample)
            self._draws = Draws(s.model, s.window, keep, negative_distribution(counts))
        return self._draws

    def collate(self, samples: NDArray[np.int64], moment: BatchContext) -> Batch:
        # The id after the row belongs to the next one.
        return self.draws.batch(samples[:, :-1], moment)

    def loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        positive, negative = model(batch)
        asked = batch.targets["loss"] != IGNORE
        return {"loss": negative_sampling_term(positive, negative, asked, self.settings.negatives)}

    def metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        loss = totals["loss"]
        return {"loss": loss.value, "interval": loss.interval(), "targets": loss.count}

    def evaluate(self, data: str | None = None, *, batch: int = 64, samples: Samples | None = None) -> dict[str, float]:
        """As for every task, and how well the vectors agree with how words meet in the text (see `agreement`)."""
        if samples is None:
            samples = self.prepare(self.source).validation if data is None else self.load_samples(data)
        metrics = super().evaluate(batch=batch, samples=samples)
        if isinstance(samples, TextWindows):
            ids = np.asarray(samples.ids, np.int64)
            rho, pairs = agreement(self.vectors.astype(np.float64), ids, self.settings.window)
            metrics |= {"agreement": rho, "word_pairs": float(pairs)}
        return metrics

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        what = "pair" if self.settings.model == "skip-gram" else "word"
        either_way = "" if math.isnan(m["interval"]) else f" ± {m['interval']:.4f}"
        lines = [
            f"loss:        {m['loss']:.4f}{either_way} nats a {what}, against {self.settings.negatives} negative words",
            f"measured on: {int(m['targets']):,} {what}s, drawn once for all",
        ]
        if "agreement" in m:
            lines.append(
                f"agreement:   {m['agreement']:.4f}, the rank correlation of cosines with how much oftener than by"
                f" chance {int(m['word_pairs']):,} pairs of words meet"
            )
        return lines

    def baseline(self, material: PreparedData) -> Baseline | None:
        """What the words' frequencies alone reach: each word has the best logit that does not depend on the others.

        The logit is log (p(w) / (K q(w))), with p the share of w among the training words that are kept and q its
        probability as a negative; its loss on the held-out words is −Σ h(w) log σ(s_w) − K Σ q(w) log σ(−s_w).
        """
        draws, K = self.draws, self.settings.negatives
        held = np.asarray(material.validation.ids)  # type: ignore[attr-defined]
        seen = np.asarray(self.vocabulary.counts) * draws.keep
        asked = np.bincount(held[held >= 0], minlength=len(seen)) * draws.keep
        logits = np.log(seen / seen.sum() / (K * draws.negative))
        nats = np.logaddexp(0, -logits) @ (asked / asked.sum()) + K * (np.logaddexp(0, logits) @ draws.negative)
        return Baseline("word frequencies alone", float(nats), self.unit)

    # Use.

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of all words, (vocab, width), in the order of `vocabulary.words`."""
        weight: NDArray[np.float32] = self.model.words.weight.detach().float().cpu().numpy()  # type: ignore[union-attr, operator]
        return weight

    @property
    def space(self) -> Space:
        """The words as directions."""
        return Space(self.vocabulary, self.vectors)

    def neighbors(self, word: str, top: int = 10) -> Near:
        """The words nearest to a word, with their cosines. Raises UserError for a word that is not known."""
        return self.space.neighbors(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> Near:
        """What is to c as a is to b: the words nearest to a − b + c, with their cosines. Weak on little text."""
        return self.space.analogy(a, b, c, top)

    def example(self) -> str:
        words = self.vocabulary.words
        middle = [words[min(len(words) - 1, place)] for place in (100, 200, 400)]
        return "\n".join(
            f"{word}: {', '.join(near for near, _ in self.neighbors(word, 6))}" for word in dict.fromkeys(middle)
        )

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        if verb == "inspect neighbors":
            return self._use_neighbors(options, show)
        if verb == "inspect analogy":
            return self._use_analogy(options, show)
        if options.out is None:
            raise UserError(f"--out: say where to write {'the plot' if verb == 'inspect embeddings' else 'the vectors'}")
        if verb == "export":
            self.space.export(Path(options.out))
        elif verb == "inspect embeddings":
            self._draw(options)
        show(f"written to {options.out}\n")
        return {"out": options.out, "words": len(self.vocabulary)}

    def _use_neighbors(self, o: NeighborOptions, show: Show) -> dict[str, Any]:
        if not o.words:
            raise UserError("no word to find the neighbors of: tokenloom inspect RUN neighbors WORD …")
        space = self.space
        found = {word: space.neighbors(word, o.top) for word in o.words}
        for word, near in found.items():
            show(f"{word}\n" + _lines(near))
        return {"neighbors": {word: [list(pair) for pair in near] for word, near in found.items()}}

    def _use_analogy(self, o: AnalogyOptions, show: Show) -> dict[str, Any]:
        if len(o.words) != 3:
            raise UserError(f"an analogy takes three words, A B C for “what is to C as A is to B?”, not {len(o.words)}")
        a, b, c = o.words
        near = self.analogy(a, b, c, o.top)
        show(f"{a} − {b} + {c}\n" + _lines(near))
        notes = []
        if self.vocabulary.known < MANY:
            notes.append(
                f"trained on {self.vocabulary.known:,} words; analogies are weak on little text (the published ones"
                " come from billions of words)"
            )
        return {"answers": [list(pair) for pair in near], "notes": notes}

    def _draw(self, o: MapOptions) -> None:
        from tokenloom.plotting.embedding_map import draw_map

        if o.count < 3:
            raise UserError(f"--count {o.count}: a map needs at least 3 words")
        space = self.space
        ids = [space.id(word) for word in o.words] or list(range(min(o.count, len(self.vocabulary))))
        labels = [self.vocabulary.words[id] for id in ids]
        title = f"{len(ids)} words of {self.source}" if o.words else f"The {len(ids)} most frequent words"
        draw_map(space.plane(ids), labels, str(o.out), title=title, dark=o.dark)

    # The run.

    def save_parts(self, folder: Path) -> dict[str, Any]:
        self.vocabulary.save(folder / "words.json")
        return {"words": self.vocabulary.fingerprint()}

    def load_parts(self, folder: Path, kept: dict[str, Any]) -> None:
        path = folder / "words.json"
        self._vocabulary = Vocabulary.load(path)
        if self._vocabulary.fingerprint() != kept.get("words"):
            raise UserError(f"{path}: not the words that this run was trained with")

    # For the equality kit.

    paths: ClassVar[Mapping[str, str]] = every_path(
        {
            "padded left = unpadded": "rows are padded where words are left out, before windows are made",
            "padded right = unpadded": "rows are padded where words are left out, before windows are made",
            "packed = alone": "rows are cut from one run of documents, which keep apart by themselves",
            "fused = explicit": "has no attention",
            **dict.fromkeys(STEPWISE, "does not generate"),
        }
    )

    @classmethod
    def examples(cls, folder: Path) -> Mapping[str, Example]:
        text = folder / "rhyme.txt"
        text.write_text("One, two, buckle my shoe.\nThree, four, knock at the door.\n" * 40, "utf-8")
        code = folder / "code"
        code.mkdir(exist_ok=True)
        for number in range(6):
            line = f"def getItem_{number}(selfName, item_key):\n    return selfName.items[item_key]\n"
            (code / f"{number}.py").write_text(line * 12, "utf-8")
        tiny = {"width": 8, "window": 3, "min_count": 2, "subsample": 0.1, "batch": 4}
        return {
            "skip-gram": Example(str(text), tiny),
            "cbow": Example(str(code), {**tiny, "model": "cbow", "words": "code"}),
        }


def _lines(near: Near) -> str:
    width = max(map(len, dict(near)), default=0)
    return "".join(f"  {word:<{width}}  {cosine:.3f}\n" for word, cosine in near)
