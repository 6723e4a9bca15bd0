import copy
import doctest
import json
import random
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.kernels import loader
from tokenloom.tokenizers import bpe, bpe_reference
from tokenloom.tokenizers.bpe import escape, unescape
from tokenloom.tokenizers.bpe_reference import Pair, Ties
from tokenloom.tokenizers.pretokenize import CLASSES, SCRIPTED, SPACED, chunk_blocks, count_chunks
from tokenloom.tokenizers.text import BPE, ByteBPE

TIES = pytest.mark.parametrize("ties", ["first", "id"])
ALPHABETS = ["a", "ab", "ab ", "abc \n", "aé あ😀\u0301", "xy\x1c\x1f\x85\u2028 \x00\r"]


def random_text(seed: int) -> str:
    """Text with repeated parts, over one of several alphabets, so that many merges can be learned."""
    generator = random.Random(seed)
    alphabet = ALPHABETS[seed % len(ALPHABETS)]
    parts = ["".join(generator.choices(alphabet, k=generator.randint(1, 6))) for _ in range(4)]
    return "".join(generator.choice(parts) for _ in range(generator.randint(1, 40)))


def reference(chunks: Iterable[str], alphabet: Sequence[str], num_merges: int, ties: Ties) -> list[Pair]:
    """Every chunk of a text in order, each counted once."""
    return bpe_reference.train([(chunk, 1) for chunk in chunks], alphabet, num_merges, ties)


def reference_ids(tokenizer: BPE | ByteBPE, chunks: Iterable[str], alphabet: Sequence[str]) -> list[int]:
    ids = {char: i for i, char in enumerate(alphabet)}
    ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
    return [id for chunk in chunks for id in bpe_reference.encode(chunk, ids, ranks)]


@TIES
def test_training_and_encoding_agree_with_the_reference(ties: Ties) -> None:
    for seed in range(360):
        text = random_text(seed)
        alphabet, num_merges = sorted(set(text)), [3, 10, 10_000][seed // 6 % 3]
        tokenizer = BPE.train(text, num_merges=num_merges, ties=ties)
        assert tokenizer.merges == reference(SPACED.findall(text), alphabet, num_merges, ties), (seed, text)
        for other in (text, "".join(random.Random(seed).choices(alphabet, k=60))):
            ids = tokenizer.encode(other)
            assert ids.tolist() == reference_ids(tokenizer, SPACED.findall(other), alphabet), (seed, other)
            assert tokenizer.decode(ids) == other


@TIES
def test_byte_level_agrees_with_the_reference(ties: Ties) -> None:
    alphabet = [chr(byte) for byte in range(256)]
    for seed in range(120):
        text = random_text(seed)
        chunks = [chunk.encode().decode("latin-1") for chunk in SCRIPTED.findall(text)]
        tokenizer = ByteBPE.train(text, 10_256, ties=ties)
        assert tokenizer.merges == reference(chunks, alphabet, 10_000, ties), (seed, text)
        ids = tokenizer.encode(text)
        assert ids.tolist() == reference_ids(tokenizer, chunks, alphabet)
        assert tokenizer.decode(ids) == text


def test_merging_in_the_order_of_training_gives_the_same_tokens() -> None:
    """Encoding by rank within a chunk equals applying each merge to the whole text."""
    for seed in range(60):
        text = random_text(seed)
        tokenizer = BPE.train(text, num_merges=20)
        alphabet = sorted(set(text))
        tokens = [alphabet.index(char) for char in text]
        for rank, pair in enumerate(tokenizer.merges):
            tokens = bpe_reference.merge(tokens, pair, len(alphabet) + rank)
        assert tokenizer.encode(text).tolist() == tokens


def test_the_examples_of_the_reference() -> None:
    assert doctest.testmod(bpe_reference).failed == 0


def test_long_chunks_are_trained_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_chunks(SPACED, [random_text(seed) for seed in range(60)])
    alphabet = sorted(set().union(*counts))
    by_library = bpe.train_merges(counts, alphabet, 500, "id")
    monkeypatch.setattr(bpe, "LONGEST_CHUNK", 0)
    assert bpe.train_merges(counts, alphabet, 500, "id") == by_library


def test_a_long_text_without_spaces_takes_seconds() -> None:
    text = "".join(random.Random(0).choices("abcdefgh", k=100_000))
    started = time.process_time()
    for tokenizer in (BPE.train(text, num_merges=200), ByteBPE.train("a" * 500_000, 300)):
        assert len(tokenizer.merges) > 4
    assert time.process_time() - started < 20


FIRST_24 = [" t", "he", "ou", " a", " the", " s", " w", "re", "ha", "in", " m", " b"]
FIRST_24 += ["nd", "it", "on", "er", " y", "or", "ll", "es", "is", "en", " c", " f"]
LAST_12 = ["es,", "\nTo", "\nBR", "\nBRU", "\nBRUTUS:", " hear", " r", " de", " se", "ak", "\nWe", " con"]


def chapter(text: str, merges: int, ties: Ties = "first") -> BPE:
    return BPE.train(text[:100_000], num_merges=merges, ties=ties, alphabet=text)


def test_reference_2_2_the_merges(tinyshakespeare: str) -> None:
    tokenizer = chapter(tinyshakespeare, 200)
    made = [tokenizer.decode([65 + i]) for i in range(200)]
    assert made[:24] == FIRST_24
    assert made[-12:] == LAST_12
    assert (tokenizer.vocab_size, tokenizer.notes) == (265, [])
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
    tokenizer = BPE.train(tinyshakespeare, num_merges=1000)
    ids = tokenizer.encode(tinyshakespeare)
    assert time.process_time() - started < 10
    assert len(tokenizer.merges) == 1000
    assert tokenizer.decode(ids) == tinyshakespeare


def test_overlapping_repeats() -> None:
    """By hand: (a, a) stands 8 times; aa aa aa aa a has (aa, aa) 3 times; aaaa aaaa a has no pair twice."""
    tokenizer = BPE.train("aaaaaaaaa", vocab_size=5000)
    assert tokenizer.merges == [(0, 0), (1, 1)]
    assert tokenizer.encode("aaaaaaaaa").tolist() == [2, 2, 0]
    assert tokenizer.encode("aaaaaaa").tolist() == [2, 1, 0]
    assert tokenizer.notes == ["Merging ended after 2 of 4,999 merges: no pair of tokens occurs twice any more."]


def test_a_small_text_and_a_large_vocabulary() -> None:
    text = ("The quick brown fox jumps over the lazy dog, and the dog sleeps. " * 2)[:100]
    for tokenizer in (
        BPE.train(text, vocab_size=5000),
        ByteBPE.train(text, 5000),
        ByteBPE.train(text, 5000, ties="first"),
    ):
        assert 0 < len(tokenizer.merges) < 100
        (note,) = tokenizer.notes
        assert f"after {len(tokenizer.merges)} of " in note
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_alphabet_and_unseen_characters() -> None:
    tokenizer = BPE.train("abab", num_merges=1, alphabet="xyz")
    assert tokenizer.encode("xaby").tolist() == [2, 5, 3]
    assert tokenizer.unseen("qabréqr") == ["q", "r", "é"]
    with pytest.raises(UserError, match=r"no token for 3 characters: 'q' \(U\+0071\), 'r' \(U\+0072\), 'é'"):
        tokenizer.encode("ab" + "qré" * 9)
    with pytest.raises(UserError, match="1 character: 'q'"):
        tokenizer.encode("abq")
    assert tokenizer.encode("ab").tolist() == [5]


def test_unknown_characters_become_one_token_each() -> None:
    tokenizer = BPE.train("abab ab", num_merges=1, specials=("end",), unknown=True)
    assert tokenizer.specials == {"end": 4, "unknown": 5}
    ids = tokenizer.encode("qabqq ab")
    assert ids.tolist() == [5, 3, 5, 5, 0, 3]
    assert tokenizer.decode(ids) == "ab ab"
    assert tokenizer.decode(ids, specials=True) == "<|unknown|>ab<|unknown|><|unknown|> ab"


def test_the_limits_of_size_and_merges() -> None:
    with pytest.raises(UserError, match="a vocabulary of 2 is less than the 3 characters"):
        BPE.train("abc", vocab_size=2)
    with pytest.raises(UserError, match="a vocabulary of 255 is less than the 256 bytes"):
        ByteBPE.train("abc", 255)
    with pytest.raises(UserError, match="num_merges -1 is negative"):
        BPE.train("abc", num_merges=-1)
    for merges, size in ((None, None), (9, 9)):
        with pytest.raises(ValueError, match="either num_merges or vocab_size"):
            BPE.train("abc", num_merges=merges, vocab_size=size)
    with pytest.raises(ValueError, match="ties must be"):
        BPE.train("abcabc", num_merges=1, ties="last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the same text"):
        BPE("ab", [(0, 1), (0, 1)])
    assert BPE.train("abab", num_merges=0).encode("abab").tolist() == [0, 1, 0, 1]
    assert BPE.train("abab", vocab_size=3).merges == [(0, 1)]


def test_no_chunk_crosses_texts() -> None:
    assert BPE.train(["ab", "ab"], num_merges=9).merges == [(0, 1)]
    assert BPE.train(["a", "b", "a", "b"], num_merges=9).merges == []


@pytest.mark.parametrize("block", [1, 5, 64])
def test_encoding_in_blocks_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(random_text(seed) for seed in range(2, 60, 6))
    tokenizers = [BPE.train(text, num_merges=50), ByteBPE.train(text, 300)]
    whole = [tokenizer.encode(text) for tokenizer in tokenizers]
    monkeypatch.setattr(bpe, "chunk_blocks", lambda pattern, text: chunk_blocks(pattern, text, block))
    with loader.disabled():
        for tokenizer, ids in zip(tokenizers, whole, strict=True):
            np.testing.assert_array_equal(tokenizer.encode(text), ids)


def test_the_cache_of_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f" {number}" for number in range(50)]
    tokenizer = BPE.train("".join(words), num_merges=5)
    expected = [tokenizer.encode(word).tolist() for word in words]
    monkeypatch.setattr(bpe, "CACHED_CHUNKS", 8)
    with loader.disabled():
        for _ in range(2):
            for word, ids in zip(words, expected, strict=True):
                assert tokenizer.encode(word).tolist() == ids
        assert tokenizer._encode_chunk.cache_info().currsize <= 8  # type: ignore[union-attr]


def test_escapes_are_exact() -> None:
    for data in (b"\\", b"\\x41", b"\xe3\x81", b"\xe3\x81\x82 ok", bytes(range(256)), b"\\\\\xff\\"):
        assert unescape(escape(data)) == data
    assert escape("あ\\".encode() + b"\xe3") == "あ\\\\\\xe3"
    generator = random.Random(0)
    for _ in range(300):
        data = bytes(generator.choices(b"\\x4a\xe3\x81\x82\xff", k=8))
        assert unescape(escape(data)) == data


@TIES
def test_ids_depend_on_nothing_but_the_text(ties: Ties) -> None:
    text = random_text(3) * 3
    assert BPE.train(text, num_merges=30, ties=ties).to_json() == BPE.train([text], num_merges=30, ties=ties).to_json()
    assert json.dumps(ByteBPE.train(text, 300, ties=ties).to_json()).isascii()


# Compiled encoding against encoding without it.
NATIVE = pytest.mark.skipif(
    bool(loader.unavailable_reason("bpe")), reason=f"no compiled code: {loader.unavailable_reason('bpe')}"
)

# A few of every class and length in UTF-8, joiners and odd spaces among them.
MIXED = "aaaabcdeeeé'’ \n\t\u00a0\u3000\u2029.,:-01239ßжщ漢字한\u200d\ufe0f\u0301🙂👩𝒳\U000e0041\x00\x1c\x85\uffff"


def some_text(seed: int, length: int) -> str:
    """Characters in runs of one or several, so that long chunks and merges come about."""
    chance = random.Random(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        word = "".join(chance.choices(MIXED, k=chance.randint(1, 6)))
        parts.append(word * chance.choice([1, 1, 1, 2, 9, 40]))
    return "".join(parts)[:length]


def plain(tokenizer: BPE | ByteBPE, text: str) -> list[int]:
    with loader.disabled():
        return copy.deepcopy(tokenizer).encode(text).tolist()


def trained(kind: str, **more: object) -> BPE | ByteBPE:
    text = some_text(0, 3000)
    return BPE.train(text, num_merges=80, **more) if kind == "bpe" else ByteBPE.train(text, 340)  # type: ignore[arg-type]


@NATIVE
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_the_same_ids(kind: str) -> None:
    tokenizer = trained(kind)
    assert len(tokenizer.merges) > 50
    for seed in range(40):
        text = some_text(seed, random.Random(seed).choice([0, 1, 2, 50, 3000]))
        ids = tokenizer.encode(text)
        assert tokenizer._native is not None
        assert ids.dtype == np.int32
        assert ids.tolist() == plain(tokenizer, text)
        assert tokenizer.decode(ids) == text


@NATIVE
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
@pytest.mark.parametrize("block", [1, 7, 100])
def test_a_text_is_read_in_blocks(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "BLOCK", block)
    tokenizer = trained(kind)
    for seed in range(10):
        text = some_text(seed, 400)
        assert tokenizer.encode(text).tolist() == plain(tokenizer, text)


@NATIVE
def test_long_chunks_and_runs_of_one_character() -> None:
    tokenizer = BPE.train("aa aaaa ab abab b", num_merges=6)
    for text in ("a" * 1001, "ab" * 5000, "a" * 64 + " " + "a" * 65, "aab" * 300 + " b" * 300):
        assert tokenizer.encode(text).tolist() == plain(tokenizer, text)


@NATIVE
def test_unknown_characters() -> None:
    knows = trained("bpe", unknown=True)
    for text in ("zebra", "a zz b\U0010ffff", "z", "aaQaa"):
        assert knows.encode(text).tolist() == plain(knows, text)
    strict = trained("bpe")
    with pytest.raises(UserError, match="'z'"):
        strict.encode("a zebra")
    with pytest.raises(UserError, match="surrogate"):
        strict.encode("a\ud800")
    assert strict.encode("aé").tolist() == plain(strict, "aé"), "and it goes on after that"


@NATIVE
def test_more_chunks_than_are_remembered() -> None:
    tokenizer = BPE.train("12 12 34 0123456789", num_merges=2)
    text = " ".join(map(str, range(270_000)))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[-1000:].tolist() == plain(tokenizer, text[-8000:])[-1000:]


def test_classes_are_those_of_the_regular_expressions() -> None:
    table = bpe.character_classes()
    everything = np.arange(0x110000, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for number, characters in enumerate(CLASSES, start=1):
        inside = sum(end - start for start, end in (m.span() for m in re.finditer(f"[{characters}]+", everything)))
        assert inside == np.count_nonzero(table == number)
        assert all(table[m.start() : m.end()].min() == number for m in re.finditer(f"[{characters}]+", everything))


@NATIVE
def test_several_threads_share_one_tokenizer() -> None:
    tokenizer = trained("byte-bpe")
    texts = [some_text(seed, 2000) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tokenizer.encode, texts))
    assert [ids.tolist() for ids in found] == [plain(tokenizer, text) for text in texts]


@NATIVE
def test_a_copy_has_an_encoder_of_its_own() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("aab").tolist()
    other = copy.deepcopy(tokenizer)
    del tokenizer
    assert other.encode("aab").tolist() == ids
