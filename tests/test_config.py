"""Options declared once: types, bounds, choices, rules between options, groups, recipes, and names."""

import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import pytest

from tokenloom.config import (
    GROUPS,
    Options,
    build,
    excluded_by,
    fill,
    fitting,
    flag,
    flatten,
    option,
    options,
    refuse_unknown,
)
from tokenloom.errors import UserError
from tokenloom.utils.names import did_you_mean


@dataclass(frozen=True)
class Limited(Options):
    """Each kind of bound."""

    width: int | None = option(None, "low", low=1)
    dropout: float = option(0.0, "low and below", low=0, below=1)
    val_fraction: float = option(0.1, "above and below", above=0, below=1)
    mfu: float = option(0.4, "above and high", above=0, high=1)
    codebook_size: int = option(128, "low and high", low=2, high=65_536)
    add_k: float | None = option(None, "above", above=0)
    offset: int = option(0, "high", high=3)
    depth: int = option(1, "below", below=9)
    lr: float | None = option(None, "no bounds")
    vary: list[float] = option([], "each item", low=0, high=10)
    size: str = option("small", "choices", choices=("nano", "small", "large"))
    sizes: list[str] = option([], "choices of items", choices=("nano", "small"))
    model: Literal["gpt", "lstm"] | None = option(None, "a Literal's own choices")
    downsample_factor: Literal[2, 4, 8] | None = option(None, "choices that are numbers")


REFUSED: list[tuple[str, Any, str]] = [
    ("width", 0, "--width 0: must be at least 1"),
    ("dropout", 1.0, "--dropout 1.0: must be from 0 up to, but not including, 1"),
    ("dropout", -0.1, "--dropout -0.1: must be from 0 up to, but not including, 1"),
    ("dropout", math.nan, "--dropout nan: must be from 0 up to, but not including, 1"),
    ("val_fraction", 0, "--val-fraction 0.0: must be above 0 and below 1"),
    ("val_fraction", 1.0, "--val-fraction 1.0: must be above 0 and below 1"),
    ("mfu", 0.0, "--mfu 0.0: must be above 0 and at most 1"),
    ("mfu", 1.5, "--mfu 1.5: must be above 0 and at most 1"),
    ("codebook_size", 1, "--codebook-size 1: must be from 2 to 65,536"),
    ("codebook_size", 65_537, "--codebook-size 65537: must be from 2 to 65,536"),
    ("add_k", 0.0, "--add-k 0.0: must be above 0"),
    ("add_k", math.inf, "--add-k inf: must be above 0"),
    ("offset", 4, "--offset 4: must be at most 3"),
    ("depth", 9, "--depth 9: must be below 9"),
    ("lr", math.nan, "--lr nan: must be a finite number"),
    ("lr", -math.inf, "--lr -inf: must be a finite number"),
    ("vary", [1.0, 11.0], "--vary 11.0: must be from 0 to 10"),
    ("vary", [math.nan], "--vary nan: must be from 0 to 10"),
    ("size", "smal", "--size smal: must be nano, small or large; did you mean 'small'?"),
    ("size", "a\nb", "--size 'a\\nb': must be nano, small or large"),
    ("size", None, "--size None: must be nano, small or large"),
    ("sizes", ["nano", "smal"], "--sizes smal: must be nano or small; did you mean 'small'?"),
    ("model", "gtp", "--model gtp: must be gpt or lstm; did you mean 'gpt'?"),
    ("downsample_factor", 3, "--downsample-factor 3: must be 2, 4 or 8"),
    ("downsample_factor", 4.0, "--downsample-factor 4.0: must be 2, 4 or 8"),
    ("width", "3", "width: '3' is not a whole number"),
    ("width", True, "width: True is not a whole number"),
    ("sizes", "nano", "sizes: 'nano' is not a list, each a text"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_value_out_of_range_is_refused_when_constructed(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Limited(**{name: value})
    assert str(caught.value) == message
    with pytest.raises(UserError):
        replace(Limited(), **{name: value})


ALLOWED: list[tuple[str, Any]] = [
    ("width", None),
    ("width", 1),
    ("dropout", 0.0),
    ("dropout", 0.999),
    ("val_fraction", 0.001),
    ("mfu", 1.0),
    ("codebook_size", 2),
    ("codebook_size", 65_536),
    ("offset", 3),
    ("offset", -5),
    ("depth", 8),
    ("lr", 1e9),
    ("vary", [0.0, 10.0]),
    ("vary", []),
    ("size", "nano"),
    ("sizes", ["nano", "small", "nano"]),
    ("model", "lstm"),
    ("model", None),
    ("downsample_factor", 8),
]


@pytest.mark.parametrize(("name", "value"), ALLOWED)
def test_the_ends_of_the_ranges_are_allowed(name: str, value: Any) -> None:
    assert getattr(Limited(**{name: value}), name) == value


def test_a_value_gets_the_type_of_its_option() -> None:
    made = Limited(dropout=0, vary=[1, 2])
    assert type(made.dropout) is float
    assert [type(value) for value in made.vary] == [float, float]


def test_defaults_that_are_lists_are_not_shared() -> None:
    Limited().vary.append(1.0)
    assert Limited().vary == []
    assert next(one for one in options(Limited) if one.name == "vary").default == []


def test_a_flag_has_dashes() -> None:
    assert flag("kv_heads") == "--kv-heads"


# Rules between options.


@dataclass(frozen=True)
class OptimizerSettings(Options):
    """Has an option that only one optimizer has."""

    group: ClassVar[str] = "Optimization"
    optimizer: Literal["muon", "adamw"] | None = option(None, "optimizer")
    lr: float | None = option(None, "learning rate", low=0)
    muon_lr: float | None = option(None, "learning rate of Muon", low=0, only={"optimizer": "muon"})


@dataclass(frozen=True)
class TrainingSettings(Options):
    """Holds another, under the name of one of its options."""

    steps: int | None = option(None, "steps", low=1, excludes="minutes")
    minutes: float | None = option(None, "minutes", above=0, below=1e6)
    batch_size: int | None = option(None, "batch size", low=1)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    threads: int | None = option(None, "threads", low=1, group="Machine")


@dataclass(frozen=True)
class Ruled(Options):
    """Each kind of rule."""

    model: Literal["gpt", "ngram", "lstm"] = option("gpt", "model")
    ngram_order: int | None = option(None, "order", low=1, only={"model": "ngram"})
    burn_in: int | None = option(None, "burn-in", low=0, only={"model": ("lstm",)})
    val_data: str | None = option(None, "validation data")
    val_fraction: float = option(0.1, "fraction", above=0, below=1, only={"val_data": None})
    num_beams: int = option(1, "beams", low=1)
    length_penalty: float = option(0.0, "penalty", low=0, high=10, needs="num_beams")
    temperature: float = option(0.8, "temperature", low=0, only={"num_beams": (1,)})
    unconditional: bool = option(False, "no classes")
    condition_dropout: float = option(0.1, "dropout", low=0, below=1, only={"unconditional": False})


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"ngram_order": 3}, "--ngram-order has no effect with --model gpt: leave it out"),
    ({"ngram_order": 3, "model": "lstm"}, "--ngram-order has no effect with --model lstm: leave it out"),
    ({"burn_in": 0}, "--burn-in has no effect with --model gpt: leave it out"),
    ({"val_data": "x.txt", "val_fraction": 0.2}, "--val-fraction has no effect with --val-data x.txt: leave it out"),
    ({"val_data": "x\n", "val_fraction": 0.2}, "--val-fraction has no effect with --val-data 'x\\n': leave it out"),
    ({"length_penalty": 1.0}, "--length-penalty has no effect without --num-beams: leave it out"),
    ({"num_beams": 4, "temperature": 1.0}, "--temperature has no effect with --num-beams 4: leave it out"),
    (
        {"unconditional": True, "condition_dropout": 0.2},
        "--condition-dropout has no effect with --unconditional: leave it out",
    ),
]


@pytest.mark.parametrize(("given", "message"), TOGETHER)
def test_an_option_without_effect_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Ruled(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "given",
    [
        {"model": "ngram", "ngram_order": 3},
        {"model": "lstm", "burn_in": 0},
        {"val_fraction": 0.2},
        {"val_data": "x", "val_fraction": 0.1},
        {"num_beams": 4, "length_penalty": 1.0},
        {"condition_dropout": 0.2},
    ],
)
def test_an_option_with_effect_or_at_its_default_is_allowed(given: dict[str, Any]) -> None:
    assert flatten(Ruled(**given)) == flatten(Ruled()) | given


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UserError, match=r"^--steps and --minutes: give one of them$"):
        TrainingSettings(steps=3, minutes=1.0)
    assert excluded_by({"minutes"}, [TrainingSettings]) == {"steps"}
    assert excluded_by({"steps", "lr"}, [Ruled, TrainingSettings]) == {"minutes"}


def test_rules_reach_into_a_settings_class_inside() -> None:
    @dataclass(frozen=True)
    class Outer(Options):
        model: Literal["cnn", "vit"] = option("vit", "model")
        inner: "Inner" = field(default_factory=lambda: Inner())

    @dataclass(frozen=True)
    class Inner(Options):
        pool: str | None = option(None, "pool", only={"model": "vit"})

    Outer.__annotations__["inner"] = Inner
    Outer.__dataclass_fields__["inner"].type = Inner
    assert Outer(inner=Inner(pool="cls")).inner.pool == "cls"
    with pytest.raises(UserError, match="--pool has no effect with --model cnn"):
        Outer(model="cnn", inner=Inner(pool="cls"))


def test_a_class_adds_rules_of_its_own() -> None:
    @dataclass(frozen=True)
    class Sizes(Options):
        width: int = option(64, "width", low=1)
        heads: int = option(4, "heads", low=1)

        def check(self) -> None:
            if self.width % self.heads:
                raise UserError(f"{flag('width')} {self.width}: must be divisible by {flag('heads')} {self.heads}")

    with pytest.raises(UserError, match=r"^--width 6: must be divisible by --heads 4$"):
        Sizes(width=6)
    with pytest.raises(UserError, match=r"^--heads 0: must be at least 1$"):
        Sizes(heads=0)


# Recipes.


def test_a_recipe_fills_in_what_was_not_given() -> None:
    given = TrainingSettings(steps=5, optimizer=OptimizerSettings(lr=0.5))
    filled, taken = fill(given, {"batch_size": 7, "lr": 0.1, "optimizer": "muon", "muon_lr": 0.2, "threads": None})
    assert taken == {"batch_size": 7, "optimizer": "muon", "muon_lr": 0.2}
    assert filled == TrainingSettings(steps=5, batch_size=7, optimizer=OptimizerSettings("muon", 0.5, 0.2))
    assert fill(filled, {"batch_size": 8, "lr": 0.1}) == (filled, {}), "a second time there is nothing left to fill in"


@pytest.mark.parametrize(
    ("given", "recipe", "length"),
    [
        ({"steps": 5}, {"minutes": 1.0}, (5, None)),
        ({"minutes": 2.0}, {"steps": 7}, (None, 2.0)),
        ({"minutes": 2.0}, {"steps": 7, "minutes": 1.0}, (None, 2.0)),
        ({}, {"minutes": 1.0}, (None, 1.0)),
        ({}, {"steps": 7, "minutes": 1.0}, (7, None)),
    ],
)
def test_a_recipe_gives_nothing_that_is_excluded(given: Any, recipe: Any, length: Any) -> None:
    filled, _ = fill(TrainingSettings(**given), recipe)
    assert (filled.steps, filled.minutes) == length
    assert fill(filled, recipe) == (filled, {})


@pytest.mark.parametrize("optimizer", [None, "adamw"])
def test_a_recipe_gives_nothing_without_effect(optimizer: Any) -> None:
    recipe = {"optimizer": "adamw" if optimizer is None else "muon", "muon_lr": 0.02}
    filled, taken = fill(TrainingSettings(optimizer=OptimizerSettings(optimizer)), recipe)
    assert filled.optimizer == OptimizerSettings("adamw")
    assert "muon_lr" not in taken


def test_what_was_given_is_refused_where_the_recipe_takes_its_effect() -> None:
    given = TrainingSettings(optimizer=OptimizerSettings(muon_lr=0.1))
    assert fill(given, {"optimizer": "muon"})[0].optimizer.muon_lr == 0.1
    with pytest.raises(UserError, match=r"^--muon-lr has no effect with --optimizer adamw: leave it out$"):
        fill(given, {"optimizer": "adamw"})


def test_a_recipe_is_checked() -> None:
    with pytest.raises(ValueError, match="batchsize"):
        fill(TrainingSettings(), {"batchsize": 3})
    with pytest.raises(UserError, match="--batch-size 0"):
        fill(TrainingSettings(), {"batch_size": 0})


# Inheritance, nesting and groups.


@dataclass(frozen=True)
class TextSource(Options):
    """A group of options that several tasks share."""

    group: ClassVar[str] = "Data"
    encoding: str = option("utf-8", "encoding")


@dataclass(frozen=True)
class TransformerSizes(Options):
    """Another."""

    group: ClassVar[str] = "Model"
    size: str = option("small", "size", choices=("tiny", "small"))
    width: int | None = option(None, "width", low=1)
    compile: bool = option(False, "compile", group="Machine")


@dataclass(frozen=True)
class TaskSettings(TextSource, TransformerSizes):
    """Combines both, changes a default, and has an option of its own."""

    size: str = option("tiny", "size", choices=("tiny", "small"))
    label_smoothing: float = option(0.0, "label smoothing", low=0, below=1)
    files: list[str] = option([], "files", positional=True)


def test_mixins_are_combined_and_checked() -> None:
    assert flatten(TaskSettings()) == {
        "size": "tiny",
        "width": None,
        "compile": False,
        "encoding": "utf-8",
        "label_smoothing": 0.0,
        "files": [],
    }
    with pytest.raises(UserError, match="--width 0: must be at least 1"):
        TaskSettings(width=0)


def test_an_option_is_in_the_group_of_the_class_that_declares_it() -> None:
    found = {one.name: one.group for one in options(TaskSettings)}
    assert found == {
        "size": "Model",
        "width": "Model",
        "compile": "Machine",
        "encoding": "Data",
        "label_smoothing": "",
        "files": "",
    }
    assert {one.name: one.group for one in options(TrainingSettings)} == {
        "steps": "",
        "minutes": "",
        "batch_size": "",
        "optimizer": "Optimization",
        "lr": "Optimization",
        "muon_lr": "Optimization",
        "threads": "Machine",
    }
    assert set(found.values()) <= {"", *GROUPS}


def test_what_is_declared_is_found() -> None:
    found = {one.name: one for one in options(TaskSettings)}
    assert found["size"].default == "tiny"
    assert found["size"].choices == ("tiny", "small")
    assert found["files"].positional
    assert found["files"].type == list[str]
    assert found["width"].help == "width"
    literal = {one.name: one.choices for one in options(Limited)}
    assert (literal["model"], literal["downsample_factor"]) == (("gpt", "lstm"), (2, 4, 8))


# From names.


@dataclass(frozen=True)
class Inner(Options):
    """Inside another."""

    rate: float | None = option(None, "how fast")
    kind: Literal["small", "large"] = option("small", "how large")


@dataclass(frozen=True)
class Outer(Options):
    """Holds another."""

    steps: int = option(10, "how many")
    name: str = option("x", "name")
    fast: bool = option(False, "fast")
    stop: list[str] = option([], "where to stop")
    pair: tuple[float, ...] = option((), "two numbers")
    inner: Inner = field(default_factory=Inner)


def test_build_and_flatten_are_inverse() -> None:
    flat = {"steps": 3, "name": "y", "fast": True, "stop": ["a"], "pair": (1.0, 2.0), "rate": 0.5, "kind": "large"}
    built = build(Outer, flat)
    assert built == Outer(3, "y", True, ["a"], (1.0, 2.0), Inner(0.5, "large"))
    assert flatten(built) == flat
    assert build(Outer, {}) == Outer()
    assert build(Inner, flat) == Inner(0.5, "large"), "names of other classes do not matter here"
    trained = {"steps": 3, "minutes": None, "batch_size": 4, "optimizer": "adamw", "lr": 0.1, "muon_lr": None}
    assert flatten(build(TrainingSettings, trained)) == trained | {"threads": None}


GOOD: list[tuple[Any, Any, Any]] = [
    (3, int, 3),
    (3, float, 3.0),
    (3, float | None, 3.0),
    (3, int | float, 3),
    (None, float | None, None),
    (None, None, None),
    (True, bool, True),
    ("a", Literal["a", "b"], "a"),
    (2, Literal[1, 2], 2),
    (["a", "b"], list[str], ["a", "b"]),
    ([1, 2.5], tuple[float, ...], (1.0, 2.5)),
    ((1, 2), list[float], [1.0, 2.0]),
    (object, Any, object),
]


@pytest.mark.parametrize(("value", "hint", "expected"), GOOD)
def test_a_value_of_the_type_passes(value: Any, hint: Any, expected: Any) -> None:
    found = fitting("x", value, hint)
    assert found == expected
    assert type(found) is type(expected)
    assert not isinstance(found, list | tuple) or [type(v) for v in found] == [type(v) for v in expected]


BAD: list[tuple[Any, Any, str]] = [
    ("3", int, "'3' is not a whole number"),
    (3.0, int, "3.0 is not a whole number"),
    (True, int, "True is not a whole number"),
    (True, float, "True is not a number"),
    (True, float | None, "True is not a number"),
    (1, bool, "1 is not true or false"),
    ("yes", bool, "'yes' is not true or false"),
    (3, str, "3 is not a text"),
    (None, int, "None is not a whole number"),
    ("c", Literal["a", "b"], "'c' is not one of a, b"),
    (True, Literal[1, 2], "True is not one of 1, 2"),
    ("ab", list[str], "'ab' is not a list, each a text"),
    (["a", 1], list[str], "is not a list, each a text"),
    ([True], tuple[float, ...], "is not a list, each a number"),
    ({"a": 1}, int | None, "is not a whole number"),
]


@pytest.mark.parametrize(("value", "hint", "message"), BAD)
def test_a_value_of_another_type_is_refused(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        fitting("x", value, hint)
    assert str(caught.value).startswith("x: ")
    assert message in str(caught.value)


def test_build_refuses_wrong_values_at_any_depth() -> None:
    with pytest.raises(UserError, match="rate: 'fast' is not a number"):
        build(Outer, {"rate": "fast"})
    with pytest.raises(UserError, match=r"--kind lage: must be small or large; did you mean 'large'\?"):
        build(Outer, {"kind": "lage"})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    refuse_unknown({"steps": 1, "rate": 2}, [Outer])
    with pytest.raises(UserError, match=r"^no setting 'step'; did you mean 'steps'\?$"):
        refuse_unknown({"rate": 1, "step": 1}, [Outer])
    with pytest.raises(UserError, match=r"^a file: no setting 'knd'; did you mean 'kind'\?$"):
        refuse_unknown({"knd": 1}, [Inner], "a file: ")
    with pytest.raises(UserError, match=r"^no setting 'zzzz'$"):
        refuse_unknown({"zzzz": 1}, [Outer])
    assert did_you_mean("Smal", ["small", "large"]) == "; did you mean 'small'?"
    assert did_you_mean("qqq", ["small", "large"]) == ""


def test_the_import_is_light() -> None:
    code = "import sys, tokenloom.config; print(sorted({'torch', 'numpy', 'cyclopts', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
