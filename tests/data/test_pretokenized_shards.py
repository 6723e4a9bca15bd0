"""Shards hold the ids that the text has, are refused when they were touched, and are read no further than needed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded import content, folder_of, in_memory, make, prose, rows_of

from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized import build as sharding
from tokenloom.data.pretokenized import streaming as streams
from tokenloom.data.pretokenized.build import tokenize
from tokenloom.data.pretokenized.shards import PretokenizedCorpus, ShardedIds, id_dtype, open_pretokenized, self_hash
from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.training.batches import Batches

SIZES = [400, 9000, 30, 2500, 1, 700, 5000, 60, 3000, 800, 20, 1500]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("text") / "docs", SIZES)


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PretokenizedCorpus:
    return make(folder, tmp_path_factory.mktemp("tokens") / "made", tokenizer="byte-bpe", vocab_size=300)


@pytest.fixture
def copy(made: PretokenizedCorpus, tmp_path: Path) -> Path:
    """A folder that may be damaged."""
    root = tmp_path / "copy"
    root.mkdir()
    for name, raw in content(made.folder).items():
        (root / name).write_bytes(raw)
    return root


# The ids.


@pytest.mark.parametrize("kind", ["auto", "char", "word", "bpe", "byte-bpe"])
@pytest.mark.parametrize("source", ["folder", "file", "rows"])
def test_the_ids_are_those_of_the_text_held_in_memory(
    kind: str, source: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_CHARACTERS", 500)
    monkeypatch.setattr(streams, "BLOCK", 333)
    path = folder
    if source == "file":
        path = tmp_path / "one.txt"
        path.write_text(prose(20_000), "utf-8")
    elif source == "rows":
        path = rows_of(tmp_path / "rows.jsonl", SIZES)
    vocab_size = {"word": 20, "bpe": 150, "byte-bpe": 400}.get(kind)
    tokenizer, ids = in_memory(path, kind, vocab_size)
    tokenized = make(path, tmp_path / "out", tokenizer=kind, vocab_size=vocab_size)
    assert tokenized.tokenizer().fingerprint() == tokenizer.fingerprint()
    assert len(tokenized.shards("training")) > 3
    for part, expected in ids.items():
        assert np.array_equal(tokenized.ids(part)[:], expected)
        assert tokenized.total(part, "tokens") == len(expected)
    assert tokenized.check() == sum(len(tokenized.shards(part)) for part in ids)
    assert len(tokenized.all_ids()) == sum(map(len, ids.values()))


def test_starts_say_where_documents_begin(made: PretokenizedCorpus) -> None:
    tokenizer, end = made.tokenizer(), made.tokenizer().specials["end"]
    assert made.separate_documents
    for part in ("training", "validation"):
        ids, starts = made.ids(part)[:], made.ids(part).starts()
        assert len(starts) == made.total(part, "documents")
        assert starts.tolist() == (np.flatnonzero(ids == end)[:-1] + 1).tolist()
    texts = {prose(size, number) for number, size in enumerate(SIZES)}
    stops = [*made.ids("training").starts()[1:].tolist(), len(made.ids("training"))]
    for start, stop in zip(made.ids("training").starts().tolist(), stops, strict=True):
        assert tokenizer.decode(made.ids("training")[start:stop]) in texts


def test_counts_are_those_of_the_text(made: PretokenizedCorpus, folder: Path) -> None:
    raw = [path.read_bytes() for path in folder.iterdir()]
    total = {what: sum(made.total(part, what) for part in ("training", "validation")) for what in COUNTS}
    assert total == {
        "documents": len(raw),
        "bytes": sum(map(len, raw)),
        "characters": sum(len(one.decode()) for one in raw),
        "lines": sum(one.count(b"\n") + (not one.endswith(b"\n")) for one in raw),
        "unknown": 0,
    }


COUNTS = ("documents", "bytes", "characters", "lines", "unknown")


def test_more_ids_than_two_bytes_hold_are_stored_wider(tmp_path: Path) -> None:
    assert (id_dtype(256), id_dtype(65_536), id_dtype(65_537)) == ("<u2", "<u2", "<u4")
    every = [chr(code) for code in range(0x4E00, 0x4E00 + 70_000) if not 0xD800 <= code < 0xE000]
    path = tmp_path / "wide.txt"
    path.write_text(" ".join(reversed(every)), "utf-8")
    tokenized = make(path, tmp_path / "out", tokenizer="char", shard_bytes=100_000)
    assert tokenized.content["dtype"] == "<u4"
    tokenizer, ids = in_memory(path, "char")
    assert tokenizer.vocab_size > 1 << 16
    assert np.array_equal(tokenized.ids("training")[:], ids["training"])
    assert int(tokenized.ids("training")[:].max()) > 65_535
    assert TextWindows(tokenized.ids("training"), 8).take(np.array([0])).tolist() == [ids["training"][:9].tolist()]


def test_a_large_part_is_sampled_for_its_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "SAMPLE_CHARACTERS", 4000)
    monkeypatch.setattr(sharding, "STRETCH_CHARACTERS", 100)
    seen: list[str] = []
    real = sharding.choose_tokenizer

    def choose(texts: Any, *more: Any) -> Any:
        seen.extend(texts)
        return real(seen, *more)

    monkeypatch.setattr(sharding, "choose_tokenizer", choose)
    tokenized = make(folder, tmp_path / "sampled", tokenizer="byte-bpe", vocab_size=300)
    assert 3900 <= sum(map(len, seen)) <= 4100
    assert max(map(len, seen)) == 100
    whole = "".join(path.read_text("utf-8") for path in sorted(folder.iterdir()))
    assert all(text in whole for text in seen if len(text) < 100 or text)
    assert "trained on 4,000 of" in tokenized.content["tokenizer"]["reason"]
    characters = make(folder, tmp_path / "characters")
    assert characters.content["tokenizer"]["kind"] == "char"
    assert set(characters.tokenizer().to_json()["characters"]) == set(whole)
    asked = make(folder, tmp_path / "bpe", tokenizer="bpe")
    assert set(asked.tokenizer().to_json()["characters"]) == set(whole)


def test_a_given_tokenizer_is_used(made: PretokenizedCorpus, folder: Path, tmp_path: Path) -> None:
    path = made.folder / "tokenizer.json"
    again = make(folder, tmp_path / "again", tokenizer=str(path))
    assert again.tokenizer().fingerprint() == made.tokenizer().fingerprint()
    assert np.array_equal(again.ids("training")[:], made.ids("training")[:])
    small = make(folder_of(tmp_path / "small", [300] * 6), tmp_path / "small-tokens", tokenizer="char")
    (tmp_path / "snow.txt").write_text("☃ is not known. " * 20)
    known = str(small.folder / "tokenizer.json")
    for what, match in (
        ({"tokenizer": known}, "has no token for"),
        ({"tokenizer": str(path), "vocab_size": 500}, "--vocab-size 500"),
        ({"tokenizer": str(path), "separate_documents": False}, "--no-separate-documents"),
        ({"tokenizer": "nothing.json"}, "nothing.json"),
        ({"tokenizer": "byte-pbe"}, "did you mean"),
        ({"tokenizer": "char", "vocab_size": 500}, "500"),
    ):
        with pytest.raises(UserError, match=match):
            make(tmp_path / "snow.txt", tmp_path / "refused", **what)
        assert not (tmp_path / "refused" / "manifest.json").exists()


# Samples over shards.


def test_windows_are_those_of_an_array(made: PretokenizedCorpus) -> None:
    ids = made.ids("training")
    array = ids[:]
    for context in (7, 64, 1500):
        sharded, plain = TextWindows(ids, context), TextWindows(array, context)
        assert len(sharded) == len(plain)
        for keys in (sharded.epoch(1, 2), sharded.all()):
            assert np.array_equal(sharded.take(keys), plain.take(keys))
        assert np.array_equal(sharded.epoch(1, 2), plain.epoch(1, 2))
    assert ids[np.array([[0, 5], [9, 2]])].shape == (2, 2)


class Watched:
    """A run of ids that notes which of them are read."""

    def __init__(self, ids: ShardedIds) -> None:
        self.ids = ids
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        self.read += np.ravel(index).tolist()
        return self.ids[index]

    def fingerprint(self) -> str:
        return self.ids.fingerprint()


def test_two_processes_read_disjoint_slices_of_each_global_batch(made: PretokenizedCorpus) -> None:
    """Each takes its share of a step's keys; together they read every window of an epoch once, and nothing else."""
    context = 16
    runs = [Watched(made.ids("training")) for _ in range(2)]
    batches = [
        Batches(TextWindows(run, context), lambda taken, moment: Batch({}, {}), batch_size=8, seed=3) for run in runs
    ]
    seen: list[list[int]] = [[], []]
    for step in range(batches[0].steps_per_epoch):
        keys = [batch.keys(step) for batch in batches]
        assert np.array_equal(*keys), "both know the whole batch without reading it"
        for rank in range(2):
            mine = np.array_split(keys[rank], 2)[rank]
            before = len(runs[rank].read)
            if len(mine):
                batches[rank].samples.take(mine)
            assert runs[rank].read[before:] == (mine[:, None] + np.arange(context + 1)).ravel().tolist()
            seen[rank] += mine.tolist()
    assert not set(seen[0]) & set(seen[1])
    assert len(seen[0]) + len(seen[1]) == len(set(seen[0] + seen[1])) == len(batches[0].samples)
    shards = np.array([shard.tokens for shard in made.shards("training")]).cumsum()
    first = np.searchsorted(shards, seen[0][:20], side="right")
    assert len(set(first.tolist())) > 2, "the order goes across shards"


def test_only_shards_that_are_asked_for_are_touched(copy: Path) -> None:
    tokenized = PretokenizedCorpus(copy, json.loads((copy / "manifest.json").read_text()))
    shards = tokenized.shards("training")
    for shard in shards[1:]:
        (copy / shard.file).unlink()
    ids = tokenized.ids("training")
    fingerprint = ids.fingerprint()
    TextWindows(ids, 16).epoch(0, 0)
    assert np.array_equal(ids[:5], ids[np.arange(5)])
    assert ids.fingerprint() == fingerprint
    with pytest.raises(UserError, match=shards[1].file):
        ids[np.array([shards[0].tokens])]


def test_the_fingerprint_is_that_of_the_content(made: PretokenizedCorpus, folder: Path, tmp_path: Path) -> None:
    ids = made.ids("training")
    assert TextWindows(ids, 8).fingerprint() == TextWindows(made.ids("training"), 8).fingerprint()
    assert TextWindows(ids, 8).fingerprint() != TextWindows(ids, 9).fingerprint()
    assert TextWindows(ids, 8).fingerprint() != TextWindows(made.ids("validation"), 8).fingerprint()
    (folder_of(tmp_path / "other", SIZES) / "003.txt").write_text("changed " * 300)
    other = make(tmp_path / "other", tmp_path / "out", tokenizer=str(made.folder / "tokenizer.json"))
    assert other.ids("training").fingerprint() != ids.fingerprint()


def test_many_shards_do_not_need_as_many_open_files(made: PretokenizedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenloom.data.pretokenized import shards

    monkeypatch.setattr(shards, "_MAX_OPEN", 2)
    ids = made.ids("training")
    assert len(ids.shards) > 3
    assert np.array_equal(ids[:], made.ids("training")[:])
    assert len(ids._maps) == 2


# Damage.


@pytest.mark.parametrize("name", ["training-00001.ids", "validation-00000.ids", "training-00000.starts"])
def test_a_cut_or_missing_file_is_refused_by_name_at_once(name: str, copy: Path) -> None:
    raw = (copy / name).read_bytes()
    (copy / name).write_bytes(raw[:-2])
    with pytest.raises(UserError, match=f"{name}: has .* bytes and should have") as refused:
        open_pretokenized(copy)
    assert "\n" not in str(refused.value)
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"{name}: cannot be read"):
        open_pretokenized(copy)


def test_an_altered_shard_is_refused_by_name_when_it_is_touched(copy: Path) -> None:
    path = copy / "training-00002.ids"
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    tokenized = open_pretokenized(copy)
    assert tokenized is not None
    windows = TextWindows(tokenized.ids("training"), 16)
    with pytest.raises(UserError, match=r"training-00002\.ids: altered"):
        windows.take(windows.epoch(0, 0))
    with pytest.raises(UserError, match=r"training-00002\.ids: altered"):
        tokenized.check()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda text: text[:300], "damaged"),
        (lambda text: text.replace('"tokens": ', '"tokens": 1', 1), "damaged"),
        (lambda text: text.replace('"separate_documents": true', '"separate_documents": false'), "SHA-256"),
        (lambda text: "", "damaged"),
        (lambda text: "[]", "damaged"),
    ],
)
def test_an_altered_manifest_is_refused(damage: Any, match: str, copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError, match=f"manifest.json: damaged.*{match}|manifest.json: {match}"):
        open_pretokenized(copy)


def test_another_format_or_tokenizer_is_refused(copy: Path, folder: Path, tmp_path: Path) -> None:
    path = copy / "manifest.json"
    data = json.loads(path.read_text())
    data["format"] = 2
    path.write_text(json.dumps({**data, "sha256": self_hash(data)}))
    with pytest.raises(UserError, match="format 2"):
        open_pretokenized(copy)
    data["format"] = 1
    path.write_text(json.dumps({**data, "sha256": self_hash(data)}))
    other = make(folder, tmp_path / "other", tokenizer="char")
    (copy / "tokenizer.json").write_bytes((other.folder / "tokenizer.json").read_bytes())
    tokenized = open_pretokenized(copy)
    assert tokenized is not None
    with pytest.raises(UserError, match="not the tokenizer that made these ids"):
        tokenized.tokenizer()


def test_other_folders_are_not_taken_for_tokens(folder: Path, tmp_path: Path) -> None:
    assert open_pretokenized(folder) is None
    assert open_pretokenized(folder / "001.txt") is None
    assert open_pretokenized(tmp_path / "nothing") is None
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert open_pretokenized(tmp_path) is None


def test_what_is_no_place_to_write_is_refused(made: PretokenizedCorpus, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out, match in (
        (tmp_path / "file", "is a file"),
        (folder, "contains no tokenized text"),
        (made.folder, "finished; --overwrite"),
        (tmp_path / "file" / "inside", "cannot be written"),
    ):
        with pytest.raises(UserError, match=match):
            make(folder, out)
    with pytest.raises(UserError, match="workers"):
        tokenize(folder, tmp_path / "none", workers=-1)
    with pytest.raises(UserError, match="no file"):
        make(tmp_path / "nothing.txt", tmp_path / "none")
    assert not (tmp_path / "none").exists(), "nothing is left of what never began"
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(UserError, match="too short to split"):
        make(tmp_path / "short.txt", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_overwriting_starts_anew(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = make(folder, out, shard_bytes=1000)
    again = tokenize(folder, out, TokenizationSettings(tokenizer="char", shard_bytes=9000), workers=1, overwrite=True)
    assert len(again.shards("training")) < len(first.shards("training"))
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
        "tokenizer.json",
        *(name for part in ("training", "validation") for shard in again.shards(part) for name in _files(shard)),
    }
    assert sharding.usable_cores() >= 1


def _files(shard: Any) -> tuple[str, str]:
    return shard.file, shard.starts
