"""Every kind of mask beside the rule it stands for, written as a plain predicate: rule(b, h, n, m) → may attend."""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.nn.masks import Causal, DenseMask, Mask, Padding, Prefix, Segments, SlidingWindow

B, H = 2, 4


class ModelFamily(NamedTuple):
    """A mask for B = 2 rows and H = 4 heads, and its rule."""

    name: str
    mask: Mask
    rule: Callable[[int, int, int, int], bool]


def single_kinds(N: int, M: int) -> list[ModelFamily]:
    """Each kind of mask in each of its forms, for N queries and M keys."""
    g = torch.Generator().manual_seed(100 * N + M)
    offsets, lengths = torch.tensor([-1, 2]), torch.tensor([1, 3])
    left, right = (torch.arange(M) >= torch.tensor([[0], [M // 2]])), (torch.arange(M) < torch.tensor([[M], [M - 2]]))
    nobody = torch.arange(M) < torch.tensor([[0], [1]])
    asks, asked = torch.randint(3, (B, N), generator=g), torch.randint(3, (B, M), generator=g)
    dense = [torch.rand(*lead, N, M, generator=g) < 0.4 for lead in ((), (B,), (B, H))]
    for tensor in dense:
        tensor[..., : N // 2, :] &= torch.arange(N // 2)[:, None] > 0  # the first query sees nothing
    kinds = [
        ModelFamily("causal", Causal(), lambda b, h, n, m: m <= n),
        ModelFamily("causal, offset 2", Causal(2), lambda b, h, n, m: m <= n + 2),
        ModelFamily("causal, offset -2", Causal(-2), lambda b, h, n, m: m <= n - 2),
        ModelFamily("causal, an offset a row", Causal(offsets), lambda b, h, n, m: m <= n + offsets[b]),
        ModelFamily("window 2", SlidingWindow(2), lambda b, h, n, m: m > n - 2),
        ModelFamily("window 3, offset 2", SlidingWindow(3, 2), lambda b, h, n, m: m > n + 2 - 3),
        ModelFamily("window 2, offset 2", SlidingWindow(2, 2), lambda b, h, n, m: m > n + 2 - 2),
        ModelFamily("window 2, offset 5", SlidingWindow(2, 5), lambda b, h, n, m: m > n + 5 - 2),
        ModelFamily("window 2, an offset a row", SlidingWindow(2, offsets), lambda b, h, n, m: m > n + offsets[b] - 2),
        ModelFamily("prefix 2", Prefix(2), lambda b, h, n, m: m < 2 or m <= n),
        ModelFamily("prefix 2, offset -3", Prefix(2, -3), lambda b, h, n, m: m < 2 or m <= n - 3),
        ModelFamily("prefixes", Prefix(lengths, offsets), lambda b, h, n, m: m < lengths[b] or m <= n + offsets[b]),
        ModelFamily("padding on the left", Padding(left), lambda b, h, n, m: bool(left[b, m])),
        ModelFamily("padding on the right", Padding(right), lambda b, h, n, m: bool(right[b, m])),
        ModelFamily("a row of padding alone", Padding(nobody), lambda b, h, n, m: bool(nobody[b, m])),
        ModelFamily("lengths", Padding.of_lengths(lengths, M), lambda b, h, n, m: m < lengths[b]),
        ModelFamily("segments", Segments(asks, asked), lambda b, h, n, m: bool(asks[b, n] == asked[b, m])),
        ModelFamily("dense (N, M)", DenseMask(dense[0]), lambda b, h, n, m: bool(dense[0][n, m])),
        ModelFamily("dense (B, N, M)", DenseMask(dense[1]), lambda b, h, n, m: bool(dense[1][b, n, m])),
        ModelFamily("dense (B, H, N, M)", DenseMask(dense[2]), lambda b, h, n, m: bool(dense[2][b, h, n, m])),
    ]
    if N == M:
        same = asks.sort(-1).values
        kinds.append(ModelFamily("packed", Segments(same, same), lambda b, h, n, m: bool(same[b, n] == same[b, m])))
    return kinds


def all_kinds(N: int, M: int) -> list[ModelFamily]:
    """Each kind, each pair of them by `&`, and two triples."""
    kinds = single_kinds(N, M)
    named = {kind.name: kind for kind in kinds}
    pairs = [both(first, second) for first, second in combinations(kinds, 2)]
    triples = [
        both(both(named["causal"], named["window 2"]), named["padding on the left"]),
        both(named["causal"], both(named["window 2"], named.get("packed", named["segments"]))),
    ]
    return kinds + pairs + triples


def both(first: ModelFamily, second: ModelFamily) -> ModelFamily:
    """What both allow."""
    return ModelFamily(
        f"{first.name} & {second.name}",
        first.mask & second.mask,
        lambda *place: first.rule(*place) and second.rule(*place),
    )


def by_rule(kind: ModelFamily, N: int, M: int) -> Tensor:
    """The whole mask from its rule, (B, H, N, M) bool."""
    flat = [kind.rule(b, h, n, m) for b in range(B) for h in range(H) for n in range(N) for m in range(M)]
    return torch.tensor(flat, dtype=torch.bool).view(B, H, N, M)
