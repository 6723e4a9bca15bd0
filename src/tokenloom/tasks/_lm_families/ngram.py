"""Counted models: bag of words, bigrams, n-grams of any order."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenloom.errors import UserError
from tokenloom.models.batch import IGNORE, Batch
from tokenloom.models.ngram import Ngram, jelinek_mercer
from tokenloom.models.ngram_lm import NgramModel
from tokenloom.models.ngram_smoothing import Additive, KneserNey, Smoothing
from tokenloom.tasks._lm_families.base import ModelFamily, ResolvedSizes, fitted_context
from tokenloom.tasks._sizes import size_preset
from tokenloom.tasks._text_generation_settings import TextGenerationSettings
from tokenloom.training.losses import LossTerm

ORDERS = {"unigram": 1, "bigram": 2, "ngram": 6}
# Keys are (number of a context) · vocab + token, in 64 bits.
LARGEST_KEY = 2**63 - 1


class NgramFamily(ModelFamily):
    """N-grams, smoothed."""

    models: ClassVar = {
        "unigram": "bag of words: each token by how often it occurs, add-one",
        "bigram": "each token by the one before it, add-one",
        "ngram": "each token by the --order − 1 before it; --smoothing kneser-ney unless given",
    }
    takes: ClassVar = frozenset({"order", "smoothing", "alpha"})
    shown: ClassVar = ("order", "smoothing", "alpha", "context")
    counted: ClassVar = True

    def check(self, settings: TextGenerationSettings) -> None:
        s = settings
        if s.order is not None and s.model != "ngram":
            raise UserError(f"--order {s.order}: a {s.model} has order {ORDERS[s.model]}; --model ngram has any")
        if s.order is not None and s.order > 64:
            raise UserError(f"--order {s.order}: at most 64")
        if s.alpha is not None and not 0 < s.alpha < float("inf"):
            raise UserError(f"--alpha {s.alpha}: must be above 0")
        if s.alpha is not None and _smoothing(s) != "add":
            raise UserError(f"--alpha has no effect with --smoothing {_smoothing(s)}: leave it out, or take add")

    def settle(self, settings: TextGenerationSettings, tokens: int, vocab_size: int) -> ResolvedSizes:
        s = settings
        context, note = fitted_context(s, s.context or size_preset("small").sizes["context"], tokens)
        smoothing = _smoothing(s)
        chosen: dict[str, Any] = {"smoothing": smoothing, "context": context}
        if smoothing == "add":
            chosen["alpha"] = 1.0 if s.alpha is None else s.alpha
        order = s.order or ORDERS[s.model]
        if s.model == "ngram":
            chosen["order"] = order
        return ResolvedSizes({"vocab_size": vocab_size, **chosen, "order": order}, chosen, note)

    def build(self, config: dict[str, Any], seed: int) -> NgramModel:
        if "sizes" not in config:
            raise UserError("the sizes of an n-gram model are known once it is counted")
        interpolated = config["smoothing"] != "add"
        return NgramModel(config["vocab_size"], config["sizes"], interpolated=interpolated, border=config["border"])

    def count(self, config: dict[str, Any], ids: NDArray[Any], border: int | None) -> NgramModel:
        if len(ids) * config["vocab_size"] > LARGEST_KEY:
            raise UserError(
                f"--vocab-size {config['vocab_size']:,}: too many different ids for a text of {len(ids):,} tokens"
            )
        way, vocab_size, order = config["smoothing"], config["vocab_size"], config["order"]
        smoothing: Smoothing = KneserNey(modified=way == "modified-kneser-ney")
        if way == "add":
            smoothing = Additive(config["alpha"])
        elif way == "interpolated":
            smoothing = jelinek_mercer([ids], vocab_size, order, border)
        model = NgramModel.of(Ngram.fit([ids], vocab_size, order, smoothing, border=border))
        config |= {"sizes": [len(level.keys) for level in model.ngram.levels], "border": border}
        return model

    def term(self, model: nn.Module, batch: Batch) -> LossTerm:
        """Without the table of all tokens that are not asked for."""
        assert isinstance(model, NgramModel)
        targets = batch.targets["loss"]
        return LossTerm(-model.log_probs(batch, targets).sum(1), (targets != IGNORE).sum(1))

    def running(self, model: nn.Module, ids: NDArray[np.int64]) -> Tensor:
        assert isinstance(model, NgramModel)
        return torch.from_numpy(-model.ngram.log_probs(ids)[1:])


def _smoothing(settings: TextGenerationSettings) -> str:
    return settings.smoothing or ("kneser-ney" if settings.model == "ngram" else "add")
