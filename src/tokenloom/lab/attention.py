"""Section 1: what attention computes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, exact, experiment
from tokenloom.nn.attention import MultiHeadAttention, attention, attention_weights
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import count_parameters
from tokenloom.plotting.svg import Line, Panel, Plot


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    return (a - b).abs().max().item()


@experiment(
    "1.1",
    "Simple self-attention",
    question="What does attention do when it has no parameters at all?",
    protocol="Weights = row softmax of X Xᵀ, X 5 × 4 standard normal.",
    explanation="Each row of weights is positive and sums to one, so each output lies inside the convex hull of the "
    "inputs. Similar tokens are averaged; nothing is learned.",
)
def simple(ctx: ExperimentContext) -> Outcome:
    """1.1."""
    X = torch.randn(5, 4, generator=ctx.generator())
    A = attention_weights(X @ X.T)
    # The library divides scores by √Dh; queries √Dh · X cancel that.
    Y, same = attention(2.0 * X[None, None], X[None, None], X[None, None], return_weights=True)
    outside = max((Y[0, 0] - X.amax(0)).max().item(), (X.amin(0) - Y[0, 0]).max().item())
    names = [f"x{n}" for n in range(1, 6)]
    plot = Plot(
        "Attention weights",
        "Each row is one output; its weights over the five inputs sum to one.",
        x="input",
        y="output",
        panels=[Panel("weights", A.tolist(), names, names)],
    )
    measurements = [
        at_most("row sums − 1", 1e-6, gap(A.sum(1), torch.ones(5)), "every row sums to 1"),
        at_least("smallest weight", 0.0, A.min().item(), "convex combination"),
        at_most("outputs beyond the range of the inputs", 1e-6, outside, "convex combination"),
        at_most("attention() − the formula", 1e-6, max(gap(same[0, 0], A), gap(Y[0, 0], A @ X))),
    ]
    return Outcome(measurements, [plot])


@experiment(
    "1.2",
    "Symmetry of scores",
    question="Why do queries and keys need separate matrices?",
    protocol="X U Uᵀ Xᵀ with one shared U against X W_q W_kᵀ Xᵀ; X 5 × 4.",
    explanation="With one matrix for both, the score of n for m equals that of m for n. A chisel is a tool, but a "
    "tool is seldom a chisel: two matrices let relations have a direction.",
)
def symmetry(ctx: ExperimentContext) -> Outcome:
    """1.2."""
    g = ctx.generator()
    X, U, W_q, W_k = (torch.randn(*shape, generator=g) for shape in ((5, 4), (4, 4), (4, 4), (4, 4)))
    shared, separate = X @ U @ U.T @ X.T, X @ W_q @ W_k.T @ X.T
    panels = [Panel("shared U", shared.tolist(), signed=True), Panel("W_q and W_k", separate.tolist(), signed=True)]
    plot = Plot("Scores", "Only the left matrix is symmetric.", x="key", y="query", panels=panels)
    measurements = [
        at_most("shared: scores − transposed", 1e-4, gap(shared, shared.T), "symmetric"),
        at_least("separate: scores − transposed", 1e-2, gap(separate, separate.T), "not symmetric"),
    ]
    return Outcome(measurements, [plot])


@experiment(
    "1.3",
    "The variance of the dot product",
    question="How large are scores before and after scaling?",
    protocol="20,000 pairs q, k ~ N(0, I), all q before all k, G(1), D_k = 4, 16, 64, 256 in that order.",
    explanation="A dot product adds D_k independent products of variance one, so its variance is D_k. Dividing by "
    "√D_k brings it back to one whatever the width, and the softmax does not saturate.",
    seed=1,
)
def variance(ctx: ExperimentContext) -> Outcome:
    """1.3."""
    generator = ctx.generator()
    published = {4: (4.03, 1.007), 16: (16.36, 1.023), 64: (64.58, 1.009), 256: (259.84, 1.015)}
    measurements, plain_found, scaled_found = [], [], []
    for width, (plain, scaled) in published.items():
        q, k = (torch.randn(20_000, width, generator=generator) for _ in "qk")
        products = (q * k).sum(-1)
        plain_found.append(products.var().item())
        scaled_found.append((products / math.sqrt(width)).var().item())
        measurements.append(ctx.digits(f"var(qᵀk), D_k = {width}", plain, plain_found[-1], 2, 0.06 * width))
        measurements.append(ctx.digits(f"after ÷ √D_k, D_k = {width}", scaled, scaled_found[-1], 3, 0.06))
    lines = [Line("qᵀk", list(published), plain_found), Line("qᵀk ÷ √D_k", list(published), scaled_found)]
    caption = "The variance grows with the width; divided by √D_k it stays at one."
    return Outcome(measurements, [Plot("Variance", caption, "D_k", "variance", lines, log_x=True, log_y=True)])


@experiment(
    "1.4",
    "Saturation",
    question="What does an unscaled score do to the softmax?",
    protocol="One query, then ten keys ~ N(0, 1), G(2), D_k = 4, 64, 512; largest weight, norm of the Jacobian.",
    explanation="With wide vectors one score is much larger than the others; the softmax then puts all weight on one "
    "key and its derivative vanishes, so nothing is learned. With scaling the Jacobian does not vanish.",
    seed=2,
)
def saturation(ctx: ExperimentContext) -> Outcome:
    """1.4."""
    g = ctx.generator()
    published = {
        4: ("0.311 / 3.75e-1", "0.202 / 3.26e-1"),
        64: ("0.995 / 9.60e-3", "0.410 / 3.64e-1"),
        512: ("1.000 / 9.17e-7", "0.424 / 3.66e-1"),
    }
    measurements = []
    norms: dict[str, list[float]] = {"unscaled": [], "scaled": []}
    for width, printed in published.items():
        q, K = torch.randn(width, generator=g), torch.randn(10, width, generator=g)
        for (name, found), text, scale in zip(norms.items(), printed, (1.0, math.sqrt(width)), strict=True):
            a = (K @ q / scale).softmax(0)
            found.append((a.diag() - torch.outer(a, a)).norm().item())
            mantissa, _, power = f"{found[-1]:.2e}".partition("e")
            label = f"{name}, D_k = {width}: largest weight / Jacobian"
            if ctx.default_seed:
                measurements.append(exact(label, text, f"{a.max():.3f} / {mantissa}e{int(power)}"))
    if not ctx.default_seed:
        measurements = [
            at_least("scaled: smallest Jacobian", 0.1, min(norms["scaled"])),
            at_most("unscaled: Jacobian at D_k = 512", 0.1, norms["unscaled"][-1]),
        ]
    lines = [Line(name, list(published), values) for name, values in norms.items()]
    caption = "Without scaling the derivative of the softmax vanishes with the width."
    plot = Plot("Norm of the softmax Jacobian", caption, "D_k", "norm", lines, log_x=True, log_y=True)
    return Outcome(measurements, [plot])


@experiment(
    "1.5",
    "Multi-head attention equals the framework's",
    question="Does the layer compute the same as torch.nn.MultiheadAttention?",
    protocol="The same weights in both, B = 2, N = 7, D = 16, H = 4.",
    explanation="Two independent implementations that agree up to rounding are unlikely to have the same bug. PyTorch "
    "keeps the three input projections in one matrix, which is filled from ours.",
)
def framework(ctx: ExperimentContext) -> Outcome:
    """1.5."""
    torch.manual_seed(ctx.seed)
    ours, theirs = MultiHeadAttention(16, 4), nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        theirs.out_proj.weight.copy_(ours.W_o.weight)
        X, hooks = torch.randn(2, 7, 16), Hooks("pattern")
        Y = ours(X, hooks=hooks)
        expected, weights = theirs(X, X, X, need_weights=True, average_attn_weights=False)
        fused = ours(X)
    return Outcome(
        [
            at_most("outputs", 1e-6, gap(Y, expected), "equal"),
            at_most("outputs, fused backend", 1e-6, gap(fused, expected), "equal"),
            at_most("weights of each head", 1e-6, gap(hooks.values["pattern"], weights), "equal"),
        ]
    )


@experiment(
    "1.6",
    "The layer is a sum over heads",
    question="How are heads combined, and what do they cost?",
    protocol="Σ_h A_h X W_v,h W_o,h against the layer; D = 16, H = 1, 2, 4, 8, N = 9.",
    explanation="Concatenating heads and multiplying by W_o equals the sum of the projections of each head. There are "
    "4D² parameters, independent of the numbers of tokens and heads.",
)
def heads(ctx: ExperimentContext) -> Outcome:
    """1.6."""
    torch.manual_seed(ctx.seed)
    measurements = []
    for count in (1, 2, 4, 8):
        layer, X, width = MultiHeadAttention(16, count), torch.randn(2, 9, 16), 16 // count
        total = torch.zeros_like(X)
        W_q, W_k, W_v, W_o = (m.weight.detach().T for m in (layer.W_q, layer.W_k, layer.W_v, layer.W_o))
        for h in range(count):
            part = slice(h * width, (h + 1) * width)
            A = (X @ W_q[:, part] @ (X @ W_k[:, part]).mT / math.sqrt(width)).softmax(-1)
            total += A @ X @ W_v[:, part] @ W_o[part]
        measurements.append(at_most(f"H = {count}: layer − sum", 1e-5, gap(layer(X).detach(), total), "equal"))
        measurements.append(exact(f"H = {count}: parameters", "1,024", f"{count_parameters(layer):,}"))
    return Outcome(measurements)


@experiment(
    "1.9",
    "Permutation equivariance",
    question="Does attention know the order of its tokens?",
    protocol="layer(X[perm]) against layer(X)[perm], D = 16, H = 4, N = 7.",
    explanation="Attention maps a set: permuted inputs give the same outputs, permuted. Order enters by positions or "
    "by a mask.",
)
def permutation(ctx: ExperimentContext) -> Outcome:
    """1.9."""
    torch.manual_seed(ctx.seed)
    layer, X, order = MultiHeadAttention(16, 4), torch.randn(1, 7, 16), torch.randperm(7)
    found = gap(layer(X[:, order]).detach(), layer(X)[:, order].detach())
    return Outcome([at_most("layer(X[perm]) − layer(X)[perm]", 1e-5, found, "equal")])


@experiment(
    "1.12b",
    "Rank and span",
    question="Which outputs can one head produce?",
    protocol="Singular values of W_v,h W_o,h (D = 16, H = 4, float64); output rows against the span of the value rows.",
    explanation="A head has D/H features, so W_v W_o has at most D/H singular values that are not zero. Its output is "
    "a mixture of value vectors and lies in their span.",
)
def rank(ctx: ExperimentContext) -> Outcome:
    """1.12b."""
    torch.manual_seed(ctx.seed)
    layer, X, hooks = MultiHeadAttention(16, 4).double(), torch.randn(1, 3, 16).double(), Hooks("pattern")
    layer(X, hooks=hooks)
    W_v, W_o = layer.W_v.weight.detach().T, layer.W_o.weight.detach().T
    values = torch.linalg.svdvals(W_v[:, :4] @ W_o[:4])
    rows = X[0] @ W_v[:, :4] @ W_o[:4]
    Y = hooks.values["pattern"][0, 0].detach() @ rows
    basis = torch.linalg.qr(rows.T).Q
    residual = (Y - Y @ basis @ basis.T).norm(dim=1).max().item()
    count = float((values > 1e-10 * values[0]).sum())
    lines = [Line("singular values", list(range(1, 17)), values.clamp_min(1e-18).tolist())]
    caption = "Four singular values stand out; the others are rounding."
    plot = Plot("Singular values of one head's W_v W_o", caption, "number", "value", lines, log_y=True)
    return Outcome(
        [
            at_most("rank of W_v,h W_o,h", 4, count, "≤ D/H = 4"),
            at_most("residual beyond the span of the values", 1e-5, residual, "< 1e-5"),
        ],
        [plot],
    )
