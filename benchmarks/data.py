"""The text of all comparisons: tinyshakespeare if it is in the cache, else the Python documentation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tokenloom.data import registry
from tokenloom.errors import UserError
from tokenloom.tasks.base import PreparedData
from tokenloom.tasks.text_generation import TextGeneration, TextGenerationSettings

QUALITY_TEXT = "tinyshakespeare"


@lru_cache(maxsize=1)
def name() -> str:
    """Return the name of the data set. Of the text, times depend only on the number of distinct characters."""
    try:
        registry.load(QUALITY_TEXT, progress=False)
    except UserError:
        return "python-docs"
    return QUALITY_TEXT


def text() -> str:
    """Return the whole text."""
    return "\n".join(document.text for document in registry.load(name(), progress=False).documents)


def prepared(**settings: Any) -> tuple[TextGeneration, PreparedData]:
    """Return a character-level task, and the text as its data."""
    task = TextGeneration(TextGenerationSettings(separate_documents=False, tokenizer="char", **settings), name())
    return task, task.load(name())
