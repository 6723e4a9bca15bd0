"""Attention: by hand, against plain loops, and its two roads against each other, values and gradients."""

import math

import pytest
import torch
from mask_kinds import B, H, all_kinds, by_rule, single_kinds
from torch import nn

import tokenloom.nn.ops as module
from tokenloom.nn.attention import MultiHeadAttention, attention, explicit_attention, fused_attention
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.masks import Causal, DenseMask, Padding, Segments, SlidingWindow

DH, DV = 3, 2


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(N, M, *, kv_heads=H, seed=0):
    """Q, K and V of B rows, which want gradients."""
    shapes = ((B, H, N, DH), (B, kv_heads, M, DH), (B, kv_heads, M, DV))
    return [draw(*shape, seed=seed + i).requires_grad_() for i, shape in enumerate(shapes)]


def plain(Q, K, V, allowed, bias=None):
    """The formula, one number at a time: Y and the weights as nested lists."""
    rows, heads, N = Q.shape[:3]
    M, share = K.shape[2], heads // K.shape[1]
    Q, K, V, allowed = Q.tolist(), K.tolist(), V.tolist(), allowed.tolist()
    bias = None if bias is None else bias.tolist()
    Y, A = torch.zeros(rows, heads, N, DV, dtype=torch.float64), torch.zeros(rows, heads, N, M, dtype=torch.float64)
    for b in range(rows):
        for h in range(heads):
            keys, values = K[b][h // share], V[b][h // share]
            for n in range(N):
                seen = [m for m in range(M) if allowed[b][h][n][m]]
                powers = {}
                for m in seen:
                    score = sum(q * k for q, k in zip(Q[b][h][n], keys[m], strict=True)) / math.sqrt(DH)
                    powers[m] = math.exp(score + (0.0 if bias is None else bias[b][h][n][m]))
                for m in seen:
                    A[b, h, n, m] = powers[m] / sum(powers.values())
                for d in range(DV):
                    Y[b, h, n, d] = sum(powers[m] * values[m][d] for m in seen) / sum(powers.values()) if seen else 0.0
    return Y, A


def gradients(Y, *leaves):
    """Gradients of some uneven number made of Y, zeros where there is no way to a leaf."""
    loss = (Y * draw(*Y.shape, seed=9)).sum() + Y.square().sum()
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def assert_roads_agree(Q, K, V, mask, bias=None, name=""):
    """Values and gradients of both roads, all finite; returns the explicit one."""
    leaves = [x for x in (Q, K, V, bias) if x is not None and x.requires_grad]
    Y, A = explicit_attention(Q, K, V, mask, bias)
    fused = fused_attention(Q, K, V, mask, bias)
    torch.testing.assert_close(fused, Y, atol=1e-12, rtol=0, msg=name)
    for ours, theirs in zip(gradients(fused, *leaves), gradients(Y, *leaves), strict=True):
        assert torch.isfinite(ours).all(), name
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0, msg=name)
    return Y, A


def test_a_row_by_hand():
    """One head of one feature: scores 0, ln 2, ln 4 make weights 1/7, 2/7, 4/7."""
    Q = torch.full((1, 1, 3, 1), math.log(2), dtype=torch.float64)
    K = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).view(1, 1, 3, 1)
    V = torch.tensor([7.0, 14.0, 21.0], dtype=torch.float64).view(1, 1, 3, 1)
    Y, A = attention(Q, K, V, return_weights=True)
    torch.testing.assert_close(A[0, 0, 0].tolist(), [1 / 7, 2 / 7, 4 / 7])
    torch.testing.assert_close(Y.flatten().tolist(), [17.0, 17.0, 17.0])
    Y, A = attention(Q, K, V, Causal(), return_weights=True)
    torch.testing.assert_close(A[0, 0].flatten().tolist(), [1.0, 0.0, 0.0, 1 / 3, 2 / 3, 0.0, 1 / 7, 2 / 7, 4 / 7])
    torch.testing.assert_close(Y.flatten().tolist(), [7.0, 35 / 3, 17.0])
    # A bias of ln 2 on the first key: 2, 2, 4 parts.
    bias = torch.tensor([math.log(2), 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(attention(Q, K, V, None, bias).flatten().tolist(), [15.75] * 3)
    assert attention(Q, K, V, Causal(-1)).flatten().tolist() == [0.0, 7.0, pytest.approx(35 / 3)]


def test_four_features_halve_the_scores():
    """The divisor is √Dh: with four features of one, a dot product of 4 ln 3 becomes 2 ln 3."""
    Q, V = torch.ones(1, 1, 1, 4), torch.tensor([[[[0.0], [10.0]]]])
    K = torch.stack((torch.zeros(4), torch.full((4,), math.log(3)))).view(1, 1, 2, 4)
    torch.testing.assert_close(attention(Q, K, V).item(), 9.0)


@pytest.mark.parametrize(("N", "M"), [(1, 6), (5, 7), (6, 6), (6, 3), (3, 4)])
@pytest.mark.parametrize("biased", [False, True])
def test_both_roads_are_the_formula_on_every_mask(N, M, biased):
    Q, K, V = inputs(N, M)
    bias = draw(B, H, N, M, seed=7).requires_grad_() if biased else None
    singles = {kind.name for kind in single_kinds(N, M)}
    for kind in all_kinds(N, M):
        Y, A = assert_roads_agree(Q, K, V, kind.mask, bias, kind.name)
        allowed = by_rule(kind, N, M)
        torch.testing.assert_close(A.sum(-1), allowed.any(-1).to(A.dtype), msg=kind.name)
        assert not A[~allowed].any(), kind.name
        assert not Y[~allowed.any(-1)].any(), kind.name
        if kind.name in singles:
            expected_Y, expected_A = plain(Q, K, V, allowed, bias)
            torch.testing.assert_close(Y, expected_Y, atol=1e-12, rtol=0, msg=kind.name)
            torch.testing.assert_close(A, expected_A, atol=1e-12, rtol=0, msg=kind.name)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("N", "M"), [(1, 5), (4, 6), (5, 5)])
def test_shared_key_value_heads(N, M, kv_heads):
    Q, K, V = inputs(N, M, kv_heads=kv_heads)
    everything = torch.ones(B, H, N, M, dtype=torch.bool)
    Y, _ = assert_roads_agree(Q, K, V, None)
    torch.testing.assert_close(Y, plain(Q, K, V, everything)[0], atol=1e-12, rtol=0)
    for kind in single_kinds(N, M):
        Y, _ = assert_roads_agree(Q, K, V, kind.mask, name=kind.name)
        torch.testing.assert_close(Y, plain(Q, K, V, by_rule(kind, N, M))[0], atol=1e-12, rtol=0, msg=kind.name)


SHAPES = [(), (6,), (5, 1), (5, 6), (H, 1, 1), (H, 5, 6), (1, H, 5, 6), (B, 1, 5, 6), (B, H, 5, 6)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bias_of_any_shape_that_fits(shape):
    Q, K, V = inputs(5, 6)
    bias = draw(*shape, seed=5).requires_grad_()
    for mask in (None, Causal(), Causal(9), SlidingWindow(2), Causal(torch.tensor([0, 2])) & SlidingWindow(3)):
        Y, _ = assert_roads_agree(Q, K, V, mask, bias)
        whole = torch.ones(B, H, 5, 6, dtype=torch.bool)
        if mask is not None:
            whole = whole & mask.allowed(torch.arange(5), torch.arange(6))
        expected = plain(Q, K, V, whole, bias.expand(B, H, 5, 6))[0]
        torch.testing.assert_close(Y, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("entries", "kinds", "biased"),
    [(1, single_kinds, False), (12, all_kinds, True), (40, single_kinds, False), (40, single_kinds, True)],
)
def test_block_by_block_is_all_at_once(monkeypatch, entries, kinds, biased):
    Q, K, V = inputs(6, 6)
    bias = draw(H, 6, 6, seed=7).requires_grad_() if biased else None
    monkeypatch.setattr(module, "BLOCK_ENTRIES", entries)
    for kind in kinds(6, 6):
        assert_roads_agree(Q, K, V, kind.mask, bias, kind.name)


def test_gradients_are_those_of_finite_differences():
    Q, K, V = inputs(3, 4)
    bias = draw(H, 3, 4, seed=7).requires_grad_()
    for mask in (Causal(-1), SlidingWindow(1) & Causal(), Padding(torch.tensor([[True, False] * 2, [False] * 4]))):
        for road in (fused_attention, lambda *given: explicit_attention(*given)[0]):

            def run(Q, K, V, bias, road=road, mask=mask):
                return road(Q, K, V, mask, bias)

            assert torch.autograd.gradcheck(run, (Q, K, V, bias))


@pytest.mark.parametrize("mask", [None, Causal(), SlidingWindow(2), Causal(-3)])
def test_no_keys_at_all(mask):
    Q, K, V = inputs(3, 0)
    for Y in (attention(Q, K, V, mask), attention(Q, K, V, mask, return_weights=True)[0]):
        assert Y.shape == (B, H, 3, DV)
        assert not Y.any()
        assert not any(g.any() for g in gradients(Y, Q, K, V))


def test_nothing_reachable_gives_every_input_a_zero_gradient():
    Q, K, V = inputs(3, 4)
    Y = attention(Q, K, V, Causal(-9))
    found = torch.autograd.grad(Y.sum(), (Q, K, V))
    assert not Y.any()
    assert not any(g.any() for g in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_roads_agree_in_the_types_that_models_use(dtype):
    Q, K, V = (x.detach().to(dtype) for x in inputs(5, 7))
    bias = draw(1, H, 5, 7, seed=5, dtype=torch.float32)
    for kind in single_kinds(5, 7):
        for given in (None, bias):
            Y, A = explicit_attention(Q, K, V, kind.mask, given)
            fused = fused_attention(Q, K, V, kind.mask, given)
            assert Y.dtype == A.dtype == fused.dtype == dtype
            tolerance = 1e-6 if dtype == torch.float32 else 3e-2
            torch.testing.assert_close(fused, Y, atol=tolerance, rtol=tolerance, msg=kind.name)


def test_shapes_that_do_not_fit():
    Q, K, V = inputs(3, 4)
    for bad in ((Q[0], K, V), (Q, K[:1], V), (Q, K[:, :3], V[:, :3]), (Q, K, V[:, :, :3]), (Q[..., :2], K, V)):
        with pytest.raises(ValueError, match="attention wants Q"):
            attention(*bad)


# Memory: the reason for the fused road.


def largest_allocation(run):
    """The most bytes that one operation, children apart, left allocated or took at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    return max(event.self_cpu_memory_usage for event in profile.events())


def test_the_spy_on_memory_sees_an_explicit_attention():
    Q, K, V = (draw(1, 1, 512, 4, seed=i, dtype=torch.float32) for i in range(3))
    assert largest_allocation(lambda: explicit_attention(Q, K, V)) >= 4 * 512 * 512


@pytest.mark.parametrize("mask", [Causal(), Causal() & SlidingWindow(64), Causal(20_000)])
def test_16384_tokens_never_meet_all_at_once(mask, monkeypatch):
    """Causal and windowed attention neither ask for a rectangle of N×M, 268 million entries, nor allocate one."""
    N, asked = 16_384, [0]
    for kind in (Causal, SlidingWindow):
        real = kind.allowed

        def spy(self, queries, keys, real=real):
            asked.append(len(queries) * len(keys))
            return real(self, queries, keys)

        monkeypatch.setattr(kind, "allowed", spy)
    Q, K, V = (draw(1, 1, N, 4, seed=i, dtype=torch.float32) for i in range(3))
    if isinstance(mask, Causal) and mask.offset:
        Q = Q[:, :, :8]
    with torch.no_grad():
        assert largest_allocation(lambda: attention(Q, K, V, mask)) < 1 << 20
    assert max(asked) <= (0 if isinstance(mask, Causal) else 1 << 17)


def test_blocks_keep_no_masks_for_the_backward_pass(monkeypatch):
    """What is kept between the passes grows with N, not with N²: inputs and outputs, and nothing of the masks."""
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 1 << 14)

    def kept(N):
        Q, K, V = (draw(2, 1, N, 4, seed=i, dtype=torch.float32).requires_grad_() for i in range(3))
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        real = torch.ones(2, N, dtype=torch.bool)
        real[0, : N // 3] = False
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            attention(Q, K, V, Causal() & Padding(real)).sum().backward()
        return sum(sizes.values())

    assert kept(1024) < 2.2 * kept(512) < 512 * 512


def test_blocks_count_rectangles_of_every_row(monkeypatch):
    """A mask of its own for each row of the batch makes a block as much larger."""
    largest = []
    real = Padding.allowed

    def spy(self, queries, keys):
        largest.append(len(queries) * len(keys))
        return real(self, queries, keys)

    monkeypatch.setattr(Padding, "allowed", spy)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 1000)
    Q, K, V = (draw(5, 1, 40, 4, seed=i) for i in range(3))
    attention(Q, K, V, Padding(torch.ones(5, 40, dtype=torch.bool)))
    assert max(largest) == 5 * 40  # 1000 entries over 40 keys and 5 rows: 5 queries


# Multi-head attention.


def same_weights(ours, theirs):
    """Copy ours into a `torch.nn.MultiheadAttention`."""
    maps = [ours.W_q, ours.W_k, ours.W_v]
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
        else:
            for m, target in zip(maps, (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight), strict=True):
                target.copy_(m.weight)
        theirs.out_proj.weight.copy_(ours.W_o.weight)
        if ours.W_o.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
            theirs.out_proj.bias.copy_(ours.W_o.bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_is_the_frameworks(bias, masked):
    """Reference 1.5: outputs and the weights of each head agree to 1e-6; B = 2, N = 7, D = 16, H = 4."""
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(16, 4, bias=bias), nn.MultiheadAttention(16, 4, bias=bias, batch_first=True)
    same_weights(ours, theirs)
    X = torch.randn(2, 7, 16)
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    mask = Causal() & Padding(real) if masked else None
    given = {"attn_mask": torch.ones(7, 7).triu(1).bool(), "key_padding_mask": ~real} if masked else {}
    expected, weights = theirs(X, X, X, need_weights=True, average_attn_weights=False, **given)
    hooks = Hooks("pattern")
    torch.testing.assert_close(ours(X, mask=mask, hooks=hooks), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours(X, mask=mask), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(hooks.values["pattern"], weights, atol=1e-6, rtol=0)


def test_cross_attention_is_the_frameworks():
    torch.manual_seed(0)
    ours = MultiHeadAttention(16, 4, memory_width=10)
    theirs = nn.MultiheadAttention(16, 4, bias=False, kdim=10, vdim=10, batch_first=True)
    same_weights(ours, theirs)
    X, Z = torch.randn(2, 5, 16), torch.randn(2, 8, 10)
    real = torch.arange(8) < torch.tensor([[8], [3]])
    expected, _ = theirs(X, Z, Z, key_padding_mask=~real)
    torch.testing.assert_close(ours(X, Z, mask=Padding(real)), expected, atol=1e-6, rtol=0)


def test_the_layer_is_a_sum_over_heads():
    """Reference 1.6: Σ_h A_h X W_v,h W_o,h, and 4D² parameters whatever N and H."""
    torch.manual_seed(0)
    for heads in (1, 2, 4, 8):
        layer = MultiHeadAttention(16, heads)
        assert sum(p.numel() for p in layer.parameters()) == 1024
        X, hooks, width = torch.randn(2, 9, 16), Hooks("pattern"), 16 // heads
        Y = layer(X, hooks=hooks)
        W_q, W_k, W_v, W_o = (m.weight.T for m in (layer.W_q, layer.W_k, layer.W_v, layer.W_o))
        total = torch.zeros_like(Y)
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            A = (X @ W_q[:, part] @ (X @ W_k[:, part]).transpose(1, 2) / math.sqrt(width)).softmax(-1)
            torch.testing.assert_close(hooks.values["pattern"][:, h], A, atol=1e-6, rtol=0)
            total += A @ X @ W_v[:, part] @ W_o[part]
        torch.testing.assert_close(Y, total, atol=1e-5, rtol=0)


def test_a_permutation_of_tokens_permutes_the_result():
    """Reference 1.9, D = 16, H = 4, N = 7."""
    torch.manual_seed(0)
    layer, X, order = MultiHeadAttention(16, 4), torch.randn(1, 7, 16), torch.randperm(7)
    torch.testing.assert_close(layer(X[:, order]), layer(X)[:, order], atol=1e-5, rtol=0)
    assert (layer(X[:, order], mask=Causal()) - layer(X, mask=Causal())[:, order]).abs().max() > 1e-2


def test_the_causal_mask():
    """Reference 3.1: with tokens 6 … 9 of 10 changed, outputs 0 … 5 stay and 6 … 9 change."""
    torch.manual_seed(0)
    layer, X = MultiHeadAttention(16, 4), torch.randn(1, 10, 16)
    changed = X.clone()
    changed[:, 6:] = torch.randn(1, 4, 16)
    apart = (layer(X, mask=Causal()) - layer(changed, mask=Causal())).abs().amax(-1)[0]
    assert not apart[:6].any()
    assert (apart[6:] > 1e-3).all()


def test_the_padding_mask():
    """Reference 3.2: three real tokens padded to five, no causal mask."""
    torch.manual_seed(0)
    layer, X = MultiHeadAttention(16, 4), torch.randn(1, 3, 16)
    padded = torch.cat((X, torch.randn(1, 2, 16)), dim=1)
    real = torch.tensor([[True, True, True, False, False]])
    torch.testing.assert_close(layer(padded, mask=Padding(real))[:, :3], layer(X), atol=1e-6, rtol=0)
    assert (layer(padded)[:, :3] - layer(X)).abs().max() > 1e-2


def test_multi_head_taps_take_the_explicit_road_to_the_same_result():
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4, kv_heads=2, qk_norm=nn.LayerNorm).double()
    X, hooks = draw(2, 6, 16), Hooks()
    mask = Causal() & Segments(*[torch.tensor([[0, 0, 1, 1, 1, 2]] * 2)] * 2)
    torch.testing.assert_close(layer(X, mask=mask, hooks=hooks), layer(X, mask=mask), atol=1e-12, rtol=0)
    shapes = {name: tuple(value.shape) for name, value in hooks.values.items()}
    assert shapes == {
        "q": (2, 6, 4, 4),
        "k": (2, 6, 2, 4),
        "v": (2, 6, 2, 4),
        "attn_scores": (2, 4, 6, 6),
        "pattern": (2, 4, 6, 6),
        "z": (2, 6, 4, 4),
    }
    heads = hooks.values["pattern"] @ torch.stack(
        [layer.W_v(X).unflatten(-1, (2, 4))[:, :, h // 2] for h in range(4)], 1
    )
    torch.testing.assert_close(hooks.values["z"], heads.transpose(1, 2), atol=1e-12, rtol=0)


def test_a_head_can_be_switched_off_by_a_tap():
    """Editing `z` takes a head out of the sum; editing `pattern` replaces what a head looks at."""
    torch.manual_seed(0)
    layer, X = MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    off = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]
    Y = layer(X, hooks=Hooks((), {"z": lambda heads: heads * off}))
    part = layer.W_v(X)[..., 4:8]
    hooks = Hooks("pattern")
    layer(X, hooks=hooks)
    head = hooks.values["pattern"][:, 1] @ part @ layer.W_o.weight.T[4:8]
    torch.testing.assert_close(Y, layer(X) - head, atol=1e-6, rtol=0)
    even = layer(X, hooks=Hooks((), {"pattern": lambda A: torch.full_like(A, 1 / 5)}))
    torch.testing.assert_close(even, layer.W_o(layer.W_v(X).mean(1, keepdim=True)).expand(2, 5, 16), atol=1e-6, rtol=0)


def test_head_norms_come_before_the_scores():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, qk_norm=lambda width: nn.RMSNorm(width, eps=1e-6)).double()
    with torch.no_grad():
        layer.norm_q.weight.copy_(draw(4, seed=1))
    X, hooks = draw(1, 3, 8), Hooks("attn_scores")
    layer(X, hooks=hooks)

    def normed(Y):
        return Y / (Y.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    Q = normed(layer.W_q(X).view(1, 3, 2, 4)) * layer.norm_q.weight
    K = normed(layer.W_k(X).view(1, 3, 2, 4))
    expected = torch.einsum("bnhd,bmhd->bhnm", Q, K) / 2
    torch.testing.assert_close(hooks.values["attn_scores"], expected, atol=1e-12, rtol=0)


def test_dense_masks_from_outside():
    """A mask for each head: head 0 sees itself, head 1 sees the last token."""
    torch.manual_seed(0)
    layer, X, hooks = MultiHeadAttention(8, 2), torch.randn(1, 4, 8), Hooks("pattern")
    allowed = torch.stack((torch.eye(4), torch.eye(4)[[3, 3, 3, 3]])).bool()[None]
    layer(X, mask=DenseMask(allowed), hooks=hooks)
    torch.testing.assert_close(hooks.values["pattern"], allowed.float())


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="a width of 10 does not divide into 4 heads"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match="4 heads cannot share 3"):
        MultiHeadAttention(16, 4, kv_heads=3)
    with pytest.raises(ValueError, match="0 heads"):
        MultiHeadAttention(16, 0)
    with pytest.raises(ValueError, match="share 0"):
        MultiHeadAttention(16, 4, kv_heads=0)
