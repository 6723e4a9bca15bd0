import random
import re
import sys

import pytest

from tokenloom.tokenizers.pretokenize import SCRIPTED, SPACED, WORDS, chunk_blocks, count_chunks

RULES = pytest.mark.parametrize("pattern", [SPACED, SCRIPTED, WORDS], ids=["spaced", "scripted", "words"])
EVERY_CHARACTER = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
MIXED = "ab  c7\t\n\r\n\u3000'’.,-Ωé\u0301ن\u200d\u200c👩🏽\ufe0f日本\x00\x1c\x1f\x85\u2028 "


def mixed_text(seed: int, length: int) -> str:
    return "".join(random.Random(seed).choices(MIXED, k=length))


@RULES
def test_chunks_are_a_partition_of_any_text(pattern: re.Pattern[str]) -> None:
    assert all(pattern.findall(char) == [char] for char in EVERY_CHARACTER)
    everything = "".join(EVERY_CHARACTER)
    assert "".join(pattern.findall(everything)) == everything
    for seed in range(100):
        text = mixed_text(seed, 200)
        assert "".join(pattern.findall(text)) == text


def plain_chunks(text: str) -> list[str]:
    """The rule of reference 2.2, said with str.isspace()."""
    chunks: list[str] = []
    start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and not text[end].isspace():
            end += 1
        chunks.append(text[start:end])
        start = end
    return chunks


def test_spaced_takes_all_that_python_calls_whitespace() -> None:
    everything = "".join(EVERY_CHARACTER)
    assert SPACED.findall(everything) == plain_chunks(everything)
    for seed in range(100):
        text = mixed_text(seed, 100)
        assert SPACED.findall(text) == plain_chunks(text)


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("The dog's 12345 bones.", ["The", " dog", "'s", " 123", "45", " bones", "."]),
        ("if x:\n\n    return 1\n", ["if", " x", ":", "\n\n   ", " return", " 1", "\n"]),
        ("a \r\n b", ["a", " \r\n", " b"]),
        ("καλημέρα, κόσμε;", ["καλημέρα", ",", " κόσμε", ";"]),
        ("橋の下を。水がゆく", ["橋の下を", "。", "水がゆく"]),
        ("مرحبا، كيف", ["مرحبا", "،", " كيف"]),
        ("हिन्दी में", ["हिन्दी", " में"]),
        ("cafe\u0301 می\u200cخواهم", ["cafe\u0301", " می\u200cخواهم"]),
        ("hi👩\u200d👩\u200d👧❤️ok", ["hi", "👩\u200d👩\u200d👧❤️", "ok"]),
        ("x" * 70, ["x" * 32, "x" * 32, "x" * 6]),
    ],
)
def test_scripted(text: str, chunks: list[str]) -> None:
    assert SCRIPTED.findall(text) == chunks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop,\n\n  now!!", ["Don't", " ", "stop", ",", "\n\n  ", "now", "!", "!"]),
        ("'tis 42nd", ["'", "tis", " ", "42nd"]),
        ("naïve naive\u0301 मैं", ["naïve", " ", "naive\u0301", " ", "मैं"]),
        ("👩\u200d👧🌊", ["👩\u200d👧", "🌊"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert WORDS.findall(text) == words


@RULES
def test_blocks_cut_no_chunk(pattern: re.Pattern[str]) -> None:
    for seed in range(60):
        text = mixed_text(seed, 300) + "a" * seed + " " * seed + "\n b"
        for block in (1, 2, 7, 40, 1000):
            blocks = list(chunk_blocks(pattern, text, block))
            assert [chunk for chunks in blocks for chunk in chunks] == pattern.findall(text)
    assert list(chunk_blocks(pattern, "")) == []


def test_counts_keep_the_order_of_first_appearance() -> None:
    counts = count_chunks(SPACED, ["b a b", "a b"])
    assert list(counts.items()) == [("b", 1), (" a", 1), (" b", 2), ("a", 1)]
