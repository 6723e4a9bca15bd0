"""Learn word vectors (word2vec): skip-gram and CBOW with negative sampling, from text or code."""

# Longer than other tasks: it has four actions of its own and derives its learning rate from the data.

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, flag, option
from tokenloom.data.documents import TextData
from tokenloom.data.report import data_report
from tokenloom.data.samples import Samples, TextWindows
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.evaluation.word_similarity import spearman_pmi
from tokenloom.inspection.embeddings import EmbeddingSpace, Neighbors
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.word_vectors import WordVectors
from tokenloom.tasks._legacy import PreparedData, Show, Task
from tokenloom.tasks._negative_sampling import NegativeSampling, keep_probability, negative_distribution
from tokenloom.tasks._settings import TextSource, ValidationSplit
from tokenloom.tokenizers.vocabulary import Vocabulary, words_of
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, MetricSum, negative_sampling_term
from tokenloom.utils.files import write_text

# Words per sample. Words at the ends of a row have smaller windows, so that short rows would lose pairs.
MAX_SPAN = 1024
# Epochs on a long text, and steps on a short one.
EPOCHS, MIN_STEPS = 5, 200
# Adam moves a number by about lr per step, so that lr × steps limits how far vectors move. If too far, they overfit; if
# too little, they underfit. Chosen on shakespeare and python-source; lr stays within the range tried there.
TRAVEL = {"skip-gram": 6.0, "cbow": 4.0}
LEARNING_RATES = (0.005, 0.02)
# Published analogies come from vectors trained on billions of words.
ANALOGY_WORDS = 100_000_000


@dataclass(frozen=True)
class WordVectorSettings(ValidationSplit, TextSource):
    """How words are found, and how vectors are learned."""

    group: ClassVar[str] = "Model"

    model: Literal["skip-gram", "cbow"] = option(
        "skip-gram", "skip-gram: a word predicts those around it; cbow: those around it predict a word (faster)"
    )
    dim: int = option(100, "features per vector", low=1)
    window: int = option(5, "context words to either side; each window's size is drawn from 1 to this", low=1)
    negatives: int = option(5, "negative words per pair", low=1)
    subsample: float = option(1e-3, "words more frequent than this are subsampled; 0 keeps all", low=0, high=1)
    word_rule: Literal["text", "code"] = option(
        "text", "text: runs of letters and digits, with apostrophes; code: the words inside identifiers", group="Data"
    )
    min_count: int = option(5, "smallest count of a word in the vocabulary", low=1, group="Data")


@dataclass(frozen=True)
class NeighborOptions(Options):
    """Which words, and how many neighbors of each."""

    words: list[str] = option([], "words", positional=True)
    num_answers: int = option(10, "neighbors per word", low=1)


@dataclass(frozen=True)
class AnalogyOptions(Options):
    """Three words A B C, and how many answers."""

    words: list[str] = option([], "three words A B C: what is to C as A is to B? (king man woman)", positional=True)
    num_answers: int = option(5, "number of answers", low=1)


@dataclass(frozen=True)
class EmbeddingOptions(Options):
    """Which words are drawn, and the figure to write."""

    words: list[str] = option([], "words to show [default: the most frequent]", positional=True)
    num_words: int = option(100, "number of most frequent words shown", low=3)
    out: str | None = option(None, "PNG to write")
    dark: bool = option(False, "dark background")


@dataclass(frozen=True)
class ExportOptions(Options):
    """The file format, and the file to write."""

    format: Literal["word2vec"] = option("word2vec", "word2vec: text format that gensim reads")
    out: str | None = option(None, "file to write")


class WordVectorTask(Task):
    """Learn a vector for each word, so that words in similar contexts have similar vectors."""

    name = "word-vectors"
    summary = "learn word vectors from text or code; nearest neighbors, analogies, export"
    Settings = WordVectorSettings
    models: ClassVar[Mapping[str, str]] = {
        "skip-gram": "a word predicts each word around it, against negative samples",
        "cbow": "the mean of the words around a position predicts the word there, against negative samples",
    }
    uses: ClassVar[Mapping[str, type]] = {
        "inspect neighbors": NeighborOptions,
        "inspect analogy": AnalogyOptions,
        "inspect embeddings": EmbeddingOptions,
        "export": ExportOptions,
    }

    def __init__(self, settings: WordVectorSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._vocabulary: Vocabulary | None = None
        self._sampling: NegativeSampling | None = None
        self.unit = "nats/pair" if self.settings.model == "skip-gram" else "nats/word"

    # Data.

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that have vectors. Raise UserError before there are any."""
        if self._vocabulary is None:
            raise UserError("there is no vocabulary yet: train on a text, or load a run")
        return self._vocabulary

    def _read(self, source: str) -> TextData:
        s: WordVectorSettings = self.settings
        return read_text(
            source, encoding=s.encoding, normalize_newlines=s.normalize_newlines, text_column=s.text_column
        )

    def _words(self, text: TextData) -> list[list[str]]:
        return [words_of(document.text, self.settings.word_rule) for document in text.documents]

    def prepare(self, data: str | None) -> PreparedData:
        s: WordVectorSettings = self.settings
        assert data is not None
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = split(self._read(data), s.val_fraction, s.split_seed, validation=val_data)
        train_words, val_words = self._words(parts.train), self._words(parts.validation)
        if self._vocabulary is None:
            self._vocabulary = Vocabulary.build(train_words, s.min_count, s.word_rule)
        vocabulary = self.vocabulary
        if len(vocabulary) < 2:
            raise UserError(
                f"{data}: of {vocabulary.total:,} words, {len(vocabulary)} occur at least {s.min_count} times, and two"
                f" are needed ({flag('min_count')})"
            )
        if not self.model_config:
            # Even a short text has several rows to choose from.
            span = min(MAX_SPAN, max(4 * s.window, vocabulary.known // 32))
            self.model_config = {
                "kind": s.model,
                "vocab_size": len(vocabulary),
                "dim": s.dim,
                "window": s.window,
                "span": span,
            }
        train, val = vocabulary.encode(train_words), vocabulary.encode(val_words)
        num_train, num_val = int((train >= 0).sum()), int((val >= 0).sum())
        if num_val < 2:
            raise UserError(f"{data}: the validation part has fewer than two words of the vocabulary")
        rare, unknown = 1 - vocabulary.known / vocabulary.total, 1 - num_val / sum(map(len, val_words))
        rows = {
            "vocabulary": f"{len(vocabulary):,} words that occur at least {s.min_count} times in training",
            "words": f"{num_train:,} to train, {num_val:,} to validate",
            "left out": f"{rare:.1%} of the training words, which are rarer, and {unknown:.1%} of those to validate",
        }
        report = data_report(parts, rows)
        return PreparedData(self._windows(train), self._windows(val), report.lines(), report.as_dict())

    def _windows(self, ids: NDArray[np.int32]) -> TextWindows:
        return TextWindows(ids, self.model_config["span"])

    def load_samples(self, data: str) -> TextWindows:
        ids = self.vocabulary.encode(self._words(self._read(data)))
        if int((ids >= 0).sum()) < 2:
            raise UserError(f"{data}: fewer than two of its words are in the vocabulary of this run")
        return self._windows(ids)

    def derived(self) -> dict[str, Any]:
        return {"vocab_size": self.model_config["vocab_size"], "words/sample": self.model_config["span"]}

    def recipe(self, material: PreparedData) -> dict[str, Any]:
        # Every step updates all vectors: large batches make that cheap. CBOW rows cost less than skip-gram rows.
        batch = 8 if self.settings.model == "skip-gram" else 16
        steps = max(EPOCHS * -(-len(material.train) // batch), MIN_STEPS)
        lr = min(max(TRAVEL[self.settings.model] / steps, LEARNING_RATES[0]), LEARNING_RATES[1])
        return {
            "optimizer": "adamw",
            "lr": round(lr, 4),
            "beta2": 0.999,
            "weight_decay": 0.0,
            "grad_clip": 0.0,
            "lr_schedule": "wsd",
            "warmup_steps": 0,
            "decay_fraction": 1.0,
            "batch_size": batch,
            "steps": steps,
        }

    # Model, loss and metrics.

    def build_model(self, seed: int) -> WordVectors:
        return WordVectors(**{key: value for key, value in self.model_config.items() if key != "span"}, seed=seed)

    @property
    def sampling(self) -> NegativeSampling:
        """What makes batches."""
        if self._sampling is None:
            counts, s = self.vocabulary.counts, self.settings
            keep = keep_probability(counts, s.subsample)
            self._sampling = NegativeSampling(s.model, s.window, keep, negative_distribution(counts))
        return self._sampling

    def collate(self, samples: NDArray[np.int64], moment: BatchContext) -> Batch:
        # The last id of a window belongs to the next row.
        return self.sampling.batch(samples[:, :-1], moment)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        positive, negative = model(batch)
        asked = batch.targets["loss"] != IGNORE
        return {"loss": negative_sampling_term(positive, negative, asked, self.settings.negatives)}

    def legacy_metrics(self, totals: dict[str, MetricSum]) -> dict[str, float]:
        loss = totals["loss"]
        return {"loss": loss.value, "loss_ci95": loss.interval(), "num_targets": loss.count}

    def evaluate(
        self, data: str | None = None, *, batch_size: int = 64, samples: Samples | None = None
    ) -> dict[str, float]:
        """Return the metrics, with the Spearman correlation between cosine similarity and PMI."""
        if samples is None:
            samples = self.prepare(self.source).validation if data is None else self.load_samples(data)
        metrics = super().evaluate(batch_size=batch_size, samples=samples)
        if isinstance(samples, TextWindows):
            ids = np.asarray(samples.ids, np.int64)
            rho, pairs = spearman_pmi(self.vectors.astype(np.float64), ids, self.settings.window)
            metrics |= {"spearman_pmi": rho, "num_word_pairs": float(pairs)}
        return metrics

    def metric_lines(self, metrics: dict[str, float]) -> list[str]:
        m = metrics
        what = "pair" if self.settings.model == "skip-gram" else "word"
        interval = "" if math.isnan(m["loss_ci95"]) else f" ± {m['loss_ci95']:.4f}"
        lines = [
            f"loss:         {m['loss']:.4f}{interval} {self.unit}, against {self.settings.negatives} negative words",
            f"evaluated on: {int(m['num_targets']):,} {what}s",
        ]
        if "spearman_pmi" in m:
            lines.append(
                f"spearman pmi: {m['spearman_pmi']:.4f}, correlation between cosine similarity and PMI over"
                f" {int(m['num_word_pairs']):,} pairs of words"
            )
        return lines

    def baseline(self, material: PreparedData) -> Baseline | None:
        """Return the loss of word frequencies: the best logits that depend on the predicted word alone.

        The logit of w is s_w = log (p(w) / (K q(w))), with p the frequency of w among the training words that are kept
        and q its probability as a negative; its loss on validation words of frequency h is −Σ h(w) log σ(s_w)
        − K Σ q(w) log σ(−s_w).
        """
        sampling, K = self.sampling, self.settings.negatives
        val = np.asarray(material.validation.ids)  # type: ignore[attr-defined]
        train_counts = np.asarray(self.vocabulary.counts) * sampling.keep
        val_counts = np.bincount(val[val >= 0], minlength=len(train_counts)) * sampling.keep
        s = np.log(train_counts / train_counts.sum() / (K * sampling.negative))
        nats = np.logaddexp(0, -s) @ (val_counts / val_counts.sum()) + K * (np.logaddexp(0, s) @ sampling.negative)
        return Baseline("word frequencies", float(nats), self.unit)

    # Actions.

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of all words, (vocab, dim), in the order of `vocabulary.words`."""
        weight: NDArray[np.float32] = self.model.words.weight.detach().float().cpu().numpy()  # type: ignore[union-attr, operator]
        return weight

    @property
    def space(self) -> EmbeddingSpace:
        """The words and their vectors."""
        return EmbeddingSpace(self.vocabulary.words, self.vectors)

    def word(self, text: str) -> str:
        """Return the word of the vocabulary that a user typed, by its rule. Raise UserError for several words."""
        words = words_of(text, self.vocabulary.rule)
        if len(words) > 1:
            raise UserError(f"{text!r} is {len(words)} words here ({', '.join(words)}): give one of them")
        return words[0] if words else text

    def neighbors(self, word: str, num_answers: int = 10) -> Neighbors:
        """Return the nearest words with their cosines. Raise UserError for a word that is not in the vocabulary."""
        return self.space.neighbors(self.word(word), NeighborOptions(num_answers=num_answers).num_answers)

    def analogy(self, a: str, b: str, c: str, num_answers: int = 5) -> Neighbors:
        """Return what is to c as a is to b: the words nearest to a − b + c, with their cosines."""
        n = AnalogyOptions(num_answers=num_answers).num_answers
        return self.space.analogy(self.word(a), self.word(b), self.word(c), n)

    def example(self) -> str:
        words = self.vocabulary.words
        shown = dict.fromkeys(words[min(len(words) - 1, rank)] for rank in (100, 200, 400))
        return "\n".join(f"{word}: {', '.join(near for near, _ in self.neighbors(word, 6))}" for word in shown)

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        if verb == "inspect neighbors":
            return self._neighbors(options, show)
        if verb == "inspect analogy":
            return self._analogy(options, show)
        if options.out is None:
            raise UserError(f"{flag('out')}: give the file to write")
        if verb == "export":
            self._export(Path(options.out))
        else:
            self._draw(options)
        show(f"written to {options.out}\n")
        return {"out": options.out, "words": len(self.vocabulary)}

    def _neighbors(self, o: NeighborOptions, show: Show) -> dict[str, Any]:
        if not o.words:
            raise UserError("no word to find neighbors of: tokenloom inspect RUN neighbors WORD …")
        found = {word: self.neighbors(word, o.num_answers) for word in o.words}
        for word, near in found.items():
            show(f"{word}\n" + _lines(near))
        return {"neighbors": {word: [list(pair) for pair in near] for word, near in found.items()}}

    def _analogy(self, o: AnalogyOptions, show: Show) -> dict[str, Any]:
        if len(o.words) != 3:
            raise UserError(f"an analogy takes three words, A B C for “what is to C as A is to B?”, not {len(o.words)}")
        a, b, c = o.words
        near = self.analogy(a, b, c, o.num_answers)
        show(f"{a} − {b} + {c}\n" + _lines(near))
        notes = []
        if self.vocabulary.known < ANALOGY_WORDS:
            notes.append(
                f"trained on {self.vocabulary.known:,} words; analogies are weak on little text (the published ones"
                " come from billions of words)"
            )
        return {"answers": [list(pair) for pair in near], "notes": notes}

    def _draw(self, o: EmbeddingOptions) -> None:
        from tokenloom.plotting.embedding_map import draw_embeddings

        words = [self.word(word) for word in o.words] or self.vocabulary.words[: o.num_words]
        title = f"{len(words)} words of {self.source}" if o.words else f"The {len(words)} most frequent words"
        draw_embeddings(self.space.project(words), words, str(o.out), title=title, dark=o.dark)

    def _export(self, path: Path) -> None:
        """Write all vectors in word2vec's text format: a line with the two sizes, then one line per word.

        Nine digits restore every float32 exactly. Raise UserError where the file exists or cannot be written.
        """
        if path.exists():
            raise UserError(f"{flag('out')} {path}: exists already; give another name, or remove it")
        lines = ["{} {}".format(*self.vectors.shape)]
        for word, vector in zip(self.vocabulary.words, self.vectors.tolist(), strict=True):
            lines.append(" ".join([word, *(f"{value:.9g}" for value in vector)]))
        write_text(path, "\n".join(lines) + "\n")

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        self.vocabulary.save(folder / "words.json")
        return {"words": self.vocabulary.fingerprint()}

    def load_assets(self, folder: Path, kept: dict[str, Any]) -> None:
        path = folder / "words.json"
        self._vocabulary = Vocabulary.load(path)
        if self._vocabulary.fingerprint() != kept.get("words"):
            raise UserError(f"{path}: not the words that this run was trained with")


def _lines(near: Neighbors) -> str:
    width = max(map(len, dict(near)), default=0)
    return "".join(f"  {word:<{width}}  {cosine:.3f}\n" for word, cosine in near)
