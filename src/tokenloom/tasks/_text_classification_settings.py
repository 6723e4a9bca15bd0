"""The settings of `text-classification`, and which of them go together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokenloom.config import Options, option
from tokenloom.errors import UserError
from tokenloom.tasks._text_encoder import EncoderSettings

# Settings that only one of the models has, with what they are when they are not given.
ENCODER_ONLY = {
    **dict.fromkeys(("context", "width", "depth", "heads", "dropout")),
    "size": "tiny",
    "preset": "modern",
    "class_weights": "none",
    "smoothing": None,
    "hide": None,
    "grams": None,
}


@dataclass(frozen=True)
class TextClassificationSettings(EncoderSettings):
    """Where texts and labels come from, the model, and what keeps it from learning few texts by heart."""

    size: str = option("tiny", "how large a model: nano, tiny, small, medium or large; sets what is not given below")
    model: Literal["encoder", "naive-bayes"] = option("encoder", "encoder: a transformer; naive-bayes: counted words")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the text")
    label: str | None = option(None, "column of a table, or field of JSON lines, that holds the label")
    header: bool | None = option(None, "the first row of a table names its columns; guessed when not given")
    validation: str | None = option(None, "validate on these data instead of a part of the data")
    val_fraction: float = option(0.1, "share of each class kept for validation")
    split: int = option(0, "seed of the split: another number keeps other texts")
    encoding: str = option("utf-8", "encoding of the text")
    class_weights: Literal["none", "balanced"] = option("none", "balanced: rare classes count as much as common ones")
    smoothing: float | None = option(None, "share of the target spread over all classes (label smoothing)")
    hide: float | None = option(None, "share of the tokens hidden in training, drawn anew each time")
    grams: int | None = option(None, "longest n-grams of tokens that are also read as a bag; 0 for none")
    alpha: float | None = option(None, "naive Bayes: what is added to every count [default: 1]")


@dataclass(frozen=True)
class PredictOptions(Options):
    """What is to be labeled."""

    texts: list[str] = option([], "texts to be labeled", positional=True)
    file: str | None = option(None, "a file with a text a line, or a table")
    column: str | None = option(None, "column of the table that holds the text")


def check_settings(s: TextClassificationSettings) -> None:
    """Raise UserError for a value out of range, and for settings without effect beside the others."""
    if not 0 < s.val_fraction < 1:
        raise UserError(f"--val-fraction {s.val_fraction}: must be above 0 and below 1")
    if s.validation is not None and (s.val_fraction, s.split) != (0.1, 0):
        raise UserError("--val-fraction and --split have no effect with --validation: leave them out")
    for name, below in (("smoothing", 1.0), ("hide", 1.0)):
        value = getattr(s, name)
        if value is not None and not 0 <= value < below:
            raise UserError(f"--{name} {value}: must be from 0 up to, but not including, 1")
    if s.grams is not None and not 0 <= s.grams <= 8:
        raise UserError(f"--grams {s.grams}: must be from 0 to 8")
    if s.alpha is not None and not 0 < s.alpha < math.inf:
        raise UserError(f"--alpha {s.alpha}: must be above 0: a word never seen in a class would forbid it")
    if s.model == "encoder" and s.alpha is not None:
        raise UserError("--alpha has no effect with --model encoder: leave it out")
    for name, default in ENCODER_ONLY.items():
        if s.model == "naive-bayes" and getattr(s, name) != default:
            raise UserError(f"--{name.replace('_', '-')} has no effect with --model naive-bayes: leave it out")
