"""Encoding by compiled code against encoding without: the same ids for any text."""

import copy
import random
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.kernels import loader
from tokenloom.tokenizers import bpe_kernel as bpe_native
from tokenloom.tokenizers.bpe import BPE, ByteBPE
from tokenloom.tokenizers.pretokenize import CLASSES

pytestmark = pytest.mark.skipif(bool(loader.reason("bpe")), reason=f"no native code: {loader.reason('bpe')}")

# A few of every class and length in UTF-8, joiners and odd spaces among them.
LETTERS = "aaaabcdeeeé'’ \n\t\u00a0\u3000\u2029.,:-01239ßжщ漢字한\u200d\ufe0f\u0301🙂👩𝒳\U000e0041\x00\x1c\x85\uffff"


def some_text(seed: int, length: int) -> str:
    """Characters in runs of one or several, so that long chunks and merges come about."""
    chance = random.Random(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        word = "".join(chance.choices(LETTERS, k=chance.randint(1, 6)))
        parts.append(word * chance.choice([1, 1, 1, 2, 9, 40]))
    return "".join(parts)[:length]


def plain(tokenizer: BPE | ByteBPE, text: str) -> list[int]:
    with loader.disabled():
        return copy.deepcopy(tokenizer).encode(text).tolist()


def trained(kind: str, **more: object) -> BPE | ByteBPE:
    text = some_text(0, 3000)
    return BPE.train(text, merges=80, **more) if kind == "bpe" else ByteBPE.train(text, 340)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_the_same_ids(kind: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.merges_done > 50
    for seed in range(40):
        text = some_text(seed, random.Random(seed).choice([0, 1, 2, 50, 3000]))
        ids = tokenizer.encode(text)
        assert tokenizer._native is not None
        assert ids.dtype == np.int32
        assert ids.tolist() == plain(tokenizer, text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
@pytest.mark.parametrize("block", [1, 7, 100])
def test_a_text_is_read_in_blocks(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_native, "BLOCK", block)
    tokenizer = trained(kind)
    for seed in range(10):
        text = some_text(seed, 400)
        assert tokenizer.encode(text).tolist() == plain(tokenizer, text)


def test_long_chunks_and_runs_of_one_character() -> None:
    tokenizer = BPE.train("aa aaaa ab abab b", merges=6)
    for text in ("a" * 1001, "ab" * 5000, "a" * 64 + " " + "a" * 65, "aab" * 300 + " b" * 300):
        assert tokenizer.encode(text).tolist() == plain(tokenizer, text)


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


def test_more_chunks_than_are_remembered() -> None:
    tokenizer = BPE.train("12 12 34 0123456789", merges=2)
    text = " ".join(map(str, range(270_000)))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[-1000:].tolist() == plain(tokenizer, text[-8000:])[-1000:]


def test_classes_are_those_of_the_regular_expressions() -> None:
    table = bpe_native.classes()
    everything = np.arange(0x110000, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for number, characters in enumerate(CLASSES, start=1):
        inside = sum(end - start for start, end in (m.span() for m in re.finditer(f"[{characters}]+", everything)))
        assert inside == np.count_nonzero(table == number)
        assert all(table[m.start() : m.end()].min() == number for m in re.finditer(f"[{characters}]+", everything))


def test_several_threads_share_one_tokenizer() -> None:
    tokenizer = trained("byte-bpe")
    texts = [some_text(seed, 2000) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tokenizer.encode, texts))
    assert [ids.tolist() for ids in found] == [plain(tokenizer, text) for text in texts]


def test_a_copy_has_an_encoder_of_its_own() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("aab").tolist()
    other = copy.deepcopy(tokenizer)
    del tokenizer
    assert other.encode("aab").tolist() == ids
