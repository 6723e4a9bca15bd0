"""Words for word vectors: splitting a text into words, and the vocabulary of frequent words."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import UserError
from tokenloom.tokenizers.base import readable_json
from tokenloom.tokenizers.pretokenize import NAMES, PROSE
from tokenloom.utils.files import sha256, write_text

FORMAT = 1
BOUNDARY = -1
"""The id after each document; not a word."""
Rule = Literal["text", "code"]


def words_of(text: str, rule: Rule) -> list[str]:
    """Return the words of a text, in lower case and Unicode's composed form (NFC).

    text: runs of letters and digits of any script, with apostrophes inside (don't, l'eau); ’ counts as '.
    code: the words inside names, split at underscores and before capitals that begin a word (`getHTTPReply_2` is get,
    http, reply). Runs that begin with a digit are numbers, not words.
    """
    text = unicodedata.normalize("NFC", text)
    if rule == "text":
        return PROSE.findall(text.replace("’", "'").lower())
    parts: dict[str, list[str]] = {}
    runs: list[str] = NAMES.findall(text)
    for run in set(runs):
        parts[run] = [] if run[0].isdigit() else [part.lower() for part in _split_camel_case(run)]
    return [part for run in runs for part in parts[run]]


def _split_camel_case(name: str) -> list[str]:
    """Split `HTTPServer2` into HTTP, Server2: before capitals next to a lower-case letter or digit."""
    cuts = [0]
    for i in range(1, len(name)):
        if name[i].isupper() and (not name[i - 1].isupper() or name[i + 1 : i + 2].islower()):
            cuts.append(i)
    return [name[a:b] for a, b in zip(cuts, [*cuts[1:], len(name)], strict=True)]


@dataclass(frozen=True)
class Vocabulary:
    """The words with a minimum count, most frequent first (ties in alphabetical order).

    words, counts: of equal length; the id of a word is its index. total: number of words in the text, rare ones
    included. rule: as in `words_of`.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    total: int
    rule: Rule

    @classmethod
    def build(cls, documents: Iterable[list[str]], min_count: int, rule: Rule) -> Self:
        """Count the words of documents and keep those that occur at least `min_count` times."""
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(document)
        kept = sorted((pair for pair in counts.items() if pair[1] >= min_count), key=lambda pair: (-pair[1], pair[0]))
        return cls(tuple(word for word, _ in kept), tuple(n for _, n in kept), sum(counts.values()), rule)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return word → id."""
        return {word: id for id, word in enumerate(self.words)}

    @property
    def known(self) -> int:
        """Return the number of words in the text that are in the vocabulary."""
        return sum(self.counts)

    def encode(self, documents: Iterable[list[str]]) -> NDArray[np.int32]:
        """Return the ids of all documents, (N,), each followed by `BOUNDARY`; other words are left out."""
        runs: list[NDArray[np.int32]] = []
        for document in documents:
            ids = np.fromiter((self.ids.get(word, BOUNDARY) for word in document), np.int32, len(document))
            runs += [ids[ids != BOUNDARY], np.array([BOUNDARY], np.int32)]
        return np.concatenate(runs) if runs else np.zeros(0, np.int32)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        words = dict(zip(self.words, self.counts, strict=True))
        return {"format": FORMAT, "rule": self.rule, "total": self.total, "words": words}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical JSON."""
        return sha256(json.dumps(self.as_dict(), separators=(",", ":")))

    def save(self, path: Path) -> None:
        """Write readable JSON, atomically."""
        write_text(path, readable_json(self.as_dict()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises UserError with the file when it is missing or damaged."""
        try:
            data = json.loads(path.read_bytes().decode("utf-8"))
            if data["format"] != FORMAT or data["rule"] not in ("text", "code"):
                raise ValueError(f"format {data['format']}, rule {data['rule']}")
            words, counts = tuple(data["words"]), tuple(map(int, data["words"].values()))
            return cls(words, counts, int(data["total"]), data["rule"])
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: damaged, or not a vocabulary ({type(error).__name__}: {error})") from None
