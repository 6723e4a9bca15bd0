"""Byte-pair encoding: speed of training and of encoding, on one core.

Training as in lab row 2.2: 200 merges on the first 100,000 characters. The whole text is encoded with an empty and with
a full cache. Plain Python (`tokenizers/bpe_reference.py`) encodes in two ways: chunk by chunk, and merge by merge over
the whole text; the second is so slow that only a part of the text is encoded.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks import data
from benchmarks.harness import Row, Runner, Setting, at_least, compare, rate, timed
from tokenloom.kernels import loader
from tokenloom.tokenizers import bpe_reference
from tokenloom.tokenizers.bpe import BPE
from tokenloom.tokenizers.pretokenize import SPACED

SAMPLE, SMALL, LARGE = 100_000, 200, 2000


def package_encoder(tokenizer: BPE) -> Any:
    """Return a tokenizer of the package `tokenizers` with the same merges and chunks."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE as Engine
    from tokenizers.pre_tokenizers import Split

    names = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    merges = [(names[a], names[b]) for a, b in tokenizer.merges]
    engine = Tokenizer(Engine(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    engine.pre_tokenizer = Split(Regex(SPACED.pattern), "isolated")
    return engine


def package_training(text: str, size: int, alphabet: list[str]) -> Any:
    """Train with the package `tokenizers`, on the whole text."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE as Engine
    from tokenizers.pre_tokenizers import Split
    from tokenizers.trainers import BpeTrainer

    engine = Tokenizer(Engine())
    engine.pre_tokenizer = Split(Regex(SPACED.pattern), "isolated")
    trainer = BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator([text], trainer)
    return engine


def measure(setting: Setting) -> list[Row]:
    text = data.text()
    sample, alphabet = text[:SAMPLE], sorted(set(text))
    chunks = SPACED.findall(sample)
    num_merges = 50 if setting.quick else SMALL

    def train() -> BPE:
        return BPE.train(sample, num_merges=num_merges, alphabet=alphabet)

    counts = Counter(chunks)
    assert train().merges == bpe_reference.train(counts.items(), alphabet, num_merges, "id"), "the merges differ"

    name = f"{num_merges} merges trained on {SAMPLE:,} characters"
    goal = at_least(50)
    ours = timed(train, 10)
    rows = [
        compare(
            name,
            ours,
            "plain Python",
            timed(lambda: bpe_reference.train([(c, 1) for c in chunks], alphabet, num_merges, "id")),
            setting,
            goal=goal,
        ),
        compare(
            name,
            ours,
            "plain Python over distinct chunks",
            timed(lambda: bpe_reference.train(counts.items(), alphabet, num_merges, "id")),
            setting,
        ),
    ]
    size = len(alphabet) + LARGE
    rows.append(
        compare(
            f"{LARGE:,} merges trained on {len(text):,} characters",
            timed(lambda: BPE.train(text, num_merges=LARGE, alphabet=alphabet)),
            "tokenizers",
            timed(lambda: package_training(text, size, alphabet)),
            setting,
        )
    )
    return (
        rows
        + encoding(setting, text, train())
        + encoding(setting, text, BPE.train(text, num_merges=LARGE), plain=False)
    )


def without_native_code(work: Runner) -> Runner:

    def run() -> float:
        with loader.disabled():
            return work()

    return run


def encoding(setting: Setting, text: str, tokenizer: BPE, *, plain: bool = True) -> list[Row]:
    """Return the rows on encoding with one vocabulary. plain: also against plain Python."""
    megabytes = len(text.encode()) / 1e6
    merges = tokenizer.merges
    characters = sorted(set(text))

    def encode_cold() -> Any:
        return BPE(characters, merges).encode(text)

    known = BPE(characters, merges)
    expected = encode_cold().tolist()
    engine = package_encoder(known)
    assert engine.encode(text).ids == expected, "tokenizers gives other ids"
    name = f"{megabytes:.2f} MB encoded, {len(merges):,} merges"
    cold, warm = timed(encode_cold), timed(lambda: known.encode(text))
    rows = []
    if plain:
        ids = {char: i for i, char in enumerate(characters)}
        ranks = {pair: rank for rank, pair in enumerate(merges)}

        def chunk_by_chunk(text: str) -> list[int]:
            return [i for chunk in SPACED.findall(text) for i in bpe_reference.encode(chunk, ids, ranks)]

        def merge_by_merge(text: str) -> list[int]:
            tokens = [ids[char] for char in text]
            for pair, rank in ranks.items():
                tokens = bpe_reference.merge(tokens, pair, len(ids) + rank)
            return tokens

        assert chunk_by_chunk(text) == expected, "plain Python gives other ids"
        goal = at_least(50)
        rows.append(
            compare(name, cold, "plain Python, chunk by chunk", timed(lambda: chunk_by_chunk(text)), setting, goal=goal)
        )
        sample = text[:SAMPLE]
        assert merge_by_merge(sample) == chunk_by_chunk(sample), "plain Python gives other ids"
        rows.append(
            compare(
                f"{SAMPLE:,} characters encoded, {len(merges):,} merges",
                timed(lambda: BPE(characters, merges).encode(sample), 10),
                "plain Python, merge by merge",
                timed(lambda: merge_by_merge(sample)),
                setting,
                goal=goal,
            )
        )
        with loader.disabled():
            assert encode_cold().tolist() == expected, "encoding without native code gives other ids"
        rows.append(
            compare(
                f"{name}, without native code",
                without_native_code(cold),
                "plain Python, chunk by chunk",
                timed(lambda: chunk_by_chunk(text)),
                setting,
            )
        )
    rows.append(compare(name, cold, "tokenizers", timed(lambda: engine.encode(text)), setting))
    rows.append(rate(f"{name}, empty cache", cold, megabytes, "MB/s", setting, goal=at_least(5)))
    rows.append(rate(f"{name}, full cache", warm, megabytes, "MB/s", setting))
    return rows
