"""`tokenloom plan`: costs of a training on this machine and on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenloom.cli.display import field
from tokenloom.cli.output import JsonOptions, print_json, quantity
from tokenloom.config import flag
from tokenloom.plotting.tables import plain_table
from tokenloom.utils.progress import duration

if TYPE_CHECKING:
    from tokenloom.planning.forecast import Forecast
    from tokenloom.runs.plan import TextPlan

HEADER = ["hardware", "mode", "checkpointing", "weights", "gradients", "optimizer", "activations", "workspace"]
HEADER += ["total", "available", "tokens/s", "time", "fits"]
# Steps shorter than this, in seconds, are dominated by costs that the formulas leave out.
SHORT_STEP = 0.01


def option_classes() -> list[type]:
    """Return the settings classes of `plan`."""
    from tokenloom.runs.plan import PlanSettings
    from tokenloom.tasks.text_generation import TextGeneration

    return [JsonOptions, TextGeneration.Settings, PlanSettings]


def show_plan(data: str | None, given: dict[str, Any]) -> None:
    """Run `tokenloom plan [DATA] --size …`."""
    from tokenloom.runs.plan import plan

    as_json = given.pop("json", False)
    found = plan(data, **given)
    if as_json:
        print_json(found.as_dict())
    else:
        print("\n".join(lines(found)))


def lines(found: TextPlan) -> list[str]:
    """Return the plan as text."""
    from tokenloom.nn.modules import count_parameters
    from tokenloom.planning.costs import planned_flops_per_token
    from tokenloom.planning.forecast import RESERVE

    t = found.training
    c = t.model.config
    flops = quantity(planned_flops_per_token(t.model))
    notes = [
        f"Memory is per device; {RESERVE:.0%} of it is kept free for the framework. checkpointing: activation"
        " checkpointing, each layer stores only its input and is computed again in the backward pass.",
        *dict.fromkeys(f"{one.hardware.name}: {_rate(one)}" for one in found.forecasts),
    ]
    short = dict.fromkeys(one.hardware.name for one in found.forecasts if one.seconds < SHORT_STEP * t.steps)
    if short:
        notes.append(
            f"{', '.join(short)}: a step would take less than {SHORT_STEP * 1000:.0f} ms, which is dominated by kernel"
            f" launches, not counted here; reaching these rates needs a larger {flag('batch_size')}"
        )
    return [
        field(
            "model",
            f"{count_parameters(t.model):,} parameters, {flops} training FLOPs per token",
        ),
        field(
            "sizes",
            f"width {c.width:,}, depth {c.depth:,}, heads {c.heads:,}, context {c.context:,}, vocab size"
            f" {c.vocab_size:,}",
        ),
        field("tokens", f"{t.num_tokens:,} ({found.tokens_from})"),
        field("compute", f"{t.flops:.3g} FLOPs, {t.steps:,} steps of {t.batch_size:,} samples, {t.optimizer}"),
        "",
        plain_table([_cells(one) for one in found.forecasts], HEADER),
        "",
        *notes,
    ]


def _rate(one: Forecast) -> str:
    measured = ", measured" if one.hardware.mfu is not None else ""
    peak = quantity(one.hardware.peak(one.dtype), "FLOP/s")
    return f"{peak} peak in {one.dtype} ({one.hardware.source}), MFU {one.mfu:.1%}{measured}"


def _cells(one: Forecast) -> list[object]:
    m = one.memory
    times = f"{one.num_devices:,} × " if one.num_devices > 1 else ""
    sizes = (m.weights, m.gradients, m.optimizer, m.activations, one.workspace, one.needed, one.hardware.memory)
    return [
        times + one.hardware.name,
        one.mode,
        "yes" if one.activation_checkpointing else "no",
        *(quantity(size, "B") for size in sizes),
        quantity(one.tokens_per_second),
        f"{one.days:,.1f} days" if one.days >= 2 else duration(one.seconds),
        "yes" if one.fits else f"no: {one.remedy}",
    ]
