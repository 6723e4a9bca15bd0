"""Words of Shakespeare's plays, labeled with their punctuation and capitals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenloom.data.conll import TaggedData, punctuated
from tokenloom.data.documents import Document, TextData
from tokenloom.data.registry import Recipe
from tokenloom.data.sets import shakespeare

_PLAYS = next(recipe for recipe in shakespeare.RECIPES if recipe.name == "shakespeare")


def _speeches(paths: Sequence[Path]) -> TaggedData:
    plays = _PLAYS.loader(paths)
    assert isinstance(plays, TextData)
    return punctuated(replace(plays, documents=[Document(d.id, without_names(d.text)) for d in plays.documents]))


def without_names(play: str) -> str:
    """Return a play without the first line of each speech, which names the speaker."""
    return "\n\n".join(speech.partition("\n")[2] for speech in play.split("\n\n"))


RECIPES = (
    Recipe(
        name="punctuation",
        description="the words of 38 plays in small letters; a label a word: the mark that follows, and the case",
        license=_PLAYS.license,
        loader=_speeches,
        sources=_PLAYS.sources,
        held_out=_PLAYS.held_out,
        data_class=TaggedData,
    ),
)
