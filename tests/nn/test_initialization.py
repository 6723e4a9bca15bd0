"""The initialization table: every parameter named, the framework's draws reproduced, nothing taken from elsewhere."""

import math

import pytest
import torch
from torch import nn

from tokenloom.nn.initialization import constant, framework_linear, initialize, normal, normal_by_inputs


def model():
    return nn.ModuleDict({"table": nn.Embedding(7, 4), "map": nn.Linear(4, 6), "norm": nn.LayerNorm(6)})


FULL = [
    ("table.weight", normal(0.02)),
    ("map.*", framework_linear),
    ("norm.weight", constant(1.0)),
    ("norm.bias", constant(0.0)),
]


def start(table, seed=3, made=None):
    made = model() if made is None else made
    initialize(made, table, torch.Generator().manual_seed(seed))
    return made


def test_the_draws_come_in_order_and_are_the_frameworks():
    """One seed, one stream of numbers: what torch's own modules would have drawn in the same order."""
    made = start(FULL, seed=12)
    torch.manual_seed(12)
    table, linear = 0.02 * torch.nn.Embedding(7, 4).weight, nn.Linear(4, 6)
    torch.testing.assert_close(made["table"].weight, table, atol=1e-8, rtol=0)
    assert torch.equal(made["map"].weight, linear.weight)
    assert torch.equal(made["map"].bias, linear.bias)
    assert torch.equal(made["norm"].weight, torch.ones(6))
    assert torch.equal(made["norm"].bias, torch.zeros(6))


def test_a_map_is_drawn_as_the_textbook_writes_it():
    """X W with W inputs × outputs, each N(0, 1/inputs): `nn.Linear` keeps the transpose."""
    made = start([("weight", normal_by_inputs(0.5))], made=nn.Linear(9, 4, bias=False))
    drawn = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(made.weight, 0.5 * (drawn / math.sqrt(9)).T)


def test_the_global_generator_has_no_say():
    torch.manual_seed(0)
    first = start(FULL)
    torch.manual_seed(1)
    made = model()
    before = torch.get_rng_state()
    start(FULL, made=made)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), made.parameters(), strict=True))


def test_a_parameter_without_a_row_is_an_error():
    with pytest.raises(ValueError, match=r"does not name: map.weight, map.bias "):
        start([row for row in FULL if row[0] != "map.*"])


def test_a_row_without_a_parameter_is_an_error_unless_it_may_be_idle():
    with pytest.raises(ValueError, match=r"names no parameter with: \*\.W_q\.weight, lm_head\.bias$"):
        start([*FULL, ("*.W_q.weight", normal(1.0)), ("lm_head.bias", constant(0.0))])
    start([*FULL, ("*.W_q.weight?", normal(1.0))])


def test_a_row_that_an_earlier_one_shadows_is_idle():
    with pytest.raises(ValueError, match=r"names no parameter with: map\.bias$"):
        start([*FULL, ("map.bias", constant(1.0))])


def test_an_optional_row_serves_where_it_can():
    made = start([("table.weight", constant(2.0)), ("map.*?", constant(3.0)), ("norm.*?", constant(4.0))])
    assert made["map"].bias.tolist() == [3.0] * 6
    assert made["norm"].weight.tolist() == [4.0] * 6


def test_parameters_keep_wanting_gradients():
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in start(FULL).parameters())


class Gain(nn.Module):
    """A norm with a table of its own, and no other name than a user would give."""

    init_table = (("gain", constant(3.0)),)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(width))


def test_a_parts_own_table_takes_precedence():
    made = nn.ModuleDict({"norm": Gain(2), "map": nn.Linear(2, 2)})
    start([("*", constant(1.0))], made=made)
    assert made["norm"].gain.tolist() == [3.0, 3.0]
    assert made["map"].bias.tolist() == [1.0, 1.0]


def test_parameters_on_the_meta_device_are_left_alone():
    with torch.device("meta"):
        made = nn.Linear(3, 2)
    start([("*", normal(1.0))], made=made)
    assert made.weight.is_meta
