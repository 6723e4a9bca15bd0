"""Section 2: how much of a text one vector can represent, without and with attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, experiment
from tokenloom.lab.reversal import DIGITS, train_reversal, translate
from tokenloom.models.encoder_decoder import EncoderDecoder
from tokenloom.models.recurrent_translation import RecurrentTranslator, RecurrentTranslatorConfig
from tokenloom.plotting.svg import Line, Plot
from tokenloom.training.settings import DEFAULT_RECIPE

LENGTHS, QUICK_LENGTHS = (5, 10, 15, 20, 25, 30), (5, 10, 15)


@dataclass(frozen=True)
class ByLength:
    """Accuracy on new strings by their length: of digits, and of whole strings."""

    digits: dict[int, float]
    strings: dict[int, float]


def reversed_by_length(
    model: EncoderDecoder | RecurrentTranslator,
    *,
    steps: int,
    lr: float,
    lengths: Sequence[int] = LENGTHS,
    batch_size: int = 64,
    seed: int = 7,
    report_progress: Callable[[float], None] = lambda fraction: None,
) -> ByLength:
    """Train on strings of all lengths in turn, and evaluate on 200 new ones of each. All draws are from G(seed)."""
    generator = torch.Generator().manual_seed(seed)
    recipe = {**DEFAULT_RECIPE, "optimizer": "adamw", "lr": lr, "warmup_steps": 50}
    train_reversal(
        model,
        recipe,
        steps,
        generator,
        lambda step: lengths[step % len(lengths)],
        batch_size=batch_size,
        report_progress=report_progress,
    )
    found = ByLength({}, {})
    for length in lengths:
        strings = torch.randint(0, DIGITS, (200, length), generator=generator)
        right = translate(model, strings) == strings.flip(1)
        found.digits[length] = right.double().mean().item()
        found.strings[length] = right.all(1).double().mean().item()
    return found


@experiment(
    "2.10b",
    "The bottleneck",
    question="How much of a text can one vector represent?",
    protocol="A recurrent encoder–decoder (gated units, D = 64) learns to reverse strings of 5 … 30 digits in 600 "
    "steps of 32, without attention and with it; 200 new strings of each length, decoded greedily.",
    explanation="Without attention the decoder gets the source as one vector, whose size does not grow with the text: "
    "it represents a few digits and loses the rest. With attention each step reads all states of the encoder and "
    "finds the digit that it needs, however long the string. This is what attention was invented for.",
    seed=7,
    seconds=40.0,
    quick=True,
)
def bottleneck(ctx: ExperimentContext) -> Outcome:
    """2.10b."""
    steps, lengths = (120, QUICK_LENGTHS) if ctx.quick else (600, LENGTHS)
    found: dict[str, ByLength] = {}
    for number, (name, attention) in enumerate((("without attention", False), ("with attention", True))):
        config = RecurrentTranslatorConfig(DIGITS, DIGITS, 64, 1, attention=attention, shared_vocab=True)
        found[name] = reversed_by_length(
            RecurrentTranslator(config, ctx.seed),
            steps=steps,
            lr=6e-3,
            lengths=lengths,
            batch_size=32,
            seed=ctx.seed,
            report_progress=lambda fraction, number=number: ctx.report_progress((number + fraction) / 2),  # type: ignore[misc]
        )
    without, attending = found["without attention"], found["with attention"]
    own = "own figure"
    if ctx.quick:
        gained = attending.digits[15] - without.digits[15]
        measurements = [at_least("digits right at length 15, with attention − without (coarse)", 0.1, gained, own)]
    else:
        measurements = [
            at_least("whole strings of 5, without attention", 0.3, without.strings[5], own),
            at_most("whole strings of 30, without attention", 0.05, without.strings[30], "falls with length"),
            at_least("digits right at 5 − at 30, without attention", 0.3, without.digits[5] - without.digits[30], own),
            at_least("digits right at any length, with attention", 0.7, min(attending.digits.values()), "stays high"),
            at_least("whole strings of 30, with attention", 0.15, attending.strings[30], own),
        ]
    plots = [
        Plot(
            title,
            caption,
            "digits of the source",
            unit,
            [Line(name, lengths, list(getattr(values, kind).values())) for name, values in found.items()],
        )
        for title, caption, unit, kind in (
            (
                "Digits right",
                "Without attention it falls towards chance, 0.1; with attention it stays high.",
                "fraction",
                "digits",
            ),
            ("Whole strings right", "A string counts only if all its digits are right.", "fraction", "strings"),
        )
    ]
    return Outcome(measurements, plots)
