import io
import json
import math
import sys
import types
from pathlib import Path

import pytest
from tiny_cli import TINY, Call, Refused
from traps import PROMPTS, PromptTrap

import tokenloom

CONTEXT = 16


def piped(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(raw), isatty=lambda: False))


# generate


def test_generate_prints_the_prompt_and_what_follows(call: Call, run: Path) -> None:
    answer = call("generate", run, "--prompt", "One, ", "--max-new-tokens", "30", "--seed", "4")
    assert answer.code == 0
    assert answer.err == ""
    assert answer.out == "One, " + tokenloom.load(run).generate("One, ", max_new_tokens=30, seed=4) + "\n"


def test_generate_as_json(call: Call, run: Path) -> None:
    words = ("generate", run, "--prompt", "One", "--max-new-tokens", "9", "--temperature", "1.3", "--top-k", "5")
    answer = call(*words, "--num-samples", "3", "--json")
    assert answer.out.count("\n") == 1, "with --json there is nothing but the object"
    result = answer.json
    assert (
        result["texts"]
        == tokenloom.load(run).generate_all(["One"], max_new_tokens=9, temperature=1.3, top_k=5, num_samples=3)[0]
    )
    assert result["text"] == result["texts"][0]
    assert result["prompt"] == "One"
    assert len(set(result["texts"])) > 1
    shown = call(*words, "--num-samples", "3").out
    assert shown == f"\n{'-' * 40}\n".join("One" + text for text in result["texts"]) + "\n"


def test_the_seed_decides(call: Call, run: Path) -> None:
    texts = [call("generate", run, "--seed", seed, "--max-new-tokens", "20").out for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_stop_strings_end_the_text_before_them(call: Call, run: Path) -> None:
    words = ("generate", run, "--prompt", "One", "--max-new-tokens", "200", "--json")
    whole = call(*words).json["text"]
    stops = [whole[20:23], whole[40:42]]
    cut = call(*words, "--stop", stops[0], "--stop", stops[1]).json["text"]
    assert cut == whole[: min(whole.index(stop) for stop in stops)]


def test_beam_search(call: Call, run: Path) -> None:
    answer = call("generate", run, "--prompt", "One", "--num-beams", "4", "--max-new-tokens", "12", "--json").json
    greedy = call("generate", run, "--prompt", "One", "--temperature", "0", "--max-new-tokens", "12", "--json").json
    task = tokenloom.load(run)
    assert len(answer["text"]) == 12
    assert task.score("One", answer["text"]).total >= task.score("One", greedy["text"]).total - 1e-5


def test_the_prompt_from_standard_input(
    call: Call, refused: Refused, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, b"One,\r\ntwo")
    answer = call("generate", run, "--prompt", "-", "--max-new-tokens", "5")
    assert answer.code == 0
    piped(monkeypatch, b"\xef\xbb\xbfOne")
    assert "U+FEFF" in refused("generate", run, "--prompt", "-")
    piped(monkeypatch, b"")
    assert "needs some text to continue" in refused("generate", run, "--prompt", "-")
    piped(monkeypatch, b"\n\n\n")
    assert call("generate", run, "--prompt", "-", "--max-new-tokens", "5").code == 0
    piped(monkeypatch, b"caf\xe9")
    assert "offset 3" in refused("generate", run, "--prompt", "-")


@pytest.mark.parametrize("trap", PROMPTS, ids=str)
def test_prompts(trap: PromptTrap, call: Call, run: Path) -> None:
    answer = call("generate", run, "--prompt", trap.prompt(CONTEXT).replace("b", "o"), "--max-new-tokens", "4")
    assert answer.code in (0, 2)
    if trap.name != "three times the context":  # which has letters that the rhyme lacks
        assert answer.code == 2
    for word in trap.words if answer.code == 2 and trap.name != "three times the context" else ():
        assert word in answer.err
    if answer.code == 2:
        assert answer.out == ""
        assert answer.err.count("\n") == 1


def test_a_long_prompt_keeps_its_last_part_and_says_so(call: Call, run: Path) -> None:
    prompt = "One, two, buckle my shoe.\n" * 2
    answer = call("generate", run, "--prompt", prompt, "--max-new-tokens", "6", "--temperature", "0")
    assert answer.code == 0
    assert answer.err == "note: --prompt: has 52 tokens; the model sees the last 16\n"
    assert answer.out.startswith(prompt)
    last = call("generate", run, "--prompt", prompt[-CONTEXT:], "--max-new-tokens", "6", "--temperature", "0")
    assert answer.out.removeprefix(prompt) == last.out.removeprefix(prompt[-CONTEXT:])
    assert call("generate", run, "--prompt", prompt, "--max-new-tokens", "1", "--quiet").err == ""


def test_unseen_characters_are_named(refused: Refused, run: Path) -> None:
    message = refused("generate", run, "--prompt", "What is ☃ this?")
    assert "'☃' (U+2603)" in message
    assert "byte-bpe" in message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--temperature", "-1"], ["--temperature", "-1"]),
        (["--temperature", "nan"], ["--temperature", "nan"]),
        (["--temperature", "hot"], ["--temperature", "hot"]),
        (["--top-k", "-1"], ["--top-k", "-1"]),
        (["--top-k", "1.5"], ["--top-k", "1.5"]),
        (["--top-p", "1.5"], ["--top-p", "1.5"]),
        (["--top-p", "nan"], ["--top-p", "nan"]),
        (["--min-p", "-0.1"], ["--min-p", "-0.1"]),
        (["--repetition-penalty", "0.5"], ["--repetition-penalty", "0.5"]),
        (["--max-new-tokens", "-1"], ["--max-new-tokens", "-1"]),
        (["--num-samples", "0"], ["--num-samples 0"]),
        (["--num-beams", "0"], ["--num-beams 0"]),
        (["--num-beams", "3", "--num-samples", "2"], ["--num-samples", "--num-beams"]),
        (["--num-beams", "3", "--temperature", "0.5"], ["--temperature", "--num-beams"]),
        (["--length-penalty", "1"], ["--length-penalty", "--num-beams"]),
        (["--num-beams", "2", "--length-penalty", "11"], ["--length-penalty 11"]),
        (["--stop", ""], ["--stop"]),
        (["--prompt", ""], ["--prompt", "needs some text to continue"]),
        (["--prompt", "half \ud83d of it"], ["--prompt", "U+D83D"]),
        (["--tempratur", "1"], ["--tempratur", "--temperature"]),
        (["--device", "cuda:77"], ["--device cuda:77"]),
        (["more"], ["unexpected argument: 'more'"]),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else None,
)
def test_options_that_cannot_be(words: list[str], parts: list[str], refused: Refused, run: Path) -> None:
    message = refused("generate", run, *words)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "words",
    [
        ["--temperature", "0"],
        ["--temperature", "1e-40"],
        ["--top-k", "0"],
        ["--top-k", "100000"],
        ["--top-p", "0"],
        ["--top-p", "1"],
        ["--min-p", "1"],
        ["--repetition-penalty", "5"],
        ["--max-new-tokens", "0"],
        ["--num-beams", "100000", "--max-new-tokens", "2"],
        ["--seed", "-12345678901234567890"],
    ],
    ids=" ".join,
)
def test_options_at_their_edges_work(words: list[str], call: Call, run: Path) -> None:
    length = [] if "--max-new-tokens" in words else ["--max-new-tokens", "5"]
    answer = call("generate", run, *words, *length, "--json")
    assert answer.code == 0, answer
    assert len(answer.json["text"]) == int((words + length)[(words + length).index("--max-new-tokens") + 1])
    if words[0] in ("--top-p", "--top-k") and words[1] in ("1", "0", "100000") and words != ["--top-p", "0"]:
        assert answer.json["text"] == call("generate", run, *length, "--json").json["text"], "no limit is no limit"
    if words in (["--temperature", "1e-40"], ["--top-p", "0"], ["--min-p", "1"]):
        greedy = call("generate", run, "--temperature", "0", *length, "--json").json["text"]
        assert answer.json["text"] == greedy


# Runs that cannot be used.


@pytest.mark.parametrize("verb", ["generate", "score", "evaluate", "info"])
def test_runs_that_are_none(verb: str, refused: Refused, rhyme: Path, tmp_path: Path) -> None:
    assert "no such run" in refused(verb, tmp_path / "none")
    assert "not a run" in refused(verb, tmp_path)
    assert "not a run" in refused(verb, rhyme)
    assert "RUN" in refused(verb).upper()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda config: json.dumps({**config, "format": 99}), "format 99"),
        (lambda config: json.dumps({key: config[key] for key in ("format", "task")}), "damaged"),
        (lambda config: "{ not json", "damaged"),
        (lambda config: "[]", "damaged"),
        (lambda config: json.dumps({**config, "task": "text-generatoin"}), "text-generation"),
        (lambda config: json.dumps({**config, "settings": {**config["settings"], "speed": 3}}), "speed"),
        (lambda config: json.dumps({**config, "model": {**config["model"], "width": 32}}), "shape"),
        (lambda config: json.dumps({**config, "assets": {"tokenizer": "0" * 64}}), "tokenizer.json"),
    ],
)
def test_runs_that_were_altered(change, word: str, refused: Refused, run: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    config = json.loads((run / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(change(config), "utf-8")
    for verb in ("generate", "evaluate"):
        message = refused(verb, tmp_path)
        assert word in message
        assert str(tmp_path) in message or "task" in message


def test_a_cut_file_is_refused_by_name(refused: Refused, run: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        for other in ("model.safetensors", "tokenizer.json", "config.json"):
            raw = (run / other).read_bytes()
            (tmp_path / other).write_bytes(raw[:-200] if other == name else raw)
        assert name in refused("generate", tmp_path)


# evaluate and score


def test_evaluate(call: Call, run: Path) -> None:
    lines = call("evaluate", run).out.splitlines()
    measured = tokenloom.load(run).evaluate()
    loss = f"{measured['loss']:.4f} ± {measured['loss_ci95']:.4f} nats/token (95 % interval)"
    assert lines[0].split(":")[1].strip() == loss
    assert lines[-2:] == [f"num targets:    {int(measured['num_targets']):,} tokens", "context:        16 tokens"]
    assert call("evaluate", run, "--batch-size", "3", "--json").json["loss"] == pytest.approx(
        measured["loss"], abs=1e-6
    )


def test_evaluate_on_other_data(call: Call, refused: Refused, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("ive, six, shut my door.\n", "utf-8")
    result = call("evaluate", run, "--data", other, "--json").json
    assert result["num_targets"] == len(other.read_text("utf-8")) - 1
    assert result["data"] == str(other)
    other.write_text("☃ six", "utf-8")
    message = refused("evaluate", run, "--data", other)
    assert "other.txt" in message
    assert "☃" in message
    other.write_text("s", "utf-8")
    assert "other.txt" in refused("evaluate", run, "--data", other)
    other.write_bytes(b"")
    assert "empty" in refused("evaluate", run, "--data", other)
    assert "none.txt" in refused("evaluate", run, "--data", tmp_path / "none.txt")
    assert "--batch-size 0" in refused("evaluate", run, "--batch-size", "0")


def test_evaluate_without_its_data_says_which(call: Call, refused: Refused, tmp_path: Path, rhyme: Path) -> None:
    data = tmp_path / "gone.txt"
    data.write_bytes(rhyme.read_bytes())
    assert call("train", data, *TINY, "--steps", "2", "-q", "--out", tmp_path / "run").code == 0
    data.unlink()
    assert "gone.txt" in refused("evaluate", tmp_path / "run")
    assert call("evaluate", tmp_path / "run", "--data", rhyme).code == 0
    assert call("generate", tmp_path / "run", "--max-new-tokens", "3").code == 0


def test_a_run_on_standard_input_is_measured_on_it_again(
    call: Call, refused: Refused, tmp_path: Path, rhyme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, rhyme.read_bytes())
    assert call("train", "-", *TINY, "--steps", "2", "-q", "--out", tmp_path / "run").code == 0
    piped(monkeypatch, rhyme.read_bytes())
    from_pipe = call("evaluate", tmp_path / "run", "--json").json
    piped(monkeypatch, rhyme.read_bytes())
    assert call("evaluate", tmp_path / "run", "--data", "-", "--json").json["num_targets"] > from_pipe["num_targets"]
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    assert "standard input" in refused("evaluate", tmp_path / "run")


def test_score(call: Call, refused: Refused, run: Path) -> None:
    scored = tokenloom.load(run).score("One, two, ", "buckle")
    result = call("score", run, "--prompt", "One, two, ", "--continuation", "buckle", "--json").json
    assert result["log_probs"] == pytest.approx(list(scored.log_probs), abs=1e-6)
    assert result["total"] == pytest.approx(sum(result["log_probs"]), abs=1e-6)
    out = call("score", run, "--prompt", "One, two, ", "--continuation", "buckle").out
    assert out == f"{scored.total:.4f} nats in total, {scored.average:.4f} nats/token over 6 tokens\n"
    assert math.isfinite(call("score", run, "--continuation", "One", "--json").json["total"])
    assert "--continuation" in refused("score", run, "--prompt", "One")
    assert "☃" in refused("score", run, "--prompt", "One", "--continuation", "☃")
    assert "--prompt" in refused("score", run, "--prompt", "☃", "--continuation", "One")


# info and tasks


def test_info_of_a_run(call: Call, run: Path) -> None:
    task = tokenloom.load(run)
    result = call("info", run, "--json").json
    assert result["parameters"] == sum(p.numel() for p in task.model.parameters())
    assert result["task"] == "text-generation"
    assert result["steps"] == 12
    assert result["model"] == task.model_config
    assert result["best"]["loss"] == pytest.approx(task.evaluate()["loss"], abs=1e-6)
    out = call("info", run).out
    assert f"parameters:             {result['parameters']:,}\n" in out
    assert "steps:                  12 of 12\n" in out
    assert "None" not in out
    assert "{" not in out


def test_info_of_a_task_needs_no_data(call: Call, refused: Refused, elsewhere: Path) -> None:
    sizes = [
        call("info", "text-generation", "--size", size, "--json").json["parameters"]
        for size in ("nano", "tiny", "small", "medium", "large")
    ]
    assert sizes == sorted(set(sizes))
    result = call("info", "text-generation", "--size", "nano", "--vocab-size", "70000", "--width", "32", "--json").json
    assert result["model"]["vocab_size"] == 70000
    assert result["model"]["width"] == 32
    assert result["weight_bytes"] == 4 * result["parameters"]
    assert "MB" in call("info", "text-generation", "--size", "nano", "--vocab-size", "70000").out
    assert "text-generation" in refused("info", "text-generatoin")
    assert "--widht" in refused("info", "text-generation", "--widht", "3")
    assert "no such run" in refused("info", "runs/none")
    assert list(elsewhere.iterdir()) == []


def test_tasks(call: Call) -> None:
    out = call("tasks").out
    assert "text-generation: " in out
    assert "gpt  " in out
    result = call("tasks", "--json").json
    assert "generate" in result["text-generation"]["actions"]


# Words that are no commands.


def test_the_nearest_command_is_named(refused: Refused) -> None:
    message = refused("trian", "text.txt")
    assert "trian" in message
    assert "train" in message


def test_version(call: Call) -> None:
    assert call("--version").out == f"{tokenloom.__version__}\n"


@pytest.mark.parametrize("command", ["generate", "score", "predict", "evaluate", "info", "tasks", "data", "train"])
def test_every_command_has_help(command: str, call: Call) -> None:
    answer = call(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: tokenloom {command}")


def test_help_lists_every_action_that_a_task_has(call: Call) -> None:
    from tokenloom.tasks.base import actions_of
    from tokenloom.tasks.registry import all_tasks

    text = call("--help").out
    for task in all_tasks():
        for action in actions_of(task):
            if action.startswith("inspect "):
                assert action.removeprefix("inspect ") in text, f"{action} of {task.name}"
            else:
                assert f"│ {action} " in text, f"{action} of {task.name}"
