"""Vector quantization: k-means, and a codebook that learns beside the network whose outputs it quantizes.

Bishop & Bishop, section 12.4.1 on images as tokens; van den Oord et al. 2017, "Neural discrete representation
learning", and its appendix A.1 on moving averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

# Rows whose distances to all centers are in memory at a time.
ROWS = 65_536


def nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """The center nearest to each point, the first among equals, and the squared distance to it.

    points: (n, D), centers: (K, D) → (n,) int64, (n,).
    """
    found, distances = [], []
    for part in torch.split(points, ROWS):
        # |x − c|² without |x|², which makes no difference to which is nearest.
        scores = torch.addmm(centers.square().sum(1), part, centers.T, alpha=-2)
        found.append(scores.argmin(1))
        distances.append((part - centers[found[-1]]).square().sum(1))
    return torch.cat(found), torch.cat(distances)


def sums_by(index: Tensor, values: Tensor, count: int) -> Tensor:
    """Σ values[i] over the i with index[i] = k, for each k < count. values: (n, …) → (count, …)."""
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, index, values)


def kmeans(points: Tensor, count: int, generator: Generator, *, rounds: int = 25) -> Tensor:
    """Centers (K, D) of points (n, D) that make Σ |x − c(x)|² small: Lloyd's algorithm from a k-means++ start.

    A center that loses all its points takes the point that is farthest from its own. At most `rounds` rounds, fewer
    when nothing moves any more. Deterministic for one generator state, and on the CPU. Lloyd 1982; Arthur &
    Vassilvitskii 2007. Raises ValueError for more centers than there are different points.
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
    """k-means++: each further center is a point drawn with probability ∝ its squared distance to those there are."""
    first = int(torch.randint(len(points), (1,), generator=generator))
    chosen = [first]
    distances = (points - points[first]).square().sum(1)
    for _ in range(count - 1):
        # multinomial has a limit of categories; a running sum has none, and cannot pick a point of weight 0.
        mass = distances.double().cumsum(0)
        u = torch.rand((), generator=generator, dtype=torch.float64)
        chosen.append(int(torch.searchsorted(mass, u * mass[-1], right=True).clamp(max=len(points) - 1)))
        distances = torch.minimum(distances, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen].clone()


def perplexity(counts: Tensor) -> float:
    """exp(−Σ p ln p) of the shares p of counts (K,): as many codes used alike would be as hard to guess."""
    shares = counts.double() / counts.sum().clamp(min=1)
    return float(torch.special.entr(shares).sum().exp())


class Quantized(NamedTuple):
    """vectors (n, D): those of the codes, with the gradient of what was quantized. codes (n,) int64.

    commitment (n,): the mean square over D of what was quantized minus its code, with a gradient for the former.
    """

    vectors: Tensor
    codes: Tensor
    commitment: Tensor


class EMABuffers(nn.Module):
    """A part that learns from the sums of a whole step, and not by its gradient.

    A forward pass in training gathers sums; after the step of the optimizer, `gathered` is added up over all
    processes, and `move` takes them in. So the step of a part is the same in one micro-batch or in several, in one
    process or in several.
    """

    def gathered(self) -> list[Tensor]:
        """The sums of this step so far, to be added up in place."""
        raise NotImplementedError

    def move(self) -> None:
        """Take the sums in, and begin with new ones."""
        raise NotImplementedError


def update_ema(model: nn.Module, all_reduce_gradients: Callable[[Iterable[Tensor]], None]) -> None:
    """After a step: every `EMABuffers` part of a model takes in what all processes have gathered."""
    for part in model.modules():
        if isinstance(part, EMABuffers):
            all_reduce_gradients(part.gathered())
            part.move()


class VectorQuantizer(EMABuffers):
    """K vectors; each input is replaced by the one nearest to it, and its gradient goes straight through.

    After a step with n_k inputs at code k, whose sum is s_k and whose summed squared distance is d_k,

        N_k ← γ N_k + (1 − γ) n_k,   m_k ← γ m_k + (1 − γ) s_k,   E_k ← γ E_k + (1 − γ) d_k,   e_k = m_k / N_k.

    A code with N_k below `dead` of the mean is dead: it is put beside the code whose cell has the largest E_k, at the
    cell's own spread √(E_k / N_k / D) in a random direction, and both share what the cell had. (Splitting cells as
    Linde, Buzo & Gray 1980 do; it needs sums alone, so that it is the same however a step is shared out.) The random
    direction depends on the number of the step. All of this are buffers, and saved.
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
        """Start at some vectors (K, D), as if each had been used alike."""
        self.vectors.copy_(centers)
        self.sums.copy_(centers)
        self.sizes.fill_(1)
        self.errors.zero_()

    def forward(self, X: Tensor, counted: Tensor | None = None) -> Quantized:
        """X: (n, D). counted: (n,) bool, which inputs the codes are to learn from in training; None = all."""
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
        for kept, new in pairs:
            kept.lerp_(new, 1 - self.decay)
            new.zero_()
        self.moves += 1
        self._revive()
        alive = self.sizes > 0
        self.vectors[alive] = self.sums[alive] / self.sizes[alive, None]

    def _revive(self) -> None:
        dead = (self.sizes < self.dead * self.sizes.mean()).nonzero()[:, 0]
        # Each of the worst cells is split once; the others wait for the next step.
        split = self.errors.argsort(descending=True, stable=True)[: len(dead)]
        split = split[(self.sizes[split] > 0) & ~torch.isin(split, dead)]
        dead = dead[: len(split)]
        if not len(dead):
            return
        D = self.vectors.shape[1]
        noise = torch.randn(len(dead), D, generator=Generator().manual_seed(int(self.moves)), dtype=torch.float64)
        spread = (self.errors[split] / self.sizes[split] / D).sqrt()[:, None]
        means = self.sums[split] / self.sizes[split, None]
        for kept in (self.sizes, self.errors, self.sums):
            kept[split] /= 2
            kept[dead] = kept[split]
        self.sums[dead] = (means + noise.to(spread) * spread) * self.sizes[dead, None]
