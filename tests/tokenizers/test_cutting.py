"""Where the tokenizer says so, a text may be cut before it is encoded: the ids are those of the whole."""

import random
import re

import pytest
from traps import MARKERS, POEM

from tokenloom.tokenizers.base import TextTokenizer
from tokenloom.tokenizers.pretokenize import SCRIPTED, SPACED, WORDS, last_word_end, safe_split
from tokenloom.tokenizers.text import BPE, ByteBPE, CharTokenizer, WordTokenizer

ODD = " \n\t\r\x0b\x1c\x85\xa0\u2003\u2028\u3000aZé’'9_.-—☃\u200d\u200c\ufe0f\ufeff🌊水\U000e0020"
SAMPLE = (POEM + MARKERS + "It's 1234567 o'clock -- isn't it?\n\n  \tdef f(x):\n    return x ** 2\n" + ODD) * 3


def texts(count: int, seed: int = 0) -> list[str]:
    """Text in which every kind of character meets every other, long runs of one kind among it."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randrange(1, 30)):
            run = draw.choice([1, 1, 1, 2, 3, 33, 70])
            parts.append(draw.choice(ODD) * run if draw.random() < 0.5 else "".join(draw.choices(ODD, k=run)))
        found.append("".join(parts))
    return found


@pytest.mark.parametrize("rule", [SCRIPTED, SPACED, WORDS], ids=["scripted", "spaced", "words"])
def test_a_certain_border_is_one_whatever_follows(rule: re.Pattern[str]) -> None:
    pairs = list(zip(texts(1500), texts(1500, 1), strict=True))
    cut = 0
    for text, more in pairs:
        for place in {last_word_end(text), safe_split(rule, text)}:
            assert rule.findall(text[:place]) + rule.findall(text[place:] + more) == rule.findall(text + more)
            cut += place > 0
    assert cut > 1000


def tokenizers() -> dict[str, TextTokenizer]:
    return {
        "char": CharTokenizer.train([SAMPLE]),
        "word": WordTokenizer.train([SAMPLE], 50),
        "bpe": BPE.train([SAMPLE], vocab_size=150),
        "byte-bpe": ByteBPE.train([SAMPLE], 330),
    }


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "byte-bpe"])
def test_encoding_in_pieces_gives_the_ids_of_the_whole(kind: str) -> None:
    tokenizer = tokenizers()[kind]
    for text in [SAMPLE, *texts(150, 2)]:
        ids: list[int] = []
        rest = ""
        for start in range(0, len(text), 40):
            rest += text[start : start + 40]
            place = tokenizer.safe_split(rest)
            ids += tokenizer.encode(rest[:place]).tolist()
            rest = rest[place:]
        assert ids + tokenizer.encode(rest).tolist() == tokenizer.encode(text).tolist()


def test_a_border_is_looked_for_far_back_and_may_not_be_there() -> None:
    assert last_word_end("ab cd" + "e" * 100_000) == 2
    assert last_word_end("e" * 10_000) == 0
    assert safe_split(SPACED, "e" * 10_000) == 0, "all of it is one chunk, and may go on"
    assert safe_split(SCRIPTED, "e" * 320) == 32 * 8
