"""Generation: batch = alone, one reading for many samples, ends, and the limits."""

import math

import pytest
import torch
from decoding_fakes import BreakingModel, ByteStream, FakeState, PieceStream, TableModel, one_by_one

from tokenloom.errors import UserError
from tokenloom.generation import (
    Finished,
    Generation,
    NonFiniteLogits,
    Request,
    Sampling,
    TokenEvent,
    generate,
    generate_all,
)
from tokenloom.generation.generate import sample_generator
from tokenloom.generation.sampling import draw
from tokenloom.tokenizers.text import CharTokenizer


def alone(model: TableModel, request: Request, text: object = None) -> list[Generation]:
    return generate_all(model, [request], text)[0]  # type: ignore[arg-type]


def plain(model: TableModel, request: Request, sample: int = 0) -> list[int]:
    """One sample by the plain definition, one token at a time and nothing remembered."""
    text, new = list(request.prompt), []
    generator = sample_generator(request.seed, sample)
    while len(new) < request.max_new_tokens:
        log_probs = model.next(torch.tensor([([-1] * model.memory + text)[-model.memory :]]))
        seen = torch.zeros(1, model.vocab_size, dtype=torch.bool)
        seen[0, text] = True
        choices = request.sampling.distribution(log_probs, seen)
        token = int(choices.argmax()) if request.sampling.is_greedy else int(draw(choices, [generator]))
        if token in request.end:
            break
        new.append(token)
        text.append(token)
    return new


OPTIONS = [
    Sampling(),
    Sampling(0),
    Sampling(0.7, top_k=4),
    Sampling(1.3, top_p=0.8),
    Sampling(min_p=0.1, repetition_penalty=1.4),
    Sampling(0, repetition_penalty=3.0),
]


@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("sampling", OPTIONS)
def test_it_is_the_plain_loop(memory: int, sampling: Sampling) -> None:
    model = TableModel.random(11, memory, sharpness=1)
    for seed in range(4):
        request = Request([1, 2, 3, 4], 15, sampling, seed=seed, num_samples=2, end=(0,))
        for index, result in enumerate(alone(model, request)):
            assert list(result.ids) == plain(model, request, index)
            assert result.log_probs == pytest.approx(one_by_one(model, [1, 2, 3, 4], list(result.ids)))
            assert result.reason == ("end" if len(result.ids) < 15 else "length")


def mixed_requests() -> list[Request]:
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [2] * 12, [9]]
    ends = [(0,), (5, 6), (), (1,)]
    return [
        Request(prompt, 6 + 5 * n, OPTIONS[n], seed=n % 2, num_samples=1 + n % 3, end=end)
        for n, (prompt, end) in enumerate(zip(prompts, ends, strict=True))
    ]


@pytest.mark.parametrize("memory", [1, 3])
def test_a_batch_of_3_7_and_12_tokens_with_different_ends_is_as_alone(memory: int) -> None:
    model = TableModel.random(11, memory, sharpness=1)
    requests = mixed_requests()
    together = generate_all(model, requests)
    assert together == [alone(model, request) for request in requests]
    assert [len(samples) for samples in together] == [1, 2, 3, 1]
    for sampling in OPTIONS:
        same = [Request(r.prompt, r.max_new_tokens, sampling, r.seed, r.num_samples, r.end) for r in requests]
        assert generate_all(model, same) == [alone(model, request) for request in same]


def test_many_samples_come_from_one_reading() -> None:
    model = TableModel.random(11, 3, sharpness=1)
    results = alone(model, Request([1, 2, 3, 4, 5], 4, num_samples=6))
    assert model.calls == [(1, 5), (6, 1), (6, 1), (6, 1)]
    assert len({result.ids for result in results}) > 3, "samples differ"
    model.calls.clear()
    pair = generate_all(model, [Request([1, 2, 3], 2, num_samples=2), Request([5], 2, seed=3, num_samples=2)])
    assert model.calls == [(2, 3), (4, 1)]
    assert pair[0] == alone(model, Request([1, 2, 3], 2, num_samples=2))


def test_the_state_is_forked_where_all_prompts_have_as_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forks, plain_fork = TableModel.random(11), [], FakeState.repeat
    monkeypatch.setattr(FakeState, "repeat", lambda state, n: (forks.append(n), plain_fork(state, n))[1])
    generate_all(model, [Request([1], 2, num_samples=3), Request([2], 2, num_samples=3)])
    generate_all(model, [Request([1], 2, num_samples=3), Request([2], 2, num_samples=1)])
    generate_all(model, [Request([1], 2), Request([2], 2)])
    assert forks == [3]


def test_a_sample_depends_on_seed_and_number_alone() -> None:
    model = TableModel.random(30, sharpness=0.5)
    first = alone(model, Request([3], 20, seed=5, num_samples=3))
    assert alone(model, Request([3], 20, seed=5, num_samples=1)) == first[:1]
    assert alone(model, Request([3], 20, seed=5, num_samples=8))[:3] == first
    others = alone(model, Request([3], 20, seed=6, num_samples=3))
    assert not {result.ids for result in others} & {result.ids for result in first}
    assert alone(model, Request([3], 20, seed=5 + 2**32))[0] != first[0], "seeds of more than 32 bits count"
    torch.manual_seed(0)
    before = torch.get_rng_state()
    alone(model, Request([3], 5))
    assert torch.equal(before, torch.get_rng_state()), "the global generator is left alone"


def test_samples_follow_the_model() -> None:
    model = TableModel.random(5, sharpness=1)
    results = alone(model, Request([2], 1, num_samples=4000))
    counts = torch.bincount(torch.tensor([result.ids[0] for result in results]), minlength=5) / 4000
    assert float((counts - model.table[3].exp()).abs().max()) < 4 * math.sqrt(0.25 / 4000)


def test_finished_rows_leave_the_batch() -> None:
    model = TableModel.random(6)
    requests = [Request([1], 2, Sampling(0)), Request([1], 5, Sampling(0)), Request([1], 3, Sampling(0))]
    generate_all(model, requests)
    assert model.calls == [(3, 1), (3, 1), (2, 1), (1, 1), (1, 1)]


def test_events_come_as_the_model_works_and_may_be_abandoned() -> None:
    model = TableModel.random(6)
    events = generate(model, [Request([1, 2], 100, Sampling(0))])
    assert model.calls == []
    first = next(events)
    assert isinstance(first, TokenEvent)
    assert model.calls == [(1, 2)]
    next(events)
    assert model.calls == [(1, 2), (1, 1)]
    assert torch.is_grad_enabled(), "the caller's gradients are left alone between tokens"
    events.close()
    assert len(model.calls) == 2


def test_the_order_of_events() -> None:
    table = torch.tensor([[0, 1.0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64).log()
    events = list(generate(TableModel(table), [Request([1], 3, Sampling(0), end=(0,)), Request([0], 1, Sampling(0))]))
    assert events == [
        TokenEvent(0, 0, 2, 0.0),
        TokenEvent(1, 0, 1, 0.0),
        Finished(1, 0, "length", 1),
        Finished(0, 0, "end", 1, end=0),
    ]


def test_no_new_tokens() -> None:
    model = TableModel.random(4)
    assert list(generate(model, [Request([1], 0, num_samples=2)])) == [
        Finished(0, 0, "length", 0),
        Finished(0, 1, "length", 0),
    ]
    assert model.calls == []
    assert generate_all(model, []) == []
    mixed = generate_all(model, [Request([1], 0), Request([1], 2, Sampling(0))])
    assert [len(samples[0].ids) for samples in mixed] == [0, 2]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request([1], -1), "--max-new-tokens"),
        (Request([], 5), "prompt is empty"),
        (Request([1], 5, num_samples=0), "--num-samples"),
        (Request([1], 5, stop=[""]), "--stop"),
    ],
)
def test_what_cannot_be_generated_is_refused_at_once(request_: Request, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        generate(TableModel.random(4), [request_], ByteStream)
    assert "\n" not in str(caught.value)


def test_the_second_prompt_is_named() -> None:
    with pytest.raises(UserError, match="prompt 2 is empty"):
        generate(TableModel.random(4), [Request([1], 1), Request([], 1)])


def test_mistakes_of_a_developer() -> None:
    with pytest.raises(ValueError, match="stop strings need"):
        generate(TableModel.random(4), [Request([1], 1, stop=["a"])])
    with pytest.raises(ValueError, match="-3"):
        generate(TableModel.random(4), [Request([1, -3], 1)])


@pytest.mark.parametrize("sampling", OPTIONS)
@pytest.mark.parametrize(("value", "whole"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_broken_logits_stop_with_step_and_device(sampling: Sampling, value: float, whole: bool) -> None:
    model = BreakingModel(TableModel.random(5, sharpness=0.3).table, value, call=3, row=1, whole=whole)
    events, tokens = generate(model, [Request([0], 6, sampling), Request([3], 6, sampling)]), []
    with pytest.raises(NonFiniteLogits, match="step 3 on cpu, request 2, sample 1") as caught:
        tokens += [event for event in events if isinstance(event, TokenEvent)]
    assert isinstance(caught.value, UserError)
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.step, caught.value.device.type) == (3, "cpu")


def test_only_what_can_matter_of_a_long_prompt_is_fed() -> None:
    model = TableModel.random(6, 3)
    prompt = [n % 6 for n in range(20)]
    whole = alone(model, Request(prompt, 6, num_samples=2))
    model.context = 4
    model.calls.clear()
    assert alone(model, Request(prompt, 6, num_samples=2)) == whole
    assert model.calls[0] == (1, 4)


def test_a_prompt_may_hold_ids_that_are_never_predicted() -> None:
    """A start token above the predicted vocabulary, with a penalty that must not trip over it."""
    model = TableModel(TableModel.random(3).table[:, :2].log_softmax(-1))
    [result] = alone(model, Request([2], 4, Sampling(repetition_penalty=2)))
    assert set(result.ids) <= {0, 1}


def spelling(text: str) -> tuple[TableModel, list[int]]:
    """A model that says these bytes one after the other, from a prompt of one byte (each byte once)."""
    data = text.encode()
    table = torch.full((257, 256), -math.inf, dtype=torch.float64)
    table[:, 0] = 0.0
    for before, after in zip(b"\x01" + data, data, strict=False):
        table[before + 1] = -math.inf
        table[before + 1, after] = 0.0
    return TableModel(table), [1]


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    model, prompt = spelling("abc#STP! more")
    events = list(generate(model, [Request(prompt, 20, Sampling(0), stop=["#STP!", "zzz"])], ByteStream))
    shown = "".join(event.text for event in events)
    assert shown == "abc"
    assert events[-1] == Finished(0, 0, "stop", 8)
    assert len(model.calls) == 8, "no work after the stop string"
    for n in range(1, 8):
        sent = "".join(event.text for event in events[:n])
        assert "abc".startswith(sent)


def test_what_was_held_back_comes_with_the_end() -> None:
    model, prompt = spelling("abc#STP! more")
    [result] = alone(model, Request(prompt, 6, Sampling(0), stop=["#STP!"]), ByteStream)
    assert (result.text, result.reason, len(result.ids)) == ("abc#ST", "length", 6)
    [result] = alone(model, Request(prompt, 9, Sampling(0), end=(ord("P"),), stop=["#STP!"]), ByteStream)
    assert (result.text, result.reason, result.end) == ("abc#ST", "end", ord("P"))


def test_half_a_character_is_never_shown() -> None:
    model, prompt = spelling("日é🙂")
    events = list(generate(model, [Request(prompt, 9, Sampling(0))], ByteStream))
    assert [event.text for event in events] == ["", "", "日", "", "é", "", "", "", "🙂", ""]


def test_each_sample_has_its_own_text() -> None:
    model = TableModel.random(3, sharpness=0.1)
    pieces = ["a", "b", "c"]
    results = alone(model, Request([0], 12, num_samples=5, stop=["ca"]), lambda: PieceStream(pieces))
    for result in results:
        text = "".join(pieces[token] for token in result.ids)
        assert result.text == text.split("ca")[0]
        assert (result.reason == "stop") == ("ca" in text)
    assert len({result.reason for result in results}) == 2


def test_with_a_tokenizer_of_the_package() -> None:
    tokenizer = CharTokenizer.train("héllo wörld 🙂日本")
    model = TableModel.random(tokenizer.vocab_size, 3, sharpness=0.5)
    request = Request([int(token) for token in tokenizer.encode("hé")], 40, num_samples=8, stop=["🙂", "l日"])
    for result in generate_all(model, [request], tokenizer.stream)[0]:
        whole = tokenizer.decode(list(result.ids))
        assert result.text == min(whole.split("🙂")[0], whole.split("l日")[0], key=len)
        assert (result.reason == "stop") == (result.text != whole)
