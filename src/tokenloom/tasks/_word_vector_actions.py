"""What trained word vectors are used for: nearest words, analogies, a map, and a file that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.config import Options, option
from tokenloom.errors import UserError
from tokenloom.evaluation.word_similarity import unit
from tokenloom.tokenizers.vocabulary import Vocabulary, words_of
from tokenloom.utils.files import write_text
from tokenloom.utils.names import did_you_mean

Near = list[tuple[str, float]]
# Published analogies are from vectors trained on billions of words.
MANY = 100_000_000


@dataclass(frozen=True)
class NeighborOptions(Options):
    """Which words, and how many neighbors of each."""

    words: list[str] = option([], "words", positional=True)
    top: int = option(10, "how many neighbors of each word")


@dataclass(frozen=True)
class AnalogyOptions(Options):
    """A B C: which words are to C as A is to B."""

    words: list[str] = option([], "three words A B C: what is to C as A is to B? (king man woman)", positional=True)
    top: int = option(5, "how many answers")


@dataclass(frozen=True)
class ExportOptions(Options):
    """In which format, and where."""

    format: Literal["word2vec"] = option("word2vec", "word2vec: its text format, which gensim reads")
    out: str | None = option(None, "the file to write")


@dataclass(frozen=True)
class MapOptions(Options):
    """Which words, where, and in which look."""

    words: list[str] = option([], "words to show; the most frequent ones when none is given", positional=True)
    count: int = option(100, "how many of the most frequent words")
    out: str | None = option(None, "the picture to write, a PNG")
    dark: bool = option(False, "light on dark")


class Space:
    """Words as directions: the cosine of two vectors says how near their words are."""

    def __init__(self, vocabulary: Vocabulary, vectors: NDArray[np.float32]) -> None:
        self.vocabulary, self.vectors = vocabulary, vectors
        self.directions = unit(vectors.astype(np.float64))

    def id(self, word: str) -> int:
        """The id of a word as a person types it. Raises UserError, with the nearest spelling, for one not known."""
        found = words_of(word, self.vocabulary.rule)
        if len(found) > 1:
            raise UserError(f"{word!r} is {len(found)} words here ({', '.join(found)}): give one of them")
        name = found[0] if found else word
        if name not in self.vocabulary.ids:
            hint = did_you_mean(name, self.vocabulary.words)
            raise UserError(f"{word!r} is not among the {len(self.vocabulary):,} words that this run knows{hint}")
        return self.vocabulary.ids[name]

    def nearest(self, direction: NDArray[np.float64], top: int, without: Sequence[int]) -> Near:
        """The words whose vectors have the largest cosine with a direction, and that cosine."""
        if top < 1:
            raise UserError(f"--top {top}: must be at least 1")
        cosines = self.directions @ unit(direction[None])[0]
        cosines[list(without)] = -np.inf
        order = np.argsort(-cosines, kind="stable")[: min(top, len(cosines) - len(set(without)))]
        return [(self.vocabulary.words[i], float(cosines[i])) for i in order]

    def neighbors(self, word: str, top: int) -> Near:
        """The words nearest to a word."""
        id = self.id(word)
        return self.nearest(self.directions[id], top, [id])

    def analogy(self, a: str, b: str, c: str, top: int) -> Near:
        """The words nearest to a − b + c, of unit vectors; a, b and c are not among them.

        Source: Mikolov, Yih & Zweig 2013, "Linguistic regularities in continuous space word representations".
        """
        i, j, k = (self.id(word) for word in (a, b, c))
        return self.nearest(self.directions[i] - self.directions[j] + self.directions[k], top, [i, j, k])

    def plane(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Directions of some words on their first two principal components: (words, 2)."""
        centerd = self.directions[list(ids)] - self.directions[list(ids)].mean(0)
        left, sizes, _ = np.linalg.svd(centerd, full_matrices=False)
        plane = np.zeros((len(ids), 2))
        plane[:, : len(sizes[:2])] = left[:, :2] * sizes[:2]
        return plane

    def export(self, path: Path) -> None:
        """Write all vectors in word2vec's text format: a line with the two sizes, then a line a word.

        Nine digits give every float32 back exactly. Raises UserError where the file is there or cannot be written.
        """
        if path.exists():
            raise UserError(f"--out {path}: is there already; give another name, or remove it")
        count, width = self.vectors.shape
        lines = [f"{count} {width}"]
        for word, vector in zip(self.vocabulary.words, self.vectors.tolist(), strict=True):
            lines.append(" ".join([word, *(f"{value:.9g}" for value in vector)]))
        try:
            write_text(path, "\n".join(lines) + "\n")
        except OSError as error:
            raise UserError(f"--out {path}: cannot be written ({error.strerror})") from error
