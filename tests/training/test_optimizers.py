"""Every parameter stands in exactly one group, the right one; and optimizer state survives as plain tensors."""

from dataclasses import replace

import pytest
import torch
from tiny_training import NextToken, batches_of, tiny_gpt, tiny_settings, weights
from torch import nn

from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.training.loop import Trainer
from tokenloom.training.optimizers import (
    check_groups,
    hidden_matrices,
    load_state_tensors,
    make_optimizers,
    set_learning_rates,
    state_tensors,
)
from tokenloom.training.settings import TrainingSettings

MUON = TrainingSettings(optimizer="muon", lr=0.01, muon_lr=0.02, weight_decay=0.1)
ADAMW = TrainingSettings(optimizer="adamw", lr=0.01, weight_decay=0.1)


def model_of(preset: str) -> GPT:
    return GPT(GPTConfig(11, 8, width=16, depth=2, heads=2, **GPTConfig.parts(preset)))


def groups(model: nn.Module, settings: TrainingSettings) -> dict[str, list[tuple[str, float, float]]]:
    """For each parameter, the groups it stands in: optimizer, peak rate, weight decay."""
    found: dict[str, list[tuple[str, float, float]]] = {name: [] for name, _ in model.named_parameters()}
    names = {id(p): name for name, p in model.named_parameters()}
    for optimizer in make_optimizers(model, settings):
        for group in optimizer.param_groups:
            for p in group["params"]:
                found[names[id(p)]].append((type(optimizer).__name__, group["peak_lr"], group["weight_decay"]))
    return found


@pytest.mark.parametrize("preset", ["classic", "modern"])
def test_muon_moves_the_hidden_matrices_and_adamw_the_rest(preset: str) -> None:
    model = model_of(preset)
    found = groups(model, MUON)
    assert all(len(where) == 1 for where in found.values())
    muon = {name for name, where in found.items() if where[0] == ("Muon", 0.02, 0.1)}
    matrices = ("attention.W_q", "attention.W_k", "attention.W_v", "attention.W_o", "mlp.W_in", "mlp.W_out")
    assert muon == {f"transformer.layers.{layer}.{name}.weight" for layer in range(2) for name in matrices}
    rest = {name: where[0] for name, where in found.items() if name not in muon}
    assert set(rest.values()) == {("AdamW", 0.01, 0.0)}, "what is no hidden matrix does not decay"
    if preset == "classic":
        assert {name for name in rest if name.startswith("positions")}
        assert any(name.endswith("mlp.W_in.bias") for name in rest)
    for name in ("tokens.weight", "lm_head.weight", "lm_head.bias"):
        assert name in rest
    assert {name for name, p in model.named_parameters() if p.dim() < 2} <= set(rest)


@pytest.mark.parametrize("preset", ["classic", "modern"])
def test_adamw_alone_decays_matrices_or_everything(preset: str) -> None:
    model = model_of(preset)
    some, everything = groups(model, ADAMW), groups(model, replace(ADAMW, weight_decay_on="all"))
    assert {name for name, where in some.items() if where == [("AdamW", 0.01, 0.1)]} == hidden_matrices(model)
    assert {name for name, where in some.items() if where == [("AdamW", 0.01, 0.0)]} == set(some) - hidden_matrices(
        model
    )
    assert all(where == [("AdamW", 0.01, 0.1)] for where in everything.values())


def test_a_linear_map_outside_a_transformer_is_no_hidden_matrix() -> None:
    model = nn.ModuleDict({"inside": model_of("modern"), "outside": nn.Linear(4, 4)})
    found = hidden_matrices(model)
    assert len(found) == 12
    assert all(name.startswith("inside.transformer.layers.") for name in found)
    assert len(hidden_matrices(model_of("modern").transformer)) == 12, "also when the stack is all there is"


def test_frozen_parameters_stand_in_no_group() -> None:
    model = model_of("modern")
    model.transformer.requires_grad_(False)
    found = groups(model, MUON)
    assert {name for name, where in found.items() if not where} == {
        name for name in found if name.startswith("transformer.")
    }


def test_a_parameter_outside_the_groups_is_caught() -> None:
    model = model_of("modern")
    optimizers = make_optimizers(model, MUON)
    check_groups(model, optimizers)
    model.added = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"in none \['added'\]"):
        check_groups(model, optimizers)


def test_a_parameter_in_two_groups_and_a_foreign_one_are_caught() -> None:
    model = model_of("modern")
    optimizers = make_optimizers(model, MUON)
    twice = torch.optim.AdamW([model.lm_head.weight])
    with pytest.raises(ValueError, match=r"in several \['lm_head.weight'\]"):
        check_groups(model, [*optimizers, twice])
    foreign = torch.optim.AdamW([nn.Parameter(torch.zeros(2))])
    with pytest.raises(ValueError, match="1 are not the model's"):
        check_groups(model, [*optimizers, foreign])


def test_tied_weights_are_moved_once() -> None:
    model = model_of("modern")
    model.lm_head.weight = model.tokens.weight
    found = groups(model, MUON)
    assert "lm_head.weight" not in found
    assert found["tokens.weight"] == [("AdamW", 0.01, 0.0)]


@pytest.mark.parametrize("lacking", ["lr", "muon_lr"])
def test_settings_without_a_rate_are_refused(lacking: str) -> None:
    """A rate of None must not silently become 0, with which nothing is learned."""
    with pytest.raises(ValueError, match=f"no {lacking}:"):
        make_optimizers(model_of("modern"), replace(MUON, **{lacking: None}))


def test_learning_rates_are_fractions_of_their_peaks() -> None:
    optimizers = make_optimizers(model_of("modern"), MUON)
    set_learning_rates(optimizers, 0.5)
    assert set_learning_rates(optimizers, 0.25) == (0.0025, 0.005), "of AdamW and of Muon"
    assert {group["lr"] for o in optimizers for group in o.param_groups} == {0.0025, 0.005}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_as_tensors_and_back_goes_on_bit_for_bit(kind: str) -> None:
    settings = tiny_settings(kind)
    straight = Trainer(NextToken(), tiny_gpt(), settings, batches_of(settings))
    for step in range(3):
        straight.step(step, 9)
    tensors = state_tensors(straight.model, straight.optimizers)
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    if kind == "muon":
        assert "1/transformer.layers.0.attention.W_q.weight/momentum_buffer" in tensors
    assert "0/lm_head.weight/exp_avg_sq" in tensors
    assert tensors["0/lm_head.weight/step"] == 3

    other = Trainer(NextToken(), tiny_gpt(), settings, batches_of(settings))
    other.model.load_state_dict(straight.model.state_dict())
    for step in range(3, 6):
        straight.step(step, 9)
    load_state_tensors(other.model, other.optimizers, saved)
    for step in range(3, 6):
        other.step(step, 9)
    assert torch.equal(weights(straight.model), weights(other.model))
    again = state_tensors(other.model, other.optimizers)
    assert all(
        torch.equal(value, again[name]) for name, value in state_tensors(straight.model, straight.optimizers).items()
    )


def test_what_was_loaded_is_a_copy() -> None:
    settings = tiny_settings()
    one, two = (Trainer(NextToken(), tiny_gpt(), settings, batches_of(settings)) for _ in range(2))
    one.step(0, 9)
    tensors = state_tensors(one.model, one.optimizers)
    load_state_tensors(two.model, two.optimizers, tensors)
    one.step(1, 9)
    assert state_tensors(two.model, two.optimizers)["0/lm_head.weight/step"] == 1


@pytest.mark.parametrize(
    "key", ["0/elsewhere/exp_avg", "5/lm_head.weight/exp_avg", "0/transformer.layers.0.attention.W_q.weight/exp_avg"]
)
def test_state_of_another_model_or_optimizer_is_refused(key: str) -> None:
    """With Muon, W_q is not moved by the optimizer number 0."""
    model = tiny_gpt()
    with pytest.raises(ValueError, match="belongs to another"):
        load_state_tensors(model, make_optimizers(model, MUON), {key: torch.zeros(1)})
