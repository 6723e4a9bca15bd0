import json
import random
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import AnyStr, Literal

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.tokenizers import bpe, bpe_training
from tokenloom.tokenizers.bpe import escaped, unescaped
from tokenloom.tokenizers.bpe_training import MergeCounter, train_merges
from tokenloom.tokenizers.pretokenize import SCRIPTED, SPACED, chunk_blocks, count_chunks
from tokenloom.tokenizers.text import BPE, ByteBPE

Ties = Literal["first", "id"]
TIES = pytest.mark.parametrize("ties", ["first", "id"])
ALPHABETS = ["a", "ab", "ab ", "abc \n", "aé あ😀\u0301", "xy\x1c\x1f\x85\u2028 \x00\r"]


def random_text(seed: int) -> str:
    """Text with repeated parts, over one of several alphabets, so that many merges can be learned."""
    generator = random.Random(seed)
    alphabet = ALPHABETS[seed % len(ALPHABETS)]
    parts = ["".join(generator.choices(alphabet, k=generator.randint(1, 6))) for _ in range(4)]
    return "".join(generator.choice(parts) for _ in range(generator.randint(1, 40)))


def merged(tokens: list[AnyStr], pair: tuple[AnyStr, AnyStr]) -> list[AnyStr]:
    result, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            result.append(tokens[i] + tokens[i + 1])
            i += 2
        else:
            result.append(tokens[i])
            i += 1
    return result


def plain_train(rows: list[list[AnyStr]], merges: int, ties: Ties) -> list[tuple[AnyStr, AnyStr]]:
    """The rule of reference 2.2 to the letter, on rows of single tokens, counting everything again each time.

    A row of characters is a whole text, and no pair is merged whose second token starts with whitespace.
    """
    done: list[tuple[AnyStr, AnyStr]] = []
    ids = {letter: i for i, letter in enumerate(sorted({letter for row in rows for letter in row}))}
    while len(done) < merges:
        counts: dict[tuple[AnyStr, AnyStr], int] = {}
        for pair in (pair for row in rows for pair in pairwise(row)):
            if isinstance(pair[1], bytes) or not pair[1][0].isspace():
                counts[pair] = counts.get(pair, 0) + 1
        most = max(counts.values(), default=0)
        if most < 2:
            break
        tied = [pair for pair in counts if counts[pair] == most]
        best = tied[0] if ties == "first" else min(tied, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        rows = [merged(row, best) for row in rows]
        ids[best[0] + best[1]] = len(ids)
        done.append(best)
    return done


def plain_encode(tokens: list[AnyStr], merges: list[tuple[AnyStr, AnyStr]]) -> list[AnyStr]:
    for pair in merges:
        tokens = merged(tokens, pair)
    return tokens


def byte_rows(text: str) -> list[list[bytes]]:
    return [[bytes([byte]) for byte in chunk.encode()] for chunk in SCRIPTED.findall(text)]


def pieces(tokenizer: BPE | ByteBPE, ids: Iterable[int]) -> list[bytes]:
    return [tokenizer._table[id] for id in ids]


@TIES
def test_training_and_encoding_agree_with_the_plain_rule(ties: Ties) -> None:
    for seed in range(360):
        text = random_text(seed)
        merges = [3, 10, 10_000][seed // 6 % 3]
        expected = plain_train([list(text)], merges, ties)
        tokenizer = BPE.train(text, merges=merges, ties=ties)
        learned = [(tokenizer.decode([a]), tokenizer.decode([b])) for a, b in tokenizer.merges]
        assert learned == expected, (seed, text)
        assert tokenizer.merges_done == len(expected)
        for other in (text, "".join(random.Random(seed).choices(sorted(set(text)), k=60))):
            ids = tokenizer.encode(other)
            assert [tokenizer.decode([id]) for id in ids] == plain_encode(list(other), expected), (seed, other)
            assert tokenizer.decode(ids) == other


@TIES
def test_byte_level_agrees_with_the_plain_rule(ties: Ties) -> None:
    for seed in range(120):
        text = random_text(seed)
        expected = plain_train(byte_rows(text), 10_000, ties)
        tokenizer = ByteBPE.train(text, 10_256, ties=ties)
        learned = [tuple(pieces(tokenizer, pair)) for pair in tokenizer.merges]
        assert learned == expected, (seed, text)
        encoded = [token for row in byte_rows(text) for token in plain_encode(row, expected)]
        assert pieces(tokenizer, tokenizer.encode(text)) == encoded
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_own_trainer_and_the_package_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        counts = count_chunks(SPACED, [random_text(seed), random_text(seed + 1000)])
        alphabet = sorted(set().union(*counts))
        by_package = train_merges(counts, alphabet, 500, "id")
        assert MergeCounter(counts, alphabet, 500, "id").merges(500) == by_package
        with monkeypatch.context() as patch:
            patch.setattr(bpe_training, "LONGEST_CHUNK", 0)
            assert train_merges(counts, alphabet, 500, "id") == by_package


def test_a_long_text_without_spaces_takes_seconds() -> None:
    text = "".join(random.Random(0).choices("abcdefgh", k=200_000))
    started = time.process_time()
    for tokenizer in (BPE.train(text, merges=200, ties="id"), ByteBPE.train("a" * 500_000, 300)):
        assert tokenizer.merges_done > 4
    assert time.process_time() - started < 20


FIRST_24 = [" t", "he", "ou", " a", " the", " s", " w", "re", "ha", "in", " m", " b"]
FIRST_24 += ["nd", "it", "on", "er", " y", "or", "ll", "es", "is", "en", " c", " f"]
LAST_12 = ["es,", "\nTo", "\nBR", "\nBRU", "\nBRUTUS:", " hear", " r", " de", " se", "ak", "\nWe", " con"]


def chapter(text: str, merges: int, ties: Ties = "first") -> BPE:
    return BPE.train(text[:100_000], merges=merges, ties=ties, alphabet=text)


def test_reference_2_2_the_merges(tinyshakespeare: str) -> None:
    tokenizer = chapter(tinyshakespeare, 200)
    made = [tokenizer.decode([65 + i]) for i in range(200)]
    assert made[:24] == FIRST_24
    assert made[-12:] == LAST_12
    assert (tokenizer.vocab_size, tokenizer.merges_done, tokenizer.notes) == (265, 200, [])
    by_id = chapter(tinyshakespeare, 200, "id")
    assert {by_id.decode([65 + i]) for i in range(24)} == set(FIRST_24)


def test_reference_2_3_characters_a_token(tinyshakespeare: str) -> None:
    tail = tinyshakespeare[-20_000:]
    figures = [round(20_000 / len(chapter(tinyshakespeare, merges).encode(tail)), 2) for merges in (0, 50, 100, 200)]
    assert figures == [1.00, 1.37, 1.57, 1.76]
    assert round(20_000 / len(chapter(tinyshakespeare, 200, "id").encode(tail)), 2) == 1.77


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "The transformer tokenizes unfamiliar words.",
            "T he ␣t r an s f or m er ␣to k en i z es ␣ un f a m i l i ar ␣wor d s .",
        ),
        (
            "First Citizen: we are accounted poor citizens.",
            "F irst ␣C itizen : ␣we ␣are ␣a c c ou n t ed ␣p o or ␣c itizen s .",
        ),
    ],
    ids=["2.4", "2.4b"],
)
def test_reference_2_4_unseen_words(tinyshakespeare: str, text: str, tokens: str) -> None:
    tokenizer = chapter(tinyshakespeare, 200)
    assert " ".join(map(tokenizer.token_text, tokenizer.encode(text))) == tokens


def test_a_megabyte_trains_and_encodes_in_seconds(tinyshakespeare: str) -> None:
    started = time.process_time()
    tokenizer = BPE.train(tinyshakespeare, merges=1000)
    ids = tokenizer.encode(tinyshakespeare)
    assert time.process_time() - started < 10
    assert tokenizer.merges_done == 1000
    assert tokenizer.decode(ids) == tinyshakespeare


def test_overlapping_repeats() -> None:
    """By hand: (a, a) stands 8 times; aa aa aa aa a has (aa, aa) 3 times; aaaa aaaa a has no pair twice."""
    tokenizer = BPE.train("aaaaaaaaa", size=5000)
    assert tokenizer.merges == [(0, 0), (1, 1)]
    assert tokenizer.encode("aaaaaaaaa").tolist() == [2, 2, 0]
    assert tokenizer.encode("aaaaaaa").tolist() == [2, 1, 0]
    assert tokenizer.notes == ["Merging ended after 2 of 4,999 merges: no pair of tokens occurs twice any more."]


def test_a_small_text_and_a_large_vocabulary() -> None:
    text = ("The quick brown fox jumps over the lazy dog, and the dog sleeps. " * 2)[:100]
    for tokenizer in (BPE.train(text, size=5000), ByteBPE.train(text, 5000), ByteBPE.train(text, 5000, ties="first")):
        assert 0 < tokenizer.merges_done < 100
        (note,) = tokenizer.notes
        assert f"after {tokenizer.merges_done} of " in note
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_alphabet_and_unseen_characters() -> None:
    tokenizer = BPE.train("abab", merges=1, alphabet="xyz")
    assert tokenizer.encode("xaby").tolist() == [2, 5, 3]
    assert tokenizer.unseen("qabréqr") == ["q", "r", "é"]
    with pytest.raises(UserError, match=r"no token for 3 characters: 'q' \(U\+0071\), 'r' \(U\+0072\), 'é'"):
        tokenizer.encode("ab" + "qré" * 9)
    with pytest.raises(UserError, match="1 character: 'q'"):
        tokenizer.encode("abq")
    assert tokenizer.encode("ab").tolist() == [5]


def test_unknown_characters_become_one_token_each() -> None:
    tokenizer = BPE.train("abab ab", merges=1, specials=("end",), unknown=True)
    assert tokenizer.specials == {"end": 4, "unknown": 5}
    ids = tokenizer.encode("qabqq ab")
    assert ids.tolist() == [5, 3, 5, 5, 0, 3]
    assert tokenizer.decode(ids) == "ab ab"
    assert tokenizer.decode(ids, specials=True) == "<|unknown|>ab<|unknown|><|unknown|> ab"


def test_the_limits_of_size_and_merges() -> None:
    with pytest.raises(UserError, match="a vocabulary of 2 is less than the 3 characters"):
        BPE.train("abc", size=2)
    with pytest.raises(UserError, match="a vocabulary of 255 is less than the 256 bytes"):
        ByteBPE.train("abc", 255)
    with pytest.raises(UserError, match="merges -1 is negative"):
        BPE.train("abc", merges=-1)
    for merges, size in ((None, None), (9, 9)):
        with pytest.raises(ValueError, match="either merges or size"):
            BPE.train("abc", merges=merges, size=size)
    with pytest.raises(ValueError, match="ties must be"):
        BPE.train("abcabc", merges=1, ties="last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the same text"):
        BPE("ab", [(0, 1), (0, 1)])
    assert BPE.train("abab", merges=0).encode("abab").tolist() == [0, 1, 0, 1]
    assert BPE.train("abab", size=3).merges == [(0, 1)]


def test_no_chunk_crosses_texts() -> None:
    assert BPE.train(["ab", "ab"], merges=9).merges == [(0, 1)]
    assert BPE.train(["a", "b", "a", "b"], merges=9).merges == []


@pytest.mark.parametrize("block", [1, 5, 64])
def test_encoding_in_blocks_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(random_text(seed) for seed in range(2, 60, 6))
    tokenizers = [BPE.train(text, merges=50), ByteBPE.train(text, 300)]
    whole = [tokenizer.encode(text) for tokenizer in tokenizers]
    monkeypatch.setattr(bpe, "chunk_blocks", lambda pattern, text: chunk_blocks(pattern, text, block))
    for tokenizer, ids in zip(tokenizers, whole, strict=True):
        np.testing.assert_array_equal(tokenizer.encode(text), ids)


def test_what_is_remembered_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f" {number}" for number in range(50)]
    tokenizer = BPE.train("".join(words), merges=5)
    expected = [tokenizer.encode(word).tolist() for word in words]
    monkeypatch.setattr(bpe, "MOST_CHUNKS", 8)
    for word, ids in zip(words, expected, strict=True):
        assert tokenizer.encode(word).tolist() == ids
    assert tokenizer.encode("".join(words)).tolist() == [id for ids in expected for id in ids]
    for word, ids in zip(words, expected, strict=True):
        assert tokenizer.encode(word).tolist() == ids
        assert len(tokenizer._known) <= 8


def test_escapes_are_exact() -> None:
    for data in (b"\\", b"\\x41", b"\xe3\x81", b"\xe3\x81\x82 ok", bytes(range(256)), b"\\\\\xff\\"):
        assert unescaped(escaped(data)) == data
    assert escaped("あ\\".encode() + b"\xe3") == "あ\\\\\\xe3"
    generator = random.Random(0)
    for _ in range(300):
        data = bytes(generator.choices(b"\\x4a\xe3\x81\x82\xff", k=8))
        assert unescaped(escaped(data)) == data


@TIES
def test_ids_depend_on_nothing_but_the_text(ties: Ties) -> None:
    text = random_text(3) * 3
    assert BPE.train(text, merges=30, ties=ties).to_json() == BPE.train([text], merges=30, ties=ties).to_json()
    assert json.dumps(ByteBPE.train(text, 300, ties=ties).to_json()).isascii()
