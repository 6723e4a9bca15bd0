"""Labels without annotation: from any text, what punctuation follows a word, and whether it had a capital."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from tokenloom.data.conll import Sentence, TaggedData
from tokenloom.data.documents import DataSet, TextData
from tokenloom.errors import UserError
from tokenloom.utils.names import counted

MARKS = ",.;:?!"
NONE, LOWER, CAPITAL = "none", "lower", "capital"
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
# Letters, digits, and what stands between them: don't, well-known, 3.14.
_WORD = re.compile(r"[^\W_](?:\S*[^\W_])?")


def bare_words(text: str) -> Iterator[tuple[str, str]]:
    """The words of a text in small letters without what stands around them, each with its label `mark|case`.

    mark: the first of , . ; : ? ! after the word, else "none"; one that stands apart belongs to the word before. case:
    "capital" where the first letter is one, else "lower".
    """
    words: list[tuple[str, str, str]] = []
    for token in text.split():
        found = _WORD.search(token)
        after = token if found is None else token[found.end() :]
        mark = next((character for character in after if character in MARKS), NONE)
        if found is not None:
            words.append((found[0].lower(), mark, CAPITAL if found[0][0].isupper() else LOWER))
        elif words and words[-1][1] == NONE:
            words[-1] = (words[-1][0], mark, words[-1][2])
    return ((word, f"{mark}|{case}") for word, mark, case in words)


def restored(words: list[str], labels: list[str]) -> str:
    """A text from words and labels `mark|case`: the inverse of `bare_words`, as far as labels go."""
    shown = []
    for word, label in zip(words, labels, strict=True):
        mark, case = label.split("|")
        shown.append((word[:1].upper() + word[1:] if case == CAPITAL else word) + (mark if mark != NONE else ""))
    return " ".join(shown)


def punctuated(text: TextData) -> TaggedData:
    """Every paragraph of a text (up to a blank line) as a sentence of bare words. A document is a group.

    Raises UserError when there is no word in it.
    """
    sentences, empty = [], 0
    for document in text.documents:
        for number, paragraph in enumerate(_PARAGRAPH.split(document.text), start=1):
            pairs = list(bare_words(paragraph))
            if pairs:
                words, labels = zip(*pairs, strict=True)
                sentences.append(Sentence(f"{document.id}:{number}", words, labels, document.id))
            else:
                empty += bool(paragraph.strip())
    if not sentences:
        raise UserError(f"{text.name}: there is no word in it")
    shared = {f.name: getattr(text, f.name) for f in fields(DataSet)}
    if empty:
        shared["notes"] = [*text.notes, f"left out {counted(empty, 'paragraph')} without a letter or digit"]
    if shared["held_out"] == "tail":
        shared["held_out"] = None
    return TaggedData(sentences, restorable=True, **shared)
