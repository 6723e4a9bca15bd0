"""Every kind of mask against its rule, and the two promises that let attention look at less."""

import pytest
import torch
from mask_kinds import B, H, all_kinds, both, by_rule, single_kinds

from tokenloom.nn.masks import Causal, DenseMask, Padding, SlidingWindow, to_dense

SIZES = [(1, 1), (1, 6), (5, 5), (5, 3), (3, 7), (6, 2)]


@pytest.mark.parametrize(("N", "M"), SIZES)
def test_every_kind_and_every_pair_allows_what_its_rule_says(N, M):
    for kind in all_kinds(N, M):
        whole = to_dense(kind.mask, N, M, torch.device("cpu"))
        assert whole.dtype == torch.bool, kind.name
        assert torch.equal(whole.expand(B, H, N, M), by_rule(kind, N, M)), kind.name


def test_any_rectangle_is_a_part_of_the_whole():
    N, M = 5, 7
    queries, keys = torch.tensor([3, 0, 4]), torch.tensor([6, 2, 2, 0])
    for kind in all_kinds(N, M):
        part = kind.mask.allowed(queries, keys).expand(B, H, 3, 4)
        assert torch.equal(part, by_rule(kind, N, M)[:, :, queries][..., keys]), kind.name


@pytest.mark.parametrize(("N", "M"), SIZES)
def test_key_range_never_leaves_out_an_allowed_key(N, M):
    for kind in all_kinds(N, M):
        allowed = by_rule(kind, N, M)
        for start in range(N):
            for stop in range(start + 1, N + 1):
                low, high = kind.mask.key_range(start, stop, M)
                assert 0 <= low <= M, kind.name
                assert 0 <= high <= M, kind.name
                outside = (torch.arange(M) < low) | (torch.arange(M) >= high)
                assert not allowed[:, :, start:stop][..., outside].any(), (kind.name, start, stop)


def test_key_range_is_narrow_where_it_can_be():
    assert (Causal() & SlidingWindow(4)).key_range(10, 12, 100) == (7, 12)
    assert (Causal(3) & SlidingWindow(4, 3)).key_range(10, 12, 100) == (10, 15)
    assert Causal(-5).key_range(0, 4, 100) == (0, 0)


@pytest.mark.parametrize(("N", "M"), SIZES)
def test_always_nonempty_and_sees_itself_never_lie(N, M):
    for kind in all_kinds(N, M):
        allowed = by_rule(kind, N, M)
        if kind.mask.always_nonempty(N, M):
            assert allowed.any(-1).all(), kind.name
        if kind.mask.sees_itself:
            assert allowed.diagonal(dim1=-2, dim2=-1).all(), kind.name


def test_always_nonempty_is_known_for_what_models_use():
    kinds = {kind.name: kind for kind in single_kinds(5, 5)}
    for names in (["causal"], ["causal", "window 2"], ["causal", "packed"], ["window 2", "packed"], ["prefix 2"]):
        kind = kinds[names[0]] if len(names) == 1 else both(*(kinds[name] for name in names))
        assert kind.mask.always_nonempty(5, 5), kind.name
    triple = kinds["causal"].mask & kinds["window 2"].mask & kinds["packed"].mask
    assert triple.always_nonempty(5, 5)
    assert Causal().always_nonempty(9, 2)  # the first key is the past of every query
    assert not SlidingWindow(2).always_nonempty(9, 2)
    assert not Causal().always_nonempty(3, 0)
    assert not (Causal() & kinds["padding on the left"].mask).always_nonempty(5, 5)


def test_a_dense_mask_is_cut_to_size_and_believed():
    """One made for more tokens serves fewer; one made for fewer is no mask for more."""
    tensor = torch.rand(2, 6, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(to_dense(DenseMask(tensor), 4, 5, torch.device("cpu")), tensor[:, None, :4, :5])
    assert torch.equal(to_dense(DenseMask(tensor), 6, 8, torch.device("cpu")), tensor[:, None])
    with pytest.raises(IndexError):
        to_dense(DenseMask(tensor[:, :1]), 4, 5, torch.device("cpu"))
    assert DenseMask(tensor, nonempty=True).always_nonempty(6, 8)
    assert not DenseMask(tensor).always_nonempty(6, 8)


def test_refusals():
    with pytest.raises(ValueError, match="a window of 0 keys"):
        SlidingWindow(0)
    with pytest.raises(ValueError, match=r"not torch.float32 of shape \(2, 2\)"):
        DenseMask(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"of shape \(2,\)"):
        DenseMask(torch.ones(2, dtype=torch.bool))


def test_padding_of_lengths():
    expected = [[True, True, False], [False, False, False], [True, True, True]]
    assert Padding.of_lengths(torch.tensor([2, 0, 3]), 3).real.tolist() == expected
