"""Settings refuse what cannot be trained with, and take from a recipe only what was not given."""

import math
from typing import Any

import pytest
import torch

from tokenloom.config import GROUPS, fill, options
from tokenloom.errors import UserError
from tokenloom.training.device import autocast, choose_device, cores
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

REFUSED = [
    ("steps", 0),
    ("steps", -3),
    ("batch_size", 0),
    ("grad_accum", 0),
    ("keep_checkpoints", 0),
    ("eval_every", 0),
    ("save_every", 0),
    ("patience", 0),
    ("threads", 0),
    ("minutes", 0.0),
    ("minutes", -1.0),
    ("minutes", math.inf),
    ("lr", -0.1),
    ("lr", math.inf),
    ("lr", math.nan),
    ("muon_lr", math.nan),
    ("weight_decay", -1.0),
    ("grad_clip", math.nan),
    ("warmup_steps", -1),
    ("decay_fraction", 1.1),
    ("decay_fraction", math.nan),
    ("beta2", 1.0),
    ("beta2", -0.1),
    ("seed", -1),
    ("seed", 2**63),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_out_of_range_is_refused_by_its_flag(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^--{name.replace('_', '-')} {value}: must be ") as caught:
        TrainingSettings(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 1),
        ("grad_clip", 0.0),
        ("lr", 1e9),
        ("warmup_steps", 0),
        ("decay_fraction", 1),
        ("beta2", 0.999),
        ("minutes", 0.01),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(name: str, value: Any) -> None:
    assert getattr(TrainingSettings(**{name: value}), name) == value, "it is allowed, and it is what was given"


def test_every_number_has_a_bound_and_every_setting_a_group() -> None:
    for one in options(TrainingSettings):
        assert one.group in GROUPS, one.name
        if one.type in (int, float, int | None, float | None):
            assert one.low is not None or one.above is not None, one.name


def test_steps_and_minutes_exclude_each_other() -> None:
    with pytest.raises(UserError, match="--steps and --minutes"):
        TrainingSettings(steps=3, minutes=1.0)


def test_a_recipe_fills_in_what_was_not_given() -> None:
    given = TrainingSettings(steps=5, lr=0.5, grad_clip=0.0)
    recipe = {"batch_size": 7, "lr": 0.1, "grad_clip": 1.0, "weight_decay": 0.2, "warmup_steps": 3, "patience": None}
    filled, taken = fill(given, recipe)
    assert taken == {"batch_size": 7, "weight_decay": 0.2, "warmup_steps": 3}
    assert (filled.batch_size, filled.steps, filled.patience) == (7, 5, None)
    assert (filled.lr, filled.grad_clip, filled.weight_decay) == (0.5, 0.0, 0.2)
    assert filled.warmup_steps == 3
    assert fill(filled, recipe) == (filled, {}), "a second time there is nothing left to fill in"


@pytest.mark.parametrize(
    ("given", "recipe", "length"),
    [
        ({"steps": 5}, {"minutes": 1.0}, (5, None)),
        ({"minutes": 2.0}, {"steps": 7}, (None, 2.0)),
        ({"minutes": 2.0}, {"minutes": 1.0}, (None, 2.0)),
        ({}, {"minutes": 1.0}, (None, 1.0)),
        ({}, {"steps": 7, "minutes": 1.0}, (7, None)),
    ],
)
def test_how_long_is_said_once(given: Any, recipe: Any, length: Any) -> None:
    filled, _ = fill(TrainingSettings(**given), recipe)
    assert (filled.steps, filled.minutes) == length


def test_a_recipe_with_an_unknown_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="batchsize"):
        fill(TrainingSettings(), {"batchsize": 3})


def test_what_a_recipe_gives_is_checked_too() -> None:
    with pytest.raises(UserError, match="--batch-size 0"):
        fill(TrainingSettings(), {"batch_size": 0})


def test_the_general_recipe_leaves_nothing_that_training_needs() -> None:
    filled, _ = fill(TrainingSettings(), DEFAULT_RECIPE)
    assert filled.minutes is not None
    assert filled.batch_size is not None
    optimization = {one.name for one in options(TrainingSettings) if one.group == "Optimization"}
    undecided = {name for name in optimization if getattr(filled, name) is None}
    assert undecided == {"steps", "warmup_steps", "init_from"}, "the first two depend on the measured speed"


# The machine.


def test_a_device_is_found_or_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("tpu", "", "cuda:99", "meta"):
        with pytest.raises(UserError, match=f"^--device {name}: "):
            choose_device(name)


def test_auto_prefers_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="not available"):
        choose_device("cuda:2")


def test_precision_is_a_matter_of_products() -> None:
    a = torch.ones(2, 2)
    with autocast(TrainingSettings(dtype="bfloat16"), torch.device("cpu")):
        assert (a @ a).dtype == torch.bfloat16
    with autocast(TrainingSettings(), torch.device("cpu")):
        assert (a @ a).dtype == torch.float32
    assert (a @ a).dtype == torch.float32
    assert cores() >= 1


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"optimizer": "adamw", "muon_lr": 0.1}, "--muon-lr"),
        ({"lr_schedule": "cosine", "decay_fraction": 0.5}, "--decay-fraction"),
    ],
)
def test_a_setting_without_effect_is_refused(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(UserError, match=f"{refused} has no effect with --"):
        fill(TrainingSettings(**given), DEFAULT_RECIPE)


def test_a_recipe_fills_in_nothing_without_effect() -> None:
    given = TrainingSettings(optimizer="adamw", lr_schedule="cosine")
    filled, taken = fill(given, DEFAULT_RECIPE)
    assert filled.muon_lr is None
    assert filled.decay_fraction is None
    assert not {"muon_lr", "decay_fraction"} & set(taken)
    assert fill(filled, DEFAULT_RECIPE) == (filled, {}), "and a resumed run is as it was"
