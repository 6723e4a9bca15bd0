"""Recurrent language models: what comes before a window makes its state, and documents do not know of each other."""

import dataclasses

import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.recurrent import OneHot, RecurrentConfig, RecurrentLM

TINY = RecurrentConfig(cell="rnn", vocab_size=7, context=8, width=6, depth=2)


def model_of(cell: str, **changes: object) -> RecurrentLM:
    return RecurrentLM(dataclasses.replace(TINY, cell=cell, **changes), seed=3).double().eval()


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(7, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_what_stands_before_a_window_is_known_but_gets_no_gradient(cell: str) -> None:
    model, rows = model_of(cell, embedding_dim=4), ids(3, 12)
    whole = model(Batch({"text": Stream(ids=rows)}))
    adapt_tensor = model(Batch({"text": Stream(ids=rows[:, 5:]), "before": Stream(ids=rows[:, :5])}))
    torch.testing.assert_close(adapt_tensor, whole[:, 5:], rtol=0, atol=1e-12)
    adapt_tensor.sum().backward()
    only_before = set(rows[:, :5].unique().tolist()) - set(rows[:, 5:].unique().tolist())
    rows[:, 5:] = rows[:, 5:].clamp(max=5)
    model.zero_grad()
    rows[:, :5] = 6
    model(Batch({"text": Stream(ids=rows[:, 5:]), "before": Stream(ids=rows[:, :5])})).sum().backward()
    assert model.tokens.weight.grad is not None
    assert (model.tokens.weight.grad[6] == 0).all(), only_before
    assert (model.tokens.weight.grad[:6] != 0).any()


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_a_document_that_begins_in_a_window_forgets_what_stood_before(cell: str) -> None:
    model, rows = model_of(cell), ids(1, 10)
    segments = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])
    both = {
        "before": Stream(ids=rows[:, :4], segments=segments[:, :4]),
        "text": Stream(ids=rows[:, 4:], segments=segments[:, 4:]),
    }
    found = model(Batch(both))
    alone = model(Batch({"text": Stream(ids=rows[:, 6:])}))
    torch.testing.assert_close(found[:, 2:], alone, rtol=0, atol=1e-12)
    # Where nothing begins at the window, its start goes on.
    whole = model(Batch({"text": Stream(ids=rows[:, :6])}))
    torch.testing.assert_close(found[:, :2], whole[:, 4:], rtol=0, atol=1e-12)


def test_one_hot_is_a_lookup_in_the_first_map() -> None:
    model = model_of("rnn", depth=1)
    assert isinstance(model.tokens, OneHot)
    rows = ids(2, 5)
    first = model.layers[0].W_zx
    torch.testing.assert_close(first(model.tokens(rows)), first.weight.T[rows], rtol=0, atol=1e-12)


def test_wrong_states_and_counts_are_refused() -> None:
    model = model_of("lstm")
    with pytest.raises(ValueError, match="2 rows"):
        model.step(ids(2, 3), model.init_state(1))
    with pytest.raises(ValueError, match="counts"):
        model.step(ids(2, 3), model.init_state(2), torch.tensor([0, 3]))


def test_what_lies_past_the_counts_may_be_any_filler() -> None:
    model, rows = model_of("gru"), ids(2, 5)
    filled = rows.clone()
    filled[0, 2:] = -100
    counts = torch.tensor([2, 5])
    logs, state = model.step(filled, model.init_state(2), counts)
    alone, its_state = model.step(rows[:1, :2], model.init_state(1))
    torch.testing.assert_close(logs[:1, :2], alone, rtol=0, atol=1e-12)
    more, _ = model.step(ids(2, 1, seed=1), state)
    again, _ = model.step(ids(2, 1, seed=1)[:1], its_state)
    torch.testing.assert_close(more[:1], again, rtol=0, atol=1e-12)
