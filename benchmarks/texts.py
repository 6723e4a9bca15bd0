"""The text that all comparisons use: tinyshakespeare where it is in the cache, else the documentation of Python."""

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
    """Times do not depend on the text, beside the number of different characters, which is the same for all."""
    try:
        registry.load(QUALITY_TEXT, progress=False)
    except UserError:
        return "python-docs"
    return QUALITY_TEXT


def text() -> str:
    """The whole text."""
    return "\n".join(document.text for document in registry.load(name(), progress=False).documents)


def prepared(**settings: Any) -> tuple[TextGeneration, PreparedData]:
    """A task that has read the text as one run of characters."""
    task = TextGeneration(TextGenerationSettings(separate_documents=False, tokenizer="char", **settings), name())
    return task, task.load(name())
