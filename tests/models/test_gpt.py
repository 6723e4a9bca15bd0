"""GPT: its figures, and every pair of paths through it that must agree."""

import itertools

import pytest
import torch
from kit.equality import (
    batch_vs_single,
    cached,
    cached_vs_uncached,
    fused_vs_explicit,
    packed_vs_alone,
    padded_vs_unpadded,
    text,
    uncached,
)
from torch.nn import functional as F

from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.nn.cache import KeyValueCache
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import count_parameters

VOCAB, CONTEXT = 11, 8
MODEL_FAMILIES = ["none", "learned", "sinusoidal", "rotary", "relative-bias", "alibi"]
RELATIVE = ["none", "rotary", "relative-bias", "alibi"]
SMALL = 1e-10


def small_gpt(kind, *, window=None, kv_heads=None, seed=1, **more):
    """A little model in float64 with random numbers everywhere, so that no path is idle."""
    config = GPTConfig(
        VOCAB,
        CONTEXT,
        sliding_window=window,
        width=16,
        depth=2,
        heads=4,
        kv_heads=kv_heads,
        positions={"kind": kind},
        **more,
    )
    model = GPT(config).double().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return model


def rows_of(*lengths, seed=2):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (n,), generator=g) for n in lengths]


# Cached = uncached.


@pytest.mark.parametrize("largest", [1, 3, 30])
@pytest.mark.parametrize("kind", MODEL_FAMILIES)
def test_cached_is_uncached_for_rows_of_all_lengths_also_past_the_context(kind, largest):
    model = small_gpt(kind)
    rows = rows_of(1, 5, 8, 9, 21, 30)
    for seed in range(3):
        assert cached_vs_uncached(model, rows, largest=largest, seed=seed) < SMALL


@pytest.mark.parametrize("largest", [1, 3, 30])
@pytest.mark.parametrize("kind", RELATIVE)
def test_a_ring_is_the_full_pass_under_the_window_mask(kind, largest):
    model = small_gpt(kind, window=4)
    assert model.context is None
    rows = rows_of(1, 4, 5, 17, 30)
    for seed in range(3):
        assert cached_vs_uncached(model, rows, largest=largest, seed=seed) < SMALL


@pytest.mark.parametrize("window", [1, 2, 7, 40])
def test_a_ring_of_any_size(window):
    model = small_gpt("rotary", window=window)
    for largest in (1, 5, 29):
        assert cached_vs_uncached(model, rows_of(13, 29), largest=largest) < SMALL


@pytest.mark.parametrize("window", [None, 4])
def test_cached_is_uncached_with_shared_key_value_heads(window):
    for kv_heads, largest in itertools.product((1, 2), (1, 4)):
        model = small_gpt("rotary", kv_heads=kv_heads, window=window)
        assert cached_vs_uncached(model, rows_of(6, 6), largest=largest) < SMALL
        assert cached_vs_uncached(model, rows_of(3, 20), largest=largest) < SMALL


@pytest.mark.parametrize("kind", ["learned", "rotary", "alibi"])
def test_one_chunk_longer_than_the_context(kind):
    model = small_gpt(kind)
    (row,) = rows_of(25)
    log_probs, state = model.step(row[None], model.init_state(1))
    torch.testing.assert_close(log_probs[0], uncached(model, row), atol=SMALL, rtol=0)
    assert state.lengths.tolist() == [25]


def test_a_ring_reads_a_long_chunk_in_pieces(monkeypatch):
    monkeypatch.setattr("tokenloom.models.gpt.PIECE", 1)
    chunk, sizes = KeyValueCache.chunk, []

    def spy(self, N):
        sizes.append(N)
        return chunk(self, N)

    monkeypatch.setattr(KeyValueCache, "chunk", spy)
    model = small_gpt("alibi", window=3)
    for lengths in ((31,), (31, 2, 17)):
        assert cached_vs_uncached(model, rows_of(*lengths), largest=31) < SMALL
    assert max(sizes) == 3


def test_rows_that_overflow_beside_rows_that_do_not():
    model = small_gpt("learned")
    full, half = rows_of(8, 3)
    after = rows_of(5, 2, seed=3)
    prompts = torch.stack((full, F.pad(half, (0, 5), value=9)))
    _, state = model.step(prompts, model.init_state(2), torch.tensor([8, 3]))
    chunk = torch.stack((after[0], F.pad(after[1], (0, 3), value=9)))
    log_probs, state = model.step(chunk, state, torch.tensor([5, 2]))
    long, short = (torch.cat(pair) for pair in zip((full, half), after, strict=True))
    torch.testing.assert_close(log_probs[0], uncached(model, long)[-5:], atol=SMALL, rtol=0)
    torch.testing.assert_close(log_probs[1, :2], uncached(model, short)[-2:], atol=SMALL, rtol=0)
    assert state.lengths.tolist() == [13, 5]
    log_probs, _ = model.step(torch.tensor([[1], [2]]), state)
    for b, row in enumerate((F.pad(long, (0, 1), value=1), F.pad(short, (0, 1), value=2))):
        torch.testing.assert_close(log_probs[b, 0], uncached(model, row)[-1], atol=SMALL, rtol=0)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("length", [3, 8, 11])
def test_forks_go_their_own_ways(window, length):
    """Two requests from one prompt, fed in turn, are the two texts; the state they came from stays as it was."""
    model = small_gpt("rotary", window=window)
    (prompt,) = rows_of(length)
    _, origin = model.step(prompt[None], model.init_state(1))
    texts = [prompt, prompt]
    states = [origin.repeat(1), origin.select(torch.tensor([0]))]
    for token in (1, 2, 3, 4):
        for i in (0, 1):
            new = torch.tensor([token + 5 * i])
            texts[i] = torch.cat((texts[i], new))
            log_probs, states[i] = model.step(new[None], states[i])
            torch.testing.assert_close(log_probs[0, 0], uncached(model, texts[i])[-1], atol=SMALL, rtol=0)
    assert origin.lengths.tolist() == [length]
    log_probs, _ = model.step(torch.tensor([[7]]), origin)
    expected = uncached(model, torch.cat((prompt, torch.tensor([7]))))[-1]
    torch.testing.assert_close(log_probs[0, 0], expected, atol=SMALL, rtol=0)


@pytest.mark.parametrize("window", [None, 4])
def test_select_and_fork_order(window):
    model = small_gpt("learned" if window is None else "none", window=window)
    rows = rows_of(2, 6, 12)
    tokens = torch.stack([F.pad(row, (0, 12 - len(row))) for row in rows])
    _, state = model.step(tokens, model.init_state(3), torch.tensor([2, 6, 12]))
    chosen = state.select(torch.tensor([2, 0, 2]))
    assert chosen.lengths.tolist() == [12, 2, 12]
    repeat_rows = state.repeat(2)
    assert repeat_rows.lengths.tolist() == [2, 2, 6, 6, 12, 12]
    new = torch.arange(6)[:, None]
    for picked, order in ((chosen, [2, 0, 2]), (repeat_rows, [0, 0, 1, 1, 2, 2])):
        log_probs, _ = model.step(new[: len(order)], picked)
        for place, b in enumerate(order):
            expected = uncached(model, torch.cat((rows[b], new[place])))[-1]
            torch.testing.assert_close(log_probs[place, 0], expected, atol=SMALL, rtol=0)


@pytest.mark.parametrize("window", [None, 4])
def test_a_state_holds_the_same_memory_for_ever(window):
    model = small_gpt("rotary", window=window)
    state = model.init_state(2)
    held = state.cache.nbytes
    slots = CONTEXT if window is None else window
    assert held == 2 * 2 * 2 * slots * 16 * 8  # layers, keys and values, rows, slots, features, bytes
    for _ in range(20):
        log_probs, state = model.step(torch.tensor([[1, 2], [3, 4]]), state)
        assert not log_probs.requires_grad
        assert state.cache.nbytes == held
        tensors = (state.cache.both, state.ids)
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)
    assert state.lengths.tolist() == [40, 40]


def test_log_probabilities_are_float32_or_wider():
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        model = GPT(GPTConfig(VOCAB, CONTEXT, width=16, depth=1, heads=2)).to(dtype).eval()
        log_probs, _ = model.step(torch.tensor([[1, 2, 3]]), model.init_state(1))
        assert log_probs.dtype == wide
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, 3, dtype=wide))


def test_what_step_refuses():
    model = small_gpt("rotary")
    other = small_gpt("rotary").init_state(2)
    one = torch.tensor([[1], [2]])
    with pytest.raises(ValueError, match=r"2 rows needs tokens \(2, N\)"):
        model.step(one[:1], other)
    with pytest.raises(ValueError, match="N ≥ 1"):
        model.step(one[:, :0], other)
    for counts in ([1, 2], [0, 1], [1]):
        with pytest.raises(ValueError, match=r"counts must be 2 numbers in 1 … 1"):
            model.step(one, other, torch.tensor(counts))
    with pytest.raises(ValueError, match="not int"):
        model.step(one, 3)
    _, after = model.step(one, other)
    with pytest.raises(ValueError, match="fed already"):
        model.step(one, other)
    with pytest.raises(ValueError, match="fed already"):
        other.repeat(2)
    model.step(one, after)


# The other paths.


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", MODEL_FAMILIES)
def test_batch_padded_packed_and_explicit(kind, window):
    if window is not None and kind not in RELATIVE:
        with pytest.raises(ValueError, match="a sliding window needs relative positions"):
            small_gpt(kind, window=window)
        return
    model = small_gpt(kind, window=window)
    rows = rows_of(8, 1, 5, 2)
    assert batch_vs_single(model, torch.stack(rows_of(8, 8, 8))) < SMALL
    assert padded_vs_unpadded(model, rows, side="right") < SMALL
    assert padded_vs_unpadded(model, rows, side="left") < SMALL
    assert packed_vs_alone(model, rows) < SMALL
    ids = torch.stack(rows_of(8, 8))
    real = torch.ones(2, 8, dtype=torch.bool)
    real[0, :3] = real[1, 6:] = False
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]]).expand(2, 8)
    batches = [text(ids), text(ids, real=real), text(ids, segments=segments), text(ids, real=real, segments=segments)]
    for batch in batches:
        assert fused_vs_explicit(model, batch) < SMALL


def test_a_later_token_changes_nothing_before_it():
    """Reference 3.1 on the whole model: tokens 6 … 9 of 10 are changed."""
    model = small_gpt("rotary")
    (row,) = rows_of(10)
    changed = row.clone()
    changed[6:] = (changed[6:] + 1) % VOCAB
    before, after = model(text(row[None]))[0], model(text(changed[None]))[0]
    assert torch.equal(before[:6], after[:6])
    assert ((before[6:] - after[6:]).abs().amax(-1) > 1e-3).all()


def test_the_equality_functions_find_a_fault():
    """A check that cannot fail is none: each function, on a model that is wrong in just its way."""
    rows = rows_of(5, 3)
    ids = torch.stack(rows_of(8, 8))
    good = small_gpt("learned")

    class Wrong(torch.nn.Module):
        def __init__(self, change):
            super().__init__()
            self.good, self.change = good, change
            self.vocab_size, self.context, self.init_state, self.step = (
                good.vocab_size,
                good.context,
                good.init_state,
                good.step,
            )

        def forward(self, batch, hooks=None):
            return self.good(self.change(batch), hooks=hooks) + (0.01 if hooks is not None else 0.0)

    def forgetful(batch):
        return text(batch["text"].ids)

    def mixing(batch):
        return text(batch["text"].ids.roll(1, 0))

    assert padded_vs_unpadded(Wrong(forgetful), rows, side="left") > 1e-3
    assert packed_vs_alone(Wrong(forgetful), rows) > 1e-3
    assert batch_vs_single(Wrong(mixing), ids) > 1e-3
    assert fused_vs_explicit(Wrong(forgetful), text(ids)) > 1e-3
    assert cached_vs_uncached(Wrong(lambda batch: text(batch["text"].ids.flip(1))), rows, largest=2) > 1e-3


def test_taps_see_the_whole_pass_and_change_nothing():
    model = small_gpt("rotary")
    ids = torch.stack(rows_of(8, 8))
    hooks = Hooks()
    torch.testing.assert_close(model(text(ids), hooks=hooks), model(text(ids)), atol=SMALL, rtol=0)
    attention = ["q", "k", "v", "attn_scores", "pattern", "z", "attn_out"]
    layer = ["resid_pre", *attention, "resid_mid", "mlp_post", "mlp_out", "resid_post"]
    names = ["embed", *(f"layers.{n}.{name}" for n in (0, 1) for name in layer), "final", "logits"]
    assert list(hooks.values) == names
    assert torch.equal(hooks.values["layers.0.resid_post"], hooks.values["layers.1.resid_pre"])


def test_a_chunk_with_a_cache_takes_no_padding_of_its_own():
    model = small_gpt("rotary")
    ids = torch.ones(1, 3, dtype=torch.int64)
    for name in ("real", "positions", "segments"):
        with pytest.raises(ValueError, match="chunk with a cache"):
            model(text(ids, **{name: ids}), cache=model.init_state(1).cache)


def test_learned_positions_end_with_the_context():
    model = small_gpt("learned")
    model(text(torch.zeros(1, CONTEXT, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"positions 0 … 8: there are learned positions for 0 … 7 only"):
        model(text(torch.zeros(1, CONTEXT + 1, dtype=torch.int64)))


# Figures and construction.


def test_the_chapters_gpt(tinyshakespeare):
    """Reference 3.4 before training: the parameters, and the initial loss on the validation windows."""
    model = GPT(GPTConfig(65, 64, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=12)
    assert count_parameters(model) == 112_065
    assert count_parameters(model, trained_only=True) == 112_065
    numbers = {character: number for number, character in enumerate(sorted(set(tinyshakespeare)))}
    data = torch.tensor([numbers[character] for character in tinyshakespeare])[1_003_854:]
    g = torch.Generator().manual_seed(123)
    losses = []
    with torch.no_grad():
        for _ in range(8):
            starts = torch.randint(len(data) - 65, (64,), generator=g)
            windows = torch.stack([data[start : start + 65] for start in starts])
            logits = model(text(windows[:, :-1]))
            losses.append(float(F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())))
    assert f"{sum(losses) / 8:.2f}" == "4.38"


def test_the_chapters_draws_are_the_frameworks_defaults_in_the_stated_order():
    """Reference 3.4: token table, positions, layers (projections, norms, MLP), norm, output; one seed for all."""
    model = GPT(GPTConfig(65, 64, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=12)
    torch.manual_seed(12)
    expected = {"tokens.weight": torch.nn.Embedding(65, 64).weight, "positions.table": 0.02 * torch.randn(64, 64)}
    for number in range(2):
        layer = f"transformer.layers.{number}"
        for name in "qkvo":
            expected[f"{layer}.attention.W_{name}.weight"] = (torch.randn(64, 64) / 8).T
        for name, made in (("W_in", torch.nn.Linear(64, 256)), ("W_out", torch.nn.Linear(256, 64))):
            expected[f"{layer}.mlp.{name}.weight"], expected[f"{layer}.mlp.{name}.bias"] = made.weight, made.bias
    lm_head = torch.nn.Linear(64, 65)
    expected |= {"lm_head.weight": lm_head.weight, "lm_head.bias": lm_head.bias}
    norms = {name: value for name, value in model.named_parameters() if "norm" in name}
    assert set(expected) | set(norms) == {name for name, _ in model.named_parameters()}
    for name, value in expected.items():
        torch.testing.assert_close(model.get_parameter(name), value, atol=1e-7, rtol=0, msg=name)
    assert all(torch.equal(v, torch.full_like(v, float(name.endswith("weight")))) for name, v in norms.items())


def test_the_modern_model_starts_with_layers_that_add_nothing():
    model = GPT(GPTConfig(VOCAB, CONTEXT, width=16, depth=2, heads=4))
    hooks = Hooks(["embed", "layers.1.resid_post"])
    model(text(torch.stack(rows_of(8, 8))), hooks=hooks)
    assert torch.equal(hooks.values["embed"], hooks.values["layers.1.resid_post"])


def test_a_seed_makes_the_model_and_nothing_else_does():
    torch.manual_seed(5)
    first = GPT(GPTConfig(VOCAB, CONTEXT, width=16, depth=1, heads=2), seed=3).state_dict()
    torch.manual_seed(6)
    same = GPT(GPTConfig(VOCAB, CONTEXT, width=16, depth=1, heads=2), seed=3).state_dict()
    other = GPT(GPTConfig(VOCAB, CONTEXT, width=16, depth=1, heads=2), seed=4).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["tokens.weight"], other["tokens.weight"])


@pytest.mark.parametrize("init", ["classic", "modern"])
@pytest.mark.parametrize("kind", MODEL_FAMILIES)
@pytest.mark.parametrize("mlp", [{"kind": "plain"}, {"kind": "gated"}, {"kind": "gated", "bias": True}])
def test_every_choice_of_parts_can_be_built_and_trained(init, kind, mlp):
    for norm, qk_norm in (("layer", None), ("rms", "layer"), ("rms-plain", "rms-plain")):
        config = GPTConfig(
            VOCAB,
            CONTEXT,
            width=16,
            depth=1,
            heads=4,
            kv_heads=2,
            positions={"kind": kind},
            mlp=mlp,
            norm=norm,
            qk_norm=qk_norm,
            init=init,
        )
        model = GPT(config)
        assert GPTConfig(**config.as_dict()) == config
        model(text(torch.stack(rows_of(8, 8)))).square().sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_cached_row_does_not_hear_its_neighbor():
    model = small_gpt("rotary")
    rows = rows_of(6, 6)
    alone = cached(model, rows[:1], largest=2)[0]
    torch.testing.assert_close(cached(model, rows, largest=2)[0], alone, atol=SMALL, rtol=0)
