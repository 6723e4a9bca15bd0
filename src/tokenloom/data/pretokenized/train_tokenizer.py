"""A tokenizer for a text that is larger than memory: learned from a bounded sample of the training part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenloom.data.pretokenized.scan import CorpusSplit, Survey
from tokenloom.data.pretokenized.streaming import StreamedText
from tokenloom.data.split import TRAIN
from tokenloom.tokenizers.base import TextTokenizer
from tokenloom.tokenizers.text import AUTO_CHARACTERS, choose_tokenizer, suggested_vocab_size

SAMPLE = 1 << 24
STRETCH = 1 << 16


def train_tokenizer(
    kind: str, size: int | None, specials: Sequence[str], text: StreamedText, found: Survey, sides: CorpusSplit
) -> TextTokenizer:
    """The tokenizer that `choose_tokenizer` makes of the training part, of at most `SAMPLE` characters of it.

    Only which characters there are is taken from all of the text. A larger part is sampled in stretches of `STRETCH`
    characters at even distances; the size that suits it is still that for the whole part.
    """
    alphabet = "".join(sorted(found.alphabet))
    total = sides.characters(TRAIN, found)
    if total <= SAMPLE:
        return choose_tokenizer(list(_whole(text, sides)), kind, size, specials, [alphabet])
    if kind == "auto":
        kind = "char" if size is None and len(alphabet) <= AUTO_CHARACTERS else "byte-bpe"
    if kind == "char":
        tokenizer = choose_tokenizer([alphabet], kind, size, specials)
        tokenizer.reason = f"{tokenizer.vocab_size:,} ids, for all {len(alphabet):,} distinct characters of the text"
        return tokenizer
    if size is None and kind in ("bpe", "byte-bpe", "word"):
        size = suggested_vocab_size(found.bytes * total // found.characters) + (len(alphabet) if kind == "bpe" else 0)
    tokenizer = choose_tokenizer(_stretches(text, sides, total), kind, size, specials, [alphabet])
    tokenizer.reason = (
        f"{tokenizer.vocab_size:,} ids, learned from {SAMPLE:,} of the training part's {total:,} characters"
    )
    return tokenizer


def _anywhere(text: str) -> int:
    return len(text) - 1


def _whole(text: StreamedText, sides: CorpusSplit) -> Iterator[str]:
    parts: list[str] = []
    for side, piece in sides.pieces(text, _anywhere):
        if side == TRAIN:
            parts.append(piece.text)
            if piece.last:
                yield "".join(parts)
                parts.clear()


def _stretches(text: StreamedText, sides: CorpusSplit, total: int) -> Iterator[str]:
    period = STRETCH * total // SAMPLE
    position = 0
    for side, piece in sides.pieces(text, _anywhere):
        if side != TRAIN:
            continue
        here = 0
        while here < len(piece.text):
            within = (position + here) % period
            if within < STRETCH:
                yield piece.text[here : here + STRETCH - within]
                here += STRETCH - within
            else:
                here += period - within
        position += len(piece.text)
