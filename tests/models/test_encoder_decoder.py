"""The encoder–decoder against its formulas, written out for one row in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.transformer import TransformerLayer

HEADS = 2


def small(preset: str = "classic", **more: object) -> EncoderDecoder:
    sizes = {
        "source_vocab_size": 7,
        "target_vocab_size": 7,
        "source_context": 9,
        "target_context": 9,
        "width": 8,
        "depth": 2,
    }
    config = EncoderDecoderConfig(**{**sizes, "heads": HEADS, **EncoderDecoderConfig.parts(preset), **more})  # type: ignore[arg-type]
    model = EncoderDecoder(config, seed=3).double()
    with torch.no_grad():
        # Output maps that start at zero would hide what a layer does.
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    return model.eval()


def batch_of(source: list[list[int]], target: list[list[int]]) -> Batch:
    return Batch({"source": Stream(ids=torch.tensor(source)), "target": Stream(ids=torch.tensor(target))})


def attended(part: MultiHeadAttention, X: Tensor, Z: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Σ_h softmax(X W_q (Z W_k)ᵀ / √Dh) Z W_v W_o for X (N, D) and Z (M, D), head by head."""
    Dh = X.shape[1] // HEADS
    total, weights = torch.zeros_like(X), []
    for h in range(HEADS):
        rows = slice(h * Dh, (h + 1) * Dh)
        Q, K, V = (A @ W.weight[rows].T for A, W in ((X, part.W_q), (Z, part.W_k), (Z, part.W_v)))
        scores = Q @ K.T / math.sqrt(Dh)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        weights.append(scores.softmax(-1))
        total = total + weights[-1] @ V @ part.W_o.weight[:, rows].T
    return total, torch.stack(weights)


def layered(layer: TransformerLayer, X: Tensor, memory: Tensor | None) -> Tensor:
    causal = memory is not None
    Z = layer.norm_attention(X)
    X = X + attended(layer.attention, Z, Z, causal)[0]
    if memory is not None:
        assert layer.cross is not None
        assert layer.norm_cross is not None
        X = X + attended(layer.cross, layer.norm_cross(X), memory, False)[0]
    W_in, W_out = layer.mlp.W_in, layer.mlp.W_out
    return X + W_out(F.gelu(W_in(layer.norm_mlp(X))))


@pytest.mark.parametrize("shared", [True, False])
def test_the_formulas(shared: bool) -> None:
    model = small(shared_vocab=shared)
    source, target = [3, 1, 4, 1, 5], [7, 2, 6, 0]
    S = model.tokens.weight[source] + model.source_positions.table[:5]
    for layer in model.encoder.layers:
        S = layered(layer, S, None)
    table = model.tokens.weight if model.target_tokens is None else model.target_tokens.weight
    T = table[target] + model.target_positions.table[:4]
    for layer in model.decoder.layers:
        T = layered(layer, T, S)
    expected = F.layer_norm(T, (8,), model.decoder.norm.weight, model.decoder.norm.bias) @ model.lm_head.weight.T
    torch.testing.assert_close(model(batch_of([source], [target]))[0], expected + model.lm_head.bias)


def test_a_shared_table_has_a_row_for_each_id_and_the_start() -> None:
    assert small(shared_vocab=True).tokens.weight.shape == (8, 8)
    assert small().tokens.weight.shape == (7, 8)
    with pytest.raises(ValueError, match="same size on both sides, not 7 and 6"):
        small(shared_vocab=True, target_vocab_size=6)


@pytest.mark.parametrize("preset", EncoderDecoderConfig.presets)
def test_later_target_tokens_change_nothing_and_source_tokens_change_all(preset: str) -> None:
    model = small(preset)
    before = model(batch_of([[1, 2, 3, 4]], [[7, 1, 2, 3]]))
    later = model(batch_of([[1, 2, 3, 4]], [[7, 1, 5, 5]]))
    torch.testing.assert_close(later[:, :2], before[:, :2])
    assert bool(((later[:, 2:] - before[:, 2:]).abs().amax(-1) > 1e-6).all())
    other = model(batch_of([[1, 2, 3, 5]], [[7, 1, 2, 3]]))
    assert bool(((other - before).abs().amax(-1) > 1e-6).all())


@pytest.mark.parametrize("preset", EncoderDecoderConfig.presets)
def test_cross_attention_looks_at_no_padding(preset: str) -> None:
    model = small(preset)
    batch = batch_of([[1, 2, 3, 6, 6]], [[7, 1, 2]])
    batch["source"].real = torch.tensor([[True, True, True, False, False]])
    hooks = Hooks("decoder.*.cross.pattern")
    logits = model(batch, hooks=hooks)
    torch.testing.assert_close(logits, model(batch_of([[1, 2, 3]], [[7, 1, 2]])))
    assert len(hooks.values) == 2
    for pattern in hooks.values.values():
        assert pattern.shape == (1, HEADS, 3, 5)
        assert float(pattern[..., 3:].detach().abs().max()) == 0.0
        torch.testing.assert_close(pattern.sum(-1), torch.ones(1, HEADS, 3, dtype=torch.float64))


def test_the_memory_is_projected_once() -> None:
    """What the cache keeps of it is what every later step reads: the projections are not asked again."""
    model = small("modern")
    decoder = model.decoder_of(batch_of([[1, 2, 3]], [[7]]))
    calls = []
    for layer in model.decoder.layers:
        layer.cross.W_k.register_forward_hook(lambda *_: calls.append(1))
    _, state = decoder.step(torch.tensor([[7]]), decoder.init_state(1))
    assert len(calls) == 2
    for token in (1, 2, 3):
        _, state = decoder.step(torch.tensor([[token]]), state)
    assert len(calls) == 2
    assert state.lengths.tolist() == [4]


def test_rows_of_unequal_chunks() -> None:
    model = small("modern")
    batch = batch_of([[1, 2, 3], [4, 5, 6]], [[7, 1, 2, 3], [7, 4, 5, 6]])
    expected = model(batch).log_softmax(-1)
    decoder = model.decoder_of(batch)
    state = decoder.init_state(2, [1, 0])
    one, state = decoder.step(torch.tensor([[7, 4, 5], [7, 0, 0]]), state, torch.tensor([3, 1]))
    two, state = decoder.step(torch.tensor([[6, 0], [1, 2]]), state, torch.tensor([1, 2]))
    assert state.lengths.tolist() == [4, 3]
    torch.testing.assert_close(torch.cat((one[0], two[0, :1])), expected[1])
    torch.testing.assert_close(torch.cat((one[1, :1], two[1])), expected[0, :3])
