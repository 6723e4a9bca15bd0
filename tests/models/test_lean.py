"""The lean step against the whole pass, for every part that it writes out; and what it leaves to the whole pass."""

from typing import Any

import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, STYLES, GPTConfig
from tokenloom.models.lean import LeanStep

ROWS, TOKENS = 3, 9


def model_of(style: str, **parts: Any) -> GPT:
    """A model in float64 in which every parameter matters, scales and biases too."""
    config = STYLES[style](11, 16, 24, 2, 4).as_dict()
    model = GPT(GPTConfig(**{**config, **parts})).double().eval()
    chance = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance, dtype=torch.float64) * 0.3)
    return model


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "modern": ("modern", {}),
    "chapter": ("chapter", {}),
    "shared keys": ("modern", {"kv_heads": 2}),
    "one key head": ("chapter", {"kv_heads": 1}),
    "norms of heads without scale": ("modern", {"head_norm": "rms-plain"}),
    "no norms of heads": ("modern", {"head_norm": None}),
    "norms of heads, nothing turned": ("modern", {"positions": {"kind": "learned"}}),
    "no positions": ("modern", {"positions": {"kind": "none"}}),
    "sinusoidal": ("chapter", {"positions": {"kind": "sinusoidal"}}),
    "norms without scale": ("modern", {"norm": "rms-plain"}),
    "LayerNorm, rotary": ("modern", {"norm": "layer"}),
    "biases and GELU": ("modern", {"mlp": {"kind": "plain", "activation": "gelu", "bias": True}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_by_token_is_the_whole_pass(variant: str) -> None:
    style, parts = VARIANTS[variant]
    model = model_of(style, **parts)
    ids = torch.randint(11, (ROWS, TOKENS), generator=torch.Generator().manual_seed(3))
    whole = model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)
    state = model.start(ROWS)
    assert state.lean is not None, "the lean step knows these parts"
    for n in range(TOKENS):
        logs, state = model.step(ids[:, n : n + 1], state)
        torch.testing.assert_close(logs[:, 0], whole[:, n], rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "parts",
    [
        {"mlp": {"kind": "gated"}},
        {"positions": {"kind": "relative-bias"}},
        {"positions": {"kind": "fixed-slopes"}},
        {"window": 4},
    ],
)
def test_other_parts_are_left_to_the_whole_pass(parts: dict[str, Any]) -> None:
    assert model_of("modern", **parts).start(ROWS).lean is None


def test_so_are_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.models.lean.MOST_NUMBERS", 100)
    assert model_of("modern").start(1).lean is None


def test_a_state_has_the_weights_of_its_start_and_a_new_one_the_new_ones() -> None:
    model = model_of("modern")
    ids = torch.tensor([[3]])
    before, _ = model.step(ids, model.start(1))
    with torch.no_grad():
        model.transformer.layers[0].attention.W_v.weight.mul_(2)
    after, _ = model.step(ids, model.start(1))
    assert not torch.equal(before, after)
    torch.testing.assert_close(after[:, 0], model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)[:, 0])


def test_a_lean_step_is_made_of_the_parts_of_a_model() -> None:
    model = model_of("chapter")
    assert isinstance(LeanStep.of(model.tokens, model.positions, model.transformer, model.readout, 16), LeanStep)
