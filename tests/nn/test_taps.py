"""Taps by themselves: names, patterns, scopes, edits."""

import torch

from tokenloom.nn.hooks import Taps


def test_what_is_wanted_is_kept_by_its_full_name():
    taps = Taps(["layers.*.pattern", "final"])
    inner = taps.within("layers.3")
    a, b = torch.ones(1), torch.zeros(1)
    assert inner.see("pattern", a) is a
    assert inner.see("mlp_out", b) is b
    assert taps.see("final", b) is b
    assert inner.within("cross").see("pattern", a) is a
    # A star stands for anything, dots too.
    assert list(taps.values) == ["layers.3.pattern", "final", "layers.3.cross.pattern"]
    assert inner.values is taps.values


def test_everything_unless_asked_and_one_name_alone():
    everything, one, nothing = Taps(), Taps("b"), Taps(())
    for taps in (everything, one, nothing):
        for name in ("a", "b"):
            taps.see(name, torch.ones(1))
    assert list(everything.values) == ["a", "b"]
    assert list(one.values) == ["b"]
    assert not nothing.values


def test_an_edit_replaces_and_is_what_is_kept():
    taps = Taps("layers.0.x", {"layers.*.x": lambda value: value + 1, "layers.1.x": lambda value: value * 10})
    value = torch.tensor([1.0])
    assert taps.within("layers.0").see("x", value).tolist() == [2.0]
    assert taps.within("layers.1").see("x", value).tolist() == [20.0]
    assert taps.within("layers.0").see("y", value) is value
    assert {name: kept.tolist() for name, kept in taps.values.items()} == {"layers.0.x": [2.0]}
    assert value.tolist() == [1.0]


def test_wants_knows_of_keeping_and_of_changing():
    taps = Taps("layers.0.pattern", {"layers.1.attn_scores": lambda value: value})
    assert taps.within("layers.0").wants("attn_scores", "pattern")
    assert taps.within("layers.1").wants("attn_scores", "pattern")
    assert not taps.within("layers.1").wants("pattern")
    assert not taps.within("layers.2").wants("attn_scores", "pattern")
    assert not taps.wants("pattern")


def test_a_kept_value_has_its_gradient_history():
    taps, x = Taps(), torch.ones(2, requires_grad=True)
    taps.see("twice", 2 * x)
    taps.values["twice"].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
