"""Words with a label each: from CoNLL columns, or derived from any text (`punctuation.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from tokenloom.data import registry as recipes
from tokenloom.data.documents import DataSet, Document, TextData
from tokenloom.data.split import DEFAULT_FRACTION, ENOUGH_DOCUMENTS, split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, some

ENDINGS = (".conll", ".conllu", ".conll03", ".bio", ".iob", ".iob2")
_DOCUMENT = "-DOCSTART-"
_UNIVERSAL = 10  # Columns of the CoNLL-U format.


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words that are read together, each with its label. `id` stays the same from one reading to the next.

    group: sentences of one group (the speeches of a play) belong on one side of a split; "" for none.
    """

    id: str
    words: tuple[str, ...]
    labels: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True)
class TaggedData(DataSet):
    """Sentences in reading order; none is empty.

    restorable: the words are in small letters without punctuation, and the labels say what was there.
    """

    sentences: list[Sentence]
    restorable: bool = False

    @property
    def words(self) -> int:
        """In all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    def labels(self) -> Counter[str]:
        """How often each label occurs."""
        return Counter(label for sentence in self.sentences for label in sentence.labels)

    def as_text(self) -> TextData:
        """The words with spaces between them, a document a sentence."""
        shared = {f.name: getattr(self, f.name) for f in fields(DataSet)}
        if isinstance(self.held_out, tuple):
            shared["held_out"] = tuple(s.id for s in self.sentences if s.group in self.held_out)
        return TextData([Document(s.id, " ".join(s.words)) for s in self.sentences], True, **shared)


@dataclass(frozen=True)
class Columns:
    """Which columns hold the word and its label, counted from 1; None = the first and the last."""

    word: int | None = None
    label: int | None = None


def looks_tagged(source: str) -> str | None:
    """Why these data look like labeled words, by their name alone; None where they do not."""
    if source in recipes.names():
        return "words with a label each" if issubclass(recipes.find(source).holds, TaggedData) else None
    return "CoNLL columns" if source.lower().endswith(ENDINGS) else None


def read_tagged(source: str, *, columns: Columns | None = None, encoding: str = "utf-8") -> TaggedData:
    """Sentences from a built-in set, a file of CoNLL columns, or a folder of such files.

    A word a line with its columns apart by tabs, where there is one in the file, else by other white space; a blank
    line between sentences; lines `-DOCSTART-` and, in CoNLL-U, comments, are left out and counted.

    Raises UserError for rows of another number of columns than the first, by file and row, and for empty cells.
    """
    columns = columns or Columns()
    if source in recipes.names():
        data = recipes.load_data(source)
        if not isinstance(data, TaggedData):
            raise UserError(
                f"{source} holds no labeled words ({recipes.find(source).what}); --labels punctuation"
                " makes labels from any text"
            )
        return data
    text = read_text(source, encoding=encoding)
    notes: list[str] = []
    sentences: list[Sentence] = []
    for document in text.documents:
        # Of a folder, as of a table, each has a name of its own.
        sentences += _sentences(document, columns, notes)
    if not sentences:
        raise UserError(f"{source}: there are no words in it")
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
            left_out["rows of joined or unspoken words (1-2, 1.1)"] += 1
            continue
        if not cells[word] or not cells[label]:
            raise UserError(f"{where} has no {'word' if not cells[word] else 'label'} in it")
        rows.append((cells[word], cells[label]))
    notes += [f"{document.id}: left out {n:,} {what}" for what, n in left_out.items()]
    return found


def _places(columns: Columns, width: int, tabs: bool, where: str, notes: list[str], name: str) -> tuple[int, int]:
    """Where word and label stand in a row, counted from 0."""
    if width == 1:
        raise UserError(
            f"{where} has one column: a word and its label are needed, apart by a tab or a space; of plain text,"
            " --labels punctuation makes words with labels"
        )
    universal = tabs and width == _UNIVERSAL
    word = (2 if universal else 1) if columns.word is None else columns.word
    label = (4 if universal else width) if columns.label is None else columns.label
    for option, place in (("word", word), ("label", label)):
        if not 1 <= place <= width:
            raise UserError(f"--{option}-column {place}: {where} has columns 1 to {width}")
    if word == label:
        raise UserError(f"--word-column {word} and --label-column {label} are the same column")
    if width > 2 and columns.label is None:
        notes.append(f"{name}: the label is taken from column {label} of {width}; --label-column takes another")
    return word - 1, label - 1


@dataclass(frozen=True)
class TaggedSplit:
    """The two parts of tagged sentences, how they were told apart, and what is to be said of them."""

    training: TaggedData
    validation: TaggedData
    how: str
    notes: list[str]


def split_tagged(data: TaggedData, fraction: float, *, validation: TaggedData | None = None) -> TaggedSplit:
    """Keep sentences for validation, as `split` keeps documents: equal sentences stay on one side.

    Raises UserError when there are too few different ones.
    """
    texts = data.as_text()
    if (
        validation is None
        and not isinstance(data.held_out, tuple)
        and len({document.text for document in texts.documents}) < ENOUGH_DOCUMENTS
    ):
        raise UserError(
            f"{data.name} has {counted(len(data.sentences), 'sentence')}: at least {ENOUGH_DOCUMENTS} different ones"
            " are needed, or others to validate on (--validation)"
        )
    given = None if validation is None else validation.as_text()
    held_out = data.held_out if fraction == DEFAULT_FRACTION else None
    parts = split(texts if held_out is not None else replace(texts, held_out=None), fraction, validation=given)
    held = {document.id for document in parts.validation.documents}
    if validation is None:
        validation = replace(data, sentences=[s for s in data.sentences if s.id in held], notes=[], skipped=[])
        training = replace(data, sentences=[s for s in data.sentences if s.id not in held])
    else:
        training = data
    how = parts.how
    if isinstance(held_out, tuple) and given is None:
        how = (
            f"held out by name: {some(held_out, 8)}; {len(training.sentences):,} sentences train,"
            f" {len(validation.sentences):,} validate"
        )
    return TaggedSplit(
        training,
        validation,
        how.replace("document", "sentence"),
        [*(n.replace("document", "sentence") for n in parts.notes), *_unseen(training, validation)],
    )


def _unseen(training: TaggedData, validation: TaggedData) -> list[str]:
    known, asked = training.labels(), validation.labels()
    notes = []
    if unseen := {label: n for label, n in asked.items() if label not in known}:
        listed = some((f"{label!r} ({n:,}×)" for label, n in sorted(unseen.items())), 10)
        notes.append(f"labels in validation that training never shows, and that can only be missed: {listed}")
    if once := sorted(label for label, n in known.items() if n == 1):
        notes.append(f"labels that training shows only once: {some(map(repr, once), 10)}")
    if len(known) == 1:
        notes.append(f"there is only one label, {next(iter(known))!r}: nothing can be learned")
    return notes


def report_lines(parts: TaggedSplit, extra: Iterable[tuple[str, str]]) -> list[str]:
    """What a person should know before training, `label: what`."""
    data, counts = parts.training, parts.training.labels()
    rows = [("data", data.name + (f" ({data.license})" if data.license else ""))]
    for name, part in (("training", parts.training), ("validation", parts.validation)):
        rows.append((name, f"{counted(len(part.sentences), 'sentence')}, {counted(part.words, 'word')}"))
    rows.append(("split", parts.how))
    total = sum(counts.values())
    shown = some((f"{label} {n / total:.1%}" for label, n in counts.most_common()), 12)
    rows.append(("labels", f"{len(counts):,} different ones: {shown}"))
    longest = max(data.sentences, key=lambda sentence: len(sentence.words))
    rows.append(("longest", f"{longest.id} with {counted(len(longest.words), 'word')}"))
    rows += [("skipped", f"{path}: {reason}") for path, reason in data.skipped[:5]]
    if len(data.skipped) > 5:
        rows.append(("skipped", f"{len(data.skipped) - 5:,} more"))
    rows += [("note", note) for note in [*data.notes, *parts.notes]]
    rows += extra
    width = max(len(label) for label, _ in rows) + 1
    return [f"{label + ':':<{width}} {what}" for label, what in rows]
