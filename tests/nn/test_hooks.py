"""Taps by themselves: names, patterns, scopes, edits."""

import torch

from tokenloom.nn.hooks import Hooks


def test_what_is_wanted_is_kept_by_its_full_name():
    hooks = Hooks(["layers.*.pattern", "final"])
    inner = hooks.scope("layers.3")
    a, b = torch.ones(1), torch.zeros(1)
    assert inner.record("pattern", a) is a
    assert inner.record("mlp_out", b) is b
    assert hooks.record("final", b) is b
    assert inner.scope("cross").record("pattern", a) is a
    # A star stands for anything, dots too.
    assert list(hooks.values) == ["layers.3.pattern", "final", "layers.3.cross.pattern"]
    assert inner.values is hooks.values


def test_everything_unless_asked_and_one_name_alone():
    everything, one, nothing = Hooks(), Hooks("b"), Hooks(())
    for hooks in (everything, one, nothing):
        for name in ("a", "b"):
            hooks.record(name, torch.ones(1))
    assert list(everything.values) == ["a", "b"]
    assert list(one.values) == ["b"]
    assert not nothing.values


def test_an_edit_replaces_and_is_what_is_kept():
    hooks = Hooks("layers.0.x", {"layers.*.x": lambda value: value + 1, "layers.1.x": lambda value: value * 10})
    value = torch.tensor([1.0])
    assert hooks.scope("layers.0").record("x", value).tolist() == [2.0]
    assert hooks.scope("layers.1").record("x", value).tolist() == [20.0]
    assert hooks.scope("layers.0").record("y", value) is value
    assert {name: kept.tolist() for name, kept in hooks.values.items()} == {"layers.0.x": [2.0]}
    assert value.tolist() == [1.0]


def test_active_knows_of_keeping_and_of_changing():
    hooks = Hooks("layers.0.pattern", {"layers.1.attn_scores": lambda value: value})
    assert hooks.scope("layers.0").active("attn_scores", "pattern")
    assert hooks.scope("layers.1").active("attn_scores", "pattern")
    assert not hooks.scope("layers.1").active("pattern")
    assert not hooks.scope("layers.2").active("attn_scores", "pattern")
    assert not hooks.active("pattern")


def test_a_kept_value_has_its_gradient_history():
    hooks, x = Hooks(), torch.ones(2, requires_grad=True)
    hooks.record("twice", 2 * x)
    hooks.values["twice"].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
