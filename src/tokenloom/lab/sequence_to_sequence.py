"""Section 3: an encoder–decoder with cross-attention."""

from __future__ import annotations

import torch

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, between, exact, experiment, shown
from tokenloom.lab.reversal import DIGITS, fraction_reversed, reversal_batch, train_reversal
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import count_parameters
from tokenloom.plotting.svg import Line, Panel, Plot
from tokenloom.tasks.translation import CLASSIC_RECIPE

LENGTH, STEPS, TESTS = 10, 301, 500
LOSSES = {0: "2.54", 100: "0.99", 200: "0.016", 300: "0.010"}
CROSS = "decoder.layers.0.cross.pattern"


@experiment(
    "3.14",
    "Sequence to sequence",
    question="How does a decoder find what it needs in the source?",
    protocol="Reverse 10 random digits: D = 32, H = 2, one encoder and one decoder layer, one token table of 11 for "
    "both sides, seed 5; Adam 3e-3, 301 steps of 64, G(5) for the data and then the 500 tests, decoded greedily.",
    explanation="For each digit the decoder has to read another position of the source. Cross-attention learns "
    "exactly this, without supervision: its largest weights lie on the anti-diagonal. While it learns that, the loss "
    "falls by two orders of magnitude.",
    seed=5,
    quick=True,
    seconds=12.0,
)
def reversal(ctx: ExperimentContext) -> Outcome:
    """3.14."""
    config = EncoderDecoderConfig(
        DIGITS,
        DIGITS,
        LENGTH,
        LENGTH,
        width=32,
        depth=1,
        heads=2,
        shared_vocab=True,
        **EncoderDecoderConfig.parts("classic"),
    )
    model = EncoderDecoder(config, seed=ctx.seed)
    generator = ctx.generator()
    steps = 151 if ctx.quick else STEPS
    recipe = {**CLASSIC_RECIPE, "weight_decay_on": "matrices"}
    losses = train_reversal(model, recipe, steps, generator, lambda step: LENGTH, report_progress=ctx.report_progress)
    strings = torch.randint(0, DIGITS, (TESTS, LENGTH), generator=generator)
    share = fraction_reversed(model, strings)
    weights, distance = mean_cross_attention(model, strings)

    measurements = [shown("parameters", f"{count_parameters(model):,}", "–")]
    if ctx.quick:
        measurements.append(between("loss at 100 (coarse)", 0.4, 1.4, losses[100], LOSSES[100]))
        measurements.append(at_most("loss at 150 (coarse)", 0.3, losses[150]))
        measurements.append(at_least("exactly reversed (coarse)", 0.2, share))
    else:
        for step, text in LOSSES.items():
            found = f"{losses[step]:.{len(text) - 2}f}"
            name = f"loss at {step}"
            measurements.append(exact(name, text, found) if ctx.default_seed else shown(name, found, text))
        name, published = f"{TESTS} new strings exactly reversed", "99.0 %"
        if ctx.default_seed:
            measurements.append(between(name, 0.98, 1.0, share, published))
        else:
            measurements.append(at_least(name, 0.97, share, published))
        measurements.append(
            at_most("largest weight, positions off the anti-diagonal", 1, distance, "on it or next to it")
        )
    places = [str(i + 1) for i in range(LENGTH)]
    plots = [
        Plot(
            "Cross-attention",
            "Mean over 500 strings and both heads: the largest weights lie on the anti-diagonal or next to it.",
            "position in the source",
            "position in the target",
            panels=[Panel("weight", weights.tolist(), places, places)],
        ),
        Plot(
            "Training loss",
            "The loss falls slowly at first and then by two orders of magnitude.",
            "step",
            "nats/digit",
            [Line("training", list(range(len(losses))), losses)],
            log_y=True,
        ),
    ]
    return Outcome(measurements, plots)


def mean_cross_attention(model: EncoderDecoder, strings: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the cross-attention (N, N), averaged over strings and heads, and the largest distance of a row's maximum
    from the anti-diagonal."""
    hooks = Hooks(CROSS)
    with torch.no_grad():
        model(reversal_batch(strings), hooks=hooks)
    weights = hooks.values[CROSS].mean((0, 1))
    distances = weights.argmax(1) - (LENGTH - 1 - torch.arange(LENGTH))
    return weights, int(distances.abs().max())
