"""Verses of the Bible in English and Spanish, aligned by their numbers."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenloom.data.download import DebianPackage, debian_members
from tokenloom.data.pairs import Pair, PairData
from tokenloom.data.registry import Recipe
from tokenloom.errors import UserError
from tokenloom.utils.names import counted

LONGEST = 100  # Characters of a side.
_MODULES = "usr/share/sword/"
# Notes and headings stand between tags, inside a verse; of all other tags the content belongs to the verse.
_APART = re.compile(r"<(note|title|milestone|figure)\b[^>]*?(?:/>|>.*?</\1>)", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def _verses(paths: Sequence[Path]) -> PairData:
    try:
        from pysword.modules import SwordModules
    except ImportError:
        raise UserError("verses are read by pysword, which is not installed: pip install 'tokenloom[verses]'") from None
    with tempfile.TemporaryDirectory(prefix="tokenloom-") as folder:
        bibles = []
        for number, package in enumerate(paths):
            root = Path(folder, str(number))
            for name, raw in debian_members(package, "*"):
                if not name.startswith(_MODULES):
                    continue
                place = root / name.removeprefix(_MODULES)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(raw)
            modules = SwordModules(str(root))
            (module,) = modules.parse_modules()
            bible = modules.get_bible_from_module(module)
            # It unpacks a whole book at every verse, unless the last one is kept.
            bible._decompressed_text = lru_cache(maxsize=1)(bible._decompressed_text)
            bibles.append(bible)
        both = [(name, plain(one), plain(other)) for name, one, other in _aligned(*bibles)]
        del bible, bibles  # They hold the files open.
    found = [Pair(name, one, other) for name, one, other in both if one and other]
    pairs = [pair for pair in found if max(len(pair.source), len(pair.target)) <= LONGEST]
    notes = [
        f"left out {counted(len(found) - len(pairs), 'verse')} with more than {LONGEST} characters on a side, and"
        f" {counted(len(both) - len(found), 'verse')} that one of the two lacks"
    ]
    return PairData(pairs, notes=notes)


def _aligned(one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the tagged texts of each verse; both Bibles number verses in the same way."""
    for books in one.get_structure().get_books().values():
        for book in books:
            names = [f"{book.name} {c}:{v}" for c, n in enumerate(book.chapter_lengths, 1) for v in range(1, n + 1)]
            texts = [list(bible.get_iter(books=[book.name], clean=False)) for bible in (one, other)]
            yield from zip(names, *texts, strict=True)


def plain(marked: str) -> str:
    """Return a verse without tags, notes, headings and paragraph signs, with single spaces."""
    return " ".join(_TAG.sub("", _APART.sub("", marked)).replace("¶", " ").split())


RECIPES = (
    Recipe(
        name="verses-en-es",
        description="10,217 verses of the Bible of at most 100 characters, King James and Reina-Valera 1909",
        license="public domain (letters patent on the King James Version hold in the United Kingdom)",
        loader=_verses,
        sources=(
            (
                DebianPackage(
                    "sword-text-kjv",
                    "14.3-1",
                    sha256="9f463f28ce665f6f528fc723179722bced880a4c5485f7a41bf742838315de57",
                    size=2_800_476,
                ),
                DebianPackage(
                    "sword-text-sparv",
                    "2.60-1",
                    sha256="5c87f9b2bc97457e8a872f5bae7ea7ce59cb3de1dcee73e4d4740451863694cf",
                    size=2_722_332,
                ),
            ),
        ),
        data_class=PairData,
    ),
)
