"""`tokenloom data tokenize`: from any text to a folder that can be trained on, in one line when it goes wrong."""

import io
import json
import sys
from pathlib import Path

import pytest
from sharded import folder_of, prose, rows_of
from tiny_cli import TINY, Call, Refused

from tokenloom.data.pretokenized.shards import open_pretokenized


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "docs", [900, 4000, 30, 2500, 700, 1800])


def test_tokenize_then_train_then_measure(call: Call, folder: Path, tmp_path: Path) -> None:
    out, run = str(tmp_path / "tokens"), str(tmp_path / "run")
    made = call("data", "tokenize", str(folder), "--out", out, "--workers", "2", "--json")
    assert made.code == 0
    assert made.json["training"]["documents"] + made.json["validation"]["documents"] == 6
    assert made.json["tokenizer"]["kind"] == "char"
    assert "tokenizing: " in made.err
    trained = call("train", out, *TINY, "--steps", "2", "--out", run, "--json")
    assert trained.code == 0
    assert "shards:" in trained.err
    assert "baseline:" in trained.err
    assert trained.json["baseline"]["value"] > 0
    assert call("evaluate", run, "--json").json["num_targets"] == made.json["validation"]["tokens"] - 1
    assert call("data", "check", out).out == f"{out}: all 2 shards are intact\n"
    assert call("data", "check", out, "--json").json["state"] == "good"


def test_what_is_printed(call: Call, tmp_path: Path) -> None:
    path = rows_of(tmp_path / "rows.jsonl", [500] * 9)
    made = call(
        "data", "tokenize", str(path), "--out", str(tmp_path / "t"), "--tokenizer", "byte-bpe", "--vocab-size", "300"
    )
    assert made.code == 0
    for words in ("training:", "validation:", "byte-bpe: ", "split:", "tokenloom train", "/s"):
        assert words in made.out
    quiet = call("data", "tokenize", str(path), "--out", str(tmp_path / "q"), "--quiet")
    assert quiet.err == ""


def test_standard_input(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = prose(5000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    made = call("data", "tokenize", "-", "--out", str(tmp_path / "t"), "--workers", "1")
    assert made.code == 0, made.err
    tokenized = open_pretokenized(tmp_path / "t")
    assert tokenized is not None
    assert tokenized.tokenizer().decode(tokenized.all_ids()[:]) == text
    assert not list((tmp_path / "t").glob(".*"))


def test_built_in_sets(call: Call, tmp_path: Path) -> None:
    made = call("data", "tokenize", "python-docs", "--out", str(tmp_path / "t"), "--json")
    assert made.json["training"]["documents"] > 20


def test_mistakes_are_one_line(refused: Refused, folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "t")
    for words, match in (
        (("python-dosc",), "python-docs"),
        ((str(folder), "--tokenizer", "byte-pbe"), "byte-bpe"),
        ((str(folder), "--val-fraction", "1.5"), "--val-fraction"),
        ((str(folder), "--workers", "0"), "--workers"),
        ((str(folder), "--text-column", "text"), "--text-column"),
        ((str(folder), "--encoding", "utf-9"), "utf-8"),
        ((str(folder), "--vocab-size", "0"), "--vocab-size"),
    ):
        assert match in refused("data", "tokenize", *words, "--out", out)
    assert not Path(out).exists(), "nothing is left of what was refused"


def test_a_finished_folder_is_kept(call: Call, refused: Refused, folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "t")
    call("data", "tokenize", str(folder), "--out", out)
    assert "--overwrite" in refused("data", "tokenize", str(folder), "--out", out)
    assert call("data", "tokenize", str(folder), "--out", out, "--overwrite").code == 0


def test_a_damaged_folder_is_refused_by_name(call: Call, refused: Refused, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    call("data", "tokenize", str(folder), "--out", str(out))
    path = out / "training-00000.ids"
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    assert "training-00000.ids: altered" in refused("data", "check", str(out))
    told = call("train", str(out), *TINY, "--out", str(tmp_path / "run"))
    assert told.code == 2
    assert "training-00000.ids: altered" in told.err.splitlines()[-1]
    assert "Traceback" not in told.err
    path.write_bytes(raw[:-200])
    assert "training-00000.ids: has" in refused("train", str(out), *TINY, "--out", str(tmp_path / "run2"))
    (out / "manifest.json").write_text(json.dumps({"kind": "tokenloom tokens"}))
    assert "manifest.json: damaged" in refused("train", str(out), *TINY, "--out", str(tmp_path / "run3"))
    assert not (tmp_path / "run3").exists()


def test_ctrl_c_says_how_to_continue(call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ProcessPoolExecutor

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    out = str(tmp_path / "t")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessPoolExecutor, "submit", interrupted)
        stopped = call("data", "tokenize", str(folder), "--out", out)
    assert stopped.code == 130
    assert f"the same command continues with {out}" in stopped.err
    assert call("data", "tokenize", str(folder), "--out", out).code == 0
