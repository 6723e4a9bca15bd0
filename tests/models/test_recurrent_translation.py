"""The recurrent encoder–decoder against its formulas, written out token by token in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.recurrent_translation import RecurrentTranslator, RecurrentTranslatorConfig


def small(*, attention: bool, depth: int = 2) -> RecurrentTranslator:
    config = RecurrentTranslatorConfig(7, 5, width=6, depth=depth, attention=attention)
    return RecurrentTranslator(config, seed=2).double().eval()


def unit(layer: nn.GRU, x: Tensor, h: Tensor) -> Tensor:
    """Cho et al. 2014, with the reset gate on W h as torch has it: z, r = σ(…); h' = (1 − z) n + z h."""
    own = (layer.weight_ih_l0 @ x + layer.bias_ih_l0).chunk(3)
    past = (layer.weight_hh_l0 @ h + layer.bias_hh_l0).chunk(3)
    r, z = torch.sigmoid(own[0] + past[0]), torch.sigmoid(own[1] + past[1])
    return (1 - z) * torch.tanh(own[2] + r * past[2]) + z * h


def run(layer: nn.GRU, rows: list[Tensor], h: Tensor) -> list[Tensor]:
    states = []
    for x in rows:
        h = unit(layer, x, h)
        states.append(h)
    return states


@pytest.mark.parametrize("attention", [True, False])
def test_the_formulas(attention: bool) -> None:
    model = small(attention=attention)
    source, target = [3, 1, 4, 6], [5, 2, 0]
    X = list(model.tokens.weight[source])
    starts, zero = [], torch.zeros(3, dtype=torch.float64)
    for forwards, backwards in zip(model.forwards, model.backwards, strict=True):
        there, back = run(forwards, X, zero), run(backwards, X[::-1], zero)
        starts.append(torch.tanh(model.bridge.weight @ torch.cat((there[-1], back[-1])) + model.bridge.bias))
        X = [torch.cat(pair) for pair in zip(there, back[::-1], strict=True)]
    assert model.target_tokens is not None
    O = list(model.target_tokens.weight[target])
    for layer, h in zip(model.decoder, starts, strict=True):
        O = run(layer, O, h)
    expected = []
    for o in O:
        if model.cross is not None and model.join is not None:
            q = model.cross.W_q.weight @ o
            scores = torch.stack([q @ (model.cross.W_k.weight @ x) / math.sqrt(6) for x in X]).softmax(0)
            c = model.cross.W_o.weight @ sum(a * (model.cross.W_v.weight @ x) for a, x in zip(scores, X, strict=True))
            o = torch.tanh(model.join.weight @ torch.cat((o, c)) + model.join.bias)
        expected.append(model.lm_head.weight @ o + model.lm_head.bias)
    batch = Batch({"source": Stream(ids=torch.tensor([source])), "target": Stream(ids=torch.tensor([target]))})
    torch.testing.assert_close(model(batch)[0], torch.stack(expected))


def test_without_attention_the_source_goes_through_one_vector() -> None:
    """Sources that leave the encoder in the same states are the same to the decoder, whatever they hold."""
    model = small(attention=False)
    steps = model.decoder_of(Batch({"source": Stream(ids=torch.tensor([[1, 2, 3], [4, 5, 6]]))}))
    steps._hidden[:, 1] = steps._hidden[:, 0]
    log_probs, _ = steps.step(torch.tensor([[5, 1], [5, 1]]), steps.init_state(2))
    torch.testing.assert_close(log_probs[0], log_probs[1])
    looking = small(attention=True)
    steps = looking.decoder_of(Batch({"source": Stream(ids=torch.tensor([[1, 2, 3], [4, 5, 6]]))}))
    steps._hidden[:, 1] = steps._hidden[:, 0]
    log_probs, _ = steps.step(torch.tensor([[5, 1], [5, 1]]), steps.init_state(2))
    assert float((log_probs[0] - log_probs[1]).abs().max()) > 1e-3


def test_a_width_that_two_directions_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="a width of 7"):
        RecurrentTranslatorConfig(7, 5, width=7, depth=1)
