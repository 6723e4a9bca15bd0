"""Settings, config files and texts that people give to `tokenloom train`, most of which cannot be used."""

import json
from pathlib import Path

import pytest
from tiny_cli import TINY, Call, Refused
from traps import TEXTS, TextTrap

import tokenloom

# Settings.


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--widht", "3"], ["--widht", "--width"]),
        (["--width", "abc"], ["--width", "abc"]),
        (["--width"], ["--width"]),
        (["--lr", "fast"], ["--lr", "fast"]),
        (["--preset", "modrn"], ["--preset", "modrn", "modern"]),
        (["--steps", "0"], ["--steps 0", "at least 1"]),
        (["--steps", "2.5"], ["--steps", "2.5"]),
        (["--steps", "many"], ["--steps", "many"]),
        (["--steps", "-3"], ["--steps -3", "at least 1"]),
        (["--batch-size", "0"], ["--batch-size 0"]),
        (["--lr", "-1"], ["--lr -1"]),
        (["--lr", "nan"], ["--lr nan"]),
        (["--val-fraction", "2"], ["--val-fraction 2"]),
        (["--val-fraction", "nan"], ["--val-fraction nan"]),
        (["--dropout", "1"], ["--dropout 1"]),
        (["--size", "hugh"], ["--size hugh", "nano", "large"]),
        (["--tokenizer", "bytebpe"], ["bytebpe", "byte-bpe"]),
        (["--tokenizer", "char", "--vocab-size", "100"], ["100", "char"]),
        (["--width", "15", "--heads", "2"], ["--width 15", "--heads 2"]),
        (["--width", "6", "--heads", "2"], ["--width", "--heads", "even"]),
        (["--width", "16", "--heads", "4", "--kv-heads", "3"], ["4 heads", "--kv-heads"]),
        (["--kv-heads", "0"], ["--kv-heads 0"]),
        (["--preset", "classic", "--sliding-window", "8"], ["--sliding-window", "--preset classic"]),
        (["--context", "100000"], ["--context 100000", "tokens"]),
        (["--device", "cuda:77"], ["--device cuda:77"]),
        (["--device", "abacus"], ["--device abacus", "cpu"]),
        (["--threads", "0"], ["--threads 0"]),
        (["--steps", "5", "--minutes", "3"], ["--steps", "--minutes"]),
        (["--minutes", "0"], ["--minutes 0"]),
        (["--encoding", "utf-9"], ["utf-9", "utf-8"]),
        (["--text-column", "text"], ["rhyme.txt", "text"]),
        (["--val-data", "nothing.txt"], ["nothing.txt"]),
        (["--task", "text-generatoin"], ["text-generatoin", "text-generation"]),
        (["--task", "mine.py:Mine"], ["mine.py", "no such file"]),
        (["--config", "nothing.toml"], ["--config nothing.toml"]),
        (["another.txt"], ["unexpected argument: 'another.txt'"]),
        (["--dtype", "float16"], ["--dtype", "float16", "bfloat16"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_settings_that_cannot_be(
    words: list[str], parts: list[str], refused: Refused, rhyme: Path, elsewhere: Path
) -> None:
    message = refused("train", rhyme, *words)
    for part in parts:
        assert part in message
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["nothing to train on"]),
        (["tinyshakespear"], ["tinyshakespear", "tinyshakespeare"]),
        (["--task", "text-generation"], ["text-generation", "data"]),
        (["", *TINY], ["no data given"]),
    ],
)
def test_data_that_cannot_be(words: list[str], parts: list[str], refused: Refused, elsewhere: Path) -> None:
    message = refused("train", *words)
    for part in parts:
        assert part in message
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("words", [["--optimizer", "muon"], ["--muon-lr", "0.1"], ["--activation-checkpointing"]])
def test_settings_of_transformers_are_refused_for_recurrent_networks(
    words: list[str], call: Call, rhyme: Path, elsewhere: Path
) -> None:
    """After the report on the data, which decides the model's sizes, and before anything is written."""
    answer = call("train", rhyme, "--model", "gru", "--size", "nano", *words)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith(f"tokenloom: {words[0]}")
    assert "has no effect" in answer.err.splitlines()[-1]
    assert list(elsewhere.iterdir()) == []


def test_flags_may_come_before_the_data(call: Call, rhyme: Path, tmp_path: Path) -> None:
    answer = call("train", "--quiet", "--compile", "--no-compile", *TINY, "--dry-run", "--json", rhyme)
    assert answer.code == 2, "a switch given both ways is a mistake"
    answer = call("train", "--quiet", "--no-compile", *TINY, "--steps=3", "--dry-run", "--json", rhyme)
    assert answer.code == 0
    assert answer.json["steps"] == 3


# Config files.


def test_settings_from_a_file_with_flags_on_top(call: Call, rhyme: Path, tmp_path: Path) -> None:
    toml, yaml = tmp_path / "c.toml", tmp_path / "c.yaml"
    toml.write_text(
        f"""data = {json.dumps(str(rhyme))}
        out = {json.dumps(str(tmp_path / "from-toml"))}
        steps = 3
        quiet = true
        [model]
        size = "nano"
        context = 16
        width = 16
        depth = 1
        heads = 2
        [machine]
        device = "cpu"
        threads = 1
        """,
        "utf-8",
    )
    answer = call("train", "--config", toml, "--seed", "3", "--json")
    assert answer.err == ""
    assert answer.json["out"] == str(tmp_path / "from-toml")
    settings = answer.json["settings"]
    assert (settings["steps"], settings["width"], settings["seed"]) == (3, 16, 3)
    yaml.write_text(
        f"data: {rhyme}\nminutes: 5\nmodel: {{size: nano, context: 16, width: 16, depth: 1, heads: 2}}\nlr: 3e-3\n"
        f"out: {tmp_path / 'from-yaml'}\nthreads: 1\n",
        "utf-8",
    )
    answer = call("train", "--config", yaml, "--steps", "2", "-q", "--json")
    assert answer.json["settings"]["lr"] == 0.003
    assert answer.json["steps"] == 2, "how long a flag says, not how long the file says"


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("stepz = 6", ["stepz", "steps"]),
        ("steps = 'six'", ["steps", "six", "whole number"]),
        ("steps = true", ["steps", "whole number"]),
        ("width = 1.5", ["width", "whole number"]),
        ("preset = 'modrn'", ["preset", "modrn"]),
        ("quiet = 'yes'", ["quiet", "true or false"]),
        ("steps = ", ["broken.toml"]),
        ("steps = 3\n[training]\nsteps = 4", ["steps", "twice"]),
        ("task = 'text-generatoin'", ["text-generatoin", "text-generation"]),
    ],
)
def test_config_files_that_cannot_be(
    content: str, parts: list[str], refused: Refused, rhyme: Path, tmp_path: Path
) -> None:
    config = tmp_path / "broken.toml"
    config.write_text(content, "utf-8")
    message = refused("train", rhyme, "--config", config, "--out", tmp_path / "run")
    for part in parts:
        assert part in message
    assert not (tmp_path / "run").exists()


# The traps.


def options_of(trap: TextTrap) -> list[str]:
    given = ["--encoding", trap.encoding, "--steps", "2", "--depth", "1", "--width", "16", "--heads", "2"]
    given += ["--context", str(trap.context)] if trap.context else []
    given += ["--vocab-size", str(trap.vocab_size)] if trap.vocab_size else []
    return [*given, "--threads", "1", "--device", "cpu"]


@pytest.mark.parametrize("trap", TEXTS, ids=str)
def test_traps(trap: TextTrap, call: Call, tmp_path: Path) -> None:
    path, out = trap.write(tmp_path), tmp_path / "run"
    answer = call("train", path, *options_of(trap), "--out", out)
    assert answer.code == (0 if trap.expect == "works" else 2 if trap.expect == "refused" else answer.code)
    assert answer.code in (0, 2)
    assert "Traceback" not in answer.err
    for word in trap.words:
        assert word in answer.err
    if answer.code == 2:
        assert answer.err.count("\n") == 1
        assert not out.exists()
    else:
        assert tokenloom.load(out).evaluate()["loss"] > 0


@pytest.mark.parametrize("size", ["40", "80"])
def test_a_short_text_gets_a_shorter_context_and_says_so(size: str, call: Call, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text(("ab" * 40)[: int(size)], "utf-8")
    answer = call("train", text, "--steps", "2", "--threads", "1", "--out", tmp_path / "run", "--json")
    assert answer.code == 0
    context = answer.json["settings"]["context"]
    assert context == int(size) * 9 // 10 // 4
    assert f"context:           {context} tokens instead of" in answer.err


def test_merges_that_stop_early_are_announced(call: Call, tmp_path: Path) -> None:
    text = tmp_path / "hundred.txt"
    text.write_text("to be or no" * 9 + "t", "utf-8")
    answer = call("train", text, "--vocab-size", "5000", "--steps", "2", "--threads", "1", "--out", tmp_path / "run")
    assert answer.code == 0
    note = next(line for line in answer.err.splitlines() if line.startswith("note:"))
    assert "merges" in note


def test_a_flag_without_its_value_is_refused_in_a_few_words(refused: Refused) -> None:
    assert len(refused("train", "--model")) < 100
    assert "--model" in refused("train", "--model")
