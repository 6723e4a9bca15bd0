"""Small texts, tokenized: what the tests of shards and of training on them share."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized.build import tokenize
from tokenloom.data.pretokenized.shards import PARTS, PretokenizedCorpus
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.tokenizers.base import END
from tokenloom.tokenizers.text import choose_tokenizer

WORDS = ["the", "old", "bridge", "carries", "neither", "river", "nor", "wind,", "it's", "12", "o'clock"]
WORDS += ["—", "und", "die", "Brücke", "trägt", "水を\n\n", "", "def", "f(x):\n"]


def prose(characters: int, seed: int = 0) -> str:
    """So much text of a few words, in an order that the seed decides."""
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=characters // 3 + 1))[:characters]


def folder_of(root: Path, sizes: list[int], seed: int = 0) -> Path:
    """A folder of documents of such sizes."""
    root.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (root / f"{number:03}.txt").write_text(prose(size, seed + number), "utf-8")
    return root


def rows_of(path: Path, sizes: list[int]) -> Path:
    """JSON lines of documents of such sizes."""
    lines = (json.dumps({"text": prose(size, number)}) for number, size in enumerate(sizes))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def make(source: Path | str, out: Path, workers: int = 1, **wish: Any) -> PretokenizedCorpus:
    """Tokenize with a shard for every few kilobytes."""
    return tokenize(source, out, TokenizationSettings(**{"shard_bytes": 3000, **wish}), workers=workers)


def in_memory(
    source: Path | str, kind: str = "auto", vocab_size: int | None = None
) -> tuple[Any, dict[str, np.ndarray]]:
    """The tokenizer and the ids of both parts, made the way that holds everything in memory."""
    parts = split(read_text(source))
    borders = parts.train.documented and len(parts.train.documents) > 1
    tokenizer = choose_tokenizer(
        [document.text for document in parts.train.documents],
        kind,
        vocab_size,
        specials=(END,) if borders else (),
        alphabet=[document.text for document in parts.validation.documents],
    )
    ids = {}
    for part, data in zip(PARTS, (parts.train, parts.validation), strict=True):
        run = [tokenizer.specials[END]] if borders else []
        for document in data.documents:
            run += tokenizer.encode(document.text).tolist() + ([tokenizer.specials[END]] if borders else [])
        ids[part] = np.array(run)
    return tokenizer, ids


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
