import builtins
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.own_task import write_sums
from tiny_cli import RHYME, SETTINGS, TINY, Call, Refused

import tokenloom
from tokenloom.cli.display import example_of
from tokenloom.training.loop import Trainer

OWN_TASK = Path(__file__).parents[1] / "kit" / "own_task.py"


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def test_what_is_printed(call: Call, rhyme: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = call("train", rhyme, *TINY, "--steps", "20", "--eval-every", "5", "--out", out)
    assert answer.code == 0
    report = answer.err.splitlines()
    labels = [line.split(":")[0] for line in report if re.match(r"[a-z ]+: ", line)]
    assert labels[:2] == ["task", "data"]
    for label in ("training", "validation", "split", "tokens", "tokenizer", "model", "memory", "machine", "plan"):
        assert label in labels
    assert len({re.match(r"[a-z ]+: +", line).end() for line in report if line.startswith(tuple(labels))}) == 1  # type: ignore[union-attr]
    steps = [line for line in report if re.match(r" *\d+/20  loss ", line)]
    assert max(map(len, steps)) <= 80
    assert [numbers(line)[:2] for line in steps] == [[step, 20] for step in (5, 10, 15, 20)]
    assert "baseline:          " in answer.err
    assert "order-6 Kneser–Ney n-gram" in answer.err
    assert "\x1b" not in answer.err + answer.out, "no colors and no bars where there is no terminal"
    result = answer.out.splitlines()
    assert result[0].startswith("loss: ")
    assert result[0].endswith("nats/token (95 % interval)")
    assert any(line.startswith("context:") and "16 tokens" in line for line in result)
    assert any("than the baseline, order-6 Kneser–Ney n-gram" in line for line in result)
    assert result[-1] == f"saved in {out}; try: tokenloom generate {out}"
    assert example_of(tokenloom.load(out)).strip() in answer.out, "the example is what the trained model makes"


def test_the_run_folder_has_everything(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "checkpoints", "loss.png"} == names
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert rows[-1]["step"] == 12
    assert any("validation_loss" in row for row in rows)


def test_json_is_the_last_line(call: Call, rhyme: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = call("train", rhyme, *TINY, "--steps", "6", "--out", out, "--json")
    result = answer.json
    assert answer.out.splitlines()[0].startswith("loss: "), "the result for people comes before"
    model = tokenloom.load(out).model
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert result["steps"] == 6
    assert result["out"] == str(out)
    assert result["reason"] == "steps"
    assert result["tokens_per_second"] > 0
    assert 0 < result["training_seconds"] < result["seconds"]
    assert result["settings"]["width"] == 16
    measured = call("evaluate", out, "--json").json
    for name in ("loss", "perplexity", "bits_per_token", "bits_per_byte", "loss_ci95", "num_targets"):
        assert result[name] == pytest.approx(measured[name], rel=1e-6), name


def test_quiet_prints_nothing_but_json_when_asked(call: Call, rhyme: Path, tmp_path: Path) -> None:
    answer = call("train", rhyme, *TINY, "--steps", "3", "--out", tmp_path / "a", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    answer = call("train", rhyme, *TINY, "--steps", "3", "--out", tmp_path / "b", "-q", "--json")
    assert answer.err == ""
    assert answer.out.count("\n") == 1
    assert answer.json["steps"] == 3


def test_the_same_seed_gives_the_same_run(call: Call, rhyme: Path, tmp_path: Path) -> None:
    losses = [
        call("train", rhyme, *TINY, "--steps", "4", "--seed", seed, "--out", tmp_path / name, "-q", "--json").json[
            "loss"
        ]
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_a_dry_run_shows_the_plan_and_leaves_nothing(call: Call, rhyme: Path, elsewhere: Path) -> None:
    answer = call("train", rhyme, *TINY, "--steps", "500", "--dry-run", "--json")
    assert answer.code == 0
    for part in ("parameters", "FLOPs", "memory:", "tokens/s measured", "plan:              500 steps of", "about 0:"):
        assert part in answer.err
    assert "nothing was trained" in answer.out
    assert answer.json["out"] is None
    assert answer.json["steps"] == 500
    assert answer.json["parameters"] > 0
    assert answer.json["memory_bytes"] > 0
    assert list(elsewhere.iterdir()) == []


def test_minutes_become_steps_and_are_kept(call: Call, rhyme: Path, tmp_path: Path) -> None:
    answer = call("train", rhyme, *TINY, "--minutes", "0.02", "--out", tmp_path / "run", "-q", "--json")
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert answer.json["steps"] == config["training"]["steps"] >= 1
    assert answer.json["training_seconds"] < 10


@pytest.mark.parametrize(("data", "name"), [("{rhyme}", "runs/rhyme"), ("-", "runs/run")])
def test_where_a_run_goes_by_default(
    data: str, name: str, call: Call, rhyme: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rhyme.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=file, isatty=lambda: False))
        answer = call("train", data.format(rhyme=rhyme), *TINY, "--steps", "2", "-q", "--json")
    assert answer.code == 0, answer
    assert answer.json["out"] == name
    assert (elsewhere / name / "config.json").is_file()


# The run folder.


def test_a_run_that_is_there_is_left_alone(call: Call, refused: Refused, rhyme: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = ("train", rhyme, *TINY, "--out", out, "-q")
    assert call(*train, "--steps", "2").code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    message = refused(*train, "--steps", "3")
    assert str(out) in message
    assert "--overwrite" in message
    assert "--resume" in message
    # What is refused for another reason does not cost the old run either.
    refused(*train, "--overwrite", "--seed", "1", "--encoding", "utf-9")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert call(*train, "--steps", "3", "--overwrite", "--json").json["steps"] == 3


def test_overwrite_never_removes_what_is_no_run(refused: Refused, rhyme: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work", "utf-8")
    assert "not a run" in refused("train", rhyme, *TINY, "--out", tmp_path, "--overwrite")
    assert precious.read_text("utf-8") == "years of work"


def test_out_that_cannot_be(refused: Refused, rhyme: Path, tmp_path: Path) -> None:
    assert "is a file" in refused("train", rhyme, *TINY, "--out", rhyme)
    assert "cannot be written" in refused("train", rhyme, *TINY, "--out", rhyme / "below")
    assert "UTF-8" in refused("train", rhyme, *TINY, "--out", tmp_path / "caf\udce9")


def test_a_name_with_spaces_and_accents(call: Call, tmp_path: Path) -> None:
    data = tmp_path / "Gedicht für Zoë ☕.txt"
    data.write_text(RHYME * 20, "utf-8")
    out = tmp_path / "Läufe und mehr" / "eins ü"
    answer = call("train", data, *TINY, "--steps", "2", "--out", out)
    assert answer.code == 0
    assert answer.out.endswith(f"saved in '{out}'; try: tokenloom generate '{out}'\n")
    assert call("generate", out, "--max-new-tokens", "3").code == 0


def test_a_file_whose_name_is_no_unicode(call: Call, elsewhere: Path) -> None:
    data = elsewhere / "caf\udce9.txt"
    try:
        data.write_text(RHYME * 20, "utf-8")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such names")
    answer = call("train", data.name, *TINY, "--steps", "2", "--json")
    assert answer.code == 0, answer
    assert call("evaluate", answer.json["out"]).code == 0
    assert "caf" in call("info", answer.json["out"]).out


# Going on.


def test_resume_goes_on_where_it_stopped(call: Call, rhyme: Path, tmp_path: Path) -> None:
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    settings = {**SETTINGS, "lr_schedule": "cosine", "warmup_steps": 2, "eval_every": 4, "steps": 8}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    whole = call("train", rhyme, *words, "--out", straight, "-q", "--json").json
    fitting = tokenloom.start_session(rhyme, out=halves, **settings)
    for event in fitting:
        if type(event).__name__ == "Saved":
            break
    answer = call("train", "--resume", "--out", halves, "--json")
    assert answer.code == 0
    assert "resumed:           from step 4" in answer.err
    assert answer.json["loss"] == whole["loss"]
    assert answer.json["steps"] == 8


def test_resuming_a_finished_run_says_so(call: Call, rhyme: Path, tmp_path: Path) -> None:
    call("train", rhyme, *TINY, "--steps", "4", "--out", tmp_path / "run", "-q")
    answer = call("train", "--resume", "--out", tmp_path / "run")
    assert answer.code == 0
    assert "nothing left to train: 4 steps" in answer.err
    longer = call("train", rhyme, "--resume", "--out", tmp_path / "run", "--steps", "6", "-q", "--json")
    assert longer.json["steps"] == 6


def test_resume_needs_a_run_and_its_own_settings(refused: Refused, run: Path, rhyme: Path, tmp_path: Path) -> None:
    assert "--out" in refused("train", "--resume")
    assert "no such run" in refused("train", "--resume", "--out", tmp_path / "none")
    assert "batch_size" in refused("train", "--resume", "--out", run, "--batch-size", "7")
    before = (run / "config.json").read_bytes()
    other = tmp_path / "other.txt"
    other.write_text(rhyme.read_text("utf-8").replace("shoe", "boot"), "utf-8")
    answer = refused("train", other, "--resume", "--out", run, "--steps", "20", "-q")
    assert "data" in answer
    assert "--overwrite" in answer
    assert (run / "config.json").read_bytes() == before


# Breaking down.


def test_a_rate_that_is_too_high_breaks_down_in_one_line(call: Call, rhyme: Path, tmp_path: Path) -> None:
    rates = ("--lr", "1e9", "--muon-lr", "1e9", "--grad-clip", "0")
    answer = call("train", rhyme, *TINY, "--steps", "60", *rates, "--out", tmp_path / "run", "-q")
    assert answer.code == 1
    assert answer.out == ""
    assert re.fullmatch(r"tokenloom: step \d+: .*a lower --lr or --muon-lr may help.*\n", answer.err)


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(
    call: Call, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Trainer.step

    def step(self: Trainer, number: int, of: int) -> Any:
        if number == 5 and self.settings.lr:
            with torch.no_grad():
                self.parameters[0][0, 0] = torch.nan
        return usual(self, number, of)

    monkeypatch.setattr(Trainer, "step", step)
    out = tmp_path / "run"
    answer = call("train", rhyme, *TINY, "--steps", "9", "--eval-every", "2", "--out", out, "-q")
    assert answer.code == 1
    assert answer.out == ""
    assert re.fullmatch(rf"tokenloom: step 6: .* nan.*; the checkpoint of step 4 is in {out}\n", answer.err)
    assert tokenloom.load(out).evaluate()["loss"] > 0
    monkeypatch.undo()
    assert call("train", "--resume", "--out", out, "-q", "--json").json["steps"] == 9


# A task of the user's own.


def test_a_task_from_a_file(call: Call, refused: Refused, tmp_path: Path) -> None:
    data, out = write_sums(tmp_path / "sums.txt"), tmp_path / "sums"
    task = f"{OWN_TASK}:Sums"
    answer = call("train", data, "--task", task, "--width", "6", "--threads", "1", "--out", out)
    assert answer.code == 0
    assert "lines:             120" in answer.err
    assert "task:" not in answer.err, "a task that was given is not guessed"
    assert answer.out.endswith(f"saved in {out}; try: tokenloom predict {out}\n")
    predicted = call("predict", out, "--digits", "34", "--json").json
    assert 0 <= predicted["answer"] <= 9
    assert call("predict", out, "--digits", "34").out == f"{predicted['answer']}\n"
    assert call("info", out, "--json").json["model"]["width"] == 6
    message = refused("generate", out)
    assert "cannot generate" in message
    assert "predict" in message
    assert "--widht" in refused("train", data, "--task", task, "--widht", "6")
    assert "Sums" in refused("train", data, "--task", f"{OWN_TASK}:Sum")


def test_the_help_of_train_names_every_setting(call: Call) -> None:
    answer = call("train", "--help")
    assert answer.code == 0
    for flag in ("--size", "--sliding-window", "--minutes", "--muon-lr", "--task", "--resume", "--json", "--quiet"):
        assert flag in answer.out


# TensorBoard.


def test_tensorboard_gets_losses_and_metrics(
    call: Call, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []
    folders: list[str] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            folders.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    out = tmp_path / "run"
    words = ["--steps", "4", "--eval-every", "2", "--lr", "0.01", "--muon-lr", "0.03", "--warmup-steps", "0"]
    answer = call("train", rhyme, *TINY, *words, "--decay-fraction", "1", "--tensorboard", "--out", out, "-q")
    assert answer.code == 0
    assert folders == [str(out / "tensorboard")]
    steps = [step for name, _, step in written if name == "training/loss"]
    assert steps == [1, 2, 3, 4]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    for name, peak in (("lr", 0.01), ("muon_lr", 0.03)):
        rates = [value for key, value, _ in written if key == f"training/{name}"]
        assert rates == pytest.approx([peak, 0.75 * peak, 0.5 * peak, 0.25 * peak])
        assert rows[-1][name] == rates[-1], "the last row is that of the last step"
    assert rows[-1]["grad_norm"] == next(
        value for key, value, step in written if (key, step) == ("training/grad_norm", 4)
    )
    validation = {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}
    assert {step: value for name, value, step in written if name == "validation/loss"} == validation
    assert written[-1][0] == "closed"


def test_tensorboard_that_is_not_there_is_refused_before_any_work(
    refused: Refused, rhyme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return found(name, *args, **more)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    message = refused("train", rhyme, *TINY, "--tensorboard", "--out", tmp_path / "run")
    assert "pip install 'tokenloom[tensorboard]'" in message
    assert not (tmp_path / "run").exists()
