"""Section 1: positions, and vectors of many features."""

from __future__ import annotations

import math

import numpy as np
import torch

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, between, exact, experiment
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.initialization import constant, framework_linear, initialize, normal_by_inputs
from tokenloom.nn.mlp import MLP
from tokenloom.nn.positions import Sinusoidal
from tokenloom.nn.transformer import Transformer, TransformerLayer
from tokenloom.plotting.svg import Line, Panel, Plot

LAYER_TABLE = [
    ("*.W_[qkvo].weight", normal_by_inputs()),
    ("*norm*.weight", constant(1.0)),
    ("*norm*.bias", constant(0.0)),
    ("*.mlp.*", framework_linear),
]


@experiment(
    "1.7",
    "Pre-norm and post-norm",
    question="How does the norm of tokens change through a deep stack?",
    protocol="Mean token norm after each of 12 fresh layers, D = 32, H = 4, G(3), then the input 8 × 20 × 32.",
    explanation="Post-norm normalizes every token to √D after each sum. Pre-norm does not change the residual stream, "
    "which grows with depth and passes gradients through unchanged.",
    seed=3,
)
def norms(ctx: ExperimentContext) -> Outcome:
    """1.7."""
    pre = "6.10 6.57 7.16 8.14 9.24 9.98 10.99 12.09 12.64 14.01 14.54 15.74"
    measurements, lines = [], []
    for name, pre_norm, published in (("post-norm", False, " ".join(["5.66"] * 12)), ("pre-norm", True, pre)):
        layers = [
            TransformerLayer(MultiHeadAttention(32, 4), MLP(32, 128), lambda: torch.nn.LayerNorm(32), pre_norm=pre_norm)
            for _ in range(12)
        ]
        stack, g = Transformer(layers), ctx.generator()
        initialize(stack, LAYER_TABLE, g)
        X, hooks = torch.randn(8, 20, 32, generator=g), Hooks("layers.*.resid_post")
        with torch.no_grad():
            stack(X, hooks=hooks)
        found = [Y.norm(dim=-1).mean().item() for Y in hooks.values.values()]
        lines.append(Line(name, list(range(1, 13)), found))
        if ctx.default_seed or not pre_norm:
            measurements.append(exact(name, published, " ".join(f"{value:.2f}" for value in found)))
        else:
            measurements.append(between("pre-norm: last ÷ first", 1.8, 3.5, found[-1] / found[0]))
    caption = "Post-norm stays at √32; pre-norm grows layer by layer."
    return Outcome(measurements, [Plot("Mean norm of a token", caption, "layer", "norm", lines)])


@experiment(
    "1.10",
    "Sinusoidal encoding",
    question="Is the vector of every position distinct?",
    protocol="2,000 positions, D = 32, base 10,000: sin(w_j n) and cos(w_j n) in turn, w_j = base^(−2j/D).",
    explanation="Pairs of features are rotations of different frequencies: high ones distinguish neighbors, low ones "
    "distant positions. All values stay within −1 … 1, however long the text.",
)
def sinusoidal(ctx: ExperimentContext) -> Outcome:
    """1.10."""
    r = Sinusoidal(32).encode(torch.arange(2000), torch.float64)
    waves = 2 * math.pi / torch.atan2(r[1, 0::2], r[1, 1::2])
    plot = Plot(
        "Sinusoidal positions",
        "High frequencies at the top, low ones at the bottom; each column is a position.",
        x="position",
        y="feature",
        panels=[Panel("r", r[:96].T.tolist(), signed=True)],
    )
    return Outcome(
        [
            at_most("largest size of a value", 1.0, r.abs().max().item(), "range [−1, 1]"),
            exact("first wavelength", "6.3", f"{waves[0]:.1f}"),
            exact("last wavelength", "35,332.9", f"{waves[-1]:,.1f}"),
            at_least("smallest distance of two positions", 1e-3, torch.nn.functional.pdist(r).min().item(), "> 1e-3"),
        ],
        [plot],
    )


@experiment(
    "1.11",
    "A shift is a rotation",
    question="Is a shift by seven positions a linear map?",
    protocol="Block-diagonal M_7 of 2 × 2 rotations maps r_n to r_{n+7}, n = 0 … 1992; sines only: best least squares.",
    explanation="Sine and cosine together rotate by a fixed angle when n grows by seven, so one matrix fits all n. "
    "Sines alone do not determine the phase, so no linear map fits.",
)
def shift(ctx: ExperimentContext) -> Outcome:
    """1.11."""
    r = Sinusoidal(32).encode(torch.arange(2000), torch.float64)
    M = torch.zeros(32, 32, dtype=torch.float64)
    for j in range(16):
        c, s = (f(7 * 10_000.0 ** (-2 * j / 32)) for f in (math.cos, math.sin))
        M[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor([[c, s], [-s, c]], dtype=M.dtype)
    sines = r[:, 0::2]
    best = torch.linalg.lstsq(sines[:-7], sines[7:]).solution
    alone = (sines[:-7] @ best - sines[7:]).square().mean().sqrt()
    error = (r[:-7] @ M.T - r[7:]).abs().max().item()
    measurements = [at_most("error of M_7", 1e-12, error, "2.0e-13")]
    measurements += [exact(f"r_n · r_(n+3), n = {n}", "12.2724", f"{r[n] @ r[n + 3]:.4f}") for n in (10, 500, 1500)]
    measurements.append(exact("sines only, RMS error", "0.311", f"{alone:.3f}"))
    plot = Plot("M_7", "Rotations along the diagonal.", panels=[Panel("M_7", M.tolist(), signed=True)])
    return Outcome(measurements, [plot])


@experiment(
    "1.12",
    "Near-orthogonality",
    question="Why do added positions not destroy the token vectors?",
    protocol="Cosine of 5,000 random pairs, D = 4, 64, 1024, numpy default_rng(12).",
    explanation="Random directions in many dimensions are nearly orthogonal, with a standard deviation of 1/√D of the "
    "cosine. Two vectors that are added can therefore still be separated.",
    seed=12,
)
def orthogonal(ctx: ExperimentContext) -> Outcome:
    """1.12."""
    draws = np.random.default_rng(ctx.seed)
    widths, found, measurements = [4, 64, 1024], [], []
    for width, published in zip(widths, (0.5012, 0.1281, 0.0312), strict=True):
        a, b = draws.standard_normal((5000, width)), draws.standard_normal((5000, width))
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        found.append(float(cosines.std()))
        measurements.append(ctx.near(f"std of the cosine, D = {width}", published, found[-1], 0.01, 0.015))
    lines = [Line("measured", widths, found), Line("1/√D", widths, [width**-0.5 for width in widths])]
    plot = Plot("Spread of the cosine", "It follows 1/√D.", "D", "std", lines, log_x=True, log_y=True)
    return Outcome(measurements, [plot])


@experiment(
    "1.12c",
    "Adding or concatenating positions",
    question="Is adding positions less expressive than concatenating them?",
    protocol="A linear map of [x; r] against W₁ x + W₂ r.",
    explanation="A linear map of the concatenation is the sum of a linear map of each part. Adding r to x is the case "
    "in which the positions have been mapped already.",
)
def concatenated(ctx: ExperimentContext) -> Outcome:
    """1.12c."""
    g = ctx.generator()
    x, r, W = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((7, 16), (7, 16), (32, 16)))
    found = (torch.cat((x, r), 1) @ W - (x @ W[:16] + r @ W[16:])).abs().max().item()
    return Outcome([at_most("[x; r] W − (x W₁ + r W₂)", 1e-12, found, "equal")])


@experiment(
    "1.13",
    "Attention as a sparse layer",
    question="Which dense layer computes the same?",
    protocol="The (ND) × (ND) matrix that equals one attention layer with its weights held fixed; N = 6, D = 8, H = 2.",
    explanation="With the weights held fixed, attention is a linear map of all tokens at once: block (n, m) is Σ_h "
    "a_nm W_v,h W_o,h. The blocks share these few matrices, so that N² D + N D² multiplications replace (ND)².",
)
def sparse(ctx: ExperimentContext) -> Outcome:
    """1.13."""
    from tokenloom.nn.masks import Causal

    torch.manual_seed(ctx.seed)
    N, D, H = 6, 8, 2
    layer, X, hooks = MultiHeadAttention(D, H).double(), torch.randn(1, N, D).double(), Hooks("pattern")
    Y = layer(X, mask=Causal(), hooks=hooks).detach()
    A = hooks.values["pattern"][0].detach()
    W_v, W_o = layer.W_v.weight.detach().T, layer.W_o.weight.detach().T
    parts = [W_v[:, h * D // H : (h + 1) * D // H] @ W_o[h * D // H : (h + 1) * D // H] for h in range(H)]
    dense = sum(torch.kron(a, part.T.contiguous()) for a, part in zip(A, parts, strict=True))
    assert isinstance(dense, torch.Tensor)
    blocks = dense.reshape(N, D, N, D).abs().amax((1, 3)) > 0
    plot = Plot(
        "The dense matrix of a causal attention layer",
        "Blocks above the diagonal are zero; the others are mixtures of the same two matrices.",
        x="input number",
        y="output number",
        panels=[Panel("dense layer", dense.tolist(), signed=True)],
    )
    return Outcome(
        [
            at_most("dense layer − attention", 1e-10, (dense @ X.flatten() - Y.flatten()).abs().max().item(), "equal"),
            exact("blocks that are not zero", f"{N * (N + 1) // 2} of {N * N}", f"{int(blocks.sum())} of {N * N}"),
            exact(
                "multiplications, N²D + ND² against (ND)²",
                "672 against 2,304",
                f"{N * N * D + N * D * D} against {(N * D) ** 2:,}",
            ),
        ],
        [plot],
    )
