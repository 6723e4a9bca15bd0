"""Byte-pair encoding: how fast it is learned and how fast a text is encoded, on one core.

Reference 2.2's rule: 200 merges learned on the first 100,000 characters. Encoding is of the whole text, by a tokenizer
with an empty cache and by one with a full cache. Plain Python (`tokenizers/bpe_reference.py`) encodes in two ways:
chunk by chunk, and merge after merge over the whole text, which is so slow that both sides get a part of the text.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks import texts
from benchmarks.harness import Row, Runner, Setting, at_least, compare, rate, timed
from tokenloom.kernels import loader
from tokenloom.tokenizers import bpe_reference
from tokenloom.tokenizers.bpe import BPE
from tokenloom.tokenizers.pretokenize import SPACED

SAMPLE, FEW, MANY = 100_000, 200, 2000


def package_encoder(tokenizer: BPE) -> Any:
    """`tokenizers` alone with the same merges and chunks."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE as Engine
    from tokenizers.pre_tokenizers import Split

    names = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    merges = [(names[a], names[b]) for a, b in tokenizer.merges]
    engine = Tokenizer(Engine(vocab_size={name: i for i, name in enumerate(names)}, merges=merges))
    engine.pre_tokenizer = Split(Regex(SPACED.pattern), "isolated")
    return engine


def package_training(text: str, size: int, alphabet: list[str]) -> Any:
    """`tokenizers` learning by itself, the whole text at once."""
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
    text = texts.text()
    sample, alphabet = text[:SAMPLE], sorted(set(text))
    chunks = SPACED.findall(sample)
    few = 50 if setting.quick else FEW

    def learn() -> BPE:
        return BPE.train(sample, num_merges=few, alphabet=alphabet)

    counts = Counter(chunks)
    assert learn().merges == bpe_reference.train(counts.items(), alphabet, few, "id"), "the two learn different merges"

    what = f"{few} merges learned on {SAMPLE:,} characters"
    goal = at_least(50)
    ours = timed(learn, 10)
    rows = [
        compare(
            what,
            ours,
            "plain Python",
            timed(lambda: bpe_reference.train([(c, 1) for c in chunks], alphabet, few, "id")),
            setting,
            goal=goal,
        ),
        compare(
            what,
            ours,
            "plain Python over distinct chunks",
            timed(lambda: bpe_reference.train(counts.items(), alphabet, few, "id")),
            setting,
        ),
    ]
    size = len(alphabet) + MANY
    rows.append(
        compare(
            f"{MANY:,} merges learned on {len(text):,} characters",
            timed(lambda: BPE.train(text, num_merges=MANY, alphabet=alphabet)),
            "tokenizers alone",
            timed(lambda: package_training(text, size, alphabet)),
            setting,
        )
    )
    return (
        rows + encoding(setting, text, learn()) + encoding(setting, text, BPE.train(text, num_merges=MANY), plain=False)
    )


def plainly(work: Runner) -> Runner:
    """The same work without native code."""

    def run() -> float:
        with loader.disabled():
            return work()

    return run


def encoding(setting: Setting, text: str, tokenizer: BPE, *, plain: bool = True) -> list[Row]:
    """The rows on encoding with one vocabulary. plain: also against plain Python."""
    megabytes = len(text.encode()) / 1e6
    content = tokenizer.merges
    characters = sorted(set(text))

    def fresh() -> Any:
        return BPE(characters, content).encode(text)

    known = BPE(characters, content)
    expected = fresh().tolist()
    engine = package_encoder(known)
    assert engine.encode(text).ids == expected, "tokenizers gives other ids"
    what = f"{megabytes:.2f} MB encoded, {len(content):,} merges"
    cold, warm = timed(fresh), timed(lambda: known.encode(text))
    rows = []
    if plain:
        ids = {char: i for i, char in enumerate(characters)}
        ranks = {pair: rank for rank, pair in enumerate(content)}

        def chunk_by_chunk(text: str) -> list[int]:
            return [i for chunk in SPACED.findall(text) for i in bpe_reference.encode(chunk, ids, ranks)]

        def merge_after_merge(text: str) -> list[int]:
            tokens = [ids[char] for char in text]
            for pair, rank in ranks.items():
                tokens = bpe_reference.merge(tokens, pair, len(ids) + rank)
            return tokens

        assert chunk_by_chunk(text) == expected, "plain Python gives other ids"
        goal = at_least(50)
        rows.append(
            compare(what, cold, "plain Python, chunk by chunk", timed(lambda: chunk_by_chunk(text)), setting, goal=goal)
        )
        sample = text[:SAMPLE]
        assert merge_after_merge(sample) == chunk_by_chunk(sample), "plain Python gives other ids"
        rows.append(
            compare(
                f"{SAMPLE:,} characters encoded, {len(content):,} merges",
                timed(lambda: BPE(characters, content).encode(sample), 10),
                "plain Python, merge after merge",
                timed(lambda: merge_after_merge(sample)),
                setting,
                goal=goal,
            )
        )
        with loader.disabled():
            assert fresh().tolist() == expected, "encoding without native code gives other ids"
        rows.append(
            compare(
                f"{what}, without native code",
                plainly(cold),
                "plain Python, chunk by chunk",
                timed(lambda: chunk_by_chunk(text)),
                setting,
            )
        )
    rows.append(compare(what, cold, "tokenizers alone", timed(lambda: engine.encode(text)), setting))
    rows.append(rate(f"{what}, empty cache", cold, megabytes, "MB/s", setting, goal=at_least(5)))
    rows.append(rate(f"{what}, full cache", warm, megabytes, "MB/s", setting))
    return rows
