"""Translation from the command line and from Python, on words that are reversed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tokenloom
from tokenloom.cli.main import main
from tokenloom.errors import UserError
from tokenloom.evaluation import translation as bleu
from tokenloom.tasks._seq2seq import PairEvaluateOptions
from tokenloom.tasks.base import actions_of
from tokenloom.tasks.registry import guess_task
from tokenloom.tasks.translation import Translation
from tokenloom.training.metrics import compute_metrics

Call = Callable[..., tuple[int, str, str]]
WORDS = [a + b + c for a in "abcd" for b in "efgh" for c in ("", "a", "eh", "bad")]
TINY: dict[str, Any] = {"size": "nano", "width": 32, "threads": 1, "batch_size": 16}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "reversed.csv"
    path.write_text("source,target\n" + "".join(f"{word},{word[::-1]}\n" for word in WORDS), "utf-8")
    return path


@pytest.fixture(scope="module")
def trained(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Translation:
    """A model that has learned something: enough for its translations to differ. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "reversed"
    task = tokenloom.train(table, task="translation", out=out, steps=60, **TINY)
    assert isinstance(task, Translation)
    return task


@pytest.fixture(scope="module")
def run(trained: Translation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return max(tmp_path_factory.getbasetemp().glob("runs*/reversed"), key=lambda path: path.stat().st_mtime)


def test_the_task_is_guessed_and_its_run_says_what_it_is(call: Call, table: Path, tmp_path: Path) -> None:
    assert guess_task(str(table))[0] == guess_task("dates-iso")[0] == "translation"
    code, out, err = call("train", table, "--size", "nano", "--steps", "2", "--threads", "1", "--out", tmp_path / "r")
    assert code == 0
    assert "task: translation (the data look like pairs" in " ".join(err.split())
    assert "58 pairs train, 6 validate" in err
    assert "baseline:" in err
    assert "of the targets exactly" in err
    assert "accuracy:" in out
    assert " → " in out
    assert "try: tokenloom predict" in out
    assert "loss, nats" not in err


def test_predictions_a_line_each_and_as_json(call: Call, run: Path, tmp_path: Path) -> None:
    code, out, _ = call("predict", run, "ae", "cgbad", "bh")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 3
    file = tmp_path / "words.txt"
    file.write_text("ae\ncgbad\nbh\n", "utf-8")
    assert call("predict", run, "--file", file)[1].splitlines() == lines
    code, out, _ = call("predict", run, "ae", "cgbad", "bh", "--json")
    outputs = json.loads(out)["outputs"]
    assert [one["text"] for one in outputs] == lines
    weights = outputs[1]["attention"]["weights"]
    assert outputs[1]["attention"]["source"] == [*"cgbad", "⟨end⟩"]
    assert len(weights) == len(outputs[1]["attention"]["target"])
    assert all(sum(row) == pytest.approx(1.0, abs=1e-5) for row in weights)
    assert outputs[0]["log_prob_per_token"] < 0


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_of_sources_gives_what_each_gets_alone(trained: Translation, num_beams: int) -> None:
    together = trained.translate(WORDS[:24], num_beams=num_beams)
    assert together == [trained.translate([word], num_beams=num_beams)[0] for word in WORDS[:24]]
    assert len(set(together)) > 5


def test_greedy_translations_are_what_the_full_model_finds_token_by_token(trained: Translation) -> None:
    """Without cache, beam or batch: the whole model is asked anew for each token."""
    for word in WORDS[5:12]:
        ids, _ = trained.source_ids(word, "word")
        batch = tokenloom.models.batch.Batch({"source": trained.source_stream([ids])})
        made = [trained.tokenizers[1].vocab_size]
        for _ in range(trained.model_config["target_context"]):
            batch.streams["target"] = tokenloom.models.batch.Stream(ids=torch.tensor([made]))
            with torch.no_grad():
                made.append(int(trained.model(batch)[0, -1].argmax()))
            if made[-1] == trained.tokenizers[1].specials["end"]:
                break
        assert trained.translate([word]) == [trained.tokenizers[1].decode(made[1:])]


def test_a_wider_beam_finds_no_worse_scores(trained: Translation) -> None:
    ids = [trained.source_ids(word, "word")[0] for word in WORDS[:20]]
    total = [
        sum(
            one.log_prob * (len(one.ids) + one.ended)
            for one in trained.translate_ids(ids, num_beams=b, length_penalty=0.0)
        )
        for b in (1, 8)
    ]
    assert total[1] >= total[0] - 1e-4


def test_what_is_measured(trained: Translation, table: Path) -> None:
    pytest.importorskip("sacrebleu")
    metrics = trained.evaluate()
    assert {"loss", "exact_match", "accuracy", "bleu", "chrf", "num_pairs"} <= set(metrics)
    assert metrics["num_pairs"] == 6
    assert trained.evaluate(batch_size=2) == pytest.approx(metrics)
    everything = trained.evaluate(str(table))
    right = sum(a == word[::-1] for a, word in zip(trained.translate(WORDS), WORDS, strict=True))
    assert everything["exact_match"] == right / len(WORDS)
    # Every token the likeliest after the true ones before it: that is what greedy choice gives.
    assert compute_metrics(trained, trained_totals(trained, str(table)))["exact_match"] == pytest.approx(
        everything["exact_match"]
    )


def trained_totals(task: Translation, data: str) -> Any:
    from tokenloom.training.loop import evaluate

    return evaluate(task, task.model, task.load(data, for_evaluation=True).validation)


def test_two_aligned_files_are_measured_as_the_table_of_their_lines(call: Call, run: Path, tmp_path: Path) -> None:
    (tmp_path / "ab.src").write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
    (tmp_path / "ab.tgt").write_text("".join(f"{word[::-1]}\n" for word in WORDS), "utf-8")
    (tmp_path / "ab.csv").write_text("source,target\n" + "".join(f"{word},{word[::-1]}\n" for word in WORDS), "utf-8")
    ways = ["--data", tmp_path / "ab.src", "--target-file", tmp_path / "ab.tgt"], ["--data", tmp_path / "ab.csv"]
    found = [json.loads(call("evaluate", run, *way, "--json")[1]) for way in ways]
    for one in found:
        del one["seconds"], one["data"]
    assert found[0] == found[1]
    assert found[0]["num_pairs"] == len(WORDS)
    (tmp_path / "ab.tgt").write_text("eh\n", "utf-8")
    code, _, err = call("evaluate", run, *ways[0])
    assert code == 2
    assert "1 line" in err
    code, _, err = call("evaluate", run, "--target-file", tmp_path / "ab.tgt")
    assert code == 2
    assert "--data" in err


def test_without_sacrebleu_the_rest_is_measured(trained: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics.bleu", None)
    assert bleu.corpus_scores(["a"], ["a"]) == {}
    metrics = trained.evaluate()
    assert "bleu" not in metrics
    notes = actions_of(Translation)["evaluate"].run(trained, PairEvaluateOptions())["notes"]
    assert "pip install 'tokenloom[bleu]'" in notes[0]


def test_a_loaded_run_translates_the_same(trained: Translation, run: Path) -> None:
    again = tokenloom.load(run)
    assert isinstance(again, Translation)
    assert again.translate(WORDS[:9], num_beams=2) == trained.translate(WORDS[:9], num_beams=2)
    assert again.evaluate() == trained.evaluate()


def test_the_alignment_is_drawn(call: Call, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, more in (("light.png", []), ("dark.png", ["--dark"])):
        code, _, err = call("predict", run, "cgbad", "--attention-plot", tmp_path / name, *more)
        assert code == 0
        assert name in err
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to translate"),
        ([""], "source 1: is empty"),
        (["ae", "  "], "source 2: is empty"),
        (["aZe"], "source 1: not in the vocabulary: 1 character: 'Z' (U+005A)"),
        (["abcdefgh"], "source 1: has 8 tokens, and the model reads at most 5"),
        (["ae", "--num-beams", "0"], "--num-beams 0: must be at least 1"),
        (["ae", "--length-penalty", "2"], "--length-penalty has no effect without --num-beams"),
        (["ae", "--dark"], "--dark has no effect without --attention-plot"),
        (["ae", "bf", "--attention-plot", "x.png"], "--attention-plot draws one translation; 2 sources"),
        (["--file", "none.txt"], "--file none.txt: cannot be read: No such file"),
        (["ae", "--file", "none.txt"], "texts are given too"),
    ],
)
def test_what_cannot_be_translated(call: Call, run: Path, words: list[str], message: str) -> None:
    code, out, err = call("predict", run, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_empty_line_of_a_file_is_named(call: Call, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.txt"
    file.write_text("ae\n\nbf\n")
    code, _, err = call("predict", run, "--file", file)
    assert code == 2
    assert "w.txt', line 2: is empty" in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 3}, r"with more than 3 tokens on a side: reversed.csv:4 \(4\).*--too-long drop"),
        ({"max_length": 1, "too_long": "drop"}, "no pair to train on is at most 1 tokens long"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0: must be from 0"),
        ({"model": "rnn", "heads": 2}, "--heads has no effect with --model rnn"),
        ({"width": 30, "heads": 4}, "not 7 .--width and --heads decide"),
        ({"model": "rnn", "width": 31}, "a width of 31"),
        ({"size": "smal"}, "--size smal: must be .*; did you mean"),
        ({"target_file": "none.txt"}, "a table; --target-file joins two plain text files"),
    ],
)
def test_settings_that_do_not_fit(table: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tokenloom.train(table, task="translation", steps=2, **settings)


def test_pairs_that_are_too_long_are_left_out_when_asked(table: Path) -> None:
    fitting = tokenloom.start_session(table, task="translation", dry_run=True, max_length=4, too_long="drop")
    report = next(event for event in fitting if hasattr(event, "report")).report
    left = [note for note in report["notes"] if "dropped" in note]
    assert (
        left == ["dropped 16 pairs with more than 4 tokens on a side: " + left[0].partition(": ")[2]] or len(left) == 2
    )
    assert sum(int(note.split()[1]) for note in left) == 16


def test_smoothing_is_for_training_alone(table: Path) -> None:
    plain, smooth = (Translation(Translation.Settings(size="nano", label_smoothing=s)) for s in (0.0, 0.2))
    batches = []
    for task in (plain, smooth):
        samples = task.load(str(table)).train
        task.model = task.build_model(1)
        keys = samples.all()[:4]
        batches.append(task.collate(samples.take(keys), tokenloom.training.batches.BatchContext(0, 0, keys)))
    model = plain.model.eval()
    assert torch.equal(
        plain.compute_loss(model, batches[0])["loss"].sums, smooth.compute_loss(model, batches[1])["loss"].sums
    )
    model.train()
    logits, targets = model(batches[0]), batches[0].targets["loss"]
    found = smooth.compute_loss(model, batches[1])["loss"]
    log_probs = logits.log_softmax(-1)
    own = log_probs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    expected = -((0.8 * own + 0.2 * log_probs.mean(-1)) * (targets >= 0)).sum(1)
    torch.testing.assert_close(found.sums, expected)


def test_two_files_and_two_vocabularies(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("".join(f"{w}\n" for w in WORDS))
    (tmp_path / "a.xx").write_text("".join(f"{w.upper()}\n" for w in WORDS))
    words = ["--size", "nano", "--steps", "2", "--threads", "1", "--separate-vocab", "--model", "rnn"]
    code, _, err = call(
        "train",
        tmp_path / "a.en",
        "--target-file",
        tmp_path / "a.xx",
        "--task",
        "translation",
        *words,
        "--out",
        tmp_path / "r",
    )
    assert code == 0, err
    assert "tokenizers: char for sources, vocabulary of 9; char for targets, vocabulary of 9" in " ".join(err.split())
    task = tokenloom.load(tmp_path / "r")
    assert isinstance(task, Translation)
    assert task.tokenizers[0].unseen("A") == ["A"]
    assert task.tokenizers[1].unseen("a") == ["a"]
    assert not task.has_cross_attention
    code, _, err = call("predict", tmp_path / "r", "ae", "--attention-plot", tmp_path / "x.png")
    assert code == 2
    assert "no attention" in err
    tokenizer = tmp_path / "r" / "target_tokenizer.json"
    tokenizer.write_bytes((tmp_path / "r" / "source_tokenizer.json").read_bytes())
    with pytest.raises(UserError, match=r"target_tokenizer\.json: not the tokenizer"):
        tokenloom.load(tmp_path / "r")


def test_words_that_are_not_known_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("source,target\n" + "".join(f"one {a} two,eins {a} zwei\n" for a in "abcdefgh"))
    task = tokenloom.train(path, task="translation", tokenizer="word", vocab_size=12, steps=2, size="nano", threads=1)
    assert isinstance(task, Translation)
    _, notes = task.source_ids("one zebra two", "source 1")
    assert notes == ["source 1: not in the vocabulary: 1 word: 'zebra'"]
