"""Vector quantization: k-means, and a codebook trained with the network whose outputs it quantizes.

Bishop & Bishop, section 12.4.1 on images as tokens; van den Oord et al. 2017, "Neural discrete representation
learning", and its appendix A.1 on moving averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

# Rows whose distances to all centers are in memory at once.
ROWS = 65_536


def nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest center of each point, the first of equal ones, and the squared distance to it.

    points: (n, D), centers: (K, D) → (n,) int64, (n,).
    """
    found, distances = [], []
    for part in torch.split(points, ROWS):
        # |x − c|² without |x|², which does not affect the minimum.
        scores = torch.addmm(centers.square().sum(1), part, centers.T, alpha=-2)
        found.append(scores.argmin(1))
        distances.append((part - centers[found[-1]]).square().sum(1))
    return torch.cat(found), torch.cat(distances)


def sums_by(index: Tensor, values: Tensor, count: int) -> Tensor:
    """Return Σ values[i] over the i with index[i] = k, for each k < count. values: (n, …) → (count, …)."""
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, index, values)


def kmeans(points: Tensor, count: int, generator: Generator, *, rounds: int = 25) -> Tensor:
    """Return centers (K, D) of points (n, D) by Lloyd's algorithm, initialized by k-means++.

    A center without points moves to the point that is farthest from its center. At most `rounds` rounds, fewer after
    convergence. Deterministic for a generator state on the CPU. Lloyd 1982; Arthur &
    Vassilvitskii 2007. Raises ValueError for more centers than different points.
    """
    different = torch.unique(points, dim=0)
    if count < 1 or len(different) < count:
        raise ValueError(f"{count} centers of {len(different)} different points")
    centers = _spread_out(points, count, generator)
    for _ in range(rounds):
        index, distances = nearest(points, centers)
        sizes = torch.bincount(index, minlength=count)
        moved = sums_by(index, points, count) / sizes.clamp(min=1)[:, None]
        for empty in (sizes == 0).nonzero()[:, 0].tolist():
            farthest = int(distances.argmax())
            moved[empty], distances[farthest] = points[farthest], 0
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers


def _spread_out(points: Tensor, count: int, generator: Generator) -> Tensor:
    """k-means++: each further center is a point drawn with probability ∝ its squared distance to the nearest center."""
    first = int(torch.randint(len(points), (1,), generator=generator))
    chosen = [first]
    distances = (points - points[first]).square().sum(1)
    for _ in range(count - 1):
        # multinomial limits the number of categories; a cumulative sum does not, and never draws a point of weight 0.
        mass = distances.double().cumsum(0)
        u = torch.rand((), generator=generator, dtype=torch.float64)
        chosen.append(int(torch.searchsorted(mass, u * mass[-1], right=True).clamp(max=len(points) - 1)))
        distances = torch.minimum(distances, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen].clone()


def perplexity(counts: Tensor) -> float:
    """Return exp(−Σ p ln p) of the relative counts p (K,): the number of equally used codes of the same entropy."""
    shares = counts.double() / counts.sum().clamp(min=1)
    return float(torch.special.entr(shares).sum().exp())


class Quantized(NamedTuple):
    """vectors (n, D): those of the codes, with the gradient of the input. codes (n,) int64.

    commitment (n,): the mean square over D of input minus code vector, with a gradient for the input.
    """

    vectors: Tensor
    codes: Tensor
    commitment: Tensor


class EMABuffers(nn.Module):
    """A module whose buffers are updated by moving averages over a whole step, not by gradients.

    Forward passes in training accumulate sums; after the optimizer step, `gathered` is summed over all processes, and
    `move` updates the buffers. The update is the same for one micro-batch or several, one process or several.
    """

    def gathered(self) -> list[Tensor]:
        """Return the sums of this step, to be summed over processes in place."""
        raise NotImplementedError

    def move(self) -> None:
        """Update the buffers by the sums, and reset these."""
        raise NotImplementedError


def update_ema(model: nn.Module, all_reduce_gradients: Callable[[Iterable[Tensor]], None]) -> None:
    """Update every `EMABuffers` module of a model after a step, by the sums of all processes."""
    for part in model.modules():
        if isinstance(part, EMABuffers):
            all_reduce_gradients(part.gathered())
            part.move()


class VectorQuantizer(EMABuffers):
    """K vectors; each input is replaced by its nearest one, with the straight-through gradient.

    After a step with n_k inputs at code k, whose sum is s_k and whose summed squared distance is d_k,

        N_k ← γ N_k + (1 − γ) n_k,   m_k ← γ m_k + (1 − γ) s_k,   E_k ← γ E_k + (1 − γ) d_k,   e_k = m_k / N_k.

    A code with N_k below `dead` of the mean is dead: it is placed next to the code with the largest E_k, at distance
    √(E_k / N_k / D) in a random direction, and each gets half of its averages. (Cells are split as by Linde, Buzo &
    Gray 1980; only sums are needed, so that the result does not depend on how a step is divided.) The random direction
    depends on the number of the step. All of these are buffers, and saved.
    """

    def __init__(self, count: int, width: int, *, decay: float = 0.97, dead: float = 0.03) -> None:
        super().__init__()
        self.decay, self.dead = decay, dead
        self.vectors: Tensor
        self.sizes: Tensor
        self.sums: Tensor
        self.errors: Tensor
        self.moves: Tensor
        self.new_sizes: Tensor
        self.new_sums: Tensor
        self.new_errors: Tensor
        self.register_buffer("vectors", torch.zeros(count, width))
        for name, shape in (("sizes", (count,)), ("sums", (count, width)), ("errors", (count,))):
            self.register_buffer(name, torch.zeros(shape))
            self.register_buffer(f"new_{name}", torch.zeros(shape), persistent=False)
        self.register_buffer("moves", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def begin(self, centers: Tensor) -> None:
        """Initialize with vectors (K, D), as if all had been used equally."""
        self.vectors.copy_(centers)
        self.sums.copy_(centers)
        self.sizes.fill_(1)
        self.errors.zero_()

    def forward(self, X: Tensor, counted: Tensor | None = None) -> Quantized:
        """Quantize X (n, D). counted: (n,) bool, the inputs that update the codes in training; None = all."""
        codes, distances = nearest(X.detach(), self.vectors)
        vectors = self.vectors[codes]
        if self.training:
            self._gather(X.detach(), codes, distances, counted)
        return Quantized(X + (vectors - X).detach(), codes, (X - vectors).square().mean(1))

    @torch.no_grad()
    def _gather(self, X: Tensor, codes: Tensor, distances: Tensor, counted: Tensor | None) -> None:
        weight = torch.ones_like(distances) if counted is None else counted.to(distances)
        K = len(self.sizes)
        self.new_sizes += sums_by(codes, weight, K)
        self.new_sums += sums_by(codes, X * weight[:, None], K)
        self.new_errors += sums_by(codes, distances * weight, K)

    def gathered(self) -> list[Tensor]:
        return [self.new_sizes, self.new_sums, self.new_errors]

    @torch.no_grad()
    def move(self) -> None:
        pairs = ((self.sizes, self.new_sizes), (self.sums, self.new_sums), (self.errors, self.new_errors))
        for average, new in pairs:
            average.lerp_(new, 1 - self.decay)
            new.zero_()
        self.moves += 1
        self._revive()
        alive = self.sizes > 0
        self.vectors[alive] = self.sums[alive] / self.sizes[alive, None]

    def _revive(self) -> None:
        dead = (self.sizes < self.dead * self.sizes.mean()).nonzero()[:, 0]
        # Each of the worst cells is split once per step.
        split = self.errors.argsort(descending=True, stable=True)[: len(dead)]
        split = split[(self.sizes[split] > 0) & ~torch.isin(split, dead)]
        dead = dead[: len(split)]
        if not len(dead):
            return
        D = self.vectors.shape[1]
        noise = torch.randn(len(dead), D, generator=Generator().manual_seed(int(self.moves)), dtype=torch.float64)
        spread = (self.errors[split] / self.sizes[split] / D).sqrt()[:, None]
        means = self.sums[split] / self.sizes[split, None]
        for average in (self.sizes, self.errors, self.sums):
            average[split] /= 2
            average[dead] = average[split]
        self.sums[dead] = (means + noise.to(spread) * spread) * self.sizes[dead, None]
