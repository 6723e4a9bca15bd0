"""Using a model that goes on with text, from Python."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tasks.untrained import RHYME, task_on, with_model, written
from traps import MARKERS

from tokenloom.data.samples import TextWindows
from tokenloom.errors import UserError
from tokenloom.models.batch import Batch, Stream
from tokenloom.tasks._text_decoder import GenerateOptions, ScoreOptions
from tokenloom.tasks.base import actions_of
from tokenloom.tasks.text_generation import TextGeneration

CONTEXT = 16
PROMPTS = ["One", "Three, four", "Five, six, pick up sticks.\nOne, two, "]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TextGeneration:
    """Characters, no borders."""
    return with_model(task_on(written(tmp_path_factory.mktemp("text"))))


@pytest.fixture(scope="module")
def bordered(tmp_path_factory: pytest.TempPathFactory) -> TextGeneration:
    """A folder of documents."""
    folder = tmp_path_factory.mktemp("documents")
    for number in range(8):
        written(folder, f"{number} {MARKERS}", f"{number}.txt")
    return with_model(task_on(folder))


def greedy_by_hand(task: TextGeneration, prompt: str, tokens: int) -> str:
    """The likeliest token again and again, by a full pass over the last `context` tokens."""
    ids = [int(i) for i in task.tokenizer.encode(prompt)]
    start = len(ids)
    for _ in range(tokens):
        last = torch.tensor([ids[-CONTEXT:]])
        with torch.no_grad():
            ids.append(int(task.model(Batch({"text": Stream(ids=last)}))[0, -1].argmax()))
    return task.tokenizer.decode(ids[start:])


@pytest.mark.parametrize("preset", ["modern", "classic"])
def test_past_the_context_the_last_tokens_are_read_anew(preset: str, tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path), preset=preset))
    assert task.generate("One, ", max_new_tokens=40, temperature=0) == greedy_by_hand(task, "One, ", 40)


def test_a_window_goes_on_for_ever_and_sees_every_prompt_whole(tmp_path: Path) -> None:
    """In its ring it gives what the whole text gives under the window mask."""
    task = with_model(task_on(written(tmp_path), sliding_window=8))
    prompt = RHYME  # five times the context
    ids, notes = task.prompt_ids(prompt)
    assert (len(ids), notes) == (len(RHYME), [])
    went_on = task.generate(prompt, max_new_tokens=50, temperature=0)
    whole = torch.from_numpy(task.tokenizer.encode(prompt + went_on)).long()
    with torch.no_grad():
        best = task.model(Batch({"text": Stream(ids=whole[None])}))[0].argmax(-1)
    assert best[len(ids) - 1 : -1].tolist() == whole[len(ids) :].tolist()


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 5}, {"seed": 5, "top_k": 4, "repetition_penalty": 1.5}]
)
def test_a_batch_of_prompts_gives_what_each_gets_alone(task: TextGeneration, options: dict[str, Any]) -> None:
    together = task.generate_all([prompt[-CONTEXT:] for prompt in PROMPTS], max_new_tokens=25, num_samples=2, **options)
    for prompt, texts in zip(PROMPTS, together, strict=True):
        alone = task.generate_all([prompt[-CONTEXT:]], max_new_tokens=25, num_samples=2, **options)[0]
        assert texts == alone
        assert task.generate(prompt[-CONTEXT:], max_new_tokens=25, **options) == texts[0]


def test_prompts_with_different_ends_in_one_batch(bordered: TextGeneration) -> None:
    prompts = ["0 She", "1 She typed", None, "then <|user", "is only text."]
    together = bordered.generate_all(prompts, max_new_tokens=60, num_samples=4)
    alone = [bordered.generate_all([prompt], max_new_tokens=60, num_samples=4)[0] for prompt in prompts]
    assert together == alone
    assert len({len(text) for texts in alone for text in texts}) > 5, "some end earlier than others"


def test_a_stream_gives_the_text_in_pieces(task: TextGeneration) -> None:
    pieces = list(task.stream("One", max_new_tokens=30, seed=2))
    assert len(pieces) == 30
    assert "".join(pieces) == task.generate("One", max_new_tokens=30, seed=2)
    stop = "".join(pieces)[12:14]
    cut = list(task.stream("One", max_new_tokens=30, seed=2, stop=[stop]))
    assert "".join(cut) == "".join(pieces)[: "".join(pieces).index(stop)]


def test_a_stream_that_is_left_leaves_the_model_as_it_was(task: TextGeneration) -> None:
    task.model.train()
    try:
        stream = task.stream("One", max_new_tokens=30)
        next(stream)
        assert not task.model.training
        stream.close()  # type: ignore[attr-defined]
        assert task.model.training
    finally:
        task.model.eval()


def test_beam_search_finds_the_likeliest_of_all(task: TextGeneration) -> None:
    """With a beam as wide as there are beginnings it is exhaustive."""
    characters = task.tokenizer.decode(range(task.tokenizer.vocab_size))
    best = max((a + b for a in characters for b in characters), key=lambda text: task.score("One", text).total)
    assert task.generate("One", num_beams=len(characters), max_new_tokens=2) == best
    both = task.generate_all(["One", "Three, four"], num_beams=3, max_new_tokens=9)
    assert both == [[task.generate(prompt, num_beams=3, max_new_tokens=9)] for prompt in ("One", "Three, four")]


def test_beam_search_stops_at_stop_strings_and_ends(bordered: TextGeneration, task: TextGeneration) -> None:
    whole = task.generate("One", num_beams=2, max_new_tokens=20)
    assert task.generate("One", num_beams=2, max_new_tokens=20, stop=[whole[7:9]]) == whole[: whole.index(whole[7:9])]
    assert "<|end|>" not in bordered.generate("0 She", num_beams=4, max_new_tokens=80)


# Scores.


def test_scores_are_the_losses_of_evaluate(task: TextGeneration) -> None:
    text = RHYME[: CONTEXT + 1]
    ids = task.tokenizer.encode(text)
    measured = task.evaluate(samples=TextWindows(ids, CONTEXT))
    scored = task.score(text[0], text[1:])
    assert -scored.total == pytest.approx(measured["loss"] * measured["num_targets"], rel=1e-9)
    assert -scored.average == pytest.approx(measured["loss"], rel=1e-9)
    assert len(scored.log_probs) == CONTEXT
    parts = task.score(text[:5], text[5:9]), task.score(text[:9], text[9:])
    assert [*parts[0].log_probs, *parts[1].log_probs] == pytest.approx(list(scored.log_probs[4:]), rel=1e-9)


def test_a_document_is_scored_from_its_end_token(bordered: TextGeneration) -> None:
    text = MARKERS[: CONTEXT - 1]
    ids = [bordered.tokenizer.specials["end"], *bordered.tokenizer.encode(text).tolist()]
    measured = bordered.evaluate(samples=TextWindows(torch.tensor(ids).numpy(), CONTEXT))
    assert -bordered.score("", text).average == pytest.approx(measured["loss"], rel=1e-9)
    assert bordered.score(None, text) == bordered.score("", text)


# Prompts.


def test_where_text_starts_without_a_prompt(task: TextGeneration, bordered: TextGeneration, tmp_path: Path) -> None:
    assert task.prompt_ids(None) == (task.tokenizer.encode("\n").tolist(), [])
    with pytest.raises(UserError, match="needs some text to continue"):
        task.generate("")
    assert bordered.prompt_ids(None) == bordered.prompt_ids("") == ([bordered.tokenizer.specials["end"]], [])
    one_line = with_model(task_on(written(tmp_path, "all on one line " * 40)))
    with pytest.raises(UserError, match="needs some text to continue"):
        one_line.generate()
    with pytest.raises(UserError, match="needs some text to continue"):
        example_of(one_line)


def test_a_long_prompt_keeps_its_last_part_with_a_warning(task: TextGeneration) -> None:
    prompt = RHYME
    with pytest.warns(UserWarning, match=f"has {len(RHYME)} tokens; the model sees the last 16"):
        text = task.generate(prompt, max_new_tokens=9)
    assert text == task.generate(prompt[-CONTEXT:], max_new_tokens=9)
    with pytest.warns(UserWarning, match="the last 16"):
        assert "".join(task.stream(prompt, max_new_tokens=9)) == text
    with pytest.warns(UserWarning, match="the last 16"):
        assert task.score(prompt, "One") == task.score(prompt[-CONTEXT:], "One")


def test_markers_in_prompts_are_text(bordered: TextGeneration, task: TextGeneration) -> None:
    end = bordered.tokenizer.specials["end"]
    ids, _ = bordered.prompt_ids("<|user|>")
    assert end not in ids
    assert bordered.tokenizer.decode(ids) == "<|user|>"
    with pytest.raises(UserError, match="'<'"):
        task.generate("<|end|>")


def test_line_ends_in_prompts_are_read_as_in_training(task: TextGeneration, tmp_path: Path) -> None:
    assert task.prompt_ids("One,\r\ntwo\r") == task.prompt_ids("One,\ntwo\n")
    assert task.score("One\r\n", "Th\r\n") == task.score("One\n", "Th\n")
    free = {"max_new_tokens": 60, "seed": 1, "temperature": 3.0}
    assert task.generate("One", stop=["\r\n"], **free) == task.generate("One", stop=["\n"], **free)
    assert "\n" not in task.generate("One", stop=["\r\n"], **free)
    kept = with_model(task_on(written(tmp_path, RHYME.replace("\n", "\r\n") * 8), normalize_newlines=False))
    assert kept.tokenizer.decode(kept.prompt_ids("One\r\n")[0]) == "One\r\n"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("What is ☃ this?", ["--prompt", "'☃' (U+2603)", "byte-bpe"]),
        ("half \ud83d of", ["--prompt", "U+D83D", "surrogate"]),
        ("", ["--prompt", "needs some text"]),
    ],
    ids=["unseen", "surrogate", "empty"],
)
def test_prompts_that_cannot_be(prompt: str, words: list[str], task: TextGeneration) -> None:
    for use in (task.generate, task.stream, lambda text: task.score(text, "One")):
        with pytest.raises(UserError) as refused:
            use(prompt)
        for word in words:
            assert word in str(refused.value)


def test_unknown_words_are_named_and_go_through(tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path), tokenizer="word", vocab_size=100))
    with pytest.warns(UserWarning, match="does not know 1 word: 'zebra'"):
        task.generate("One, zebra", max_new_tokens=3)
    result = actions_of(TextGeneration)["score"].run(task, ScoreOptions("One", " zebra"), lambda piece: None)
    assert any("zebra" in note for note in result["notes"])


def test_any_text_goes_through_bytes(tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path), tokenizer="byte-bpe", vocab_size=280))
    prompt = "☃ 🌊"[:CONTEXT]
    assert task.tokenizer.decode(task.prompt_ids(prompt)[0]) == prompt
    task.generate(prompt, max_new_tokens=30, temperature=2.0).encode()


# Options.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, ["temperature -1", "--temperature"]),
        ({"temperature": math.nan}, ["nan", "--temperature"]),
        ({"temperature": "hot"}, ["temperature", "hot"]),
        ({"top_k": -1}, ["--top-k"]),
        ({"top_p": 1.5}, ["1.5", "--top-p"]),
        ({"min_p": math.nan}, ["--min-p"]),
        ({"repetition_penalty": 0.5}, ["--repetition-penalty"]),
        ({"max_new_tokens": -1}, ["--max-new-tokens"]),
        ({"max_new_tokens": 1.5}, ["max_new_tokens", "1.5"]),
        ({"num_samples": 0}, ["--num-samples 0"]),
        ({"num_beams": 0}, ["--num-beams 0"]),
        ({"num_beams": 2, "top_k": 5}, ["--top-k", "--num-beams"]),
        ({"length_penalty": 0.5}, ["--length-penalty", "--num-beams"]),
        ({"num_beams": 2, "length_penalty": math.nan}, ["--length-penalty nan"]),
        ({"stop": [""]}, ["--stop"]),
        ({"stop": 3}, ["stop", "list"]),
        ({"tempratur": 1.0}, ["tempratur", "temperature"]),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], words: list[str], task: TextGeneration) -> None:
    with pytest.raises(UserError) as refused:
        task.generate_all(["One"], **options)
    for word in words:
        assert word in str(refused.value)
    with pytest.raises(UserError):
        list(task.stream("One", **options))


def test_one_text_is_one_sample(task: TextGeneration) -> None:
    with pytest.raises(UserError, match="generate_all"):
        task.generate("One", num_samples=2)
    for options in ({"num_samples": 2}, {"num_beams": 2}):
        with pytest.raises(UserError, match="one sample"):
            task.stream("One", **options)


def test_weights_that_are_not_finite_are_noticed(tmp_path: Path) -> None:
    task = with_model(task_on(written(tmp_path)))
    with torch.no_grad():
        task.model.lm_head.bias[0] = math.nan  # type: ignore[union-attr,index]
    for use in (
        lambda: task.generate("One"),
        lambda: task.generate("One", num_beams=2),
        lambda: task.score("One", "O"),
    ):
        with pytest.raises(UserError, match="not finite"):
            use()


# The command line's way.


def test_use_shows_while_it_makes(task: TextGeneration) -> None:
    shown: list[str] = []
    result = actions_of(TextGeneration)["generate"].run(task, GenerateOptions("One", max_new_tokens=7), shown.append)
    assert shown == ["One", *result["text"], "\n"]
    assert result["texts"] == [result["text"]] == [task.generate("One", max_new_tokens=7)]


def example_of(task: TextGeneration) -> str:
    """What is shown after training."""
    generate, shown = actions_of(TextGeneration)["generate"], []
    assert generate.example is not None
    generate.run(task, GenerateOptions(**generate.example(task)), shown.append)
    return "".join(shown)


def test_the_example_is_the_same_each_time(task: TextGeneration) -> None:
    assert example_of(task) == example_of(task) == "\n".join((task.generate(max_new_tokens=300), ""))


def test_one_stop_string_need_not_be_a_list_and_one_prompt_is_a_text(task: TextGeneration) -> None:
    whole = task.generate("o", max_new_tokens=30, seed=1)
    letter = whole[3]
    assert task.generate("o", max_new_tokens=30, seed=1, stop=letter) == whole.split(letter)[0]
    with pytest.raises(UserError, match="a prompt is a text, not list; generate_all takes a list"):
        task.generate(["a", "b"])  # type: ignore[arg-type]
