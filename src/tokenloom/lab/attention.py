"""Section 1: what attention computes."""

from __future__ import annotations

import math

import torch

from tokenloom.lab.experiment import Bench, Outcome, experiment


@experiment(
    "1.3",
    "The variance of the dot product",
    asked="How large are scores before and after scaling?",
    protocol="20,000 pairs q, k ~ N(0, I), all q before all k, G(1), D_k = 4, 16, 64, 256 in that order.",
    explanation="A dot product adds D_k independent products of variance one, so its variance is D_k. Dividing by √D_k "
    "brings it back to one whatever the width, and the softmax stays away from its flat ends.",
    seed=1,
)
def variance(bench: Bench) -> Outcome:
    """1.3."""
    generator = bench.generator()
    published = {4: (4.03, 1.007), 16: (16.36, 1.023), 64: (64.58, 1.009), 256: (259.84, 1.015)}
    measures = []
    for width, (plain, scaled) in published.items():
        q, k = (torch.randn(20_000, width, generator=generator) for _ in "qk")
        products = (q * k).sum(-1)
        measures.append(bench.digits(f"var(qᵀk), D_k = {width}", plain, products.var().item(), 2, 0.06 * width))
        found = (products / math.sqrt(width)).var().item()
        measures.append(bench.digits(f"after ÷ √D_k, D_k = {width}", scaled, found, 3, 0.06))
    return Outcome(measures)
