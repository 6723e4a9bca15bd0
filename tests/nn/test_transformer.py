"""The layer and the stack against their formulas, the chapter's figures for the two norms, and cross-attention."""

import pytest
import torch
from torch import nn

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import constant, framework_linear, initialize, normal_by_inputs
from tokenloom.nn.masks import Causal, Padding
from tokenloom.nn.mlp import MLP
from tokenloom.nn.transformer import Transformer, TransformerLayer


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_layer(*, cross=False, pre_norm=True, seed=0, kv_heads=None):
    torch.manual_seed(seed)
    other = MultiHeadAttention(8, 2, memory_width=6, kv_heads=kv_heads) if cross else None
    attention = MultiHeadAttention(8, 2, kv_heads=kv_heads)
    layer = TransformerLayer(attention, MLP(8, 16), lambda: nn.LayerNorm(8), cross=other, pre_norm=pre_norm)
    for norm in (layer.norm_attention, layer.norm_mlp, *([layer.norm_cross] if cross else [])):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return layer.double()


TABLE = [
    ("*.W_[qkvo].weight", normal_by_inputs()),
    ("*norm*.weight", constant(1.0)),
    ("*norm*.bias", constant(0.0)),
    ("*.mlp.*", framework_linear),
]
PRE_NORM = "6.10 6.57 7.16 8.14 9.24 9.98 10.99 12.09 12.64 14.01 14.54 15.74"


@pytest.mark.parametrize(("pre_norm", "published"), [(True, PRE_NORM), (False, " ".join(["5.66"] * 12))])
def test_how_tokens_grow_through_twelve_layers(pre_norm, published):
    """Reference 1.7: the mean norm of a token after each fresh layer; D = 32, H = 4, seed 3, then the input."""
    layers = [
        TransformerLayer(MultiHeadAttention(32, 4), MLP(32, 128), lambda: nn.LayerNorm(32), pre_norm=pre_norm)
        for _ in range(12)
    ]
    stack, g = Transformer(layers), torch.Generator().manual_seed(3)
    initialize(stack, TABLE, g)
    X, hooks = torch.randn(8, 20, 32, generator=g), Hooks("layers.*.resid_post")
    stack(X, hooks=hooks)
    assert " ".join(f"{Y.norm(dim=-1).mean():.2f}" for Y in hooks.values.values()) == published


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_layer_is_its_formula(pre_norm, cross):
    layer = make_layer(cross=cross, pre_norm=pre_norm)
    X, Z = draw(2, 5, 8), draw(2, 4, 6, seed=1)
    mask, memory_mask = Causal(), Padding(torch.tensor([[True] * 4, [True, False, True, False]]))

    def sub_layer(X, f, norm):
        return X + f(norm(X)) if pre_norm else norm(X + f(X))

    Y = sub_layer(X, lambda X: layer.attention(X, mask=mask), layer.norm_attention)
    if cross:
        Y = sub_layer(Y, lambda X: layer.cross(X, Z, mask=memory_mask), layer.norm_cross)
    Y = sub_layer(Y, layer.mlp, layer.norm_mlp)
    memory = {"memory": Z, "memory_mask": memory_mask} if cross else {}
    torch.testing.assert_close(layer(X, mask=mask, **memory), Y, atol=1e-12, rtol=0)


def test_a_stack_is_its_layers_and_the_norm_after_them():
    layers, norm, X = [make_layer(seed=0), make_layer(seed=1)], nn.LayerNorm(8).double(), draw(2, 5, 8)
    expected = layers[1](layers[0](X, mask=Causal()), mask=Causal())
    assert torch.equal(Transformer(layers)(X, mask=Causal()), expected)
    assert torch.equal(Transformer(layers, norm)(X, mask=Causal()), norm(expected))


def test_dropout_acts_on_what_a_sub_layer_adds_and_only_in_training():
    torch.manual_seed(0)
    layer = TransformerLayer(MultiHeadAttention(8, 2), MLP(8, 16), lambda: nn.LayerNorm(8), dropout=0.5)
    X, hooks = torch.randn(4, 9, 8), Hooks(["attn_out", "resid_mid"])
    assert torch.equal(layer.eval()(X), layer(X))
    layer.train()(X, hooks=hooks)
    added, attention = hooks.values["resid_mid"] - X, hooks.values["attn_out"]
    kept = added.abs() > 1e-9
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(added[kept], 2 * attention[kept], atol=1e-5, rtol=1e-5)


def test_taps_of_a_layer_with_cross_attention():
    layer, hooks = make_layer(cross=True), Hooks()
    X, Z = draw(2, 5, 8), draw(2, 4, 6, seed=1)
    Y = layer(X, mask=Causal(), memory=Z, hooks=hooks)
    own = ["q", "k", "v", "attn_scores", "pattern", "z"]
    names = ["resid_pre", *own, "attn_out", *(f"cross.{name}" for name in own), "cross_out"]
    assert list(hooks.values) == [*names, "resid_mid", "mlp_post", "mlp_out", "resid_post"]
    assert hooks.values["pattern"].shape == (2, 2, 5, 5)
    assert hooks.values["cross.pattern"].shape == (2, 2, 5, 4)
    seen = hooks.values
    torch.testing.assert_close(seen["resid_pre"] + seen["attn_out"] + seen["cross_out"], seen["resid_mid"])
    torch.testing.assert_close(seen["resid_mid"] + seen["mlp_out"], Y)


def test_taps_leave_the_values_and_the_modules_as_they_were():
    layers = [make_layer(seed=0), make_layer(seed=1)]
    stack, X = Transformer(layers, nn.LayerNorm(8).double()), draw(2, 5, 8)
    without = stack(X, mask=Causal())
    before = {name: set(vars(part)) for name, part in stack.named_modules()}
    torch.testing.assert_close(stack(X, mask=Causal(), hooks=Hooks()), without, atol=1e-12, rtol=0)
    assert torch.equal(stack(X, mask=Causal(), hooks=Hooks(["*.resid_post"])), without)
    assert {name: set(vars(part)) for name, part in stack.named_modules()} == before
    tensors = [value for part in stack.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    assert not tensors


def test_an_edit_in_one_layer_is_felt_in_the_next():
    layers, X = [make_layer(seed=0), make_layer(seed=1)], draw(2, 5, 8)
    stack, wished = Transformer(layers), draw(2, 5, 8, seed=4)
    for edit in ({"layers.0.resid_post": lambda _: wished}, {"layers.1.resid_pre": lambda _: wished}):
        torch.testing.assert_close(stack(X, hooks=Hooks((), edit)), layers[1](wished), atol=1e-12, rtol=0)


def test_cross_attention_wants_a_memory():
    with pytest.raises(ValueError, match="needs a memory"):
        make_layer(cross=True)(draw(1, 2, 8))
    # One stack may have layers with and without.
    stack = Transformer([make_layer(), make_layer(cross=True)])
    assert stack(draw(1, 2, 8), memory=draw(1, 3, 6)).shape == (1, 2, 8)


@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize("chunks", [[1] * 6, [6], [2, 3, 1]])
def test_a_decoder_with_cached_memory_is_the_decoder_without(chunks, kv_heads):
    layers = [make_layer(cross=True, seed=seed, kv_heads=kv_heads) for seed in (0, 1)]
    stack, X, Z = Transformer(layers), draw(2, 6, 8), draw(2, 4, 6, seed=1)
    memory_mask = Padding(torch.tensor([[True] * 4, [True, True, False, False]]))
    expected = stack(X, mask=Causal(), memory=Z, memory_mask=memory_mask)
    asked = []
    for layer in layers:
        layer.cross.W_k.register_forward_hook(lambda *_: asked.append(1))
    cache, parts = KeyValueCache(2, (2, kv_heads or 2, 6, 4), X), []
    with torch.no_grad():
        for chunk in X.split(chunks, dim=1):
            _, _, mask = cache.chunk(chunk.shape[1])
            parts.append(stack(chunk, mask=mask, memory=Z, memory_mask=memory_mask, cache=cache))
            cache.advance(chunk.shape[1])
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-12, rtol=0)
    assert len(asked) == 2  # once a layer, whatever the chunks


def test_selected_rows_keep_their_own_memory():
    stack, X, Z = Transformer([make_layer(cross=True)]), draw(2, 3, 8), draw(2, 4, 6, seed=1)
    expected = stack(X, mask=Causal(), memory=Z)
    cache, order = KeyValueCache(1, (2, 2, 3, 4), X), torch.tensor([1, 0, 1])
    with torch.no_grad():
        stack(X[:, :2], mask=cache.chunk(2).mask, memory=Z, cache=cache)
        cache.advance(2)
        chosen = cache.select(order)
        Y = stack(X[order, 2:], mask=chosen.chunk(1).mask, memory=Z[order], cache=chosen)
    torch.testing.assert_close(Y, expected[order, 2:], atol=1e-12, rtol=0)
    cache.reset()
    assert cache.memories[0].complete
    assert cache.lengths.tolist() == [0, 0]
