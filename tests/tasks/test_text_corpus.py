"""Training on shards is training in memory, bit for bit; all that can be done with a run works with them too."""

from pathlib import Path
from typing import Any

import pytest
from sharded import folder_of, make, prose
from tiny_cli import SETTINGS

import tokenloom
from tokenloom.config import flag
from tokenloom.data.pretokenized import TokenizationSettings
from tokenloom.data.pretokenized import streaming as streams
from tokenloom.data.pretokenized.build import tokenize
from tokenloom.data.pretokenized.shards import PretokenizedCorpus
from tokenloom.errors import UserError
from tokenloom.runs.events import Prepared
from tokenloom.tasks import _text_corpus as module
from tokenloom.tasks._text_corpus import manifest_baseline
from tokenloom.training.events import Baseline, StepFinished

TINY = {**SETTINGS, "steps": 6, "batch_size": 4, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("text") / "docs", [900, 4000, 30, 2500, 700, 1800, 60, 1200])


@pytest.fixture(scope="module")
def tokens(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PretokenizedCorpus:
    out = tmp_path_factory.mktemp("tokens") / "made"
    return tokenize(folder, out, TokenizationSettings(shard_bytes=2000), workers=1, extra=manifest_baseline)


@pytest.fixture(scope="module")
def run(tokens: PretokenizedCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    tokenloom.train(str(tokens.folder), out=out, **TINY)
    return out


@pytest.mark.parametrize("what", ["folder", "file", "byte-bpe"])
def test_training_on_shards_is_training_in_memory(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_CHARACTERS", 1000)
    source, wish, more = folder, TokenizationSettings(shard_bytes=2000), {}
    if what == "file":
        source = tmp_path / "one.txt"
        source.write_text(prose(9000), "utf-8")
    elif what == "byte-bpe":
        wish, more = (
            TokenizationSettings("byte-bpe", 300, shard_bytes=2000),
            {"tokenizer": "byte-bpe", "vocab_size": 300},
        )
    made = tokenize(source, tmp_path / "tokens", wish, workers=2, extra=manifest_baseline)
    assert len(made.shards("training")) > 2
    found = []
    for data, settings in ((source, more), (made.folder, {})):
        fitting = tokenloom.start_session(str(data), out=tmp_path / f"run{len(found)}", **TINY, **settings)
        events = list(fitting)
        losses = [event.loss for event in events if isinstance(event, StepFinished)]
        baseline = next(event for event in events if isinstance(event, Baseline))
        weights = (tmp_path / f"run{len(found)}" / "model.safetensors").read_bytes()
        report = next(event for event in events if isinstance(event, Prepared)).report
        found.append((losses, weights, baseline.value, baseline.note, fitting.task.evaluate(), report))
    memory, sharded = found
    assert memory[:5] == sharded[:5]
    counts = ("train", "validation", "distinct_characters", "duplicates", "split", "notes")
    assert {name: sharded[5][name] for name in counts} == {name: memory[5][name] for name in counts}
    assert sharded[5]["extra"]["tokens"] == memory[5]["extra"]["tokens"]


def test_a_run_on_shards_is_resumed_bit_for_bit(tokens: PretokenizedCorpus, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stepped = 0

    def stop() -> bool:
        return stepped >= 3

    for event in tokenloom.start_session(str(tokens.folder), out=out, stop=stop, **TINY):
        stepped += isinstance(event, StepFinished)
    assert stepped == 3
    tokenloom.train(out=out, resume=True)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_resuming_with_other_shards_is_refused(tokens: PretokenizedCorpus, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stepped = 0

    def stop() -> bool:
        return stepped >= 3

    for event in tokenloom.start_session(str(tokens.folder), out=out, stop=stop, **TINY):
        stepped += isinstance(event, StepFinished)
    other = folder_of(tmp_path / "other", [900, 4000, 30, 2500, 700, 1800, 60, 1200], seed=50)
    same_tokenizer = make(other, tmp_path / "same", tokenizer=str(tokens.folder / "tokenizer.json"))
    with pytest.raises(UserError, match="are not those it was trained with"):
        tokenloom.train(str(same_tokenizer.folder), out=out, resume=True)
    bpe = make(folder, tmp_path / "bpe", tokenizer="byte-bpe", vocab_size=300)
    with pytest.raises(UserError, match="tokenized with another tokenizer"):
        tokenloom.train(str(bpe.folder), out=out, resume=True)


def test_a_run_on_shards_is_measured(tokens: PretokenizedCorpus, run: Path, folder: Path, tmp_path: Path) -> None:
    task = tokenloom.load(run)
    held = task.evaluate()
    assert held["num_targets"] == tokens.total("validation", "tokens") - 1
    everything = task.evaluate(str(tokens.folder))
    assert everything["num_targets"] == len(tokens.all_ids()) - 1
    one = task.evaluate(str(folder / "001.txt"))
    assert one["num_targets"] == 4001
    assert task.generate("the ", max_new_tokens=5)
    other = make(folder, tmp_path / "bpe", tokenizer="byte-bpe", vocab_size=300)
    with pytest.raises(UserError, match="another tokenizer"):
        task.evaluate(str(other.folder))


def test_validation_may_be_another_text(tokens: PretokenizedCorpus, folder: Path) -> None:
    events = list(tokenloom.start_session(str(tokens.folder), val_data=str(folder / "001.txt"), **TINY))
    assert events[0].report["extra"]["validated"].startswith("on ")  # type: ignore[union-attr]
    assert not any(isinstance(event, Baseline) for event in events)


@pytest.mark.parametrize(
    "setting",
    [
        {"vocab_size": 300},
        {"tokenizer": "word"},
        {"separate_documents": False},
        {"val_fraction": 0.3},
        {"split_seed": 1},
        {"text_column": "text"},
        {"encoding": "latin-1"},
        {"normalize_newlines": False},
    ],
    ids=str,
)
def test_what_the_folder_has_decided_cannot_be_set(setting: dict[str, Any], tokens: PretokenizedCorpus) -> None:
    (name,) = setting
    with pytest.raises(UserError, match=f"{flag(name)} .*already tokenized") as refused:
        tokenloom.train(str(tokens.folder), **TINY, **setting)
    assert "\n" not in str(refused.value)
    tokenloom.train(str(tokens.folder), **{**TINY, "steps": 1}, tokenizer="char", separate_documents=True)


def test_line_ends_stay_what_they_were_tokenized_as(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one line\r\nanother\r\n" * 60)
    made = make(path, tmp_path / "tokens", normalize_newlines=False)
    task = tokenloom.train(str(made.folder), out=tmp_path / "run", **TINY)
    assert task.normalize("a\r\n") == "a\r\n"
    assert tokenloom.load(tmp_path / "run").normalize("a\r\n") == "a\r\n"
    assert tokenloom.load(tmp_path / "run").evaluate()["num_targets"] > 10


def test_unknown_words_have_no_line_to_beat(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(prose(6000), "utf-8")
    made = tokenize(
        path, tmp_path / "w", TokenizationSettings("word", 5, shard_bytes=2000), workers=1, extra=manifest_baseline
    )
    events = list(tokenloom.start_session(str(made.folder), **TINY))
    assert not any(isinstance(event, Baseline) for event in events)
    assert "unknown words" in events[0].report["extra"]["baseline"]  # type: ignore[union-attr]


def test_the_line_to_beat_is_counted_on_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 8000)
    monkeypatch.setattr(module, "MAX_COUNTED", 6000)
    monkeypatch.setattr(module, "MAX_EVALUATED", 1500)
    source = folder_of(tmp_path / "docs", [3000] * 10)
    made = tokenize(source, tmp_path / "t", TokenizationSettings(shard_bytes=4000), workers=1, extra=manifest_baseline)
    kept = made.content["baseline"]
    assert "counted on 6,0" in kept["note"] or "counted on 5,9" in kept["note"]
    assert "evaluated on 1," in kept["note"]
    monkeypatch.undo()
    whole = module._compute_baseline(made)
    assert isinstance(whole, Baseline)
    assert kept["value"] == pytest.approx(whole.value, rel=0.15)


def test_an_unfinished_folder_is_not_taken_for_text(tokens: PretokenizedCorpus, tmp_path: Path) -> None:
    for path in tokens.folder.iterdir():
        if path.name != "manifest.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="not finished"):
        tokenloom.train(str(tmp_path), **TINY)
