"""Text and code that come with CPython; the content depends on the version of Python."""

import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenloom.data.documents import Document, TextData
from tokenloom.data.registry import Recipe
from tokenloom.errors import UserError
from tokenloom.utils.names import counted

_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")
_LICENCE = "PSF-2.0 (Python's own)"


def _topics(_: Sequence[Path]) -> TextData:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("this Python lacks its help texts (the module pydoc_data): python-docs needs them") from None
    documents = [Document(name, text) for name, text in sorted(topics.items()) if text.strip()]
    return TextData(documents, documented=True, notes=[_version()])


def _source(_: Sequence[Path]) -> TextData:
    root = Path(sysconfig.get_path("stdlib"))
    documents: list[Document] = []
    skipped: list[tuple[str, str]] = []
    for path in sorted(_modules(root), key=lambda path: path.relative_to(root).parts):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            skipped.append((name, f"not UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else str(error)))
            continue
        if text.strip():
            documents.append(Document(name, text))
        else:
            skipped.append((name, "empty"))
    if not documents:
        raise UserError(f"this Python keeps no .py files of its standard library in {root}: python-source needs them")
    notes = [_version(), f"{counted(len(documents), 'module')} without tests and installed packages"]
    return TextData(documents, documented=True, skipped=skipped, notes=notes)


def _modules(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _version() -> str:
    return f"as it comes with Python {platform.python_version()}; another version gives another text"


RECIPES = (
    Recipe(
        name="python-docs",
        description="Python's own reference, about 0.46 million characters of English; a document a topic",
        license=_LICENCE,
        loader=_topics,
    ),
    Recipe(
        name="python-source",
        description="the standard library's modules, about 12 million characters of Python; a document a file",
        license=_LICENCE,
        loader=_source,
    ),
)
