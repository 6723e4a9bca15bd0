"""Norms and MLPs against their formulas, and the names by which a config asks for them."""

import math

import pytest
import torch
from torch import nn

from tokenloom.errors import UserError
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.mlp import ACTIVATIONS, MLP, GatedMLP, make_mlp
from tokenloom.nn.modules import count_parameters
from tokenloom.nn.norms import RMSNorm, make_norm


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


FORMULAS = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def elementwise(name, X):
    return torch.tensor([FORMULAS[name](x) for x in X.flatten().tolist()], dtype=X.dtype).view(X.shape)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_mlps_are_their_formulas(activation, bias):
    X = draw(2, 3, 4)
    plain = make_mlp({"kind": "plain", "activation": activation, "hidden": 7, "bias": bias}, 4).double()
    assert isinstance(plain, MLP)
    expected = plain.W_out(elementwise(activation, plain.W_in(X)))
    torch.testing.assert_close(plain(X), expected)
    gated = make_mlp({"kind": "gated", "activation": activation, "hidden": 7, "bias": bias}, 4).double()
    assert isinstance(gated, GatedMLP)
    expected = gated.W_out(elementwise(activation, gated.W_gate(X)) * gated.W_in(X))
    torch.testing.assert_close(gated(X), expected)
    assert all((m.bias is not None) == bias for m in (*plain.children(), *gated.children()))


@pytest.mark.parametrize("activation", FORMULAS)
def test_first_and_second_derivatives_are_those_of_finite_differences(activation):
    f, X = ACTIVATIONS[activation], draw(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(f, (X,))
    assert torch.autograd.gradgradcheck(f, (X,))


def test_sizes_unless_given():
    plain, gated = make_mlp({"kind": "plain"}, 48), make_mlp({"kind": "gated"}, 48)
    assert plain.W_in.weight.shape == (192, 48)
    assert gated.W_in.weight.shape == gated.W_gate.weight.shape == (128, 48)
    assert count_parameters(gated) == plain.W_in.weight.numel() + plain.W_out.weight.numel() == 2 * 4 * 48 * 48
    assert make_mlp({"kind": "gated"}, 100).W_in.weight.shape == (272, 100)  # 266.7 rounded up to a multiple of 8


def test_norms_are_their_formulas():
    X, scale = 3 * draw(2, 3, 8) + 1, draw(8, seed=1)
    rms = X / (X.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    centerd = X - X.mean(-1, keepdim=True)
    layer = centerd / (centerd.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    for kind, expected in (("layer", layer * scale), ("rms", rms * scale), ("rms-plain", rms)):
        norm = make_norm(kind, 8).double()
        for parameter in (norm.weight,) if kind != "rms-plain" else ():
            parameter.data.copy_(scale)
        torch.testing.assert_close(norm(X), expected)
    assert count_parameters(make_norm("rms-plain", 8)) == 0


def test_refusals():
    for bad, message in (
        ({"kind": "dense"}, "no MLP 'dense': there are plain, gated"),
        ({}, "no MLP None"),
        (
            {"kind": "plain", "activation": "gellu"},
            "no activation 'gellu': there are gelu, gelu-tanh, relu, relu2, silu",
        ),
        ({"kind": "gated", "hiden": 3}, r"MLP 'gated' does not take \['hiden'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            make_mlp(bad, 8)
    with pytest.raises(ValueError, match="no norm 'batch': there are layer, rms, rms-plain"):
        make_norm("batch", 8)


def test_make_mlp_leaves_the_config_alone():
    spec = {"kind": "plain", "hidden": 5}
    make_mlp(spec, 4)
    assert spec == {"kind": "plain", "hidden": 5}


def test_shared_parameters_count_once():
    first, second = nn.Linear(3, 5), nn.Linear(3, 5)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    model = nn.Sequential(first, second)
    assert count_parameters(model) == 15 + 5 + 5
    assert count_parameters(model, trained_only=True) == 15 + 5


@pytest.mark.parametrize("scale", [True, False])
def test_rmsnorm_is_the_frameworks_with_its_first_and_second_derivatives(scale: bool) -> None:
    ours, theirs = RMSNorm(6, scale=scale), nn.RMSNorm(6, eps=1e-6, elementwise_affine=scale)
    X = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    inputs = [X]
    for norm in (ours, theirs):
        norm.double()
        if scale:
            with torch.no_grad():
                norm.weight.copy_(torch.arange(1, 7) / 3)
    G = torch.sin(torch.arange(X.numel(), dtype=torch.float64)).view(X.shape)
    torch.testing.assert_close(ours(X), theirs(X), rtol=0, atol=1e-13)
    found = [torch.autograd.grad(norm(X), [X, *norm.parameters()], G, create_graph=True) for norm in (ours, theirs)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    second = [torch.autograd.grad(first[0].pow(2).sum(), inputs)[0] for first in found]
    torch.testing.assert_close(second[0], second[1], rtol=0, atol=1e-11)
    assert bool(torch.isfinite(ours(torch.zeros(1, 6, dtype=torch.float64))).all())


def test_rmsnorm_of_half_precision_is_computed_in_float32() -> None:
    X = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = RMSNorm(64)(X)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, nn.RMSNorm(64, eps=1e-6)(X.float()), rtol=1e-6, atol=1e-6)


OWN = """
import torch
from torch import nn

class Center(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, X):
        return self.gain * (X - X.mean(-1, keepdim=True))

class Double(nn.Module):
    def __init__(self, width, factor=2):
        super().__init__()
        self.factor = factor

    def forward(self, X, hooks=None):
        return self.factor * X

def sine(X):
    return torch.sin(X)
"""


def test_parts_of_a_users_own_file(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    X, mine = draw(2, 8), f"{tmp_path}/mine.py"
    torch.testing.assert_close(make_norm(f"{mine}:Center", 8).double()(X), 2 * (X - X.mean(-1, keepdim=True)))
    torch.testing.assert_close(make_mlp({"kind": f"{mine}:Double", "factor": 3}, 8)(X), 3 * X)
    plain = make_mlp({"kind": "plain", "activation": f"{mine}:sine"}, 8).double()
    torch.testing.assert_close(plain(X), plain.W_out(plain.W_in(X).sin()))
    with pytest.raises(UserError, match=r"norm .*mine.py:Centre: the file defines no Centre.*Center"):
        make_norm(f"{mine}:Centre", 8)
    with pytest.raises(UserError, match=r"norm .*other.py: there is no such file"):
        make_norm(f"{tmp_path}/other.py:Center", 8)
    with pytest.raises(ValueError, match="does not take \\['power'\\]"):
        make_mlp({"kind": f"{mine}:Double", "power": 3}, 8)


@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_mlp_post_is_what_the_output_map_reads(kind):
    mlp, X, hooks = make_mlp({"kind": kind}, 8).double(), draw(2, 3, 8), Hooks("mlp_post")
    Y = mlp(X, hooks)
    torch.testing.assert_close(Y, mlp(X))
    torch.testing.assert_close(mlp.W_out(hooks.values["mlp_post"]), Y)
