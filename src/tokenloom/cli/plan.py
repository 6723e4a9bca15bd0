"""`tokenloom plan`: what a training would need, here or on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenloom.cli.display import field
from tokenloom.cli.output import JsonOptions, print_json, quantity
from tokenloom.plotting.tables import plain_table
from tokenloom.utils.progress import duration

if TYPE_CHECKING:
    from tokenloom.planning.forecast import Forecast
    from tokenloom.planning.text import TextPlan

SIZES = ["weights", "gradients", "optimizer", "activations", "work space", "all", "of"]
HEADER = ["machine", "mode", "activation_checkpointing", *SIZES, "tokens/s", "time", "fits"]
# A step that would be shorter than this, in seconds, is ruled by what the formulas leave out.
SHORT_STEP = 0.01


def option_classes() -> list[type]:
    """Return the settings classes of `plan`."""
    from tokenloom.planning.text import PlanSettings
    from tokenloom.tasks.text_generation import TextGeneration

    return [JsonOptions, TextGeneration.Settings, PlanSettings]


def show_plan(data: str | None, given: dict[str, Any]) -> None:
    """`tokenloom plan [DATA] --size …`."""
    from tokenloom.planning.text import plan

    as_json = given.pop("json", False)
    found = plan(data, **given)
    if as_json:
        print_json(found.as_dict())
    else:
        print("\n".join(lines(found)))


def lines(found: TextPlan) -> list[str]:
    """The plan for a person to read."""
    from tokenloom.planning.costs import flops_per_token, parameters
    from tokenloom.planning.forecast import RESERVE

    t = found.training
    s = t.sizes
    notes = [
        f"Bytes are those of one device, which must keep {RESERVE:.0%} of its memory free for the framework. "
        "checkpointing: each layer keeps its input alone, and is computed again.",
        *dict.fromkeys(f"{one.hardware.name}: {_speed(one)}" for one in found.forecasts),
    ]
    quick = dict.fromkeys(one.hardware.name for one in found.forecasts if one.seconds < SHORT_STEP * found.steps)
    if quick:
        notes.append(
            f"{', '.join(quick)}: steps of less than {SHORT_STEP * 1000:.0f} ms; starting the kernels, which is not "
            "counted, takes that long for so small a model, and a larger --batch-size is needed to reach these rates"
        )
    return [
        field("model", f"{parameters(s):,} parameters, {quantity(flops_per_token(s))} FLOPs to train a token"),
        field(
            "sizes",
            f"width {s.width:,}, depth {s.depth:,}, heads {s.heads:,}, context {s.context:,}, "
            f"{s.vocab_size:,} different ids",
        ),
        field("tokens", f"{t.tokens:,} ({found.tokens_from})"),
        field("work", f"{t.flops:.3g} FLOPs, {found.steps:,} steps of {t.batch_size:,} samples, {t.optimizer}"),
        "",
        plain_table([_cells(one) for one in found.forecasts], HEADER),
        "",
        *notes,
    ]


def _speed(one: Forecast) -> str:
    share = f"{one.utilisation:.1%}" + (" of it, measured" if one.hardware.utilisation is not None else " of it")
    return f"{quantity(one.hardware.rate(one.dtype), 'FLOP/s')} in {one.dtype} ({one.hardware.source}), {share}"


def _cells(one: Forecast) -> list[object]:
    m = one.memory
    times = f"{one.devices:,} × " if one.devices > 1 else ""
    return [
        times + one.hardware.name,
        one.mode,
        "yes" if one.activation_checkpointing else "no",
        *(
            quantity(size, "B")
            for size in (m.weights, m.gradients, m.optimizer, m.activations, one.workspace, one.needed)
        ),
        quantity(one.hardware.memory, "B"),
        quantity(one.tokens_per_second),
        f"{one.days:,.1f} days" if one.days >= 2 else duration(one.seconds),
        "yes" if one.fits else f"no: {one.remedy}",
    ]
