"""Options that the settings of several tasks share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tokenloom.config import Options, flag, option, options
from tokenloom.data.documents import DEFAULT_FRACTION
from tokenloom.errors import UserError
from tokenloom.nn.mlp import ACTIVATIONS, MLPS
from tokenloom.nn.norms import NORMS
from tokenloom.nn.positions import POSITIONS
from tokenloom.nn.transformer import TransformerConfig


@dataclass(frozen=True)
class TextSource(Options):
    """How text is read."""

    group: ClassVar[str] = "Data"

    text_column: str | None = option(None, "table column or JSON field with the text")
    encoding: str = option("utf-8", "character encoding of the files")
    normalize_newlines: bool = option(True, "read every kind of line ending as a line feed")


@dataclass(frozen=True)
class ValidationSplit(Options):
    """Which data are used for validation."""

    group: ClassVar[str] = "Data"

    val_data: str | None = option(None, "validate on these data instead of a part of the training data")
    val_fraction: float = option(
        DEFAULT_FRACTION, "fraction of the data used for validation", above=0, below=1, only={"val_data": None}
    )
    split_seed: int = option(0, "seed of the train/validation split", only={"val_data": None})


@dataclass(frozen=True)
class TextTokenization(Options):
    """How text becomes tokens."""

    group: ClassVar[str] = "Data"

    tokenizer: Literal["auto", "char", "word", "bpe", "byte-bpe"] = option(
        "auto", "kind of tokenizer; auto chooses by the text"
    )
    vocab_size: int | None = option(None, "vocabulary size of a word, bpe or byte-bpe tokenizer", low=1)


@dataclass(frozen=True)
class TransformerParts(Options):
    """Parts of a transformer; None is that of the preset."""

    group: ClassVar[str] = "Model"

    norm: str | None = option(None, f"{', '.join(NORMS)}, or your own as ./file.py:Name")
    mlp: str | None = option(None, f"{', '.join(MLPS)}, or your own as ./file.py:Name")
    activation: str | None = option(None, f"of the MLP: {', '.join(ACTIVATIONS)}, or your own as ./file.py:name")
    positions: str | None = option(None, f"{', '.join(POSITIONS)}, or your own as ./file.py:Name")
    qk_norm: str | None = option(None, "norm of queries and keys: none, or as for norm")

    def parts(self, config: type[TransformerConfig], preset: str = "modern") -> dict[str, Any]:
        """Return the entries for a model's config: the parts of a preset, with the given ones in place of its own."""
        return config.parts(preset, **{name: getattr(self, name) for name in PART_NAMES})


@dataclass(frozen=True)
class TransformerSizes(TransformerParts):
    """Parts and sizes of a transformer; None is derived."""

    group: ClassVar[str] = "Model"

    preset: Literal["modern", "classic"] = option("modern", "parts of the transformer: modern, or as in the textbook")
    width: int | None = option(None, "features per token", low=1)
    depth: int | None = option(None, "number of layers", low=1)
    heads: int | None = option(None, "attention heads per layer", low=1)
    dropout: float | None = option(None, "fraction of activations set to zero in training", low=0, below=1)


PART_NAMES = tuple(one.name for one in options(TransformerParts))
TRANSFORMER_NAMES = tuple(one.name for one in options(TransformerSizes))


def refuse_given(settings: Options, names: Collection[str], where: str) -> None:
    """Raise UserError when one of these options was given. where: why they have no effect, "with --model rnn"."""
    for one in options(type(settings)):
        if one.name in names and getattr(settings, one.name) != one.default:
            raise UserError(f"{flag(one.name)} has no effect {where}: leave it out")
