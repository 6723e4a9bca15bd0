"""Labeled words: from CoNLL columns, or with labels of punctuation and capitals derived from any text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tokenloom.data import registry
from tokenloom.data.documents import DataSet, Document, Facts, SplitKeys, TextData
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

ENDINGS = (".conll", ".conllu", ".conll03", ".bio", ".iob", ".iob2")
_DOCUMENT = "-DOCSTART-"
_UNIVERSAL = 10  # Columns of the CoNLL-U format.

MIN_SENTENCES = 5
MARKS = ",.;:?!"
NONE, LOWER, CAPITAL = "none", "lower", "capital"
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
# Letters, digits, and what is between them: don't, well-known, 3.14.
_WORD = re.compile(r"[^\W_](?:\S*[^\W_])?")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with one label each. `id` is the same at every reading.

    group: sentences of one group (the speeches of a play) may be held out together; "" for none.
    """

    id: str
    words: tuple[str, ...]
    labels: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True)
class TaggedData(DataSet):
    """Sentences in reading order; none is empty.

    restorable: the words are in lower case without punctuation, which the labels restore.
    """

    sentences: list[Sentence]
    restorable: bool = False

    @property
    def words(self) -> int:
        """The number of words."""
        return sum(len(sentence.words) for sentence in self.sentences)

    def labels(self) -> Counter[str]:
        """Return the count of each label."""
        return Counter(label for sentence in self.sentences for label in sentence.labels)

    def as_text(self) -> TextData:
        """Return one document per sentence, its words joined by spaces."""
        shared = self.shared_fields()
        if isinstance(self.held_out, tuple):
            shared["held_out"] = tuple(s.id for s in self.sentences if s.group in self.held_out)
        return TextData([Document(s.id, " ".join(s.words)) for s in self.sentences], True, **shared)

    def split_keys(self) -> SplitKeys:
        texts = [" ".join(sentence.words) for sentence in self.sentences]
        return SplitKeys(
            ids=[sentence.id for sentence in self.sentences],
            content=texts,
            groups=[sentence.group for sentence in self.sentences],
            sizes=[len(text) for text in texts],
            noun="sentence",
            min_distinct=MIN_SENTENCES,
        )

    def select(self, indices: Sequence[int]) -> Self:
        return replace(self, sentences=[self.sentences[index] for index in indices])

    def counts(self) -> dict[str, int]:
        return {"sentences": len(self.sentences), "words": self.words}

    def facts(self, validation: Self) -> Facts:
        counts, held = self.labels(), validation.labels()
        total = sum(counts.values())
        shown = some((f"{label} {n / total:.1%}" for label, n in counts.most_common()), 12)
        longest = max(self.sentences, key=lambda sentence: len(sentence.words))
        rows = [
            ("labels", f"{len(counts):,} distinct: {shown}"),
            ("longest", f"{longest.id} with {counted(len(longest.words), 'word')}"),
        ]
        if unseen := {label: n for label, n in held.items() if label not in counts}:
            listed = some((f"{label!r} ({n:,}×)" for label, n in sorted(unseen.items())), 10)
            rows.append(("unseen labels", f"in validation but not in training data, always counted as wrong: {listed}"))
        if once := sorted(label for label, n in counts.items() if n == 1):
            rows.append(("rare labels", f"only once in the training data: {some(map(repr, once), 10)}"))
        if len(counts) == 1:
            rows.append(("one label", f"all words have the label {next(iter(counts))!r}: there is nothing to learn"))
        return {"labels": dict(counts), "unseen_labels": unseen, "longest": (longest.id, len(longest.words))}, rows


@dataclass(frozen=True)
class Columns:
    """The columns of word and label, from 1; by default first and last, in CoNLL-U second and fourth."""

    word: int | None = None
    label: int | None = None


def looks_tagged(source: str) -> str | None:
    """Return why these data look like labeled words, by their name, or None."""
    if source in registry.names():
        return "labeled words" if issubclass(registry.find(source).data_class, TaggedData) else None
    return "CoNLL columns" if source.lower().endswith(ENDINGS) else None


def read_tagged(source: str, *, columns: Columns | None = None, encoding: str = "utf-8") -> TaggedData:
    """Read sentences of a built-in set, a file of CoNLL columns, or a folder of such files.

    One word per line, columns separated by tabs if the file has any, else by white space; a blank line between
    sentences; lines `-DOCSTART-` and, in CoNLL-U, comments are left out and counted.

    Raises UserError, naming file and row, for rows with another number of columns than the first, and empty cells.
    """
    columns = columns or Columns()
    if source in registry.names():
        data = registry.load_data(source)
        if not isinstance(data, TaggedData):
            raise UserError(
                f"{source} contains no labeled words ({registry.find(source).description}); --labels punctuation"
                " makes labels from any text"
            )
        return data
    text = read_text(source, encoding=encoding)
    notes: list[str] = []
    sentences: list[Sentence] = []
    for document in text.documents:
        sentences += _sentences(document, columns, notes)
    if not sentences:
        raise UserError(f"{source}: contains no words")
    return TaggedData(sentences, name=text.name, skipped=text.skipped, notes=[*text.notes, *notes])


def _sentences(document: Document, columns: Columns, notes: list[str]) -> list[Sentence]:
    lines = document.text.split("\n")
    tabs = any("\t" in line for line in lines)
    found: list[Sentence] = []
    rows: list[tuple[str, str]] = []
    width, begin, left_out = 0, 1, Counter[str]()
    word, label = 0, -1
    for number, line in enumerate([*lines, ""], start=1):
        if not line.strip():
            if rows:
                words, labels = zip(*rows, strict=True)
                found.append(Sentence(f"{document.id}:{begin}", words, labels))
            rows, begin = [], number + 1
            continue
        cells = [cell.strip() for cell in line.split("\t")] if tabs else line.split()
        if line.startswith(_DOCUMENT):
            left_out[f"{_DOCUMENT} lines"] += 1
            continue
        if tabs and len(cells) == 1 and line.startswith("#"):
            left_out["comments"] += 1
            continue
        where = f"{document.id}: row {number:,}"
        if not width:
            width = len(cells)
            word, label = _places(columns, width, tabs, where, notes, document.id)
        if len(cells) != width:
            raise UserError(
                f"{where} has {counted(len(cells), 'column')} where the first has {width}: {line.strip()!r}"
            )
        if width == _UNIVERSAL and tabs and not cells[0].isdigit():
            left_out["rows of multiword tokens or empty nodes (1-2, 1.1)"] += 1
            continue
        if not cells[word] or not cells[label]:
            raise UserError(f"{where} has no {'word' if not cells[word] else 'label'} in it")
        rows.append((cells[word], cells[label]))
    notes += [f"{document.id}: left out {n:,} {what}" for what, n in left_out.items()]
    return found


def _places(columns: Columns, width: int, tabs: bool, where: str, notes: list[str], name: str) -> tuple[int, int]:
    """Return the columns of word and label, from 0."""
    if width == 1:
        raise UserError(
            f"{where} has one column: a word and its label, separated by a tab or a space, are needed;"
            " --labels punctuation derives labels from plain text"
        )
    universal = tabs and width == _UNIVERSAL
    word = (2 if universal else 1) if columns.word is None else columns.word
    label = (4 if universal else width) if columns.label is None else columns.label
    for option, place in (("token", word), ("label", label)):
        if not 1 <= place <= width:
            raise UserError(f"--{option}-column {place}: {where} has columns 1 to {width}")
    if word == label:
        raise UserError(f"--token-column {word} and --label-column {label} are the same column")
    if width > 2 and columns.label is None:
        notes.append(f"{name}: the label is taken from column {label} of {width}; --label-column takes another")
    return word - 1, label - 1


# Labels derived from any text: what punctuation follows a word, and whether it had a capital.


def bare_words(text: str) -> Iterator[tuple[str, str]]:
    """Return the words of a text in lower case without punctuation, each with its label `mark|case`.

    mark: the first of , . ; : ? ! after the word, else "none"; a separate one belongs to the word before. case:
    "capital" if the first letter is upper case, else "lower".
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
    """Return a text from words and labels `mark|case`: the inverse of `bare_words`, up to what labels do not tell."""
    shown = []
    for word, label in zip(words, labels, strict=True):
        mark, case = label.split("|")
        shown.append((word[:1].upper() + word[1:] if case == CAPITAL else word) + (mark if mark != NONE else ""))
    return " ".join(shown)


def punctuated(text: TextData) -> TaggedData:
    """Return every paragraph of a text as a sentence of bare words; its document is the group.

    Raises UserError when the text has no words.
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
        raise UserError(f"{text.name}: contains no words")
    shared = text.shared_fields()
    if empty:
        shared["notes"] = [*text.notes, f"left out {counted(empty, 'paragraph')} without a letter or digit"]
    if shared["held_out"] == "tail":
        shared["held_out"] = None
    return TaggedData(sentences, restorable=True, **shared)
