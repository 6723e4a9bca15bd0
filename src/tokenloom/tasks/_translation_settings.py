"""The settings of translation: how pairs are read and tokenized, and the sizes and training that suit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tokenloom.config import Options, option
from tokenloom.errors import UserError
from tokenloom.tasks._sizes import SizePreset, rates, size_preset

# Tokens of a side that are taken without being asked for: memory grows with their square.
MOST_TOKENS = 512
# A short set of pairs is passed over so often, in fewer than so many steps, and not for minutes.
MOST_EPOCHS, SHORT = 40, 4_000
# The textbook's own training: Adam at a constant rate.
CHAPTER_RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 3e-3,
    "weight_decay": 0.0,
    "beta2": 0.999,
    "grad_clip": 0.0,
    "lr_schedule": "wsd",
    "warmup_steps": 0,
    "decay_fraction": 0.0,
}


def _size(depth: int, width: int, heads: int, dropout: float) -> SizePreset:
    recipe = {"batch_size": 64, **rates(width), "weight_decay": 0.05, "decay_fraction": 1.0, "minutes": 5.0}
    return SizePreset({"depth": depth, "width": width, "heads": heads}, dropout, recipe)


SIZES = {
    "nano": _size(1, 64, 4, 0.0),
    "small": _size(2, 128, 4, 0.1),
    "medium": _size(3, 256, 8, 0.1),
    "large": _size(6, 512, 8, 0.1),
}


@dataclass(frozen=True)
class TranslationSettings(Options):
    """How pairs are read, how they become tokens, and the model's sizes; None = derived."""

    model: Literal["transformer", "rnn", "rnn-attention"] = option(
        "transformer", "transformer, or recurrent without attention (rnn) or with it (rnn-attention)"
    )
    size: str = option("small", "how large a model: nano, small, medium or large; sets what is not given below")
    preset: Literal["modern", "classic"] = option("modern", "parts of the transformer: modern, or as in the textbook")
    width: int | None = option(None, "features of a token inside the model")
    depth: int | None = option(None, "layers, of the encoder and of the decoder")
    heads: int | None = option(None, "attention heads a layer of the transformer")
    dropout: float | None = option(None, "share of activations dropped in training")
    smoothing: float = option(0.0, "label smoothing: share of each target spread over all tokens in training")
    tokenizer: str = option("auto", "auto, char, word, bpe or byte-bpe")
    vocab_size: int | None = option(None, "ids of a word, bpe or byte-bpe tokenizer")
    vocabularies: Literal["shared", "separate"] = option("shared", "one vocabulary for both sides, or one for each")
    longest: int | None = option(None, "tokens of a side at most; the longest there are, up to 512, when not given")
    too_long: Literal["refuse", "leave-out"] = option("refuse", "what to do with longer pairs: refuse, or leave-out")
    target: str | None = option(None, "file whose lines are the targets of the data's lines")
    source_column: str | None = option(None, "column of a table, or field of JSON lines, that holds the sources")
    target_column: str | None = option(None, "column of a table, or field of JSON lines, that holds the targets")
    header: bool | None = option(None, "the first row of a table names its columns; guessed when not given")
    validation: str | None = option(None, "validate on this table of pairs instead of a part of the data")
    val_fraction: float = option(0.1, "share of the sources kept for validation")
    encoding: str = option("utf-8", "encoding of the files")

    def check(self) -> None:
        for name in ("width", "depth", "heads", "vocab_size", "longest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        for name in ("dropout", "smoothing"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be from 0 up to, but not including, 1")
        if not 0 < self.val_fraction < 1:
            raise UserError(f"--val-fraction {self.val_fraction}: must be above 0 and below 1")
        if self.validation is not None and self.val_fraction != type(self).val_fraction:
            raise UserError("--val-fraction has no effect with --validation: leave one of them out")
        if self.model != "transformer":
            for name in ("preset", "heads"):
                if getattr(self, name) not in (None, "modern"):
                    raise UserError(
                        f"--{name.replace('_', '-')} {getattr(self, name)}: is for --model transformer; leave it out"
                    )
        size_preset(self.size, SIZES)
