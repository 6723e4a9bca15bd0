"""Learn word vectors (word2vec): skip-gram and CBOW with negative sampling, from text or code."""

# Longer than other tasks: it has four actions of its own and derives its learning rate from the data.

from __future__ import annotations

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
from tokenloom.plotting.embedding_map import draw_embeddings
from tokenloom.tasks._negative_sampling import NegativeSampling, keep_probability, negative_distribution
from tokenloom.tasks._settings import TextSource, ValidationSplit
from tokenloom.tasks.base import NO_SAMPLES, PreparedData, Show, Task, action, need_data
from tokenloom.tokenizers.vocabulary import Vocabulary, words_of
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Baseline
from tokenloom.training.losses import LossTerms, negative_sampling_term
from tokenloom.training.metrics import Metric
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
    """Learn word vectors from text or code; nearest neighbors, analogies, export."""

    name = "word-vectors"
    Settings = WordVectorSettings

    def __init__(self, settings: WordVectorSettings | None = None, source: str | None = None) -> None:
        super().__init__(settings, source)
        self._vocabulary: Vocabulary | None = None
        self._sampling: NegativeSampling | None = None
        self._unit = "nats/pair" if self.settings.model == "skip-gram" else "nats/word"
        self.metrics = (
            Metric("loss", self._unit, "lower"),
            Metric("loss_ci95", kind="ci95", of="loss", compute=lambda task, sums: sums["loss"].interval()),
            Metric("num_targets", kind="count", compute=lambda task, sums: sums["loss"].count),
            Metric("spearman_pmi", "", "higher", label="Spearman correlation of cosine and PMI"),
            Metric("num_word_pairs", kind="count", label="word pairs compared"),
        )

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

    def load(self, source: str | None, *, for_evaluation: bool = False) -> PreparedData:
        s: WordVectorSettings = self.settings
        source = need_data(self, source)
        if for_evaluation:
            ids = self.vocabulary.encode(self._words(self._read(source)))
            if int((ids >= 0).sum()) < 2:
                raise UserError(f"{source}: fewer than two of its words are in the vocabulary of this run")
            return self._prepared(NO_SAMPLES, ids)
        val_data = None if s.val_data is None else self._read(s.val_data)
        parts = split(self._read(source), s.val_fraction, s.split_seed, validation=val_data)
        train_words, val_words = self._words(parts.train), self._words(parts.validation)
        if self._vocabulary is None:
            self._vocabulary = Vocabulary.build(train_words, s.min_count, s.word_rule)
        vocabulary = self.vocabulary
        if len(vocabulary) < 2:
            raise UserError(
                f"{source}: of {vocabulary.total:,} words, {len(vocabulary)} occur at least {s.min_count} times, and"
                f" two are needed ({flag('min_count')})"
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
            raise UserError(f"{source}: the validation part has fewer than two words of the vocabulary")
        rare, unknown = 1 - vocabulary.known / vocabulary.total, 1 - num_val / sum(map(len, val_words))
        rows = {
            "vocabulary": f"{len(vocabulary):,} words that occur at least {s.min_count} times in training",
            "words": f"{num_train:,} to train, {num_val:,} to validate",
            "left out": f"{rare:.1%} of the training words, which are rarer, and {unknown:.1%} of those to validate",
        }
        samples = self._samples(train)
        return self._prepared(
            samples,
            val,
            report=data_report(parts, rows),
            recipe=self._recipe(len(samples)),
            auto_settings={"vocab_size": len(vocabulary), "words/sample": self.model_config["span"]},
            baseline=lambda: self._baseline(val),
        )

    def _samples(self, ids: NDArray[np.int32]) -> TextWindows:
        return TextWindows(ids, self.model_config["span"])

    def _prepared(self, train: Samples, val: NDArray[np.int32], **more: Any) -> PreparedData:
        """Return data with the ids of validation words, on which Spearman PMI is computed too."""
        return PreparedData(
            train,
            self._samples(val),
            analyze=lambda folder: self._spearman_pmi(val),
            **more,
        )

    def _recipe(self, num_samples: int) -> dict[str, Any]:
        """Return training settings for a number of training samples."""
        # Every step updates all vectors: large batches make that cheap. CBOW rows cost less than skip-gram rows.
        batch_size = 8 if self.settings.model == "skip-gram" else 16
        steps = max(EPOCHS * -(-num_samples // batch_size), MIN_STEPS)
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
            "batch_size": batch_size,
            "steps": steps,
        }

    # Model and loss.

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

    def collate(self, samples: NDArray[np.int64], context: BatchContext) -> Batch:
        # The last id of a window belongs to the next row.
        return self.sampling.batch(samples[:, :-1], context)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
        positive, negative = model(batch)
        asked = batch.targets["loss"] != IGNORE
        return {"loss": negative_sampling_term(positive, negative, asked, self.settings.negatives)}

    def _spearman_pmi(self, ids: NDArray[np.int32]) -> dict[str, float]:
        """Return the Spearman correlation between cosine similarity and PMI in a text."""
        rho, pairs = spearman_pmi(self.vectors.astype(np.float64), ids.astype(np.int64), self.settings.window)
        return {"spearman_pmi": rho, "num_word_pairs": float(pairs)}

    def _baseline(self, val: NDArray[np.int32]) -> Baseline:
        """Return the loss of word frequencies: the best logits that depend on the predicted word alone.

        The logit of w is s_w = log (p(w) / (K q(w))), with p the frequency of w among the training words that are kept
        and q its probability as a negative; its loss on validation words of frequency h is −Σ h(w) log σ(s_w)
        − K Σ q(w) log σ(−s_w).
        """
        sampling, K = self.sampling, self.settings.negatives
        train_counts = np.asarray(self.vocabulary.counts) * sampling.keep
        val_counts = np.bincount(val[val >= 0], minlength=len(train_counts)) * sampling.keep
        s = np.log(train_counts / train_counts.sum() / (K * sampling.negative))
        nats = np.logaddexp(0, -s) @ (val_counts / val_counts.sum()) + K * (np.logaddexp(0, s) @ sampling.negative)
        return Baseline("word frequencies", float(nats), self._unit)

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

    @action(NeighborOptions, name="inspect neighbors", example=lambda task: task.example_options())
    def _neighbors(self, options: NeighborOptions, show: Show) -> dict[str, Any]:
        """Show the nearest words of words, by cosine similarity."""
        if not options.words:
            raise UserError("no word to find neighbors of: tokenloom inspect RUN neighbors WORD …")
        found = {word: self.neighbors(word, options.num_answers) for word in options.words}
        for word, near in found.items():
            show(f"{word}\n" + _lines(near))
        return {"neighbors": {word: [list(pair) for pair in near] for word, near in found.items()}}

    def example_options(self) -> dict[str, Any]:
        """Return words of medium frequency, whose neighbors are shown after training."""
        words = self.vocabulary.words
        chosen = dict.fromkeys(words[min(len(words) - 1, rank)] for rank in (100, 200, 400))
        return {"words": list(chosen), "num_answers": 6}

    @action(AnalogyOptions, name="inspect analogy")
    def _analogy(self, options: AnalogyOptions, show: Show) -> dict[str, Any]:
        """Show the words that are to C as A is to B."""
        if len(options.words) != 3:
            raise UserError(
                f"an analogy takes three words, A B C for “what is to C as A is to B?”, not {len(options.words)}"
            )
        a, b, c = options.words
        near = self.analogy(a, b, c, options.num_answers)
        show(f"{a} − {b} + {c}\n" + _lines(near))
        notes = []
        if self.vocabulary.known < ANALOGY_WORDS:
            notes.append(
                f"trained on {self.vocabulary.known:,} words; analogies are weak on little text (the published ones"
                " come from billions of words)"
            )
        return {"answers": [list(pair) for pair in near], "notes": notes}

    @action(EmbeddingOptions, name="inspect embeddings")
    def _embeddings(self, options: EmbeddingOptions, show: Show) -> dict[str, Any]:
        """Draw words as a two-dimensional map of their vectors."""
        o = options
        if o.out is None:
            raise UserError(f"{flag('out')}: give the file to write")
        words = [self.word(word) for word in o.words] or list(self.vocabulary.words[: o.num_words])
        title = f"{len(words)} words of {self._source}" if o.words else f"The {len(words)} most frequent words"
        draw_embeddings(self.space.project(words), words, o.out, title=title, dark=o.dark)
        show(f"written to {o.out}\n")
        return {"out": o.out, "words": len(words)}

    @action(ExportOptions)
    def _export(self, options: ExportOptions, show: Show) -> dict[str, Any]:
        """Write the vectors to a file that other programs read."""
        if options.out is None:
            raise UserError(f"{flag('out')}: give the file to write")
        path = Path(options.out)
        if path.exists():
            raise UserError(f"{flag('out')} {path}: exists already; give another name, or remove it")
        # A line with the two sizes, then one line per word. Nine digits restore every float32 exactly.
        lines = ["{} {}".format(*self.vectors.shape)]
        for word, vector in zip(self.vocabulary.words, self.vectors.tolist(), strict=True):
            lines.append(" ".join([word, *(f"{value:.9g}" for value in vector)]))
        write_text(path, "\n".join(lines) + "\n")
        show(f"written to {path}\n")
        return {"out": options.out, "words": len(self.vocabulary)}

    # The run.

    def save_assets(self, folder: Path) -> dict[str, Any]:
        self.vocabulary.save(folder / "words.json")
        return {"words": self.vocabulary.fingerprint()}

    def load_assets(self, folder: Path, saved: dict[str, Any]) -> None:
        path = folder / "words.json"
        self._vocabulary = Vocabulary.load(path)
        if self._vocabulary.fingerprint() != saved.get("words"):
            raise UserError(f"{path}: not the words that this run was trained with")


def _lines(near: Neighbors) -> str:
    width = max(map(len, dict(near)), default=0)
    return "".join(f"  {word:<{width}}  {cosine:.3f}\n" for word, cosine in near)
