"""The fused decode step against the whole pass, for every part that it writes out, and the parts that it does not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.generation.generate import Request, generate_all
from tokenloom.generation.sampling import Sampling
from tokenloom.kernels import loader
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.fused_decode import DecodeStep, FusedDecodeStep, KernelDecodeStep
from tokenloom.models.gpt import GPT, GPTConfig

ROWS, TOKENS = 3, 9


def model_of(preset: str, **parts: Any) -> GPT:
    """A model in float64 in which every parameter matters, scales and biases too."""
    config = GPTConfig(11, 16, width=24, depth=2, heads=4, **GPTConfig.parts(preset)).as_dict()
    model = GPT(GPTConfig(**{**config, **parts})).double().eval()
    shake(model, 0.3)
    return model


@torch.no_grad()
def shake(model: GPT, size: float) -> None:
    chance = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=chance, dtype=torch.float64) * size)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "modern": ("modern", {}),
    "classic": ("classic", {}),
    "shared keys": ("modern", {"kv_heads": 2}),
    "one key head": ("classic", {"kv_heads": 1}),
    "norms of heads without scale": ("modern", {"qk_norm": "rms-plain"}),
    "no norms of heads": ("modern", {"qk_norm": None}),
    "norms of heads, nothing turned": ("modern", {"positions": {"kind": "learned"}}),
    "no positions": ("modern", {"positions": {"kind": "none"}}),
    "sinusoidal": ("classic", {"positions": {"kind": "sinusoidal"}}),
    "norms without scale": ("modern", {"norm": "rms-plain"}),
    "LayerNorm, rotary": ("modern", {"norm": "layer"}),
    "biases and GELU": ("modern", {"mlp": {"kind": "plain", "activation": "gelu", "bias": True}}),
}

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "SiLU": ("modern", {"mlp": {"kind": "plain", "activation": "silu"}}),
    "GELU, by tanh": ("classic", {"mlp": {"kind": "plain", "activation": "gelu-tanh"}}),
    "ReLU": ("classic", {"mlp": {"kind": "plain", "activation": "relu"}}),
}


def some_ids(rows: int = ROWS, tokens: int = TOKENS) -> Tensor:
    return torch.randint(11, (rows, tokens), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def token_by_token(model: GPT, ids: Tensor, step: type[DecodeStep] | None) -> Tensor:
    """Log-probabilities (B, N, vocab) from steps of one token, by a step of this kind."""
    state = model.init_state(len(ids))
    assert state.decode_step is not None, "the fused decode step knows these parts"
    assert step is None or type(state.decode_step) is step
    logs = []
    for n in range(ids.shape[1]):
        log_probs, state = model.step(ids[:, n : n + 1], state)
        logs.append(log_probs[:, 0])
    return torch.stack(logs, dim=1)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("variant", [*VARIANTS, "SiLU", "GELU, by tanh", "ReLU"])
def test_token_by_token_is_the_whole_pass(variant: str, rows: int) -> None:
    preset, parts = {**VARIANTS, **ACTIVATIONS}[variant]
    model, ids = model_of(preset, **parts), some_ids(rows)
    whole = model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)
    with loader.disabled():
        torch.testing.assert_close(token_by_token(model, ids, FusedDecodeStep), whole, rtol=0, atol=1e-11)


needs_compiler = pytest.mark.skipif(
    bool(loader.unavailable_reason("decode")), reason=f"no native code: {loader.unavailable_reason('decode')}"
)


@needs_compiler
@pytest.mark.parametrize("rows", [1, ROWS, 8])
@pytest.mark.parametrize("variant", [*VARIANTS, "SiLU", "GELU, by tanh", "ReLU"])
def test_compiled_is_plain(variant: str, rows: int) -> None:
    """In float32, to rounding; where numbers of the size 1 are, the figure of the equality kit."""
    preset, parts = {**VARIANTS, **ACTIVATIONS}[variant]
    model, ids = model_of(preset, **parts), some_ids(rows)
    whole = model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)
    compiled = token_by_token(model.float(), ids, KernelDecodeStep)
    torch.testing.assert_close(compiled.double(), whole, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("width", [8, 24, 40, 72, 144])
def test_compiled_is_plain_for_heads_of_any_width(width: int) -> None:
    """Heads of 2 … 36 features: vectors, several of them, and what is left over."""
    config = GPTConfig(11, 16, width=width, depth=1, heads=4, **GPTConfig.parts("modern"))
    model = GPT(config).eval()
    shake(model, 0.2)
    ids = some_ids()
    compiled = token_by_token(model, ids, KernelDecodeStep)
    with loader.disabled():
        plain = token_by_token(model, ids, FusedDecodeStep)
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_compiled_rows_may_have_any_lengths() -> None:
    model, ids = model_of("modern").float(), some_ids()
    counts = torch.tensor([5, 2, 7])
    whole = model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)
    _, state = model.step(ids[:, :7], model.init_state(3), counts)
    calls = []
    state.decode_step = counted(state.decode_step, calls)
    for more in range(2):
        at = counts + more
        logs, state = model.step(ids.gather(1, at[:, None]), state)
        torch.testing.assert_close(logs[:, 0], whole[torch.arange(3), at], rtol=1e-5, atol=1e-5)
    assert len(calls) == 2, "the compiled step did it"


def counted(step: Any, calls: list[int]) -> Any:
    class Counted:
        ragged = step.ragged

        def __call__(self, ids: Tensor, cache: Any) -> Tensor:
            calls.append(len(ids))
            return step(ids, cache)

    return Counted()


@needs_compiler
def test_greedy_tokens_are_the_same_compiled_or_plain() -> None:
    model = model_of("classic").float()
    requests = [Request([1, 2, 3], 12, Sampling(0)), Request([4], 14, Sampling(0))]
    compiled = generate_all(model, requests)
    with loader.disabled():
        assert [[g.ids for g in row] for row in generate_all(model, requests)] == [
            [g.ids for g in row] for row in compiled
        ]


@pytest.mark.parametrize("native", ["0", "1"])
def test_an_id_that_there_is_not_is_refused(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.VARIABLE, native)
    model = model_of("modern").float()
    for wrong in (11, -12):
        with pytest.raises(IndexError):
            model.step(torch.tensor([[wrong]]), model.init_state(1))


@needs_compiler
def test_the_kernel_is_for_float32() -> None:
    assert isinstance(model_of("modern").float().init_state(1).decode_step, KernelDecodeStep)
    assert isinstance(model_of("modern").init_state(1).decode_step, FusedDecodeStep)
    assert isinstance(model_of("modern").bfloat16().init_state(1).decode_step, FusedDecodeStep)


def test_an_activation_of_ones_own_takes_the_step_in_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\ndef sine(X):\n    return torch.sin(X)\n")
    model = model_of("modern", mlp={"kind": "plain", "activation": f"{tmp_path}/mine.py:sine"})
    ids = some_ids()
    whole = model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)
    torch.testing.assert_close(token_by_token(model, ids, FusedDecodeStep), whole, rtol=0, atol=1e-11)
    step = model.float().init_state(1).decode_step
    assert isinstance(step, FusedDecodeStep)


def test_layers_that_differ_are_left_to_the_whole_pass() -> None:
    model = model_of("modern")
    model.transformer.layers[1].mlp.activation = torch.tanh
    assert model.init_state(1).decode_step is None


@pytest.mark.parametrize(
    "parts",
    [
        {"mlp": {"kind": "gated"}},
        {"positions": {"kind": "relative-bias"}},
        {"positions": {"kind": "alibi"}},
        {"sliding_window": 4},
    ],
)
def test_other_parts_are_left_to_the_whole_pass(parts: dict[str, Any]) -> None:
    assert model_of("modern", **parts).init_state(ROWS).decode_step is None


def test_so_are_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.models.fused_decode.MAX_PARAMETERS", 100)
    assert model_of("modern").init_state(1).decode_step is None


def test_a_state_has_the_weights_of_its_start_and_a_new_one_the_new_ones() -> None:
    model = model_of("modern")
    ids = torch.tensor([[3]])
    before, _ = model.step(ids, model.init_state(1))
    with torch.no_grad():
        model.transformer.layers[0].attention.W_v.weight.mul_(2)
    after, _ = model.step(ids, model.init_state(1))
    assert not torch.equal(before, after)
    torch.testing.assert_close(after[:, 0], model(Batch({"text": Stream(ids=ids)})).log_softmax(-1)[:, 0])
