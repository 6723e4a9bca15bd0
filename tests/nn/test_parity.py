"""Our parts put together as GPT-2 and as Llama, against the `transformers` models with the same random weights."""

import math

import pytest
import torch
from needs import lacking
from torch import nn

from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.masks import Causal, Mask, Padding
from tokenloom.nn.mlp import make_mlp
from tokenloom.nn.norms import make_norm
from tokenloom.nn.positions import Positions, make_positions
from tokenloom.nn.transformer import Transformer, TransformerLayer

D, H, L, VOCAB, LIMIT = 32, 4, 2, 50, 16


class Decoder(nn.Module):
    """Tokens and positions in, a causal stack, an output map that shares the token table when asked to."""

    def __init__(self, positions: Positions, layers: list[TransformerLayer], norm: nn.Module, *, tied: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, D), positions
        self.transformer = Transformer(layers, norm)
        self.lm_head = nn.Linear(D, VOCAB, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight

    def forward(self, ids, real=None, hooks=None):
        places = torch.arange(ids.shape[1])[None]
        mask: Mask = Causal() if real is None else Causal() & Padding(real)
        X = self.positions.add(self.tokens(ids), places)
        position_info = self.positions.position_info(places, places, X.dtype)
        return self.lm_head(self.transformer(X, mask=mask, position_info=position_info, hooks=hooks))


@pytest.fixture(scope="module")
def transformers():
    try:
        import transformers
    except ImportError:
        lacking("parity needs transformers: pip install 'tokenloom[dev]'")
    transformers.logging.set_verbosity_error()
    return transformers


def randomize(model):
    """Random numbers everywhere, biases and norms too, so that no part is idle."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g) / math.sqrt(parameter.shape[-1]))
    return model.eval()


def like_gpt2(theirs):
    """GPT-2 by parts: biases everywhere, LayerNorm, the tanh form of GELU, learned positions, a tied output map."""
    layers = [
        TransformerLayer(
            MultiHeadAttention(D, H, bias=True),
            make_mlp({"kind": "plain", "activation": "gelu-tanh"}, D),
            lambda: make_norm("layer", D),
        )
        for _ in range(L)
    ]
    positions = make_positions({"kind": "learned"}, width=D, heads=H, limit=LIMIT)
    ours, source = Decoder(positions, layers, make_norm("layer", D), tied=True), theirs.transformer
    with torch.no_grad():
        ours.tokens.weight.copy_(source.wte.weight)
        ours.positions.table.copy_(source.wpe.weight)
        for layer, block in zip(layers, source.h, strict=True):
            attention = layer.attention
            parts = zip(block.attn.c_attn.weight.split(D, dim=1), block.attn.c_attn.bias.split(D), strict=True)
            for m, (weight, bias) in zip((attention.W_q, attention.W_k, attention.W_v), parts, strict=True):
                m.weight.copy_(weight.T)
                m.bias.copy_(bias)
            maps = (
                (attention.W_o, block.attn.c_proj),
                (layer.mlp.W_in, block.mlp.c_fc),
                (layer.mlp.W_out, block.mlp.c_proj),
            )
            for m, conv in maps:
                m.weight.copy_(conv.weight.T)
                m.bias.copy_(conv.bias)
            layer.norm_attention.load_state_dict(block.ln_1.state_dict())
            layer.norm_mlp.load_state_dict(block.ln_2.state_dict())
        ours.transformer.norm.load_state_dict(source.ln_f.state_dict())
    return ours


def like_llama(theirs, kv_heads, base):
    """Llama by parts: RMSNorm, rotary positions, a gated MLP with SiLU, shared key–value heads, no biases."""
    layers = [
        TransformerLayer(
            MultiHeadAttention(D, H, kv_heads=kv_heads),
            make_mlp({"kind": "gated", "hidden": 48}, D),
            lambda: make_norm("rms", D),
        )
        for _ in range(L)
    ]
    positions = make_positions({"kind": "rotary", "base": base}, width=D, heads=H, limit=LIMIT)
    ours, source = Decoder(positions, layers, make_norm("rms", D), tied=False), theirs.model
    pairs = [(ours.tokens, source.embed_tokens), (ours.transformer.norm, source.norm), (ours.lm_head, theirs.lm_head)]
    for layer, block in zip(layers, source.layers, strict=True):
        a, b = layer.attention, block.self_attn
        pairs += [(a.W_q, b.q_proj), (a.W_k, b.k_proj), (a.W_v, b.v_proj), (a.W_o, b.o_proj)]
        pairs += [(layer.norm_attention, block.input_layernorm), (layer.norm_mlp, block.post_attention_layernorm)]
        pairs += [(layer.mlp.W_gate, block.mlp.gate_proj), (layer.mlp.W_in, block.mlp.up_proj)]
        pairs += [(layer.mlp.W_out, block.mlp.down_proj)]
    for part, theirs_part in pairs:
        part.load_state_dict(theirs_part.state_dict())
    return ours


def assert_same(ours, theirs):
    """Logits and attention patterns to 1e-5: whole rows, and rows padded on the right."""
    ids = torch.randint(VOCAB, (3, 12), generator=torch.Generator().manual_seed(1))
    real = torch.arange(12) < torch.tensor([[12], [7], [1]])
    with torch.no_grad():
        expected, hooks = theirs(ids, output_attentions=True), Hooks("*.pattern")
        for logits in (ours(ids), ours(ids, hooks=hooks)):
            torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=0)
        for pattern, weights in zip(hooks.values.values(), expected.attentions, strict=True):
            torch.testing.assert_close(pattern, weights, atol=1e-5, rtol=0)
        padded = theirs(ids, attention_mask=real.long()).logits
        torch.testing.assert_close(ours(ids, real)[real], padded[real], atol=1e-5, rtol=0)
    assert expected.logits.std() > 0.1


def test_gpt2(transformers):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=LIMIT, n_embd=D, n_layer=L, n_head=H, attn_implementation="eager"
    )
    theirs = randomize(transformers.GPT2LMHeadModel(config))
    assert_same(like_gpt2(theirs), theirs)


@pytest.mark.parametrize(("kv_heads", "base"), [(4, 10_000.0), (2, 500_000.0), (1, 10_000.0)])
def test_llama(transformers, kv_heads, base):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=D, intermediate_size=48, num_hidden_layers=L, num_attention_heads=H,
        num_key_value_heads=kv_heads, max_position_embeddings=LIMIT, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": base}, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomize(transformers.LlamaForCausalLM(config))
    assert theirs.model.rotary_emb.inv_freq[1].item() == pytest.approx(base**-0.25)
    assert_same(like_llama(theirs, kv_heads, base), theirs)
