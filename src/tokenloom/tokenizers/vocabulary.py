"""Words without what stands between them, and the vocabulary of those that are frequent enough."""

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
NONE = -1
"""The id that stands between documents: no word."""
Rule = Literal["text", "code"]


def words_of(text: str, rule: Rule) -> list[str]:
    """The words of a text, in lower case and in Unicode's composed form (NFC).

    text: runs of letters and digits of any script, with apostrophes inside (don't, l'eau); ’ counts as '.
    code: the words inside names: cut at underscores and before a capital that begins a word (`getHTTPReply_2` is get,
    http, reply). Runs that begin with a digit are numbers, and no words.
    """
    text = unicodedata.normalize("NFC", text)
    if rule == "text":
        return PROSE.findall(text.replace("’", "'").lower())
    parts: dict[str, list[str]] = {}
    runs: list[str] = NAMES.findall(text)
    for run in set(runs):
        parts[run] = [] if run[0].isdigit() else [part.lower() for part in _humps(run)]
    return [part for run in runs for part in parts[run]]


def _humps(name: str) -> list[str]:
    """`HTTPServer2` → HTTP, Server2: cut before a capital that follows a small letter or digit, or comes before one."""
    cuts = [0]
    for i in range(1, len(name)):
        if name[i].isupper() and (not name[i - 1].isupper() or name[i + 1 : i + 2].islower()):
            cuts.append(i)
    return [name[a:b] for a, b in zip(cuts, [*cuts[1:], len(name)], strict=True)]


@dataclass(frozen=True)
class Vocabulary:
    """The words that occur at least so often, most frequent first (ties in the order of their characters).

    words, counts: of equal length; the id of a word is its place. total: how many words the text has, with those that
    are too rare. rule: how words were found, as in `words_of`.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    total: int
    rule: Rule

    @classmethod
    def of(cls, documents: Iterable[list[str]], least: int, rule: Rule) -> Self:
        """Count the words of documents, and keep those that occur at least `least` times."""
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(document)
        kept = sorted((pair for pair in counts.items() if pair[1] >= least), key=lambda pair: (-pair[1], pair[0]))
        return cls(tuple(word for word, _ in kept), tuple(n for _, n in kept), sum(counts.values()), rule)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Word → id."""
        return {word: id for id, word in enumerate(self.words)}

    @property
    def known(self) -> int:
        """How many words of the text are kept."""
        return sum(self.counts)

    def encode(self, documents: Iterable[list[str]]) -> NDArray[np.int32]:
        """One run of ids over all documents, each followed by `NONE`; words that are not kept are left out."""
        runs: list[NDArray[np.int32]] = []
        for document in documents:
            found = np.fromiter((self.ids.get(word, NONE) for word in document), np.int32, len(document))
            runs += [found[found != NONE], np.array([NONE], np.int32)]
        return np.concatenate(runs) if runs else np.zeros(0, np.int32)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        words = dict(zip(self.words, self.counts, strict=True))
        return {"format": FORMAT, "rule": self.rule, "total": self.total, "words": words}

    def fingerprint(self) -> str:
        """The SHA-256 of its canonical JSON."""
        return sha256(json.dumps(self.as_dict(), separators=(",", ":")))

    def save(self, path: Path) -> None:
        """Write it as readable JSON, all or nothing."""
        write_text(path, readable_json(self.as_dict()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises UserError, naming the file, when it is missing or damaged."""
        try:
            data = json.loads(path.read_bytes().decode("utf-8"))
            if data["format"] != FORMAT or data["rule"] not in ("text", "code"):
                raise ValueError(f"format {data['format']}, rule {data['rule']}")
            words, counts = tuple(data["words"]), tuple(map(int, data["words"].values()))
            return cls(words, counts, int(data["total"]), data["rule"])
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: damaged, or no vocabulary ({type(error).__name__}: {error})") from None
