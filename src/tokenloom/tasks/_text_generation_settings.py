"""The settings of text generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenloom.config import Options, option
from tokenloom.errors import UserError


@dataclass(frozen=True)
class TextGenerationSettings(Options):
    """How the text is read, how it becomes tokens, and the model's sizes; None = derived."""

    model: Literal["gpt", "unigram", "bigram", "ngram", "rnn", "lstm", "gru"] = option(
        "gpt", "gpt, unigram, bigram, ngram, rnn, lstm or gru (see tokenloom tasks)"
    )
    size: str = option("small", "how large a model: nano, tiny, small, medium or large; sets what is not given below")
    preset: Literal["modern", "classic"] = option("modern", "parts of the model: modern, or as in the textbook")
    context: int | None = option(None, "tokens of a window: what a prediction of a gpt can see")
    width: int | None = option(None, "features of a token inside the model")
    depth: int | None = option(None, "layers")
    heads: int | None = option(None, "attention heads a layer")
    kv_heads: int | None = option(None, "key–value heads a layer; as many as heads when not given")
    window: int | None = option(None, "attend to this many tokens only, and go on for ever in fixed memory")
    dropout: float | None = option(None, "share of activations dropped in training")
    burn_in: int | None = option(
        None, "rnn, lstm, gru: tokens read before each training window, to have a state; 0 begins from zero"
    )
    order: int | None = option(None, "ngram: tokens of the longest n-gram [default: 6]")
    smoothing: Literal["kneser-ney", "modified-kneser-ney", "add", "interpolated"] | None = option(
        None, "of counts: kneser-ney, modified-kneser-ney, add or interpolated (Jelinek–Mercer)"
    )
    alpha: float | None = option(None, "what --smoothing add adds to each count [default: 1]")
    tokenizer: str = option("auto", "auto, char, word, bpe or byte-bpe")
    vocab_size: int | None = option(None, "ids of a word, bpe or byte-bpe tokenizer")
    borders: bool | None = option(
        None, "keep documents apart with an end token; by default where there are several documents"
    )
    validation: str | None = option(None, "validate on this text instead of a part of the data")
    val_fraction: float = option(0.1, "share of the data kept for validation")
    column: str | None = option(None, "column of a table, or field of JSON lines, that holds the text")
    encoding: str = option("utf-8", "encoding of the text")
    newlines: Literal["fold", "keep"] = option("fold", "fold: every kind of line end becomes a line feed; keep")

    def check(self) -> None:
        """Raise UserError for values that no model could have."""
        for name in ("context", "width", "depth", "heads", "kv_heads", "window", "order", "vocab_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.burn_in is not None and self.burn_in < 0:
            raise UserError(f"--burn-in {self.burn_in}: must be at least 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout}: must be from 0 up to, but not including, 1")
        if not 0 < self.val_fraction < 1:
            raise UserError(f"--val-fraction {self.val_fraction}: must be above 0 and below 1")
        if self.validation is not None and self.val_fraction != TextGenerationSettings.val_fraction:
            raise UserError("--val-fraction has no effect with --validation: leave one of them out")
