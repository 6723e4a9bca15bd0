"""Every kind of mask beside the rule it stands for, written as a plain predicate: rule(b, h, n, m) → may attend."""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from tokenloom.nn.masks import Causal, Dense, Mask, Padding, Prefix, Segments, Window

B, H = 2, 4


class Kind(NamedTuple):
    """A mask for B = 2 rows and H = 4 heads, and its rule."""

    name: str
    mask: Mask
    rule: Callable[[int, int, int, int], bool]


def single_kinds(N: int, M: int) -> list[Kind]:
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
        Kind("causal", Causal(), lambda b, h, n, m: m <= n),
        Kind("causal, offset 2", Causal(2), lambda b, h, n, m: m <= n + 2),
        Kind("causal, offset -2", Causal(-2), lambda b, h, n, m: m <= n - 2),
        Kind("causal, an offset a row", Causal(offsets), lambda b, h, n, m: m <= n + offsets[b]),
        Kind("window 2", Window(2), lambda b, h, n, m: m > n - 2),
        Kind("window 3, offset 2", Window(3, 2), lambda b, h, n, m: m > n + 2 - 3),
        Kind("window 2, offset 2", Window(2, 2), lambda b, h, n, m: m > n + 2 - 2),
        Kind("window 2, offset 5", Window(2, 5), lambda b, h, n, m: m > n + 5 - 2),
        Kind("window 2, an offset a row", Window(2, offsets), lambda b, h, n, m: m > n + offsets[b] - 2),
        Kind("prefix 2", Prefix(2), lambda b, h, n, m: m < 2 or m <= n),
        Kind("prefix 2, offset -3", Prefix(2, -3), lambda b, h, n, m: m < 2 or m <= n - 3),
        Kind("prefixes", Prefix(lengths, offsets), lambda b, h, n, m: m < lengths[b] or m <= n + offsets[b]),
        Kind("padding on the left", Padding(left), lambda b, h, n, m: bool(left[b, m])),
        Kind("padding on the right", Padding(right), lambda b, h, n, m: bool(right[b, m])),
        Kind("a row of padding alone", Padding(nobody), lambda b, h, n, m: bool(nobody[b, m])),
        Kind("lengths", Padding.of_lengths(lengths, M), lambda b, h, n, m: m < lengths[b]),
        Kind("segments", Segments(asks, asked), lambda b, h, n, m: bool(asks[b, n] == asked[b, m])),
        Kind("dense (N, M)", Dense(dense[0]), lambda b, h, n, m: bool(dense[0][n, m])),
        Kind("dense (B, N, M)", Dense(dense[1]), lambda b, h, n, m: bool(dense[1][b, n, m])),
        Kind("dense (B, H, N, M)", Dense(dense[2]), lambda b, h, n, m: bool(dense[2][b, h, n, m])),
    ]
    if N == M:
        same = asks.sort(-1).values
        kinds.append(Kind("packed", Segments(same, same), lambda b, h, n, m: bool(same[b, n] == same[b, m])))
    return kinds


def all_kinds(N: int, M: int) -> list[Kind]:
    """Each kind, each pair of them by `&`, and two triples."""
    kinds = single_kinds(N, M)
    named = {kind.name: kind for kind in kinds}
    pairs = [both(first, second) for first, second in combinations(kinds, 2)]
    triples = [
        both(both(named["causal"], named["window 2"]), named["padding on the left"]),
        both(named["causal"], both(named["window 2"], named.get("packed", named["segments"]))),
    ]
    return kinds + pairs + triples


def both(first: Kind, second: Kind) -> Kind:
    """What both allow."""
    return Kind(
        f"{first.name} & {second.name}",
        first.mask & second.mask,
        lambda *place: first.rule(*place) and second.rule(*place),
    )


def by_rule(kind: Kind, N: int, M: int) -> Tensor:
    """The whole mask from its rule, (B, H, N, M) bool."""
    flat = [kind.rule(b, h, n, m) for b in range(B) for h in range(H) for n in range(N) for m in range(M)]
    return torch.tensor(flat, dtype=torch.bool).view(B, H, N, M)
